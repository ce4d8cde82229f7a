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
from typing import NamedTuple

from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.pipelines import Pipeline
from torch_spyre_ref.emulator.timeline import Timeline
from torch_spyre_ref.runtime.errors import QueueError
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.lowering import Work, lower
from torch_spyre_ref.runtime.memcheck import Memcheck
from torch_spyre_ref.runtime.operations import Fill, Operation
from torch_spyre_ref.runtime.pinned import PinnedMemory


class Pending(NamedTuple):
    """One enqueued operation."""

    ticket: int
    submitted: int
    label: str
    operation: Operation
    work: Work


class Queue:
    """One queue of ``card``; lower ``priority`` numbers get a contended pipeline first.

    Tickets are submission numbers, and within a queue complete in order: ``completed`` compares
    against the last one.
    """

    def __init__(
        self,
        name: str,
        card: Card,
        clock: Clock,
        timeline: Timeline,
        pinned: PinnedMemory,
        memcheck: Memcheck | None = None,
        depth: int = 1024,
        priority: int = 0,
    ) -> None:
        self.name, self.priority, self.depth = name, priority, depth
        self._card, self._clock, self._timeline = card, clock, timeline
        self._pinned, self._memcheck = pinned, memcheck
        self._pending: deque[Pending] = deque()
        self._last = self._done = 0
        self._lost: list[tuple[int, int]] = []
        self._error: BaseException | None = None
        self._delivered = self._closed = False

    def submit(self, operation: Operation, label: str = "") -> int:
        """Enqueue ``operation`` and return its ticket. Waits while the queue is full.

        Raises before anything is enqueued: ``TypeError`` and ``ValueError`` for an operation that
        makes no sense, ``NotPinned``, ``MemcheckError``, and ``QueueError`` for a queue that is
        poisoned or closed.
        """
        clock = self._clock
        work = lower(self._card, self._pinned, operation)
        with clock:
            if self._memcheck is not None:
                self._memcheck.check(self._card.index, operation)
            free = type(operation) is Fill and operation.free
            clock.advance(clock.now + (0 if free else self._card.spec.submit_time))
            while len(self._pending) >= self.depth:
                clock.step()
            self._refuse_unless_good(work.awaited)
            ticket = self._last = clock.ticket()
            if work.fires is not None:
                work.fires.ticket, work.fires.queue = ticket, self
            self._pending.append(Pending(ticket, clock.now, label, operation, work))
            if len(self._pending) == 1:
                self._start_head()
        return ticket

    def wait(self, ticket: int) -> None:
        """Hold the host until operation ``ticket`` of this queue is complete.

        Raises when it failed or was dropped: the queue's error itself the first time, a
        :class:`QueueError` after that.
        """
        self.settle(ticket)
        if any(first <= ticket <= last for first, last in self._lost):
            self._deliver()
            raise QueueError(
                f"operation {ticket} of queue {self.name} failed or was dropped: {self._error}"
            ) from self._error

    def synchronize(self) -> None:
        """Hold the host until the queue is empty; then raise its error, if it was not raised."""
        self.settle(self._last)
        self._deliver()

    def query(self) -> bool:
        """Whether all that was submitted is complete. Raises as ``synchronize`` does."""
        done = self.completed(self._last)
        self._deliver()
        return done

    def completed(self, ticket: int) -> bool:
        """Whether operation ``ticket`` is over, well or not: it touches memory no more."""
        with self._clock:
            self._clock.advance(self._clock.now + self._card.spec.query_time)
            return ticket <= self._done

    def settle(self, ticket: int) -> None:
        """Hold the host until operation ``ticket`` is over, well or not, and raise nothing."""
        clock = self._clock
        with clock:
            clock.advance(clock.now + self._card.spec.query_time)
            self._run_to(ticket)
        # Ctrl-C came and the program's own handler did not raise: go on.
        while ticket > self._done:
            with clock:
                self._run_to(ticket)

    def reset(self) -> None:
        """Let the running operation end, drop the others, and forget the error."""
        with self._clock:
            cause = QueueError(f"queue {self.name} was reset before it was done")
            running = len(self._pending) > 0 and not self._held()
            self._end(cause, keep=1 if running else 0)
            while self._pending:
                self._clock.step()
            self._done = self._last
            self._error, self._delivered = None, False

    def close(self) -> None:
        """Reset, and refuse whatever is submitted from now on."""
        with self._clock:
            self.reset()
            self._closed = True

    def pending(self) -> list[Pending]:
        """What is enqueued and not complete, first to last."""
        with self._clock:
            return list(self._pending)

    @property
    def error(self) -> BaseException | None:
        """The error that poisoned this queue."""
        return self._error

    def __repr__(self) -> str:
        state = "closed" if self._closed else "poisoned" if self._error else "good"
        return f"Queue({self.name}, {len(self._pending)} pending, {state})"

    def _run_to(self, ticket: int) -> None:
        clock = self._clock
        while ticket > self._done:
            clock.step()
            if clock.interrupted:
                break
        clock.advance(clock.now)

    def _refuse_unless_good(self, awaited: Event | None) -> None:
        if self._closed:
            raise QueueError(f"queue {self.name} is closed; use another one")
        if self._error is not None:
            raise QueueError(
                f"queue {self.name} is poisoned by {self._error!r}; reset it, or use another one"
            ) from self._error
        if awaited is not None and awaited.error is not None:
            raise QueueError(
                f"queue {self.name} was told to wait for {awaited}, whose queue ended before it "
                "fired"
            ) from awaited.error

    def _deliver(self) -> None:
        with self._clock:
            if self._error is not None and not self._delivered:
                self._delivered = True
                raise self._error

    def _held(self) -> bool:
        """Whether the first operation is a wait whose event has not fired."""
        awaited = self._pending[0].work.awaited
        return awaited is not None and awaited.time is None

    def _start_head(self) -> None:
        ticket, _, _, _, work = self._pending[0]
        awaited = work.awaited
        if awaited is not None and awaited.time is None:
            if awaited.error is None:
                awaited.waiters.append(self)
            else:
                self._poison(self._orphaned(awaited))
            return
        work.pipeline.start(work.duration, work.effect, self, ticket, self.priority)

    def complete_head(self, pipeline: Pipeline, start: int, error: BaseException | None) -> None:
        entry = self._pending.popleft()
        ticket, submitted, label, operation, work = entry
        clock = self._clock
        self._done = ticket
        clock.retire(entry)
        self._timeline.append(
            (
                ticket,
                self._card.index,
                self.name,
                pipeline.name,
                type(operation).__name__,
                label,
                submitted,
                start,
                clock.now,
                work.nbytes,
                work.sticks,
                error is not None,
            )
        )
        if error is not None:
            self._lost.append((ticket, ticket))
            self._poison(error)
            return
        if work.fires is not None:
            work.fires.time = clock.now
            for queue in work.fires.waiters:
                queue._start_head()
            work.fires.waiters.clear()
        if self._pending:
            self._start_head()

    def _poison(self, error: BaseException) -> None:
        """Record the first error and end; so do queues that wait for what this one owed."""
        failing: list[tuple[Queue, BaseException]] = [(self, error)]
        while failing:
            queue, error = failing.pop()
            if queue._error is None:
                queue._error, queue._delivered = error, False
            failing += queue._abandon(error)

    def _end(self, cause: BaseException, keep: int) -> None:
        for queue, error in self._abandon(cause, keep):
            queue._poison(error)

    def _abandon(self, cause: BaseException, keep: int = 0) -> list[tuple[Queue, BaseException]]:
        """Drop what is pending but for the first ``keep``; the queues that this leaves waiting."""
        orphans: list[tuple[Queue, BaseException]] = []
        if len(self._pending) > keep:
            self._lost.append((self._pending[keep].ticket, self._pending[-1].ticket))
        while len(self._pending) > keep:
            entry = self._pending.pop()
            self._clock.retire(entry)
            awaited, event = entry.work.awaited, entry.work.fires
            if awaited is not None and self in awaited.waiters:
                awaited.waiters.remove(self)
            if event is not None:
                event.error = cause
                orphans += [(queue, queue._orphaned(event)) for queue in event.waiters]
                event.waiters.clear()
        if not keep:
            self._done = self._last
        return orphans

    def _orphaned(self, event: Event) -> QueueError:
        owner = event.queue.name if event.queue is not None else "that owed it"
        error = QueueError(
            f"queue {self.name} waited for {event}, but queue {owner} ended before it fired: "
            f"{event.error!r}"
        )
        error.__cause__ = event.error
        return error
