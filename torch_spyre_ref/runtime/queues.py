"""Ordered queues: operations of one queue happen one after another, in submission order.

An operation starts when the one before it is complete, the event it waits for has fired, and its
pipeline is free. Nothing moves between calls: pending work waits in a deque, and only a call that
moves the clock lets it happen.

The first operation that fails poisons its queue (:mod:`torch_spyre_ref.runtime.failures`): later
submissions are refused, and the error is raised once by ``synchronize``, ``query`` or ``wait``
(:mod:`torch_spyre_ref.runtime.progress`). ``reset`` makes the queue good again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.pipelines import Pipeline
from torch_spyre_ref.emulator.timeline import Timeline
from torch_spyre_ref.runtime.errors import QueueError
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.failures import abandon, fail, orphaned
from torch_spyre_ref.runtime.faults import Faults
from torch_spyre_ref.runtime.hazards import Hazards
from torch_spyre_ref.runtime.lowering import Prepared, Rules, Work, lower, new
from torch_spyre_ref.runtime.operations import Operation
from torch_spyre_ref.runtime.pending import Line, Pending
from torch_spyre_ref.runtime.pinned import PinnedMemory
from torch_spyre_ref.runtime.progress import Progress
from torch_spyre_ref.runtime.sanitizer import Sanitizer
from torch_spyre_ref.runtime.unwritten import Unwritten


class Shared(NamedTuple):
    """What all queues of a runtime have in common."""

    clock: Clock
    timeline: Timeline
    pinned: PinnedMemory
    sanitizer: Sanitizer
    faults: Faults
    rules: Rules
    queue_depth: int


Place = tuple["Queue", int]
"""An operation: its queue, and its ticket there."""

Places = tuple[Place | None, Place | None]
"""Whom an operation comes after, and behind whom it comes."""

NOBODY: Places = (None, None)
NO_EVENTS: Sequence[Event] = ()


class Queue(Progress):
    """One queue of ``card``; lower ``priority`` numbers get a contended pipeline first.

    Tickets are submission numbers, and those of one queue are over in order. ``works_for`` is the
    queue that this one is a companion of, or itself.
    """

    def __init__(
        self,
        name: str,
        card: Card,
        shared: Shared,
        hazards: Hazards,
        unwritten: Unwritten,
        priority: int = 0,
        works_for: Queue | None = None,
    ) -> None:
        super().__init__(name, shared.clock, shared.sanitizer, card.spec.query_time)
        self.priority, self.works_for = priority, works_for or self
        self._hazards, self._unwritten = hazards, unwritten
        self.device = card.index
        self._card, self._shared = card, shared
        self._control = card.pipelines.control  # signals and waits
        self._host = card.pipelines.host  # host callbacks, which touch no card memory
        self._faults = shared.faults
        self._submit_time, self._depth = card.spec.submit_time, shared.queue_depth
        self._timeline = shared.timeline
        self.line = Line()
        self._pending, self._held, self._owed = self.line.pending, self.line.held, self.line.owed
        self._ends = self.line.ends

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

    def submit_prepared(
        self,
        operations: Iterable[Prepared],
        label: str = "",
        after: Place | None = None,
        behind: Place | None = None,
    ) -> int:
        """Enqueue operations one after the other; the ticket of the last. Raises as ``submit``.

        ``after`` names an operation of any queue. The first that is no host callback waits for it,
        and those behind; if it fails, so do they, and if it was not done, nothing more is enqueued.
        ``behind`` names one that need only be over, well or not: what the first then overwrites is
        of no use to anybody any more.
        """
        with self._clock:
            places = NOBODY if after is None and behind is None else (after, behind)
            if self._has_all_work and (places is NOBODY or self._are_ours(places)):
                return self._enqueue_straight(operations, label, places)
            enqueue, host = self._enqueue, self._host
            for operation, work in operations:
                if places is not NOBODY and work.pipeline is not host:
                    ticket, places = enqueue(operation, work, label, places), NOBODY
                else:
                    ticket = enqueue(operation, work, label)
        return ticket

    def require_written(self, operations: Iterable[Prepared]) -> None:
        """Raise ``QueueError`` if one would read what a poisoned queue was to write and did not.

        To enqueue it raises that too, but then operations that came before it are enqueued.
        """
        if self._unwritten.any and self._hazards.on:
            with self._clock:
                self._unwritten.require(self, operations)

    @property
    def _has_all_work(self) -> bool:
        """Whether there is nobody to ask about an operation: no other queue, and no watcher."""
        hazards = self._hazards
        alone = hazards.alone is self.works_for or not hazards.on
        return alone and not (self._sanitizer.on or self._faults.planted)

    def _are_ours(self, places: Places) -> bool:
        """Whether they are operations of this queue, or of one that it works with."""
        us, (after, behind) = self.works_for, places
        return (after is None or after[0].works_for is us) and (
            behind is None or behind[0].works_for is us
        )

    def _enqueue_straight(self, operations: Iterable[Prepared], label: str, places: Places) -> int:
        """The same as ``_enqueue`` for who has all the work there is on a card.

        That is one queue and its companion: who waits for whom is of interest to nobody else.
        """
        clock, pending, control, depth = self._clock, self._pending, self._control, self._depth
        failures, unwritten, submit_time = self.failures, self._unwritten, self._submit_time
        host, events = self._host, NO_EVENTS
        for operation, work in operations:
            pipeline, duration, effect, _, _, _, _, _, dispatch, _ = work
            if pipeline is control:  # a signal, a wait, or poison
                ticket, places = self._enqueue(operation, work, label, places), NOBODY
                continue
            clock.advance(clock.now + submit_time)
            if len(pending) >= depth:
                self._make_room()
            if failures.is_bad or unwritten.any:
                self._refuse_unless_good(operation, work)
            if places is not NOBODY and pipeline is not host:
                events, places = self._ordered(*places), NOBODY
            ticket = self._last = clock.ticket()
            pending.append(new(Pending, (ticket, clock.now, label, None, operation, work)))
            if dispatch is not None:
                self._card.fetch.take(dispatch, ticket)
            if events:
                self._held[ticket], events = events, NO_EVENTS
                if len(pending) == 1:
                    self._start_head()
            elif len(pending) == 1:
                pipeline.start(duration, effect, self, ticket, self.priority)
        return ticket

    def _enqueue(
        self,
        operation: Operation,
        work: Work,
        label: str,
        places: Places = NOBODY,
    ) -> int:
        clock, pending, is_checked = self._clock, self._pending, self._sanitizer.on
        if self._faults.planted:
            work = self._faults.submitted(self, operation, work)
        pipeline, _, _, _, _, awaited, fires, unseen, dispatch, _ = work
        line = self._sanitizer.check(self, operation, work) if is_checked else None
        clock.advance(clock.now if unseen else clock.now + self._submit_time)
        if len(pending) >= self._depth:
            self._make_room()
        if self.failures.is_bad or self._unwritten.any or pipeline is self._control:
            self._refuse_unless_good(operation, work)
        ordered = () if places is NOBODY else self._ordered(*places)
        ticket = self._last = clock.ticket()
        if fires is not None:
            fires.ticket, fires.queue = ticket, self
        entry = new(Pending, (ticket, clock.now, label, line, operation, work))
        hazards = self._hazards
        if ordered:
            for event in ordered:
                hazards.waits(self, ticket, event)
            self._held[ticket] = ordered
        if awaited is not None:
            hazards.waits(self, ticket, awaited)
        elif (
            hazards.on
            and hazards.alone is not self.works_for
            and fires is None
            and pipeline is not self._host
            and (events := hazards.submitted(self, entry, places[1] is not None))
        ):
            self._held[ticket] = [*self._held.get(ticket, ()), *events]
        pending.append(entry)
        if dispatch is not None:
            self._card.fetch.take(dispatch, ticket)
        if is_checked:
            self._sanitizer.submitted(self, entry, self._held.get(ticket, ()), hazards.seen)
        if len(pending) == 1:
            self._start_head()
        return ticket

    def _ordered(self, after: Place | None, behind: Place | None) -> Sequence[Event]:
        """What fires when one operation is complete, and another is over.

        Raises ``QueueError`` if the first was not done.
        """
        events = []
        for place in (after, behind):
            if place is not None and (queue := place[0]) is not self:
                if not queue.is_over(place[1]):
                    events.append(queue.owe(place[1], place is behind))
                elif place is after:
                    queue.failures.require(place[1])
        return events

    def reset(self) -> None:
        """Let the running operation end, drop the others, and forget the error."""
        with self._clock:
            cause = QueueError(f"queue {self.name} was reset before it was done")
            ends: list[Event] = []
            keep = 0 if self.line.is_idle else 1
            for queue, ticket, error in abandon(self, cause, ends, keep):
                fail(queue, ticket, error)
            for event in ends:
                self.fire(event)
            while self._pending:
                self._clock.step()
            self._done = self._last
            self._clock.retire(self.failures.first)
            self.failures.forget()
            self._unwritten.forget()
            self.is_over(self._last)

    def close(self) -> None:
        """Reset, and refuse whatever is submitted from now on."""
        with self._clock:
            self.reset()
            self.failures.close()

    def owe(self, ticket: int, of_end: bool = False) -> Event:
        """The event that fires when pending operation ``ticket`` is complete, or its end."""
        known = self._ends if of_end else self._owed
        event = known.get(ticket)
        if event is None:
            event = known[ticket] = Event(of_end)
            event.ticket, event.queue = ticket, self
        return event

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
        return self.failures.error

    @property
    def failed_at(self) -> int | None:
        """The ticket of the operation whose failure poisoned this queue."""
        return self.failures.first[0] if self.failures.first is not None else None

    def __repr__(self) -> str:
        state = "closed" if self.failures.is_closed else "poisoned" if self.error else "good"
        return f"Queue({self.name}, {len(self._pending)} pending, {state})"

    def _tell(self, ticket: int) -> None:
        with self._clock:
            self._sanitizer.host_knows(self, ticket)

    def _make_room(self) -> None:
        while len(self._pending) >= self._depth:
            self._clock.step()
        self._clock.advance(self._clock.now)
        self.is_over(self._done)

    def _refuse_unless_good(self, operation: Operation, work: Work) -> None:
        self.failures.refuse()
        if work.fires is not None and work.fires.ticket is not None:
            raise ValueError(
                f"{work.fires} is enqueued already; a new signal is a new EventSignal()"
            )
        if work.awaited is not None and work.awaited.error is not None:
            raise QueueError(
                f"queue {self.name} cannot wait for {work.awaited}: its queue ended before it fired"
            ) from work.awaited.error

        if self._unwritten.any and self._hazards.on:
            self._unwritten.submitted(self, operation, work)

    # --8<-- [start:start_head]
    def _start_head(self) -> None:
        entry = self._pending[0]
        work, ticket = entry.work, entry.ticket
        if work.awaited is not None or ticket in self._held:
            awaited = self.line.awaited(entry)
            if awaited and self._is_held(entry, awaited):
                return
        work.pipeline.start(work.duration, work.effect, self, ticket, self.priority)

    def _is_held(self, entry: Pending, awaited: Sequence[Event]) -> bool:
        """Whether the first operation has to wait; then it hears of every event it waits for."""
        for event in awaited:
            if event.error is not None:
                fail(self, entry.ticket, orphaned(self, event))
                return True
        for event in awaited:
            if self not in event.waiters:
                event.waiters.append(self)
        return True

    # --8<-- [end:start_head]

    def complete_head(self, pipeline: Pipeline, start: int, error: BaseException | None) -> None:
        """What the card's pipelines call when the first operation of this queue ends."""
        clock, entry = self._clock, self._pending.popleft()
        ticket, submitted, label, _, operation, work = entry
        _, _, _, nbytes, sticks, _, fires, _, _, _ = work
        self._done = ticket
        clock.retire(entry)
        if self._sanitizer.on:
            self._sanitizer.completed(self, entry)
        where = ticket, self.device, self.name, pipeline.name, type(operation).__name__, label
        failed = error is not None
        when = submitted, start, clock.now, nbytes, sticks, failed
        self._timeline.append(where + when)
        if failed or fires is not None or ticket in self._owed or ticket in self._ends:
            self._tell_others(entry, error)
            return
        if ticket in self._held:
            del self._held[ticket]
        if self._pending:
            self._start_head()

    def _tell_others(self, entry: Pending, error: BaseException | None) -> None:
        """An operation has ended: let those know who wait for it, and go on if all is well."""
        ticket, fires = entry.ticket, entry.work.fires
        owed, end = self._owed.pop(ticket, None), self._ends.pop(ticket, None)
        self._held.pop(ticket, None)
        if error is not None:
            self.failures.lose(ticket, ticket, repr(error))
            fail(self, ticket, error, fires, owed)
            if self._hazards.on:
                self._unwritten.add(self, entry, self._hazards.is_overwritten)
            if end is not None:
                self.fire(end)
            return
        for event in (fires, owed, end):
            if event is not None:
                self.fire(event)
        if self._pending:
            self._start_head()

    def fire(self, event: Event) -> None:
        """Let those go on that wait for an event."""
        event.time = self._clock.now
        for queue in event.waiters:
            queue._start_head()
        event.waiters.clear()

    def drop(self, entry: Pending) -> None:
        """An operation that was pending never starts: what it has taken is free."""
        self._clock.retire(entry)
        if entry.work.dispatch is not None:
            entry.work.dispatch.leave()
        if self._hazards.on and self.error is not None:
            self._unwritten.add(self, entry, self._hazards.is_overwritten)
        if not self._pending:
            self._done = self._last
