"""Regions and addresses: how the card names its memory.

Memory is handed out in regions, each one contiguous block of one memory domain behind a handle,
and handles are few. An address is a short list of chunks (region, offset, length): one chunk when
an allocation is bound to a domain, several when it is interleaved over domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch_spyre_ref.emulator.spec import CardSpec

if TYPE_CHECKING:
    from torch_spyre_ref.emulator.memory import Memory

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
    """Bytes that each of ``chunks`` chunks gets when ``length`` are dealt out by ``grain``."""
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


class RegionError(RuntimeError):
    """A region that the card cannot hand out or take back."""


class HandleBudgetExhausted(RegionError):  # noqa: N818
    """Every handle of the card is in use."""


class CardMemoryExhausted(RegionError):  # noqa: N818
    """A domain has no contiguous run of bytes as large as the region asked for."""


def lowest_free(handles: Iterable[int]) -> int:
    """The lowest handle that is not among the ascending ``handles``."""
    free = 0
    for handle in handles:
        if handle != free:
            break
        free += 1
    return free


def place(taken: Iterable[tuple[int, int]], spec: CardSpec, size: int, domain: int) -> int:
    """The lowest base in ``domain`` with ``size`` bytes that no (base, size) of ``taken`` covers.

    Raises ``ValueError`` and :class:`CardMemoryExhausted`.
    """
    if not 0 <= domain < spec.domains or size < 1 or size % spec.stick:
        raise ValueError(
            f"a region of {size} bytes in domain {domain} asked for; a size is a positive "
            f"multiple of {spec.stick}, a domain one of 0 to {spec.domains - 1}"
        )
    free, stop = domain * spec.domain, (domain + 1) * spec.domain
    for base, length in sorted(taken):
        if free <= base < stop:
            if base - free >= size:
                return free
            free = base + length
    if stop - free < size:
        raise CardMemoryExhausted(
            f"a region of {size} bytes asked for, but domain {domain} has no free run of that "
            f"size in its {spec.domain} bytes; give regions back, or take another domain"
        )
    return free


class RegionTable:
    """The handles of one card. One caller at a time: the allocator's lock sees to that.

    In VF mode the card is shared, handles are few, and a region's id is its index in the table. In
    PF mode the card is all ours, handles are many, and a region's id is its physical base. Who
    uses an id need not know which.
    """

    def __init__(self, memory: Memory, spec: CardSpec, mode: Mode) -> None:
        self.budget = spec.vf_handles if mode == "vf" else spec.pf_handles
        self.before_release: Callable[[Region], None] | None = None
        self._memory, self._spec, self._mode = memory, spec, mode
        self._live: dict[int, tuple[Region, int]] = {}

    def acquire(self, size: int, domain: int) -> Region:
        """A region of ``size`` bytes in ``domain``; what its bytes are is undefined.

        Raises ``ValueError`` for a request that never makes sense, :class:`HandleBudgetExhausted`
        and :class:`CardMemoryExhausted` for one that does not fit now.
        """
        handle = lowest_free(region.handle for region in self.live())
        if handle >= self.budget:
            raise HandleBudgetExhausted(
                f"all {self.budget} region handles of the card are in use ({self._mode} mode); "
                "give a region back, or place several allocations in one region"
            )
        taken = [(base, region.size) for region, base in self._live.values()]
        base = place(taken, self._spec, size, domain)
        region = Region(base if self._mode == "pf" else handle, size, domain, handle)
        self._memory.attach(region.id, size)
        self._live[region.id] = region, base
        return region

    def release(self, region_id: int) -> None:
        """Give a region and its handle back. Raises :class:`RegionError` when it is not live."""
        if region_id not in self._live:
            raise RegionError(
                f"region {region_id} given back, but live regions are {sorted(self._live)}; "
                "give each one back once"
            )
        if self.before_release is not None:
            self.before_release(self._live[region_id][0])
        del self._live[region_id]
        self._memory.detach(region_id)

    def live(self) -> list[Region]:
        """The regions handed out, by handle."""
        return sorted((region for region, _ in self._live.values()), key=lambda r: r.handle)
