# Produced by chapters/04_streams.py: edit it there, then run `make tangle`.
"""Derived edges: the order between queues that follows from what operations touch.

Two operations on different queues that use the same bytes, one of them to write, need an order: a
reader comes after the writer before it (RAW), a writer after the readers (WAR) and the writer (WAW)
before it. Submission order says which of the two is first. The runtime sees every footprint, so it
adds the order itself, and no more of it than is needed: none within a queue, none against work that
is over, none that follows from other waits.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.footprints import footprint, is_scratch
from torch_spyre_ref.runtime.intervals import Access, Interval, IntervalMap
from torch_spyre_ref.runtime.vector_clocks import Order

# Say what an edge is
if TYPE_CHECKING:
    from torch_spyre_ref.runtime.pending import Pending
    from torch_spyre_ref.runtime.queues import Queue


class Edge(NamedTuple):
    """Operation ``ticket`` of ``queue`` comes after operation ``after`` of ``producer``.

    ``reason`` is "RAW", "WAR" or "WAW", ``where`` the first bytes found that both use.
    """

    reason: str
    producer: "Queue"
    after: int
    queue: "Queue"
    ticket: int
    where: Interval

    def __repr__(self) -> str:
        region, start, stop = self.where
        return (
            f"Edge({self.reason} on r{region}[{start}:{stop}]: {self.ticket} of queue "
            f"{self.queue.name} after {self.after} of queue {self.producer.name})"
        )


# Find whom an operation must come after
def conflicts(
    touched: IntervalMap, accesses: Sequence[tuple[bool, Interval]], access: Access
) -> Sequence[tuple[str, Access, Interval]]:
    """Take in what an operation touches; why, and after whom, it must come, the latest first."""
    found: dict[int, tuple[str, Access, Interval]] = {}
    for is_write, interval in accesses:
        for reason, other in (touched.write if is_write else touched.read)(interval, access):
            if other.queue is not access.queue:
                found.setdefault(other.ticket, (reason, other, interval))
    return [found[ticket] for ticket in sorted(found, reverse=True)] if found else ()


# Know who is done
def done(queue: "Queue") -> int:
    """The last operation of ``queue`` that is over."""
    return queue.done


def is_over(access: Access) -> bool:
    """Whether an access is over, so that nobody has to wait for it."""
    return access.ticket <= access.queue.done


# Look only when two queues are busy
class Watch:
    """What pending work touches, looked at only while two of a card's ``queues`` are busy.

    A queue that has all the pending work is ``alone``: what it has pending is taken in when another
    queue comes. With it is whatever works for it.
    """

    def __init__(self, queues: Sequence["Queue"]) -> None:
        self.alone: Queue | None = None
        self._queues, self._touched = queues, IntervalMap()
        self._taken = 0  # operations since somebody last looked who is idle

    def clear(self) -> None:
        """Forget what was pending, and who was alone."""
        self.alone, self._taken = None, 0
        self._touched.clear()

    def is_needed(self, queue: "Queue") -> bool:
        """Whether any other queue is busy. Asked now and then: to be wrong costs only time."""
        self._taken -= 1
        if self.alone is not None or self._taken < 0:
            self.look()
            us = queue.works_for
            if not any(other.is_busy and other.works_for is not us for other in self._queues):
                self._touched.clear()
                self.alone = us
                return False
            self._touched.forget(is_over)
            self._taken = max(64, len(self._touched))
        return True

    def look(self) -> None:
        """Take in what was enqueued by who was alone until now, in the order in which it was."""
        alone, self.alone = self.alone, None
        if alone is not None:
            queues = [queue for queue in self._queues if queue.works_for is alone]
            pending = [(one.ticket, queue, one) for queue in queues for one in queue.pending()]
            for _, queue, entry in sorted(pending, key=itemgetter(0)):
                self.take_in(queue, entry)

    def take_in(self, queue: "Queue", entry: "Pending") -> None:
        """Take in an operation that was enqueued before."""
        access = Access(entry.ticket, queue)
        conflicts(self._touched, footprint(entry.operation, entry.work), access)


# Derive the edges of a card
class Hazards(Watch):
    """The edges of one card's ``queues``; the last ``kept`` of them are in ``edges``.

    ``count`` is how many there were. ``orders`` are all that comes before, and of that what must
    have been done, not only be over.
    """

    def __init__(
        self, queues: Sequence["Queue"], orders: tuple[Order, Order], on: bool, kept: int = 4096
    ) -> None:
        super().__init__(queues)
        self.on, self.count = on, 0
        self.edges: deque[Edge] = deque(maxlen=kept)
        self._order, self._sure = orders

    def waits(self, queue: "Queue", ticket: int, event: Event) -> None:
        """Operation ``ticket`` of ``queue`` waits for ``event``: an order like any other."""
        if not self.on or event.queue is None or event.ticket is None:
            return
        if queue.works_for is not self.alone:
            self.look()
        elif event.queue.works_for is self.alone:
            return  # taken in with all that is pending, if ever
        self._wait(queue, ticket, event)

    def _wait(self, queue: "Queue", ticket: int, event: Event) -> None:
        if event.queue is not None and event.ticket is not None:
            for order in (self._order,) if event.of_end else (self._order, self._sure):
                order.wait(queue, ticket, event.queue, event.ticket)

    def take_in(self, queue: "Queue", entry: "Pending") -> None:
        """Take in an operation that was enqueued before, and what it waits for."""
        for event in queue.line.awaited(entry):
            self._wait(queue, entry.ticket, event)
        super().take_in(queue, entry)

    def submitted(self, queue: "Queue", entry: "Pending", fresh: bool = False) -> Sequence[Event]:
        """The events that an operation of a queue that is not alone has to wait for.

        It is ``fresh`` if what was to be in the bytes that it writes is of no use to anybody.
        """
        if not self.is_needed(queue):
            return ()
        accesses = footprint(entry.operation, entry.work)
        found = conflicts(self._touched, accesses, Access(entry.ticket, queue)) if accesses else ()
        if not found:
            return ()
        return list(self._derive(queue, entry, found, fresh))

    def is_overwritten(self, interval: Interval, ticket: int) -> bool:
        """Whether all that is known of an interval is written again by operations after one."""
        writers = self._touched.writers(interval)
        return bool(writers) and all(writer.ticket > ticket for writer in writers)

    @property
    def seen(self) -> Sequence["Queue"]:
        """The queues that the runtime looks how far they are, whenever it derives edges."""
        return self._queues if self.on else ()

    def switch(self, on: bool) -> None:
        """Derive edges from now on, or do not. Nothing may be pending."""
        self.on = on
        self.clear()

    def _derive(
        self,
        queue: "Queue",
        entry: "Pending",
        found: Sequence[tuple[str, Access, Interval]],
        fresh: bool,
    ) -> Iterator[Event]:
        for reason, (after, producer, _), where in found:
            over = reason != "RAW" and (fresh or is_scratch(entry.operation, where))
            order = self._order if over or reason == "WAR" else self._sure
            if after <= producer.done or after <= order.known(queue).get(producer, 0):
                continue
            edge = Edge(reason, producer, after, queue, entry.ticket, where)
            if self.accepts(edge):
                self.count += 1
                self.edges.append(edge)
                yield (event := producer.owe(after, over))
                self._wait(queue, entry.ticket, event)

    def accepts(self, edge: Edge) -> bool:
        """Whether an edge that is needed is added: always, but in drills that leave one out."""
        return True
