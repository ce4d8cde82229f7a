"""Vector clocks: what is known to come before what, over all queues.

The operations of a queue come one after another, so it is enough to know, for each other queue,
the last operation that one comes after. That changes only when a queue waits: between two waits
its operations share one clock, which is never changed in place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.queues import Queue

Known = Mapping["Queue", int]
"""For each queue, the last of its operations that comes before."""

_NOTHING: Known = {}
_KEPT = 64


def later(one: Known, other: Known) -> Known:
    """What is known by whoever knows both."""
    if not other:
        return one
    both = dict(one)
    for queue, ticket in other.items():
        if ticket > both.get(queue, 0):
            both[queue] = ticket
    return both


class Order:
    """The clock of every operation. ``over`` says up to where nobody needs to know a queue's."""

    def __init__(self, over: Callable[[Queue], int]) -> None:
        self._over = over
        # By queue: the tickets from which on its operations have a new clock, and these clocks.
        self._clocks: dict[Queue, tuple[list[int], list[Known]]] = {}

    def known(self, queue: Queue) -> Known:
        """What the next operation of ``queue`` comes after, on other queues."""
        clocks = self._clocks.get(queue)
        return clocks[1][-1] if clocks is not None else _NOTHING

    def known_at(self, queue: Queue, ticket: int) -> Known:
        """What operation ``ticket`` of ``queue`` comes after, on other queues."""
        if queue not in self._clocks:
            return _NOTHING
        tickets, clocks = self._clocks[queue]
        if ticket >= tickets[-1]:
            return clocks[-1]
        index = bisect_right(tickets, ticket) - 1
        return clocks[index] if index >= 0 else _NOTHING

    def up_to(self, queue: Queue, ticket: int) -> Known:
        """What is over when operation ``ticket`` of ``queue`` is."""
        return later(self.known_at(queue, ticket), {queue: ticket})

    def wait(self, queue: Queue, ticket: int, other: Queue, until: int) -> Known:
        """Operation ``ticket`` of ``queue`` and those behind it come after ``until`` of ``other``,
        and after all that this one comes after."""
        clock = dict(self.known(queue))
        for third, known in self.known_at(other, until).items():
            if known > clock.get(third, 0):
                clock[third] = known
        clock[other] = max(until, clock.get(other, 0))
        return self._become(queue, ticket, clock)

    def learn(self, queue: Queue, ticket: int, known: Known) -> Known:
        """Operation ``ticket`` of ``queue`` and those behind it come after ``known`` too."""
        return self._become(queue, ticket, later(self.known(queue), known))

    def _become(self, queue: Queue, ticket: int, clock: Known) -> Known:
        """Operation ``ticket`` and those behind it have this clock."""
        tickets, clocks = self._clocks.setdefault(queue, ([], []))
        if tickets and tickets[-1] == ticket:
            clocks[-1] = clock
            return clock
        if tickets and len(tickets) % _KEPT == 0:
            gone = max(bisect_right(tickets, self._over(queue) + 1) - 1, 0)
            del tickets[:gone], clocks[:gone]
        tickets.append(ticket)
        clocks.append(clock)
        return clock

    def clear(self) -> None:
        """Forget everything."""
        self._clocks.clear()
