"""The random unit: the numbers of the device's Philox stream, each element by its position.

An element's words follow from seed, offset and the element's number alone, so tiles, cores and
order do not matter, and a compiled draw continues where one made on the host ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_spyre_ref.emulator import philox
from torch_spyre_ref.emulator.program.formats import Array
from torch_spyre_ref.emulator.program.lanes import Lanes
from torch_spyre_ref.emulator.program.model import Instruction
from torch_spyre_ref.emulator.program.tiles import Tile


def draw(lanes: Lanes, i: Instruction, tile: Tile) -> None:
    """Fill the result of a random instruction with the numbers of its elements."""
    seed, offset, element, *rest = lanes.inputs(i, tile)
    out = lanes.block(i.outputs[0], tile)
    size = out.itemsize
    numbers = np.broadcast_to(np.asarray(element), out.shape).reshape(-1)
    key, start = int(np.asarray(seed).item()), int(np.asarray(offset).item())
    drawn: Any
    if i.op == "uniform":
        count = 1 if i.parameter <= 24 else 2
        drawn = philox.uniform(_words(key, start, numbers, count), i.parameter)
    elif i.op == "normal":
        drawn = philox.normal(_words(key, start, numbers, philox.NORMAL_WORDS[size]), size)
    elif i.op == "integers":
        low, span = (int(np.asarray(n).item()) for n in rest)
        words = _words(key, start, numbers, philox.INTEGER_WORDS)
        drawn = philox.integers(words, low, span or philox.POSITIONS)
    else:
        drawn = _words(key, start, numbers, 1)
    out[...] = drawn.reshape(out.shape)


def _words(seed: int, offset: int, numbers: Array, count: int) -> philox.Words:
    """``count`` words for each of ``numbers``."""
    first = int(numbers[0])
    if (np.diff(numbers) == 1).all():
        return philox.random_bits(seed, offset + count * first, count * len(numbers))
    start = np.uint64(offset % philox.POSITIONS)
    word = np.arange(count, dtype=np.uint64)
    at: philox.Longs = numbers.astype(np.uint64)[:, None] * np.uint64(count) + word + start
    block, lane = (part.reshape(-1) for part in np.divmod(at, np.uint64(philox.LANES)))
    counters = np.zeros((philox.LANES, len(block)), np.uint64)
    counters[0], counters[1] = block & np.uint64(0xFFFFFFFF), block >> np.uint64(32)
    key = (seed % philox.POSITIONS & 0xFFFFFFFF, seed % philox.POSITIONS >> 32)
    words = philox.philox4x32(counters, key)
    return words[np.arange(len(block)), lane.astype(np.intp)].astype(np.uint32)
