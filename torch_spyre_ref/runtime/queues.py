"""Ordered queues: operations of one queue happen one after another, in submission order.

An operation starts when the one before it is complete, the event it waits for has fired, and its
pipeline is free. Nothing moves between calls: pending work waits in a deque, and only a call that
moves the clock lets it happen.

The first operation that fails poisons its queue: what was pending is dropped, queues that wait for
an event among it fail too, later submissions are refused, and the error is raised once by
``synchronize``, ``query`` or ``wait``. ``reset`` makes the queue good again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.pipelines import Pipeline
from torch_spyre_ref.emulator.timeline import Timeline
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.runtime.callsite import CallSite
from torch_spyre_ref.runtime.errors import QueueError
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.faults import Faults
from torch_spyre_ref.runtime.hazards import Hazards
from torch_spyre_ref.runtime.lowering import Prepared, Rules, Work, lower, new
from torch_spyre_ref.runtime.operations import Operation
from torch_spyre_ref.runtime.pinned import PinnedMemory
from torch_spyre_ref.runtime.sanitizer import Sanitizer


class Pending(NamedTuple):
    """One enqueued operation."""

    ticket: int
    submitted: int
    label: str
    line: CallSite | None  # where it was enqueued; known under the sanitizer only
    operation: Operation
    work: Work


class _Lost(NamedTuple):
    """Operations of a queue, first to last, that were not done, and why."""

    first: int
    last: int
    why: str


class Shared(NamedTuple):
    """What all queues of a runtime have in common."""

    clock: Clock
    timeline: Timeline
    pinned: PinnedMemory
    sanitizer: Sanitizer
    faults: Faults
    rules: Rules
    queue_depth: int


class Queue:
    """One queue of ``card``; lower ``priority`` numbers get a contended pipeline first.

    Tickets are submission numbers, and those of one queue are over in order.
    """

    def __init__(
        self,
        name: str,
        card: Card,
        shared: Shared,
        hazards: Hazards,
        priority: int = 0,
    ) -> None:
        self.name, self.priority, self._hazards = name, priority, hazards
        self.device = card.index
        self._card, self._shared, self._clock = card, shared, shared.clock
        self._control = card.pipelines.control  # signals and waits
        self._host = card.pipelines.host  # host callbacks, which touch no card memory
        self._sanitizer, self._faults = shared.sanitizer, shared.faults
        self._submit_time, self._query_time = card.spec.submit_time, card.spec.query_time
        self._depth = shared.queue_depth
        self._timeline = shared.timeline
        self._pending: deque[Pending] = deque()
        self._last = self._done = 0
        self._lost: list[_Lost] = []
        self._held: dict[int, Sequence[Event]] = {}  # what derived edges have operations wait for
        self._owed: dict[int, Event] = {}  # and what they make others wait for
        self._failure: tuple[int, BaseException] | None = None
        self._delivered = self._closed = False

    def submit(self, operation: Operation, label: str = "") -> int:
        """Enqueue ``operation`` and return its ticket. Waits while the queue is full.

        Raises before anything is enqueued: ``TypeError`` or ``ValueError`` for an operation that
        makes no sense, ``NotPinnedError``, ``MemcheckError``, or ``QueueError`` when the queue is
        poisoned or closed.
        """
        operation, work = self.prepare(operation)
        with self._clock:
            return self._enqueue(operation, work, label)

    def prepare(self, operation: Operation) -> Prepared:
        """``operation`` lowered for this card, to be submitted to any of its queues, also often.

        Raises ``TypeError`` or ``ValueError`` for what makes no sense.
        """
        return operation, lower(self._shared.rules, self._card, self._shared.pinned, operation)

    def submit_prepared(self, operations: Iterable[Prepared], label: str = "") -> int:
        """Enqueue operations one after the other; the ticket of the last. Raises as ``submit``."""
        enqueue = self._enqueue
        with self._clock:
            for operation, work in operations:
                ticket = enqueue(operation, work, label)
        return ticket

    def _enqueue(self, operation: Operation, work: Work, label: str) -> int:
        clock, pending, is_checked = self._clock, self._pending, self._sanitizer.on
        if self._faults.planted:
            work = self._faults.submitted(self, operation, work)
        pipeline, _, _, _, _, awaited, fires, unseen, dispatch, _ = work
        line = self._sanitizer.check(self, operation, work) if is_checked else None
        clock.advance(clock.now if unseen else clock.now + self._submit_time)
        if len(pending) >= self._depth:
            self._make_room()
        if self._failure is not None or self._closed or pipeline is self._control:
            self._refuse_unless_good(work)
        ticket = self._last = clock.ticket()
        if fires is not None:
            fires.ticket, fires.queue = ticket, self
        entry = new(Pending, (ticket, clock.now, label, line, operation, work))
        hazards = self._hazards
        if awaited is not None:
            hazards.waits(self, ticket, awaited)
        elif (
            hazards.on
            and hazards.alone is not self
            and fires is None
            and pipeline is not self._host
            and (events := hazards.submitted(self, entry))
        ):
            self._held[ticket] = events
        pending.append(entry)
        if dispatch is not None:
            self._card.fetch.take(dispatch, ticket)
        if is_checked:
            self._sanitizer.submitted(self, entry, self._held.get(ticket, ()), hazards.seen)
        if len(pending) == 1:
            self._start_head()
        return ticket

    def wait(self, ticket: int) -> None:
        """Hold the host until operation ``ticket`` of this queue is complete.

        Raises when it failed or was dropped: the queue's error itself the first time, a
        ``QueueError`` after that.
        """
        self.settle(ticket)
        for first, last, why in self._lost:
            if first <= ticket <= last:
                self._deliver()
                raise QueueError(
                    f"operation {ticket} of queue {self.name} was not done: {why}"
                ) from self.error

    def synchronize(self) -> None:
        """Hold the host until the queue is empty; then raise its error, if it was not raised."""
        self.settle()
        self._deliver()

    def query(self) -> bool:
        """Whether all that was submitted is complete. Raises as ``synchronize`` does."""
        done = self.completed(self._last)
        self._deliver()
        return done

    def completed(self, ticket: int) -> bool:
        """Whether operation ``ticket`` is over, well or not: it touches memory no more."""
        if ticket > self._last:
            self._refuse_ticket(ticket)
        with self._clock:
            self._clock.advance(self._clock.now + self._query_time)
            return self.is_over(ticket)

    def is_over(self, ticket: int) -> bool:
        """Whether operation ``ticket`` is known to be over, as far as time has come."""
        over = ticket <= self._done
        if over and self._sanitizer.on:
            with self._clock:
                self._sanitizer.host_knows(self, ticket)
        return over

    def settle(self, ticket: int | None = None) -> None:
        """Hold the host until operation ``ticket``, by default the last one, is over, well or not.

        Raises no error of the queue: for those who only need to know that host memory is free.
        """
        clock = self._clock
        until = self._last if ticket is None else ticket
        if until > self._last:
            self._refuse_ticket(until)
        with clock:
            clock.advance(clock.now + self._query_time)
            if until > self._done:
                self._run_to(until)
        # Ctrl-C came and the program's own handler did not raise: go on.
        while until > self._done:
            with clock:
                self._run_to(until)
        if self._sanitizer.on:
            self.is_over(until)

    def reset(self) -> None:
        """Let the running operation end, drop the others, and forget the error."""
        with self._clock:
            cause = QueueError(f"queue {self.name} was reset before it was done")
            for queue, ticket, error in self._abandon(cause, keep=0 if self._idle() else 1):
                queue._poison(ticket, error)
            while self._pending:
                self._clock.step()
            self._done = self._last
            if self._failure is not None:  # an event keeps it; its frames lead to tensors
                self._failure[1].__traceback__ = None
            self._clock.retire(self._failure)
            self._failure, self._delivered = None, False
            self.is_over(self._last)

    def close(self) -> None:
        """Reset, and refuse whatever is submitted from now on."""
        with self._clock:
            self.reset()
            self._closed = True

    def owe(self, ticket: int) -> Event:
        """The event that fires when pending operation ``ticket`` is complete."""
        event = self._owed.get(ticket)
        if event is None:
            event = self._owed[ticket] = Event()
            event.ticket, event.queue = ticket, self
        return event

    @property
    def done(self) -> int:
        """The last operation that is over, as far as time has come."""
        return self._done

    @property
    def is_busy(self) -> bool:
        """Whether anything is enqueued and not complete."""
        return bool(self._pending)

    def pending(self) -> list[Pending]:
        """What is enqueued and not complete, first to last."""
        with self._clock:
            return list(self._pending)

    @property
    def error(self) -> BaseException | None:
        """What poisoned this queue."""
        return self._failure[1] if self._failure is not None else None

    @property
    def failed_at(self) -> int | None:
        """The ticket of the operation whose failure poisoned this queue."""
        return self._failure[0] if self._failure is not None else None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "poisoned" if self._failure else "good"
        return f"Queue({self.name}, {len(self._pending)} pending, {state})"

    def _refuse_ticket(self, ticket: int) -> None:
        raise ValueError(
            f"queue {self.name} was asked for operation {ticket}, but its last one is "
            f"{self._last}; a ticket is good only for the queue that gave it"
        )

    def _run_to(self, ticket: int) -> None:
        clock = self._clock
        while ticket > self._done:
            clock.step()
            if UNDISTURBED.interrupted:
                break
        clock.advance(clock.now)

    def _make_room(self) -> None:
        while len(self._pending) >= self._depth:
            self._clock.step()
        self._clock.advance(self._clock.now)
        self.is_over(self._done)

    def _refuse_unless_good(self, work: Work) -> None:
        if self._closed:
            raise QueueError(f"queue {self.name} is closed; use another one")
        if self._failure is not None:
            ticket, error = self._failure
            raise QueueError(
                f"queue {self.name} is poisoned since operation {ticket} failed: {error!r}; "
                "reset the queue, or use another one"
            ) from error
        if work.fires is not None and work.fires.ticket is not None:
            raise ValueError(
                f"{work.fires} is enqueued already; a new signal is a new EventSignal()"
            )
        if work.awaited is not None and work.awaited.error is not None:
            raise QueueError(
                f"queue {self.name} cannot wait for {work.awaited}: its queue ended before it fired"
            ) from work.awaited.error

    def _deliver(self) -> None:
        with self._clock:
            if self._failure is not None and not self._delivered:
                self._delivered = True
                raise self._failure[1]

    def _idle(self) -> bool:
        """Whether nothing of this queue is running or stands in line for a pipeline."""
        return not self._pending or bool(self._awaited(self._pending[0]))

    def _awaited(self, entry: Pending) -> list[Event]:
        """The events that have yet to fire before ``entry`` can start."""
        awaited, events = entry.work.awaited, self._held.get(entry.ticket, ())
        return [e for e in (events if awaited is None else [awaited]) if e.time is None]

    # --8<-- [start:start_head]
    def _start_head(self) -> None:
        entry = self._pending[0]
        work, ticket = entry.work, entry.ticket
        if (work.awaited is not None or self._held) and self._is_held(entry):
            return
        work.pipeline.start(work.duration, work.effect, self, ticket, self.priority)

    def _is_held(self, entry: Pending) -> bool:
        """Whether the first operation has to wait; then it hears of every event it waits for."""
        awaited = self._awaited(entry)
        for event in awaited:
            if event.error is not None:
                self._poison(entry.ticket, self._orphaned_by(event))
                return True
        for event in awaited:
            if self not in event.waiters:
                event.waiters.append(self)
        return bool(awaited)

    # --8<-- [end:start_head]

    def complete_head(self, pipeline: Pipeline, start: int, error: BaseException | None) -> None:
        """What the card's pipelines call when the first operation of this queue ends."""
        entry = self._pending.popleft()
        ticket, submitted, label, _, operation, work = entry
        _, _, _, nbytes, sticks, _, fires, _, _, _ = work
        owed = self._owed.pop(ticket, None) if self._owed else None
        clock = self._clock
        self._done = ticket
        clock.retire(entry)
        if self._sanitizer.on:
            self._sanitizer.completed(self, entry)
        if self._held:
            self._held.pop(ticket, None)
        where = self.device, self.name, pipeline.name, type(operation).__name__, label
        when = submitted, start, clock.now
        self._timeline.append((ticket, *where, *when, nbytes, sticks, error is not None))
        if error is not None:
            self._lost.append(_Lost(ticket, ticket, repr(error)))
            self._poison(ticket, error, fires, owed)
            return
        if fires is not None:
            self._fire(fires)
        if owed is not None:
            self._fire(owed)
        if self._pending:
            self._start_head()

    def _fire(self, event: Event) -> None:
        event.time = self._clock.now
        for queue in event.waiters:
            queue._start_head()
        event.waiters.clear()

    def _poison(self, ticket: int, error: BaseException, *owed: Event | None) -> None:
        """Fail at ``ticket``, and with this queue all that wait for an event it owed."""
        failing = [(self, ticket, error)]
        for event in owed:
            failing += _orphans(event, error) if event is not None else []
        while failing:
            queue, ticket, error = failing.pop()
            if queue._failure is None:  # of several events that it waits for, the first counts
                queue._failure, queue._delivered = (ticket, error), False
                failing += queue._abandon(error)

    def _abandon(
        self, cause: BaseException, keep: int = 0
    ) -> list[tuple[Queue, int, BaseException]]:
        """Drop what is pending but for the first ``keep``; the queues that this leaves waiting."""
        orphans: list[tuple[Queue, int, BaseException]] = []
        if len(self._pending) > keep:
            first, last = self._pending[keep].ticket, self._pending[-1].ticket
            self._lost.append(_Lost(first, last, f"it was dropped, for {cause!r}"))
        while len(self._pending) > keep:
            entry = self._pending.pop()
            self._clock.retire(entry)
            if entry.work.dispatch is not None:
                entry.work.dispatch.leave()
            for event in self._awaited(entry):
                if self in event.waiters:
                    event.waiters.remove(self)
            self._held.pop(entry.ticket, None)
            for owed in (entry.work.fires, self._owed.pop(entry.ticket, None)):
                if owed is not None:
                    orphans += _orphans(owed, cause)
        if not self._pending:
            self._done = self._last
        return orphans

    def _orphaned_by(self, event: Event) -> QueueError:
        owner = event.queue.name if event.queue is not None else "that owed it"
        error = QueueError(
            f"queue {self.name} waited for {event}, but queue {owner} ended before it fired: "
            f"{event.error!r}"
        )
        error.__cause__ = event.error
        return error


def _orphans(owed: Event, cause: BaseException) -> list[tuple[Queue, int, BaseException]]:
    """The queues that wait in vain for an event that will not fire, where, and their error."""
    owed.error = cause
    orphans: list[tuple[Queue, int, BaseException]] = [
        (queue, queue._pending[0].ticket, queue._orphaned_by(owed)) for queue in owed.waiters
    ]
    owed.waiters.clear()
    return orphans
