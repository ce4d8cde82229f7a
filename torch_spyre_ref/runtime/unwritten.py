"""Bytes that a poisoned queue was to write and did not: no other queue may read them unawares.

Who submits a read while the write is pending fails with it, by a derived edge. Who submits it
later would find old bytes, and is refused. That ends when somebody else writes the bytes, or when
the queue is reset: then what it dropped has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch_spyre_ref.runtime.errors import QueueError
from torch_spyre_ref.runtime.footprints import footprint
from torch_spyre_ref.runtime.intervals import Access, Interval, IntervalMap, Spot

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.lowering import Prepared, Work
    from torch_spyre_ref.runtime.operations import Operation
    from torch_spyre_ref.runtime.pending import Pending
    from torch_spyre_ref.runtime.queues import Queue


class Unwritten:
    """The bytes of one card that are not what they should be. ``any`` says if there may be some."""

    def __init__(self) -> None:
        self.any = False
        self._writers = IntervalMap()

    def add(
        self, queue: Queue, entry: Pending, is_overwritten: Callable[[Interval, int], bool]
    ) -> None:
        """An operation of a queue that is poisoned was not done.

        ``is_overwritten`` says whether all of an interval has a writer after a ticket: what comes
        of it then is that one's affair.
        """
        for spot in footprint(entry.operation, entry.work):
            if spot.is_write and not is_overwritten(spot.interval, entry.ticket):
                self.any = True
                self._write(spot.interval, Access(entry.ticket, queue))

    def submitted(self, queue: Queue, operation: Operation, work: Work) -> None:
        """An operation is about to be enqueued: what it writes is good again.

        Raises ``QueueError`` if it would read bytes that were not written.
        """
        spots = footprint(operation, work)
        self._require(queue, (spot.interval for spot in spots if not spot.is_write))
        for spot in spots:
            if spot.is_write and self._writers.writers(spot.interval):
                self._write(spot.interval, Access(0, queue))

    def require(self, queue: Queue, operations: Iterable[Prepared]) -> None:
        """Raise as the first of ``operations`` would, were they enqueued one after another."""
        written: list[Interval] = []
        for operation, work in operations:
            spots = footprint(operation, work)
            reads = [spot.interval for spot in spots if not spot.is_write]
            self._require(queue, (one for one in reads if not _is_within(one, written)))
            written += [spot.interval for spot in spots if spot.is_write]

    def _require(self, queue: Queue, intervals: Iterable[Interval]) -> None:
        for interval in intervals:
            for writer in filter(_is_lost, self._writers.writers(interval)):
                raise QueueError(
                    f"queue {queue.name} was to read bytes that operation {writer.ticket} of "
                    f"queue {writer.queue.name} did not write; write them anew, or reset that "
                    "queue if what they were before will do"
                ) from writer.queue.error

    def _write(self, interval: Interval, access: Access) -> None:
        self._writers.take((Spot(True, interval),), access)  # a footprint's own is another map's

    def forget(self) -> None:
        """A queue is good again, and what it did not write is as it should be."""
        self._writers.forget(lambda access: not _is_lost(access))
        self.any = len(self._writers) > 0


def _is_within(interval: Interval, others: Iterable[Interval]) -> bool:
    space, start, stop = interval
    return any(there == space and low <= start and stop <= high for there, low, high in others)


def _is_lost(access: Access) -> bool:
    failed_at = access.queue.failed_at
    return failed_at is not None and access.ticket >= failed_at
