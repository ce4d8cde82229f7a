"""Racecheck: two operations that use the same bytes, one of them to write, and no order between.

What orders two operations is their queue, an event, a derived edge, or a host that knew the first
to be over when it submitted the second: because it waited for it, or asked and was told so. All
else is luck. Where derivation is on, the runtime has looked who is over, and that counts too.

Device memory and pinned host memory are looked at alike. What the host itself does to pinned memory
no one sees: a transfer's source has a checksum taken at submission and again when it is read.

A program whose fetch no barrier holds back is fetched after what the program before it waited for,
and after nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from torch_spyre_ref.runtime.callsite import CallSite
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.footprints import HostBytes, Touch, host_buffer, touches
from torch_spyre_ref.runtime.intervals import Access, IntervalMap, Spot
from torch_spyre_ref.runtime.pinned import PinnedMemory
from torch_spyre_ref.runtime.vector_clocks import Known, Order, later

if TYPE_CHECKING:
    from torch_spyre_ref.emulator.fetch import Dispatch
    from torch_spyre_ref.runtime.pending import Pending
    from torch_spyre_ref.runtime.queues import Queue


class About(NamedTuple):
    """What a report says of an access; ``fetch`` is the run whose fetch it is, if it is one."""

    operation: str
    launch: str
    line: CallSite | None
    fetch: Dispatch | None


class Race(NamedTuple):
    """An access of the operation looked at, and ``earlier``, which nothing puts before it."""

    touch: Touch
    reason: str
    earlier: Access
    by_fetch: bool


class Racecheck:
    """Who comes before whom, as far as the program says so."""

    def __init__(self, pinned: PinnedMemory) -> None:
        self._pinned = pinned
        self._host: Known = {}
        self._told: dict[Queue, Known] = {}  # what the host knew at the queue's last submission
        self._order = Order(lambda queue: self._host.get(queue, 0))
        self._touched = IntervalMap()
        self._programs: dict[int, Queue] = {}  # where the runs that are not over were submitted
        self._sums: dict[int, int] = {}
        self._taken = 0

    def knows(self, queue: Queue, ticket: int) -> None:
        """The host knows that operation ``ticket`` of ``queue`` is over."""
        if ticket > self._host.get(queue, 0):
            self._host = later(self._host, self._order.up_to(queue, ticket))

    def submitted(self, queue: Queue, entry: Pending, events: Iterable[Event]) -> Iterator[Race]:
        """The races of an operation with those before it; ``events`` are its derived edges."""
        self._sweep()
        order, ticket = self._order, entry.ticket
        if self._told.get(queue) is not self._host:
            self._told[queue] = self._host
            order.learn(queue, ticket, self._host)
        for event in (entry.work.awaited, *events):
            if event is not None and event.queue is not None and event.ticket is not None:
                order.wait(queue, ticket, event.queue, event.ticket)
        for reason, touch, other, by_fetch in self._unordered(queue, entry):
            if not by_fetch:
                if other.ticket <= order.known(queue).get(other.queue, 0):
                    continue  # an order that was reported missing just now would see to this too
                order.wait(queue, ticket, other.queue, other.ticket)
            yield Race(touch, reason, other, by_fetch)

    def _unordered(self, queue: Queue, entry: Pending) -> Iterator[tuple[str, Touch, Access, bool]]:
        """What ``entry`` meets and does not come after, the latest first."""
        dispatch, ticket = entry.work.dispatch, entry.ticket
        about = About(repr(entry.operation), entry.label, entry.line, None)
        access, fetch = Access(ticket, queue, about), None
        clock = later(self._order.known(queue), {queue: ticket})
        fetched = clock
        if dispatch is not None:
            self._programs[ticket] = queue
            if not dispatch.barrier:
                fetch = Access(ticket, queue, about._replace(fetch=dispatch))
                fetched = self._fetched_after(dispatch)
        found: dict[int, tuple[str, Touch, Access, bool]] = {}
        written = False
        for touch in touches(queue.device, entry.operation, entry.work, self._pinned):
            by_fetch = touch.is_fetch and fetch is not None
            mine = fetch if by_fetch and fetch is not None else access
            spot = Spot(touch.is_write, touch.interval)
            for reason, other, _ in self._touched.take((spot,), mine):
                if isinstance(touch.where, HostBytes):
                    written |= other.ticket > self._host.get(other.queue, 0)
                before = fetched if by_fetch else clock
                if other.ticket > before.get(other.queue, 0) and not _was_fetched(other):
                    found.setdefault(other.ticket, (reason, touch, other, by_fetch))
        writes, source = host_buffer(entry.operation)
        if source is not None and not writes and not written:
            self._sums[ticket] = crc32(source.data)
        return (found[number] for number in sorted(found, reverse=True))

    def _fetched_after(self, dispatch: Dispatch) -> Known:
        """What is known to be over when a program is fetched that no barrier holds back."""
        before = dispatch.before
        if before is None or before not in self._programs:
            return self._host
        queue = self._programs[before]
        return later(self._order.up_to(queue, before - 1), self._order.known_at(queue, before))

    def completed(self, entry: Pending) -> bool:
        """An operation is over. Whether it found its source as it was when it was submitted."""
        self._programs.pop(entry.ticket, None)
        then, (_, source) = self._sums.pop(entry.ticket, None), host_buffer(entry.operation)
        return then is None or source is None or crc32(source.data) == then

    def _sweep(self) -> None:
        """Now and then, drop what every submission to come is known to come after."""
        self._taken -= 1
        if self._taken < 0:
            host = self._host
            self._touched.forget(lambda access: access.ticket <= host.get(access.queue, 0))
            self._taken = max(64, len(self._touched))


def _was_fetched(access: Access) -> bool:
    about = access.about
    return isinstance(about, About) and about.fetch is not None and about.fetch.is_fetched
