"""What a queue has enqueued and not completed, what holds it back, and who waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from torch_spyre_ref.runtime.callsite import CallSite
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.lowering import Work
from torch_spyre_ref.runtime.operations import Operation


class Pending(NamedTuple):
    """One enqueued operation."""

    ticket: int
    submitted: int
    label: str
    line: CallSite | None  # where it was enqueued; known under the sanitizer only
    operation: Operation
    work: Work


class Line:
    """The operations of a queue that are not complete, in order, and the edges between queues.

    By ticket, ``held`` has the events that an operation waits for without saying so itself,
    ``owed`` the event that fires when it is complete, and ``ends`` the one that fires when it is
    over, well or not.
    """

    __slots__ = ("ends", "held", "owed", "pending")

    def __init__(self) -> None:
        self.pending: deque[Pending] = deque()
        self.held: dict[int, Sequence[Event]] = {}
        self.owed: dict[int, Event] = {}
        self.ends: dict[int, Event] = {}

    def awaited(self, entry: Pending) -> list[Event]:
        """The events that have yet to fire before ``entry`` can start."""
        awaited, events = entry.work.awaited, self.held.get(entry.ticket, ())
        if awaited is not None:
            events = (*events, awaited)
        return [event for event in events if event.time is None]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running or stands in line for a pipeline."""
        return not self.pending or bool(self.awaited(self.pending[0]))
