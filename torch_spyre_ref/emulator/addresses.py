"""Addresses: how the card names bytes of its memory.

An address is a short list of chunks (region, offset, length): one chunk when an allocation lies in
one memory domain, several when it is spread over domains. It is a fixed-size descriptor, which load
and store units and DMA engines walk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_CHUNKS = 8


# --8<-- [start:address]
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
    # --8<-- [end:address]
    described: bytes = field(default=b"", init=False, compare=False)  # in a correction slot

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


# --8<-- [start:dealt]
def dealt(length: int, chunks: int, grain: int) -> list[int]:
    """Bytes that each of ``chunks`` chunks gets when ``length`` are dealt out by ``grain``."""
    rounds, rest = divmod(length, grain * chunks)
    return [rounds * grain + min(max(rest - i * grain, 0), grain) for i in range(chunks)]


# --8<-- [end:dealt]


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
