"""What lies where: the memory map as text and as a figure, and the out-of-memory message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from torch_spyre_ref.emulator.figures import Drawing
from torch_spyre_ref.memory.placement import Placement

if TYPE_CHECKING:
    from torch_spyre_ref.allocator import CardMemory


def size_text(nbytes: int) -> str:
    """Bytes for people: 1536 is "1.50 KiB"."""
    if nbytes < 1024:
        return f"{nbytes} bytes"
    size, unit = nbytes / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.2f} {unit}"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of bytes of one kind: "live", "cached" or "free"."""

    kind: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RegionMap:
    """One region: its handle's id, its domain, and its spans by offset, neighbours merged."""

    region: int
    domain: int
    size: int
    spans: tuple[Span, ...]

    def total(self, kind: str) -> int:
        """Bytes of one kind."""
        return sum(span.length for span in self.spans if span.kind == kind)

    def largest_free(self) -> int:
        """Bytes of the largest free span."""
        return max((span.length for span in self.spans if span.kind == "free"), default=0)


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """A card's open regions at one moment: prints as text, shows as a figure in a notebook."""

    device: int
    regions: tuple[RegionMap, ...]

    @classmethod
    def of(cls, card: CardMemory) -> MemoryMap:
        """The map of a card's memory as it is now."""
        spans: dict[int, list[Span]] = {index: [] for index in card.space.regions}
        cached = [block for bucket in card.cache.values() for block in bucket]
        for kind, blocks in (("live", list(card.live.values())), ("cached", cached)):
            for block in blocks:
                for region, offset, length in block.composite.chunks:
                    spans[region].append(Span(kind, offset, length))
        maps = []
        for index, space in card.space.regions.items():
            free = [Span("free", offset, length) for offset, length in space.holes()]
            merged = _merge(sorted(spans[index] + free, key=lambda span: span.offset))
            maps.append(RegionMap(index, space.region.domain, space.region.size, merged))
        return cls(card.device, tuple(maps))

    def __str__(self) -> str:
        names = [f"  region {one.region}, domain {one.domain}" for one in self.regions]
        width = max(map(len, names), default=0)
        rows = [("size", "live", "cached", "free", "largest free block")] if names else []
        for one in self.regions:
            totals = [one.total(kind) for kind in ("live", "cached", "free")]
            live, cached, free = map(size_text, totals)
            rows.append((size_text(one.size), live, cached, free, size_text(one.largest_free())))
        lines = [f"spyre:{self.device}: {_count(self.regions)}"]
        for name, (*row, largest) in zip(["", *names], rows, strict=False):
            lines.append(f"{name:<{width}}" + "".join(f"{t:>12}" for t in row) + f"{largest:>20}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.figure().svg()

    def figure(self) -> Drawing:
        """A bar for each region, by domain. What is too small to see is drawn with its column."""
        totals = {k: sum(one.total(k) for one in self.regions) for k in ("live", "cached", "free")}
        texts = ", ".join(f"{size_text(total)} {kind}" for kind, total in totals.items())
        title = f"Memory of spyre:{self.device}: {_count(self.regions)}, {texts}"
        drawing = Drawing(_TOP + _ROW * len(self.regions) + 24, title)
        domain = -1
        for row, one in enumerate(sorted(self.regions, key=lambda one: (one.domain, one.region))):
            y = _TOP + _ROW * row
            if one.domain != domain:
                drawing.text(_LEFT - 10, y + 9, f"domain {one.domain}", "end")
                domain = one.domain
            drawing.text(_LEFT - 10, y + 21, f"region {one.region}", "end", small=True)
            _draw_region(drawing, one, y)
            live = f"{size_text(one.total('live'))} live"
            drawing.text(_LEFT + _COLUMNS * _COLUMN + 8, y + 15, live, small=True)
        _draw_legend(drawing, _TOP + _ROW * len(self.regions) + 4)
        return drawing


_LEFT, _TOP, _ROW, _BAR, _COLUMN, _COLUMNS = 108, 8, 32, 22, 4, 100
_FILLS = {"live": "used", "cached": "cached", "free": "free"}


def _count(regions: tuple[RegionMap, ...]) -> str:
    return f"{len(regions)} open region" + "s" * (len(regions) != 1)


def _draw_region(drawing: Drawing, one: RegionMap, y: int) -> None:
    """The bar: columns filled from below, first with what is live, then with what is cached."""
    hint = f"region {one.region}: {size_text(one.total('free'))} free"
    drawing.box(_LEFT, y, _COLUMN * _COLUMNS, _BAR, "free", hint)
    room = [_BAR] * _COLUMNS
    for kind in ("live", "cached"):
        below = room
        filled = _heights(one, kind, below)
        room = [space - height for space, height in zip(below, filled, strict=True)]
        hint = f"region {one.region}: {size_text(one.total(kind))} {kind}"
        for first, stop in _runs([top < bottom for top, bottom in zip(room, below, strict=True)]):
            edges = [(y + room[n], y + below[n]) for n in range(first, stop)]
            drawing.skyline(_LEFT + first * _COLUMN, _COLUMN, edges, _FILLS[kind], hint)


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """Where ``flags`` are set: (first, stop) of each run."""
    for flag, run in groupby(enumerate(flags), key=lambda item: item[1]):
        if flag:
            places = [place for place, _ in run]
            yield places[0], places[-1] + 1


def _heights(one: RegionMap, kind: str, room: list[int]) -> list[int]:
    """How high each column is filled with one kind: by its share, and to be seen at all."""
    filled = [0.0] * _COLUMNS
    for span in one.spans:
        if span.kind == kind:
            start = span.offset * _COLUMNS / one.size
            stop = (span.offset + span.length) * _COLUMNS / one.size
            for column in range(int(start), min(int(stop) + 1, _COLUMNS)):
                filled[column] += min(stop, column + 1) - max(start, column)
    return [
        min(max(round(share * _BAR), 2), most) if share > 0 else 0
        for share, most in zip(filled, room, strict=True)
    ]


def _draw_legend(drawing: Drawing, y: int) -> None:
    x = _LEFT
    for kind, words in (
        ("live", "live"),
        ("cached", "cached, for the same size"),
        ("free", "free"),
    ):
        drawing.box(x, y + 2, 10, 10, _FILLS[kind], words)
        drawing.text(x + 15, y + 11, words, small=True)
        x += 40 + 6 * len(words)


def _merge(spans: list[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last and last.kind == span.kind and last.offset + last.length == span.offset:
            merged[-1] = Span(span.kind, last.offset, last.length + span.length)
        else:
            merged.append(span)
    return tuple(merged)


def out_of_memory_message(card: CardMemory, nbytes: int, where: Placement) -> str:
    """What was asked, what there is, and what to do."""
    statistics = card.statistics
    how = "interleaved" if where.policy == "interleave" else "in any domain"
    if where.domain is not None:
        how = f"bound to domain {where.domain}"
    return (
        f"spyre:{card.device} is out of memory: asked for {size_text(nbytes)} ({how}), while "
        f"{statistics.allocation.current} tensors hold "
        f"{size_text(statistics.allocated_bytes.current)} of {size_text(card.space.spec.memory)}.\n"
        "Cached blocks were returned and garbage was collected. Free some tensors, use smaller\n"
        f"ones, or start with a larger TORCH_SPYRE_REF_MEMORY.\n{MemoryMap.of(card)}"
    )
