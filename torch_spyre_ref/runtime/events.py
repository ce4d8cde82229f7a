"""Events: the one thing that two queues share. A signal in one queue fires it, waits see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.queues import Queue


class Event:
    """The state of one ``EventSignal``.

    ``ticket`` is the signal's submission number once it is enqueued, ``time`` the virtual ns at
    which it fired, ``error`` why it never will. At most one of the last two is ever set.
    With ``of_end`` it fires at the end of its operation, well or not: that says that the operation
    touches memory no more, and not that it did what it was to do.
    """

    __slots__ = ("error", "of_end", "queue", "ticket", "time", "waiters")

    def __init__(self, of_end: bool = False) -> None:
        self.of_end = of_end
        self.ticket: int | None = None
        self.time: int | None = None
        self.error: BaseException | None = None
        self.queue: Queue | None = None
        self.waiters: list[Queue] = []

    def __repr__(self) -> str:
        if self.ticket is None:
            return "Event(not enqueued)"
        state = "pending" if self.time is None else f"fired at {self.time} ns"
        return f"Event({self.ticket}, {state if self.error is None else 'failed'})"
