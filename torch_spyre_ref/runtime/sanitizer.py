"""The sanitizer: what went wrong in silence, with the line that asked for it.

*Memcheck* refuses what touches memory that nobody owns, *racecheck* finds two operations that
nothing puts in order, *initcheck* finds reads of memory that nobody wrote. Queues tell of what is
submitted, of what is over, and of what the host came to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.runtime.callsite import CallSite, call_site
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.footprints import HostBytes, host_buffer
from torch_spyre_ref.runtime.initcheck import Initcheck
from torch_spyre_ref.runtime.memcheck import KINDS as MEMCHECK_KINDS
from torch_spyre_ref.runtime.memcheck import Memcheck, MemcheckReport
from torch_spyre_ref.runtime.operations import Operation
from torch_spyre_ref.runtime.pinned import PinnedMemory
from torch_spyre_ref.runtime.racecheck import About, Race, Racecheck

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.lowering import Work
    from torch_spyre_ref.runtime.pending import Pending
    from torch_spyre_ref.runtime.queues import Queue

RACE, UNINITIALISED = "race", "uninitialised"
KINDS = (RACE, UNINITIALISED, *MEMCHECK_KINDS)
"""Every kind of fault there is."""


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """One fault. ``launch`` is the label that the operation was submitted with.

    ``line`` is where it was enqueued, ``earlier`` where the one was that it races with.
    """

    kind: str
    operation: str
    launch: str
    device: int
    where: DeviceRange | HostBytes
    detail: str
    line: CallSite | None
    earlier: CallSite | None = None

    def __str__(self) -> str:
        label = f" {self.launch!r}" if self.launch else ""
        return (
            f"{self.kind}: {self.operation}{label} on card {self.device}, {self.where}: "
            f"{self.detail}\n  at {self.line}"
        )


Report = SanitizerReport | MemcheckReport


class Sanitizer:
    """Memcheck, racecheck and initcheck of all cards; ``on`` says whether they look."""

    def __init__(self, clock: Clock, pinned: PinnedMemory, region_bytes: int) -> None:
        self.on = False
        self.reports: list[Report] = []
        self.memcheck: Memcheck | None = None
        self._clock, self._pinned, self._region_bytes = clock, pinned, region_bytes
        self._memories: Sequence[Memory] = ()

    def switch_on(self, memories: Sequence[Memory]) -> None:
        """Look from now on at what happens on cards with these memories; nothing may be pending.

        What is in memory counts as written, and to memcheck nobody owns anything yet.
        """
        self._memories = memories
        self._race = Racecheck(self._pinned)
        self._init = [Initcheck(self._region_bytes) for _ in memories]
        self.memcheck = Memcheck(self._clock, self.reports)
        for memory, check in zip(memories, self._init, strict=True):
            memory.visits = check.visits
        self.on = True

    def switch_off(self) -> None:
        """Look no more."""
        self.on, self.memcheck = False, None
        for memory in self._memories:
            memory.visits = None

    def check(self, queue: Queue, operation: Operation, work: Work) -> CallSite:
        """Who is about to enqueue an operation. Raises ``MemcheckError``, and all is as before."""
        line = call_site()
        if self.memcheck is not None:
            self.memcheck.check(queue.device, operation, work, line)
        return line

    def submitted(
        self, queue: Queue, entry: Pending, edges: Iterable[Event], seen: Iterable[Queue]
    ) -> None:
        """Look at an operation that was just enqueued; ``edges`` were derived for it.

        The runtime has looked how far ``seen`` are: that is an order as good as any.
        """
        for other in seen:
            self._race.knows(other, other.done)
        for race in self._race.submitted(queue, entry, edges):
            self._report_race(queue, entry, race)

    def host_knows(self, queue: Queue, ticket: int) -> None:
        """The host waited for operation ``ticket``, or asked and heard that it is over."""
        self._race.knows(queue, ticket)

    def completed(self, queue: Queue, entry: Pending) -> None:
        """Look at an operation that is over."""
        if not self._race.completed(entry):
            _, source = host_buffer(entry.operation)
            where = HostBytes(source.size if source is not None else 0)
            detail = "the host changed its source between submission and the moment it was read"
            self._report(RACE, queue, entry, where, f"{detail}; wait for it first")
        for span, count in self._init[queue.device].completed(entry):
            detail = f"{count} of the {span.nbytes} bytes that it read were never written"
            self._report(UNINITIALISED, queue, entry, span, detail)

    def _report_race(self, queue: Queue, entry: Pending, race: Race) -> None:
        about, other = race.earlier.about, race.earlier.queue
        assert isinstance(about, About)
        other_one = f"{about.operation} {about.launch!r}" if about.launch else about.operation
        _, start, stop = race.touch.interval
        cure = (
            "hold the fetch back with the barrier, and let an event order two queues"
            if race.by_fetch or about.fetch is not None
            else f"record an event on queue {other.name} after that one, and have queue "
            f"{queue.name} wait for it before this one"
        )
        detail = (
            f"nothing puts {other_one} on queue {other.name} before it ({race.reason}, "
            f"{stop - start} bytes); {cure}\n  that one at {about.line}"
        )
        self._report(RACE, queue, entry, race.touch.where, detail, about.line)

    def _report(
        self,
        kind: str,
        queue: Queue,
        entry: Pending,
        where: DeviceRange | HostBytes,
        detail: str,
        earlier: CallSite | None = None,
    ) -> None:
        name = type(entry.operation).__name__
        self.reports.append(
            SanitizerReport(
                kind, name, entry.label, queue.device, where, detail, entry.line, earlier
            )
        )
