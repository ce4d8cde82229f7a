"""Memcheck: does every operation touch only card memory that somebody owns?

The allocator says what it hands out and takes back; each operation's footprint is looked up when
it is submitted, so that a bad one is refused before it is enqueued.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.runtime.callsite import CallSite, call_site
from torch_spyre_ref.runtime.footprints import spans
from torch_spyre_ref.runtime.operations import Operation

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.lowering import Work
    from torch_spyre_ref.runtime.pending import Pending

OUT_OF_BOUNDS, USE_AFTER_FREE = "out of bounds", "use after free"
HANDED_OUT_TWICE, GIVEN_BACK_TWICE = "handed out twice", "given back twice"
REGION_IN_USE = "region in use"
KINDS = (OUT_OF_BOUNDS, USE_AFTER_FREE, HANDED_OUT_TWICE, GIVEN_BACK_TWICE, REGION_IN_USE)


@dataclass(frozen=True, slots=True)
class MemcheckReport:
    """One fault: bytes ``[start, stop)`` of a region of a card, the first that are wrong.

    ``line`` is where the operation was enqueued, or the block handed out or given back.
    """

    kind: str
    what: str
    device: int
    region: int
    start: int
    stop: int
    line: CallSite

    def __str__(self) -> str:
        return (
            f"memcheck: {self.kind}: {self.what} touches bytes [{self.start}, {self.stop}) of "
            f"region {self.region} on card {self.device}\n  at {self.line}"
        )


class MemcheckError(RuntimeError):
    """A fault, with its ``report``. What was asked for did not happen."""

    def __init__(self, report: MemcheckReport, detail: str) -> None:
        super().__init__(f"{report}\n  {detail}")
        self.report = report


class _Block(NamedTuple):
    start: int
    stop: int
    line: CallSite

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.stop


class _Blocks:
    """Disjoint blocks of one region, by start."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __iter__(self) -> Iterator[_Block]:
        return iter(self._blocks)

    def at(self, byte: int) -> _Block | None:
        """The block that holds ``byte``."""
        index = bisect_right(self._blocks, byte, key=_start) - 1
        if index >= 0 and byte < self._blocks[index].stop:
            return self._blocks[index]
        return None

    def overlapping(self, start: int, stop: int) -> list[_Block]:
        """The blocks that share a byte with ``[start, stop)``."""
        first = max(bisect_right(self._blocks, start, key=_start) - 1, 0)
        last = bisect_left(self._blocks, stop, key=_start)
        return [block for block in self._blocks[first:last] if block.stop > start]

    def add(self, block: _Block) -> None:
        """Take in ``block``, which overlaps none."""
        insort(self._blocks, block, key=_start)

    def cut(self, hole: _Block) -> None:
        """Forget the bytes of ``hole``; blocks that reach over its ends are shortened."""
        for old in self.overlapping(*hole.span):
            del self._blocks[bisect_left(self._blocks, old.start, key=_start)]
            if old.start < hole.start:
                self.add(old._replace(stop=hole.start))
            if hole.stop < old.stop:
                self.add(old._replace(start=hole.stop))


def _start(block: _Block) -> int:
    return block.start


class Memcheck:
    """What is handed out on every card. Thread-safe. Faults are added to ``reports`` too."""

    def __init__(self, clock: Clock, reports: list[Any]) -> None:
        self.reports: list[MemcheckReport] = []
        self._all = reports
        self._clock = clock
        self._live: dict[tuple[int, int], _Blocks] = {}
        self._freed: dict[tuple[int, int], _Blocks] = {}

    def handed_out(self, device: int, address: CompositeAddress) -> None:
        """The bytes of ``address`` have an owner from now on."""
        line = call_site()
        with self._clock:
            for region, start, length in address.chunks:
                live, _ = self._maps(device, region)
                for other in live.overlapping(start, start + length):
                    fault = MemcheckReport(
                        HANDED_OUT_TWICE, repr(address), device, region, *other.span, line
                    )
                    self._fail(fault, f"they have had an owner since {other.line}")
            for region, start, length in address.chunks:
                live, freed = self._maps(device, region)
                block = _Block(start, start + length, line)
                freed.cut(block)
                live.add(block)

    def given_back(self, device: int, address: CompositeAddress) -> None:
        """The bytes of ``address``, handed out as they are now given back, have no owner more."""
        line = call_site()
        with self._clock:
            for region, start, length in address.chunks:
                block = self._maps(device, region)[0].at(start)
                if block is None or block.span != (start, start + length):
                    fault = MemcheckReport(
                        GIVEN_BACK_TWICE,
                        repr(address),
                        device,
                        region,
                        start,
                        start + length,
                        line,
                    )
                    self._fail(fault, "no block that has an owner begins and ends there")
            for region, start, length in address.chunks:
                live, freed = self._maps(device, region)
                live.cut(_Block(start, start + length, line))
                freed.add(_Block(start, start + length, line))

    def check(self, device: int, operation: Operation, work: Work, line: CallSite) -> None:
        """Raise ``MemcheckError`` unless all that ``operation`` touches has an owner."""
        for region, start, stop in _touched(operation, work):
            live, freed = self._maps(device, region)
            block = live.at(start)
            if block is not None and stop <= block.stop:
                continue
            wrong = start if block is None else block.stop
            gone = freed.at(wrong)
            kind = USE_AFTER_FREE if gone else OUT_OF_BOUNDS
            fault = MemcheckReport(kind, repr(operation), device, region, wrong, stop, line)
            detail = (
                f"given back at {gone.line}" if gone else "they are another block's, or nobody's"
            )
            self._fail(fault, detail)

    def check_release(self, device: int, region: int, pending: Iterable[Pending]) -> None:
        """Raise ``MemcheckError`` if a block or ``pending`` work lies in ``region``."""
        line = call_site()
        for block in self._maps(device, region)[0]:
            fault = MemcheckReport(
                REGION_IN_USE, "giving back the region", device, region, *block.span, line
            )
            self._fail(fault, f"they have had an owner since {block.line}")
        for entry in pending:
            for number, start, stop in _touched(entry.operation, entry.work):
                if number == region:
                    fault = MemcheckReport(
                        REGION_IN_USE, "giving back the region", device, region, start, stop, line
                    )
                    detail = f"{entry.operation!r} is not complete; enqueued at {entry.line}"
                    self._fail(fault, detail)
        del self._live[device, region], self._freed[device, region]

    def _maps(self, device: int, region: int) -> tuple[_Blocks, _Blocks]:
        key = device, region
        return self._live.setdefault(key, _Blocks()), self._freed.setdefault(key, _Blocks())

    def _fail(self, report: MemcheckReport, detail: str) -> NoReturn:
        self.reports.append(report)
        self._all.append(report)
        raise MemcheckError(report, detail)


def _touched(operation: Operation, work: Work) -> Iterator[tuple[int, int, int]]:
    for _, ranges in spans(operation, work):
        for span in ranges:
            yield from span.footprint()
