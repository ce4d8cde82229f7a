"""The sanitizer: what went wrong in silence, with the line that asked for it.

*Racecheck* looks at correction slots: a transfer that writes one and a program that is patched from
it must be ordered, by their queue, by events, or because one was over before the other was
submitted. A program whose fetch no barrier holds back is ordered after what the program before it
waited for, and after nothing else.

*Initcheck* looks at reads: of memory that was handed out, poisoned, and written by nobody since. It
keeps a second memory beside the card's, with a 1 for each such byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.overlap import may_overlap
from torch_spyre_ref.runtime.callsite import CallSite

if TYPE_CHECKING:
    from torch_spyre_ref.emulator.fetch import Dispatch
    from torch_spyre_ref.runtime.queues import Pending, Queue

RACE, UNINITIALISED = "race", "uninitialised"
KINDS = (RACE, UNINITIALISED)

Clock = dict[str, int]
"""A vector clock: for each queue the last operation that is known to come before."""


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """One fault. ``launch`` is the label that the operation was submitted with."""

    kind: str
    operation: str
    launch: str
    device: int
    where: DeviceRange
    detail: str
    line: CallSite | None

    def __str__(self) -> str:
        launch = f" of launch {self.launch!r}" if self.launch else ""
        return (
            f"{self.kind}: {self.operation}{launch} on card {self.device}, {self.where}: "
            f"{self.detail}\n  at {self.line}"
        )


class Racecheck:
    """Who comes before whom, as far as correction slots ask."""

    def __init__(self) -> None:
        self._queues: dict[str, Clock] = {}
        self._known: dict[int, Clock] = {}

    def submitted(
        self, queue: Queue, entry: Pending, others: Sequence[tuple[Queue, Pending]]
    ) -> Iterator[tuple[Pending, DeviceRange]]:
        """The pending operations among ``others`` that race with ``entry``, and over what."""
        work = entry.work
        clock = dict(self._queues.get(queue.name, {}))
        if work.awaited is not None and work.awaited.ticket is not None:
            for name, ticket in self._known.get(work.awaited.ticket, {}).items():
                clock[name] = max(ticket, clock.get(name, 0))
        clock[queue.name] = entry.ticket
        self._queues[queue.name] = self._known[entry.ticket] = clock
        for other_queue, other in others:
            pair = _slot_access(entry, other)
            if pair is None:
                continue
            before = clock if work.dispatch is None else self._fetched_after(work.dispatch, clock)
            if before.get(other_queue.name, 0) < other.ticket:
                yield other, pair

    def _fetched_after(self, dispatch: Dispatch, clock: Clock) -> Clock:
        """What is known to be over when a program is fetched."""
        if dispatch.barrier:
            return clock
        before = dispatch.before
        return {} if before is None else self._known.get(before, {})

    def completed(self, ticket: int) -> None:
        """An operation is over: whatever is submitted now comes after it."""
        self._known.pop(ticket, None)


def _slot_access(entry: Pending, other: Pending) -> DeviceRange | None:
    """The correction slot that one of the two is patched from and the other writes."""
    for run, write in ((entry, other), (other, entry)):
        dispatch = run.work.dispatch
        if dispatch is None or dispatch.slot is None or (dispatch.is_fetched and run is other):
            continue
        if any(may_overlap(dispatch.slot, target) for target in write.operation.writes):
            return dispatch.slot if write.work.dispatch is None else None
    return None


class Initcheck:
    """Which bytes of a card are still poison."""

    def __init__(self, region_bytes: int) -> None:
        self._region_bytes = region_bytes
        self._shadow = Memory()
        self._attached: set[int] = set()

    def completed(self, entry: Pending) -> Iterator[tuple[DeviceRange, int]]:
        """The ranges that an operation read in poison, and how many bytes of each."""
        operation, dispatch = entry.operation, entry.work.dispatch
        kind = type(operation).__name__
        if kind == "D2D":
            self._attach(*operation.reads, *operation.writes)
            self._shadow.move(*operation.reads, *operation.writes)
            return
        reads = [(False, span) for span in operation.reads]
        accesses = [*reads, *((True, span) for span in operation.writes)]
        for is_write, span in accesses if dispatch is None else dispatch.accesses:
            self._attach(span)
            if is_write:
                self._shadow.fill(span, b"\x01" if entry.work.unseen else b"\x00")
            elif poison := int(self._shadow.read(span).sum()):
                yield span, poison

    def _attach(self, *spans: DeviceRange) -> None:
        for span in spans:
            for chunk in span.address.chunks:
                if chunk.region not in self._attached:
                    self._attached.add(chunk.region)
                    self._shadow.attach(chunk.region, self._region_bytes)


class Sanitizer:
    """Racecheck and initcheck of all cards; ``on`` says whether they look."""

    def __init__(self, region_bytes: int) -> None:
        self.on = False
        self.reports: list[SanitizerReport] = []
        self._region_bytes = region_bytes
        self.clear()

    def clear(self) -> None:
        """Forget everything but the reports: what is in memory now counts as written."""
        self._race = Racecheck()
        self._init: dict[int, Initcheck] = {}

    def submitted(self, queue: Queue, entry: Pending, queues: Sequence[Queue]) -> None:
        """Look at an operation that was just enqueued, beside what is pending on its card."""
        others = [(q, e) for q in queues for e in q.pending() if e is not entry]
        for other, slot in self._race.submitted(queue, entry, others):
            detail = (
                f"nothing orders it with {other.operation!r}, enqueued at {other.line}; hold the "
                "fetch back with the barrier, and let an event order two queues"
            )
            self._report(RACE, queue, entry, slot, detail)

    def completed(self, queue: Queue, entry: Pending) -> None:
        """Look at an operation that is over."""
        self._race.completed(entry.ticket)
        device = queue.device
        check = self._init.setdefault(device, Initcheck(self._region_bytes))
        for span, count in check.completed(entry):
            detail = f"{count} of the {span.nbytes} bytes that it read were never written"
            self._report(UNINITIALISED, queue, entry, span, detail)

    def _report(
        self, kind: str, queue: Queue, entry: Pending, where: DeviceRange, detail: str
    ) -> None:
        name = type(entry.operation).__name__
        self.reports.append(
            SanitizerReport(kind, name, entry.label, queue.device, where, detail, entry.line)
        )
