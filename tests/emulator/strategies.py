"""Random card memory, addresses and operand descriptors, and what they mean byte by byte.

The meaning is written down here a second time, as slowly and plainly as can be: lists of bytes,
one entry a byte, in the order in which an operation touches them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from torch_spyre_ref.emulator import Chunk, CompositeAddress, DeviceRange, Memory

REGIONS = 3
REGION_BYTES = 512

Place = tuple[int, int]
"""A byte of card memory: region, and offset in it."""


@dataclass
class Bench:
    """A small card memory with random contents."""

    memory: Memory

    @classmethod
    def new(cls, seed: int) -> Bench:
        memory = Memory()
        random = np.random.default_rng(seed)
        for region in range(REGIONS):
            memory.attach(region, REGION_BYTES)
            memory.region(region)[:] = random.integers(0, 256, REGION_BYTES, np.uint8)
        return cls(memory)

    def contents(self) -> dict[Place, int]:
        """Every byte there is."""
        return {
            (region, offset): int(byte)
            for region in range(REGIONS)
            for offset, byte in enumerate(self.memory.region(region))
        }


def places(address: CompositeAddress) -> list[Place]:
    """Where each logical byte of an address lies, from the words of its definition."""
    chunks = address.chunks
    if not address.grain:
        return [(c.region, c.offset + b) for c in chunks for b in range(c.length)]
    found = []
    for byte in range(sum(c.length for c in chunks)):
        chunk = chunks[byte // address.grain % len(chunks)]
        within = byte // address.grain // len(chunks) * address.grain + byte % address.grain
        found.append((chunk.region, chunk.offset + within))
    return found


def touched(span: DeviceRange) -> list[Place]:
    """The bytes of a range in the order in which they are read or written."""
    at = places(span.address)
    return [
        at[span.offset + sum(i * s for i, s in zip(index, span.strides, strict=True)) + byte]
        for index in itertools.product(*map(range, span.shape))
        for byte in range(span.itemsize)
    ]


def read_slowly(contents: dict[Place, int], span: DeviceRange) -> list[int]:
    """What reading ``span`` must give."""
    return [contents[place] for place in touched(span)]


def write_slowly(
    contents: dict[Place, int], span: DeviceRange, data: list[int]
) -> dict[Place, int]:
    """What memory must hold after ``data`` was written to ``span``, the last write staying."""
    return contents | dict(zip(touched(span), data, strict=True))


@st.composite
def addresses(draw: st.DrawFn) -> CompositeAddress:
    """One to four chunks, following one another or interleaved, that share no byte."""
    count = draw(st.integers(1, 4))
    grain = draw(st.sampled_from([0, 0, 4, 8, 16, 6]))
    if grain:
        dealt = [0] * count
        for byte in range(draw(st.integers(count * grain, 256))):
            dealt[byte // grain % count] += 1
    else:
        dealt = draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
    free = [0] * REGIONS
    chunks = []
    for number, length in enumerate(dealt):
        region = number % REGIONS
        offset = free[region] + draw(st.integers(0, 16))
        chunks.append(Chunk(region, offset, length))
        free[region] = offset + length
    return CompositeAddress(tuple(chunks), grain)


@st.composite
def ranges(draw: st.DrawFn, address: CompositeAddress | None = None) -> DeviceRange:
    """Any loop nest that fits: strides of 0, negative, overlapping, odd; and contiguous ones."""
    address = draw(addresses()) if address is None else address
    length = address.length
    if draw(st.booleans()):
        offset = draw(st.integers(0, length))
        return DeviceRange.contiguous(address, offset, draw(st.integers(0, length - offset)))
    itemsize = draw(st.sampled_from([size for size in (1, 2, 3, 4, 8, 16) if size <= length]))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    return draw(nests(address, shape, itemsize))


@st.composite
def nests(
    draw: st.DrawFn, address: CompositeAddress, shape: tuple[int, ...], itemsize: int
) -> DeviceRange:
    """A loop nest of this shape that fits in ``address``."""
    low = high = 0
    strides = []
    for size in shape:
        room = (address.length - itemsize - (high - low)) // max(size - 1, 1)
        likely = [s for s in (0, itemsize, -itemsize, itemsize - 1, 2 * itemsize) if abs(s) <= room]
        stride = draw(st.sampled_from(likely) | st.integers(-room, room))
        strides.append(stride)
        low += min(0, (size - 1) * stride) if size else 0
        high += max(0, (size - 1) * stride) if size else 0
    offset = draw(st.integers(-low, address.length - itemsize - high))
    return DeviceRange(address, offset, shape, tuple(strides), itemsize)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[DeviceRange, DeviceRange]:
    """Two ranges of equally many bytes, often of one address, often overlapping."""
    source = draw(ranges())
    address = source.address if draw(st.booleans()) else draw(addresses())
    if source.nbytes == 0:
        return source, DeviceRange.contiguous(address, 0, 0)
    if draw(st.booleans()) and source.nbytes <= address.length:
        offset = draw(st.integers(0, address.length - source.nbytes))
        return source, DeviceRange.contiguous(address, offset, source.nbytes)
    if source.itemsize <= address.length:
        return source, draw(nests(address, source.shape, source.itemsize))
    return source, source
