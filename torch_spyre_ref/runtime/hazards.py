# Produced by chapters/04_streams.py: edit it there, then run `make tangle`.
"""Derived edges: the order between queues that follows from what operations touch.

Two operations on different queues that use the same bytes, one of them to write, need an order: a
reader comes after the writer before it (RAW), a writer after the readers (WAR) and the writer (WAW)
before it. Submission order says which of the two is first. The runtime sees every footprint, so it
adds the order itself, and no more of it than is needed: none within a queue, none against work that
is over, none that follows from other waits.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.footprints import footprint, is_scratch
from torch_spyre_ref.runtime.intervals import Access, Conflict, Interval, IntervalMap, Spot
from torch_spyre_ref.runtime.lowering import new
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
def conflicts(touched: IntervalMap, spots: Iterable[Spot], access: Access) -> Sequence[Conflict]:
    """Take in what an operation touches; whom it must come after, the latest first."""
    queue = access.queue
    found = [one for one in touched.take(spots, access) if one[1].queue is not queue]
    if len(found) < 2:
        return found
    first_met = {other.ticket: (reason, other, spot) for reason, other, spot in reversed(found)}
    return [first_met[ticket] for ticket in sorted(first_met, reverse=True)]


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
    queue comes. With it is whatever works for it. Nobody looks at all unless it is ``on``.
    """

    def __init__(self, queues: Sequence["Queue"], on: bool) -> None:
        self.on = on
        self.alone: Queue | None = None
        self._queues, self._touched = queues, IntervalMap()
        self._left = self._room = 0  # until somebody looks again who is idle, and what is over

    @property
    def seen(self) -> Sequence["Queue"]:
        """The queues that are watched how far they are."""
        return self._queues if self.on else ()

    def switch(self, on: bool) -> None:
        """Look from now on, or do not. Nothing may be pending."""
        self.on, self.alone, self._left = on, None, 0
        self._touched.clear()

    def is_needed(self, queue: "Queue") -> bool:
        """Whether any other queue is busy. Asked now and then: to be wrong costs only time."""
        self._left -= 1
        if self.alone is not None or self._left < 0:
            self.look()
            us = queue.works_for
            if not any(other.is_busy and other.works_for is not us for other in self._queues):
                self._touched.clear()
                self.alone = us
                return False
            self._left = 64
            if len(self._touched) > self._room:
                self._touched.forget(is_over)
                self._room = 64 + 2 * len(self._touched)
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
        self._touched.take(footprint(entry.operation, entry.work), Access(entry.ticket, queue))

    def is_overwritten(self, interval: Interval, ticket: int) -> bool:
        """Whether all that is known of an interval is written again by operations after one."""
        writers = self._touched.writers(interval)
        return bool(writers) and all(writer.ticket > ticket for writer in writers)


# Ask the clocks only where no wait tells
class Precedence:
    """Who comes after whom, by the waits of all queues: after its end, or after it was done.

    Waits are ``noted`` only. Clocks are set when a question cannot be answered without, or when
    more than ``kept`` are noted.
    """

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        self.noted: list[tuple[Queue, int, Queue, int, bool]] = []  # waits that no clock knows yet
        self._awaited: dict[Queue, int] = {}  # the last operation that anybody waits for
        self._ended, self._done = Order(done), Order(done)

    def waits(self, queue: "Queue", ticket: int, event: Event) -> None:
        """Operation ``ticket`` of ``queue``, and what is behind it, waits for ``event``."""
        producer, after = event.queue, event.ticket
        if producer is None or after is None:
            return
        self.noted.append((queue, ticket, producer, after, event.of_end))
        if after > self._awaited.get(producer, 0):
            self._awaited[producer] = after
        if len(self.noted) > self._kept:
            self._set_clocks()

    def comes_after(self, queue: "Queue", producer: "Queue", after: int, of_end: bool) -> bool:
        """Whether the next operation of ``queue`` comes after one of ``producer`` anyway."""
        if after > self._awaited.get(producer, 0):
            return False
        if self.noted:
            waiter, _, other, until, ended = self.noted[-1]
            if waiter is queue and other is producer and until >= after and of_end >= ended:
                return True
            self._set_clocks()
        order = self._ended if of_end else self._done
        return after <= order.known(queue).get(producer, 0)

    def _set_clocks(self) -> None:
        for queue, ticket, producer, after, of_end in self.noted:
            if after > producer.done:
                self._ended.wait(queue, ticket, producer, after)
                if not of_end:
                    self._done.wait(queue, ticket, producer, after)
        self.noted.clear()


# Derive the edges of a card
class Hazards(Watch):
    """The edges of one card's ``queues``; the last ``kept`` of them are in ``edges``.

    ``count`` is how many there were. ``precedence`` is that of all cards.
    """

    shared = Precedence  # what the cards of a machine have one of

    def __init__(
        self, queues: Sequence["Queue"], precedence: Precedence, on: bool, kept: int = 4096
    ) -> None:
        super().__init__(queues, on)
        self.count, self.edges = 0, deque[Edge](maxlen=kept)
        self._precedence = precedence

    def waits(self, queue: "Queue", ticket: int, event: Event) -> None:
        """Operation ``ticket`` of ``queue`` waits for ``event``: an order like any other."""
        if not self.on or event.queue is None:
            return
        if self.alone is not None:
            if queue.works_for is event.queue.works_for is self.alone:
                return  # taken in with all that is pending, if ever
            self.look()
        self._precedence.waits(queue, ticket, event)

    def take_in(self, queue: "Queue", entry: "Pending") -> None:
        """Take in an operation that was enqueued before, and what it waits for."""
        for event in queue.line.awaited(entry):
            self._precedence.waits(queue, entry.ticket, event)
        super().take_in(queue, entry)

    def submitted(self, queue: "Queue", entry: "Pending", fresh: bool = False) -> Sequence[Event]:
        """The events that an operation of a queue that is not alone has to wait for.

        It is ``fresh`` if what was to be in the bytes that it writes is of no use to anybody.
        """
        spots = footprint(entry.operation, entry.work)
        if not spots or not self.is_needed(queue):
            return ()
        found = conflicts(self._touched, spots, new(Access, (entry.ticket, queue, None)))
        if not found:
            return ()
        events, precedence = [], self._precedence
        for reason, (after, producer, _), spot in found:
            if after <= producer.done:
                continue
            over = reason != "RAW" and (fresh or is_scratch(entry.operation, spot.interval))
            if precedence.comes_after(queue, producer, after, over or reason == "WAR"):
                continue
            edge = new(Edge, (reason, producer, after, queue, entry.ticket, spot.interval))
            if self.accepts(edge):
                self.count += 1
                self.edges.append(edge)
                events.append(producer.owe(after, over))
                precedence.waits(queue, entry.ticket, events[-1])
        return events

    def accepts(self, edge: Edge) -> bool:
        """Whether an edge that is needed is added: always, but in drills that leave one out."""
        return True
