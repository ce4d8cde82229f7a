"""The clock: one integer count of virtual nanoseconds, and the one lock of the process.

The card is a discrete-event simulation. Work that has been started waits in an agenda, by the
moment it ends; its effect on memory happens when a call moves the clock past that moment, in
(time, submission number) order, and at no other time. How fast the host is never matters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch_spyre_ref.emulator.undisturbed import UNDISTURBED

if TYPE_CHECKING:
    from torch_spyre_ref.emulator.pipelines import Pipeline

Effect = Callable[[], None]
"""What an operation does to memory, all at once, at the moment it ends."""

Duration = int | Callable[[], int]
"""Virtual ns that an operation takes, or what says so at the moment it starts: how long a program
runs is known when it has been fetched."""


class Clock:
    """Virtual time, the agenda of started work, and the lock around both.

    ``now`` is the host's place in time; while an effect happens it is the moment of the effect.
    ``agenda`` is a heap of started work: its end, ticket, start, effect, pipeline and token.
    ``ticket()`` is the next submission number; they count from 1 over all cards and queues.
    Everything else is called by the holder of the lock only, that is inside ``with clock:``, which

    - takes the lock, and may be nested;
    - keeps the garbage collector and Ctrl-C out: see :mod:`torch_spyre_ref.emulator.undisturbed`;
    - drops what finished work held only after the lock is released: it may be the last reference.

    Raises ``RuntimeError`` when entered from inside an effect.
    """

    def __init__(self) -> None:
        self.now = 0
        self.agenda: list[tuple[int, int, int, Effect | None, Pipeline, Any]] = []
        self._contended: list[Pipeline] = []
        self._finished: list[object] = []
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._depth = 0
        self._in_effect = False
        # Bound once, as entering is what every call pays.
        self._keep_out, self._let_in = UNDISTURBED.__enter__, UNDISTURBED.__exit__
        self.retire = self._finished.append
        """Keeps what it is given until the lock is released, then lets go of it."""
        self._draw: Callable[[], int] = count(1).__next__
        self.ticket = self._draw  # rebound while somebody watches; nobody pays for that otherwise

    def __enter__(self) -> None:
        thread = get_ident()
        if self._holder == thread:
            if self._in_effect:
                raise RuntimeError(
                    "an operation's effect or host callback called the runtime; it may only touch "
                    "the memory it was given"
                )
            self._depth += 1
            return
        self._keep_out()
        self._lock.acquire()
        self._holder = thread

    def __exit__(self, *error: object) -> None:
        if self._depth:
            self._depth -= 1
            return
        finished = self._finished[:]
        self._finished.clear()
        self._holder = None
        self._lock.release()
        finished.clear()
        self._let_in()

    def contend(self, pipeline: Pipeline) -> None:
        """Have ``pipeline`` handed over when this instant is over."""
        self._contended.append(pipeline)

    def watch_tickets(self, watcher: Callable[[int], None] | None) -> None:
        """Have ``watcher`` called with every submission number that is drawn from now on, on the
        thread that draws it; there is one watcher, or None."""
        self.ticket = draw = self._draw
        if watcher is None:
            return

        def watched() -> int:
            number = draw()
            watcher(number)
            return number

        self.ticket = watched

    # --8<-- [start:advance]
    def advance(self, until: int) -> None:
        """Let everything happen that is due by ``until``, then make that the time."""
        agenda = self.agenda
        while agenda and agenda[0][0] <= until:
            self.step()
        self.now = until

    # --8<-- [end:advance]

    def step(self) -> None:
        """Let the next thing happen, and make its moment the time."""
        agenda = self.agenda
        end, _, start, effect, pipeline, token = heappop(agenda)
        self.now = end
        error = None
        if effect is not None:
            self._in_effect = True
            try:
                effect()
            except BaseException as failure:
                error = failure
            self._in_effect = False
        pipeline.end(token, start, error)
        if self._contended and not (agenda and agenda[0][0] == end):
            contended, self._contended = self._contended, []
            for pipeline in contended:
                pipeline.hand_over()
        error = None  # its traceback leads back to this frame: the two would keep each other
