"""How a queue fails: the first error poisons it, takes along who waits for it, is raised once.

What was pending is dropped. Queues that wait for an event among it fail too, at once and with the
cause chained, and so on from these. Everybody else goes on.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from torch_spyre_ref.runtime.errors import QueueError
from torch_spyre_ref.runtime.events import Event

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.queues import Queue

Orphan = tuple["Queue", int, BaseException]
"""A queue, the operation in it that waits in vain, and the error that this is."""


class _Lost(NamedTuple):
    """Operations of a queue, first to last, that were not done, and why."""

    first: int
    last: int
    why: str


class Failures:
    """What of a queue was not done, and why.

    ``first`` is what poisoned it: a ticket and an error. ``is_bad`` says that it takes no work.
    """

    def __init__(self, name: str) -> None:
        self.first: tuple[int, BaseException] | None = None
        self.is_bad = self.is_closed = False
        self._name, self._is_delivered = name, False
        self._lost: list[_Lost] = []

    @property
    def error(self) -> BaseException | None:
        """What poisoned the queue."""
        return self.first[1] if self.first is not None else None

    def lose(self, first: int, last: int, why: str) -> None:
        """Operations ``first`` to ``last`` were not done."""
        self._lost.append(_Lost(first, last, why))

    def poison(self, ticket: int, error: BaseException) -> bool:
        """Whether this is the first error; of several, only that one counts."""
        if self.first is not None:
            return False
        # Its frames lead to whoever moved the clock, and so to a caller's tensors.
        error.__traceback__ = None
        self.first, self.is_bad, self._is_delivered = (ticket, error), True, False
        return True

    def forget(self) -> None:
        """Be good again, unless closed."""
        self.first, self.is_bad, self._is_delivered = None, self.is_closed, False

    def close(self) -> None:
        """Be bad for ever."""
        self.is_bad = self.is_closed = True

    def refuse(self) -> None:
        """Raise why the queue takes no work."""
        if self.is_closed:
            raise QueueError(f"queue {self._name} is closed; use another one")
        if self.first is not None:
            ticket, error = self.first
            raise QueueError(
                f"queue {self._name} is poisoned since operation {ticket} failed: {error!r}; "
                "reset the queue, or use another one"
            ) from error

    def require(self, ticket: int) -> None:
        """Raise ``QueueError`` if operation ``ticket`` was not done."""
        for first, last, why in self._lost:
            if first <= ticket <= last:
                raise QueueError(
                    f"operation {ticket} of queue {self._name} was not done: {why}"
                ) from self.error

    def deliver(self) -> None:
        """Raise the first error, once."""
        if self.first is not None and not self._is_delivered:
            self._is_delivered = True
            raise _stand_in(self.first[1])


def _stand_in(error: BaseException) -> BaseException:
    """``error`` once more, to be raised: its traceback grows by frames that have tensors in them,
    and the queue keeps only the one that was not raised."""
    try:
        other = copy(error)
    except Exception:  # a class that cannot be made again from its arguments
        return error
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other


def fail(queue: Queue, ticket: int, error: BaseException, *owed: Event | None) -> None:
    """Poison ``queue`` at ``ticket``, and with it all that wait for an event that it owed."""
    failing, ends = [(queue, ticket, error)], list[Event]()
    for event in owed:
        failing += _orphans(event, error) if event is not None else []
    while failing:
        queue, ticket, error = failing.pop()
        if queue.failures.poison(ticket, error):
            failing += abandon(queue, error, ends)
    for event in ends:
        queue.fire(event)


def abandon(queue: Queue, cause: BaseException, ends: list[Event], keep: int = 0) -> list[Orphan]:
    """Drop what is pending but for the first ``keep``; the queues that this leaves waiting.

    What is over by that goes to ``ends``, to be fired when all are dropped that are.
    """
    orphans: list[Orphan] = []
    line, pending = queue.line, queue.line.pending
    if len(pending) > keep:
        first, last = pending[keep].ticket, pending[-1].ticket
        queue.failures.lose(first, last, f"it was dropped, for {cause!r}")
    while len(pending) > keep:
        entry = pending.pop()
        queue.drop(entry)
        for event in line.awaited(entry):
            if queue in event.waiters:
                event.waiters.remove(queue)
        line.held.pop(entry.ticket, None)
        if entry.ticket in line.ends:
            ends.append(line.ends.pop(entry.ticket))
        for owed in (entry.work.fires, line.owed.pop(entry.ticket, None)):
            if owed is not None:
                orphans += _orphans(owed, cause)
    return orphans


def orphaned(queue: Queue, event: Event) -> QueueError:
    """The error of a queue that waits for an event which will not fire."""
    owner = event.queue.name if event.queue is not None else "that owed it"
    error = QueueError(
        f"queue {queue.name} waited for {event}, but queue {owner} ended before it fired: "
        f"{event.error!r}"
    )
    error.__cause__ = event.error
    return error


def _orphans(owed: Event, cause: BaseException) -> list[Orphan]:
    """The queues that wait in vain for an event that will not fire, where, and their error."""
    owed.error = cause
    orphans: list[Orphan] = [
        (queue, queue.line.pending[0].ticket, orphaned(queue, owed)) for queue in owed.waiters
    ]
    owed.waiters.clear()
    return orphans
