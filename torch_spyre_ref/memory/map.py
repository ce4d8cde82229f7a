"""What lies where: the memory map as text and as a figure, and the out-of-memory message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        lines = [f"spyre:{self.device}: {len(self.regions)} open regions"]
        for one in self.regions:
            kinds = ", ".join(
                f"{size_text(one.total(kind))} {kind}" for kind in ("live", "cached", "free")
            )
            lines.append(
                f"  region {one.region}, domain {one.domain}, {size_text(one.size)}: {kinds}, "
                f"largest free block {size_text(one.largest_free())}"
            )
        return "\n".join(lines)

    __repr__ = __str__


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
    used = card.statistics.allocated_bytes.current
    how = where.policy if where.domain is None else f"bound to domain {where.domain}"
    return (
        f"spyre:{card.device} is out of memory: asked for {size_text(nbytes)} ({how}), while "
        f"{card.statistics.allocation.current} tensors hold {size_text(used)} of "
        f"{size_text(card.space.spec.memory)}. Cached blocks were returned and garbage was "
        "collected. Free some tensors, use smaller ones, or start with a larger "
        f"TORCH_SPYRE_REF_MEMORY.\n{MemoryMap.of(card)}"
    )
