"""The address walker: how load and store units step through what is not one block of one region.

An address of several chunks is walked here, and a target whose elements overlap. Both are done in
units: the largest byte count that divides every offset, stride and boundary involved, so that no
unit straddles a chunk or a grain, and NumPy gathers and scatters whole units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.pages import Bytes

Offsets = NDArray[np.int64]

# Units handled at a time: their offsets (8 bytes each, several arrays) should stay in cache.
_BLOCK = 1 << 14


def gather(source: DeviceRange, region: Callable[[int], Bytes], out: Bytes) -> None:
    """Copy the bytes of ``source`` to the dense array ``out``."""
    if source.run == source.nbytes:
        for card, host in _stretches(source, region, out):
            np.copyto(host, card)
        return
    for rows, index, dense, where in _units(source, region, out):
        dense[where] = rows[index]


def scatter(target: DeviceRange, region: Callable[[int], Bytes], data: Bytes) -> None:
    """Copy the dense array ``data`` to ``target``; among overlapping elements the last stays."""
    if target.run == target.nbytes:
        for card, host in _stretches(target, region, data):
            np.copyto(card, host)
        return
    for rows, index, dense, where in _units(target, region, data):
        rows[index] = dense[where]


def _stretches(
    span: DeviceRange, region: Callable[[int], Bytes], dense: Bytes
) -> Iterator[tuple[Bytes, Bytes]]:
    """Pairs of card and host bytes, of equal shape, that make up a contiguous range."""
    address, start, stop = span.address, span.offset, span.offset + span.nbytes
    stripe = address.grain * len(address.chunks)
    head = tail = stop
    if stripe and start // stripe + 1 < stop // stripe:
        head, tail = -(-start // stripe) * stripe, stop // stripe * stripe
    for low, high in ((start, head), (tail, stop)):
        at = low - start
        for number, offset, size in address.pieces(low, high - low):
            yield region(number)[offset : offset + size], dense[at : at + size]
            at += size
    if head < tail:
        grains = dense[head - start : tail - start].reshape(-1, len(address.chunks), address.grain)
        for turn, (number, offset, size) in enumerate(address.spans(head, tail)):
            yield region(number)[offset : offset + size].reshape(-1, address.grain), grains[:, turn]


def _units(
    span: DeviceRange, region: Callable[[int], Bytes], dense: Bytes
) -> Iterator[tuple[Bytes, Offsets, Bytes, NDArray[np.bool_]]]:
    """For block after block and chunk after chunk: the chunk's units, which of them are meant, the
    block's dense units, and which of those they belong to."""
    unit = _unit(span)
    chunks = span.address.chunks
    rows = [
        region(c.region)[c.offset : c.offset + c.length // unit * unit].reshape(-1, unit)
        for c in chunks
    ]
    dense = dense.reshape(-1, unit)
    loops = (*span.loops, (span.run // unit, unit))
    for first in range(0, len(dense), _BLOCK):
        block = dense[first : first + _BLOCK]
        offsets = _offsets(loops, span.offset, first, len(block))
        which, within = locate(span.address, offsets)
        for number in range(len(chunks)):
            where = which == number
            if where.any():
                yield rows[number], within[where] // unit, block, where


def _unit(span: DeviceRange) -> int:
    address = span.address
    boundaries = [address.grain] if address.grain else [c.length for c in address.chunks[:-1]]
    strides = [stride for _, stride in span.loops]
    return math.gcd(span.run, span.offset, *strides, *boundaries)


def _offsets(loops: tuple[tuple[int, int], ...], offset: int, first: int, count: int) -> Offsets:
    """Logical byte offsets of ``count`` units of a loop nest, from the ``first``."""
    index = np.arange(first, first + count, dtype=np.int64)
    offsets = np.full(count, offset, np.int64)
    for steps, stride in reversed(loops):
        index, step = np.divmod(index, steps)
        offsets += step * stride
    return offsets


def locate(address: CompositeAddress, offsets: Offsets) -> tuple[Offsets, Offsets]:
    """The chunk that each logical offset falls in, and the offset within that chunk."""
    if address.grain:
        turn, within = np.divmod(offsets, address.grain)
        stripe, which = np.divmod(turn, len(address.chunks))
        return which, stripe * address.grain + within
    starts = np.cumsum([0, *(chunk.length for chunk in address.chunks[:-1])])
    which = np.searchsorted(starts, offsets, side="right") - 1
    return which, offsets - starts[which]
