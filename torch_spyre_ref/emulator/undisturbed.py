"""Keeping others out while something is half changed: the garbage collector, and Ctrl-C.

Python code can be stopped between any two of its steps, by a finaliser or by a signal handler. Both
are anybody's code: they may come back in, or raise. What is left half changed then stays so.
"""

from __future__ import annotations

import gc
import signal
import threading
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from threading import get_ident
from types import FrameType
from typing import Any

# signal.SIGINT is an enum member, and signal.signal converts to and from enums: ten times slower.
_SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident


class Undisturbed:
    """``with UNDISTURBED:`` keeps others out until it ends. It may be nested, on any thread.

    - No garbage is collected in the process while anybody is inside. Two places that each turn the
      collector off and put back what they found could leave it off for ever: so there is one such
      object in a process.
    - Ctrl-C on the main thread, where Python has it handled, sets ``interrupted``, and is delivered
      when the outermost block ends, to whatever handler the program has.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._inside, self._was_enabled = 0, False
        self._lock = threading.RLock()  # re-entrant: a last collection may begin inside
        self._held, self._handler = 0, None  # the main thread's only
        self._hold: Any = self._hold_interrupt  # bound once, as entering is what every call pays

    def __enter__(self) -> None:
        if get_ident() == _MAIN:
            if self._held == 0 and get_handler(_SIGINT) is not None:
                self._handler = set_handler(_SIGINT, self._hold)
            self._held += 1
        lock = self._lock
        lock.acquire()  # `with` takes twice as long, and nothing here can raise
        if self._inside == 0:
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._inside += 1
        lock.release()

    def __exit__(self, *error: object) -> None:
        lock = self._lock
        lock.acquire()
        self._inside -= 1
        if self._inside == 0 and self._was_enabled:
            gc.enable()
        lock.release()
        if get_ident() == _MAIN:
            self._held -= 1
            if self._held == 0 and self._handler is not None:
                handler, self._handler = self._handler, None
                set_handler(_SIGINT, handler)
                if self.interrupted:
                    self.interrupted = False
                    signal.raise_signal(signal.SIGINT)

    def _hold_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    def after_fork(self) -> None:
        """In a forked child: the threads that were inside are gone."""
        self._lock = threading.RLock()
        if self._inside and self._was_enabled:
            gc.enable()
        self._inside = 0


UNDISTURBED = Undisturbed()
