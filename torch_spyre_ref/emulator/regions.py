"""Regions and addresses: how the card names its memory.

Memory is handed out in regions, each one contiguous block of one memory domain behind a handle,
and handles are few. An address is a short list of chunks (region, offset, length): one chunk when
an allocation is bound to a domain, several when it is interleaved over domains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from torch_spyre_ref.emulator.spec import CardSpec

MAX_CHUNKS = 8

Mode = Literal["pf", "vf"]


class Chunk(NamedTuple):
    """``length`` contiguous bytes of a region; ``region`` is the id that its handle goes by."""

    region: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True, repr=False)
class CompositeAddress:
    """Where an allocation's bytes lie: at most eight chunks, the card's fixed-size descriptor.

    With ``grain == 0`` the chunks follow one another. With ``grain > 0`` logical bytes are dealt
    out to the chunks in turn, ``grain`` bytes at a time: byte ``b`` lies in chunk
    ``(b // grain) % n`` at ``b // grain // n * grain + b % grain``.
    Raises ``ValueError`` when the chunks do not make such an address.
    """

    chunks: tuple[Chunk, ...]
    grain: int = 0
    length: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.chunks) <= MAX_CHUNKS:
            raise ValueError(
                f"an address has 1 to {MAX_CHUNKS} chunks, not {len(self.chunks)}; "
                "use fewer, larger chunks"
            )
        length = sum(chunk.length for chunk in self.chunks)
        object.__setattr__(self, "length", length)
        if self.grain and [c.length for c in self.chunks] != dealt(
            length, len(self.chunks), self.grain
        ):
            raise ValueError(
                f"{self} is not what dealing {length} bytes in grains of {self.grain} gives; "
                f"chunk lengths must be {dealt(length, len(self.chunks), self.grain)}"
            )

    def pieces(self, offset: int, length: int) -> list[Chunk]:
        """The physical runs of ``length`` bytes from ``offset``, in logical order.

        Raises ``ValueError`` when the bytes do not lie inside the address.
        """
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(
                f"bytes [{offset}, {offset + length}) asked for, but {self} has {self.length} bytes"
            )
        if self.grain and len(self.chunks) > 1:
            return _dealt_pieces(self.chunks, self.grain, offset, length)
        return _following_pieces(self.chunks, offset, length)

    def spans(self, start: int, stop: int) -> list[Chunk]:
        """Physical bytes of logical ``[start, stop)`` in the order of the chunks, one run each."""
        if not self.grain:
            return self.pieces(start, stop - start)
        first = dealt(start, len(self.chunks), self.grain)
        last = dealt(stop, len(self.chunks), self.grain)
        return [
            Chunk(chunk.region, chunk.offset + a, b - a)
            for chunk, a, b in zip(self.chunks, first, last, strict=True)
            if b > a
        ]

    def __repr__(self) -> str:
        chunks = ", ".join(f"r{c.region}[{c.offset}:{c.offset + c.length}]" for c in self.chunks)
        return f"CompositeAddress({chunks}{f', grain={self.grain}' if self.grain else ''})"


def dealt(length: int, chunks: int, grain: int) -> list[int]:
    """Bytes that each of ``chunks`` chunks gets when ``length`` bytes are dealt out by ``grain``."""
    rounds, rest = divmod(length, grain * chunks)
    return [rounds * grain + min(max(rest - i * grain, 0), grain) for i in range(chunks)]


def _following_pieces(chunks: tuple[Chunk, ...], offset: int, length: int) -> list[Chunk]:
    pieces = []
    for region, start, size in chunks:
        take = min(length, size - offset)
        if take > 0:
            pieces.append(Chunk(region, start + offset, take))
            length -= take
        offset = max(offset - size, 0)
    return pieces


def _dealt_pieces(chunks: tuple[Chunk, ...], grain: int, offset: int, length: int) -> list[Chunk]:
    pieces = []
    stop = offset + length
    while offset < stop:
        turn, within = divmod(offset, grain)
        stripe, index = divmod(turn, len(chunks))
        take = min(grain - within, stop - offset)
        chunk = chunks[index]
        pieces.append(Chunk(chunk.region, chunk.offset + stripe * grain + within, take))
        offset += take
    return pieces


class Region(NamedTuple):
    """One contiguous block of card memory: ``size`` bytes of ``domain`` behind ``handle``."""

    id: int
    size: int
    domain: int
    handle: int


class RegionStore(Protocol):
    """What stands behind the handles: the card's memory."""

    def attach(self, region: int, size: int) -> None: ...

    def detach(self, region: int) -> None: ...


class RegionError(RuntimeError):
    """A region that the card cannot hand out or take back."""


class HandleBudgetExhausted(RegionError):
    """Every handle of the card is in use."""


class CardMemoryExhausted(RegionError):
    """A domain has no contiguous run of bytes as large as the region asked for."""


class RegionTable:
    """The handles of one card.

    In VF mode the card is shared, handles are few, and a region's id is its index in the table. In
    PF mode the card is all ours, handles are many, and a region's id is its physical base. Users
    of an id need not know which.
    """

    def __init__(self, memory: RegionStore, spec: CardSpec, mode: Mode) -> None:
        self.budget = spec.vf_handles if mode == "vf" else spec.pf_handles
        self.before_release: Callable[[Region], None] | None = None
        self._memory, self._spec, self._mode = memory, spec, mode
        self._live: dict[int, Region] = {}
        self._bases: dict[int, int] = {}

    def acquire(self, size: int, domain: int) -> Region:
        """A region of ``size`` bytes in ``domain``; its bytes are undefined.

        Raises ``ValueError`` for a request that never makes sense, :class:`HandleBudgetExhausted`
        and :class:`CardMemoryExhausted` for one that does not fit now.
        """
        base = self._find_base(size, domain)
        handle = self._free_handle()
        region = Region(base if self._mode == "pf" else handle, size, domain, handle)
        self._memory.attach(region.id, size)
        self._live[region.id] = region
        self._bases[region.id] = base
        return region

    def release(self, region_id: int) -> None:
        """Give a region and its handle back. Raises :class:`RegionError` when it is not live."""
        region = self._live.get(region_id)
        if region is None:
            raise RegionError(
                f"region {region_id} given back, but it is not one of {sorted(self._live)}; "
                "give each region back once"
            )
        if self.before_release is not None:
            self.before_release(region)
        self._memory.detach(region_id)
        del self._live[region_id], self._bases[region_id]

    def live(self) -> list[Region]:
        """The regions handed out, by handle."""
        return sorted(self._live.values(), key=lambda region: region.handle)

    def _free_handle(self) -> int:
        taken = {region.handle for region in self._live.values()}
        if len(taken) >= self.budget:
            raise HandleBudgetExhausted(
                f"all {self.budget} region handles of the card are in use ({self._mode} mode); "
                "give a region back, or place several allocations in one region"
            )
        return next(handle for handle in range(self.budget) if handle not in taken)

    def _find_base(self, size: int, domain: int) -> int:
        if not 0 <= domain < self._spec.domains or size < 1 or size % self._spec.stick:
            raise ValueError(
                f"a region of {size} bytes in domain {domain} asked for; a size is a positive "
                f"multiple of {self._spec.stick}, a domain one of 0 to {self._spec.domains - 1}"
            )
        free, end = domain * self._spec.domain, (domain + 1) * self._spec.domain
        for base, taken in sorted((self._bases[r.id], r.size) for r in self._live.values()):
            if free <= base < end:
                if base - free >= size:
                    return free
                free = base + taken
        if end - free < size:
            raise CardMemoryExhausted(
                f"a region of {size} bytes asked for, but domain {domain} "
                f"({self._spec.domain} bytes) has no free run of that size left"
            )
        return free
