"""The card's pipelines: the separate serial resources that move data and that compute.

``h2d``, ``d2h``, ``move`` and ``compute`` each do one thing at a time, and all four can be busy at
once. A pipeline is given one operation after another by ``start`` and knows nothing
of queues: when an operation ends, a callback given at construction hears of it.

At one instant, first everything that ends does, in submission order, and every callback runs. Then
each free pipeline goes to the highest priority (lowest number) that is ready; among equals to whom
was ready first; among these to the lowest submission number.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from torch_spyre_ref.emulator.clock import Clock, Duration, Effect

Completed = Callable[[Any, "Pipeline", int, "BaseException | None"], None]
"""Called with the operation's token, its pipeline, its start in virtual ns (its end is the clock's
now), and what its effect raised."""


class Pipeline:
    """One resource of the card; ``serial`` ones run one operation at a time."""

    def __init__(self, name: str, serial: bool, clock: Clock, completed: Completed) -> None:
        self.name = name
        self._clock, self._agenda, self._completed = clock, clock.agenda, completed
        self._serial, self._busy = serial, False
        self._waiting: list[tuple[int, int, int, Duration, Effect | None, Any]] = []

    # --8<-- [start:start]
    def start(
        self, duration: Duration, effect: Effect | None, token: Any, ticket: int, priority: int = 0
    ) -> None:
        """Run for ``duration`` virtual ns once the pipeline is free, with ``effect`` at the end."""
        if self._serial:
            agenda, now = self._agenda, self._clock.now
            instant_goes_on = agenda and agenda[0][0] == now
            if self._busy or self._waiting or instant_goes_on:
                heappush(self._waiting, (priority, now, ticket, duration, effect, token))
                if not self._busy:
                    self._clock.contend(self)
                return
        self._begin(duration, effect, token, ticket)

    # --8<-- [end:start]

    def end(self, token: Any, start: int, error: BaseException | None) -> None:
        """The clock says that the operation which started at ``start`` is over."""
        self._busy = False
        if self._waiting:
            self._clock.contend(self)
        self._completed(token, self, start, error)

    def hand_over(self) -> None:
        """The clock says that the instant is over: a free pipeline goes to the next in line."""
        if self._waiting and not self._busy:
            _, _, ticket, duration, effect, token = heappop(self._waiting)
            self._begin(duration, effect, token, ticket)

    def _begin(self, duration: Duration, effect: Effect | None, token: Any, ticket: int) -> None:
        self._busy = self._serial
        if not isinstance(duration, int):
            duration = duration()
        now = self._clock.now
        heappush(self._agenda, (now + duration, ticket, now, effect, self, token))

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
