"""The card's pipelines: the separate serial resources that move data and that compute.

``h2d``, ``d2h``, ``move`` and ``compute`` each do one thing at a time, and all four can be busy at
once. A pipeline is given one operation after another by :meth:`Pipeline.start` and knows nothing
of queues: when an operation ends, a callback given at construction hears of it.

At one instant, operations end in submission order. As each ends, its callback runs first (and may
start more work), then its pipeline goes to whoever waits: highest priority (lowest number), then
longest waiting, then lowest submission number.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from torch_spyre_ref.emulator.clock import Clock, Effect

Completed = Callable[[Any, "Pipeline", int, "BaseException | None"], None]
"""Called with the operation's token, its pipeline, its start in virtual ns (its end is the clock's
now), and what its effect raised."""


class Pipeline:
    """One resource of the card; ``serial`` ones run one operation at a time."""

    def __init__(self, name: str, serial: bool, clock: Clock, completed: Completed) -> None:
        self.name = name
        self._clock, self._completed = clock, completed
        self._serial, self._busy = serial, False
        self._waiting: list[tuple[int, int, int, int, Effect | None, Any]] = []

    def start(
        self, duration: int, effect: Effect | None, token: Any, ticket: int, priority: int = 0
    ) -> None:
        """Run for ``duration`` virtual ns as soon as the pipeline is free, ``effect`` at the end."""
        if self._busy:
            moment = self._clock.now
            heappush(self._waiting, (priority, moment, ticket, duration, effect, token))
        else:
            self._busy = self._serial
            self._clock.schedule(duration, ticket, effect, self, token)

    def end(self, token: Any, start: int, error: BaseException | None) -> None:
        """The clock says that the operation which started at ``start`` is over."""
        if not self._waiting:
            self._busy = False
            self._completed(token, self, start, error)
            return
        # What the callback starts here must stand in line with the others.
        self._completed(token, self, start, error)
        _, _, ticket, duration, effect, following = heappop(self._waiting)
        self._clock.schedule(duration, ticket, effect, self, following)

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"


class Pipelines:
    """The pipelines of one card, and two names for what needs none.

    ``host`` runs host callbacks and ``control`` signals, waits and poison; both take any number of
    operations at once, since only their queues put them in order.
    """

    def __init__(self, clock: Clock, completed: Completed) -> None:
        self.h2d = Pipeline("h2d", True, clock, completed)
        self.d2h = Pipeline("d2h", True, clock, completed)
        self.move = Pipeline("move", True, clock, completed)
        self.compute = Pipeline("compute", True, clock, completed)
        self.host = Pipeline("host", False, clock, completed)
        self.control = Pipeline("control", False, clock, completed)
