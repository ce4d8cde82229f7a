"""Memcheck: does every operation touch only card memory that somebody owns?

The allocator says what it hands out and takes back; each operation's footprint is looked up when
it is submitted, so that a bad one is refused before it is enqueued. The kinds of fault are
``out of bounds``, ``use after free``, ``handed out twice``, ``given back twice`` and ``region in
use``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch_spyre_ref.emulator.regions import CompositeAddress, Region
from torch_spyre_ref.runtime.callsite import CallSite, call_site
from torch_spyre_ref.runtime.operations import Operation


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


class _Blocks:
    """Disjoint blocks of one region, by start."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

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
        insort(self._blocks, block, key=_start)

    def remove(self, block: _Block) -> None:
        del self._blocks[bisect_left(self._blocks, block.start, key=_start)]


def _start(block: _Block) -> int:
    return block.start


class Memcheck:
    """What is handed out on every card. Called by the holder of the clock's lock."""

    def __init__(self) -> None:
        self.reports: list[MemcheckReport] = []
        self._live: dict[tuple[int, int], _Blocks] = {}
        self._freed: dict[tuple[int, int], _Blocks] = {}

    def handed_out(self, device: int, address: CompositeAddress) -> None:
        """The bytes of ``address`` have an owner from now on."""
        line = call_site()
        for region, start, length in address.chunks:
            live, freed = self._maps(device, region)
            block = _Block(start, start + length, line)
            for other in live.overlapping(start, block.stop):
                self._fail(
                    MemcheckReport("handed out twice", repr(address), device, region, *block),
                    f"bytes [{other.start}, {other.stop}) have had an owner since {other.line}",
                )
            for old in freed.overlapping(start, block.stop):
                _cut(freed, old, block)
            live.add(block)

    def given_back(self, device: int, address: CompositeAddress) -> None:
        """The bytes of ``address``, handed out as one, have no owner any more."""
        line = call_site()
        for region, start, length in address.chunks:
            live, freed = self._maps(device, region)
            block = live.at(start)
            if block is None or (block.start, block.stop) != (start, start + length):
                self._fail(
                    MemcheckReport(
                        "given back twice", repr(address), device, region, start, start + length, line
                    ),
                    "no block that is handed out begins and ends there",
                )
            else:
                live.remove(block)
                freed.add(_Block(block.start, block.stop, line))

    def check(self, device: int, operation: Operation, line: CallSite) -> None:
        """Raise :class:`MemcheckError` unless all that ``operation`` touches has an owner."""
        for span in (*operation.reads, *operation.writes):
            for region, start, stop in span.footprint():
                live, freed = self._maps(device, region)
                block = live.at(start)
                if block is not None and stop <= block.stop:
                    continue
                wrong = start if block is None else block.stop
                gone = freed.at(wrong)
                if gone is not None:
                    kind, detail = "use after free", f"given back at {gone.line}"
                else:
                    kind, detail = "out of bounds", "these bytes belong to no block"
                self._fail(
                    MemcheckReport(kind, repr(operation), device, region, wrong, stop, line), detail
                )

    def check_release(
        self, device: int, region: Region, pending: Iterable[tuple[Operation, CallSite | None]]
    ) -> None:
        """Raise :class:`MemcheckError` if ``region`` holds a block or pending work touches it."""
        line = call_site()
        live, freed = self._maps(device, region.id)
        for block in live:
            self._fail(
                MemcheckReport("region in use", "a release", device, region.id, *block[:2], line),
                f"these bytes have had an owner since {block.line}",
            )
        for operation, enqueued in pending:
            for span in (*operation.reads, *operation.writes):
                for number, start, stop in span.footprint():
                    if number == region.id:
                        self._fail(
                            MemcheckReport(
                                "region in use", "a release", device, region.id, start, stop, line
                            ),
                            f"{operation!r}, enqueued at {enqueued}, is not complete",
                        )
        del self._live[device, region.id], self._freed[device, region.id]

    def _maps(self, device: int, region: int) -> tuple[_Blocks, _Blocks]:
        key = device, region
        return self._live.setdefault(key, _Blocks()), self._freed.setdefault(key, _Blocks())

    def _fail(self, report: MemcheckReport, detail: str) -> None:
        self.reports.append(report)
        raise MemcheckError(report, detail)


def _cut(freed: _Blocks, old: _Block, used: _Block) -> None:
    """Forget that the bytes of ``old`` which ``used`` takes over were ever free."""
    freed.remove(old)
    if old.start < used.start:
        freed.add(old._replace(stop=used.start))
    if used.stop < old.stop:
        freed.add(old._replace(start=used.stop))
