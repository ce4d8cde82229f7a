"""The load and store units: between LPDDR5 and scratchpad, and between formats.

Both walk an operand's composite address with one stride a dimension. One contiguous chunk is seen
as it lies, through a NumPy view; anything else is gathered and scattered element by element, by
the same walker that DMA uses. Where index values or a mask say where to go, the address generator
does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.formats import FORMATS, Array, Format
from torch_spyre_ref.emulator.program.halves import half_converter
from torch_spyre_ref.emulator.program.indirect import Walk
from torch_spyre_ref.emulator.program.lanes import Lanes, Operands, scalar
from torch_spyre_ref.emulator.program.model import Instruction, Place
from torch_spyre_ref.emulator.program.tiles import Tile

Step = Callable[[], object]

# From here on torch's converters beat NumPy's, their overhead included.
_LARGE = 1_024


def span(
    lanes: Lanes,
    operands: Operands,
    i: Instruction,
    shape: tuple[int, ...],
    starts: tuple[int, ...] | None = None,
) -> DeviceRange:
    """The memory of an affine load or store over a box of the iteration space."""
    place = _place(i)
    operand, (address, start) = operands.places[place.operand]
    size = FORMATS[operand.format].itemsize
    numbers = lanes.numbers
    strides = [int(numbers[s]) for s in place.strides]
    first = int(numbers[place.base])
    if starts is not None:
        first += sum(at * stride for at, stride in zip(starts, strides, strict=True))
    try:
        return DeviceRange(
            address, start + first * size, shape, tuple(s * size for s in strides), size
        )
    except ValueError as error:
        raise ProgramError(
            f"{i.op} of operand {operand.name!r} leaves its memory: {error}; check that the "
            "arguments are those which the program was made for"
        ) from None


def _place(i: Instruction) -> Place:
    assert i.place is not None
    return i.place


def indirect(i: Instruction) -> bool:
    """Whether a load or store goes where index values or a mask say."""
    return bool(_place(i).index_strides) or _place(i).masked


def load(lanes: Lanes, operands: Operands, i: Instruction, tile: Tile) -> Step:
    """The step that brings one tile of an operand into its FIFO."""
    shape, target = lanes.shape(i.outputs[0], tile), lanes.block(i.outputs[0], tile)
    format = FORMATS[operands.places[_place(i).operand][0].format]
    if indirect(i):
        fill = scalar(lanes.numbers[i.inputs[-1].entry], format.dtype) if _place(i).masked else None
        return partial(_gather, Walk(lanes, operands, i, tile, shape, format), fill, target)
    box = span(lanes, operands, i, shape, tile.starts)
    view = _view(operands, box, format)
    if view is not None:
        return widening(view, target, format)
    dense = np.empty(shape, format.stored)
    widen = widening(dense, target, format)

    def read() -> None:
        operands.memory.read_into(box, dense.reshape(-1).view(np.uint8))
        widen()

    return read


def store(lanes: Lanes, operands: Operands, i: Instruction, tile: Tile) -> Step:
    """The step that puts one tile from a FIFO, or a number, into an operand's memory."""
    operand = operands.places[_place(i).operand][0]
    format = FORMATS[operand.format]
    source = lanes.input(i.inputs[0], tile, format.dtype)
    shape = store_shape(lanes, i, tile.lengths)
    if indirect(i) or i.op == "store_add":
        walk = Walk(lanes, operands, i, tile, shape, format)
        return partial(_scatter, walk, _stretched(source, shape))
    box = span(lanes, operands, i, shape, tile.starts)
    view = _view(operands, box, format)
    if view is not None and not box.overlaps_itself:
        return narrowing(_stretched(source, shape), view, format)
    dense = np.empty(shape, format.stored)
    narrow = narrowing(_stretched(source, shape), dense, format)

    def write() -> None:
        narrow()
        operands.memory.write(box, dense.reshape(-1).view(np.uint8))

    return write


def store_shape(lanes: Lanes, i: Instruction, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The box that a store covers: the tile, less what neither value nor place varies along."""
    values = lanes.stage.values
    varies = {d for s in i.inputs if not s.number for d in values[s.entry].dimensions}
    adds = i.op == "store_add"
    return tuple(
        n if adds or d in varies or lanes.numbers[_place(i).strides[d]] else 1
        for d, n in enumerate(lengths)
    )


def _view(operands: Operands, box: DeviceRange, format: Format) -> Array | None:
    """The bytes of ``box`` as they lie, when they lie in one chunk."""
    if len(box.address.chunks) > 1:
        return None
    chunk = box.address.chunks[0]
    region = operands.memory.region(chunk.region)
    return np.ndarray(box.shape, format.stored, region, chunk.offset + box.offset, box.strides)


def widening(source: Array, target: Array, format: Format) -> Step:
    """The step from stored to computed elements."""
    if format.kind == "half" and source.size >= _LARGE and min(source.strides) >= 0:
        return half_converter(source, target, format.name)
    if format.name == "bfloat16":
        return partial(_widen_bfloat16, source, target)
    if format.kind == "bool":
        # Bytes other than 0 and 1 do occur in memory; a bool block has none.
        return partial(np.not_equal, source.view(np.uint8), 0, target)
    return partial(target.__setitem__, ..., source)  # np.copyto takes twice as long


def narrowing(source: Array, target: Array, format: Format) -> Step:
    """The step from computed to stored elements."""
    if format.kind == "half" and source.size >= _LARGE and min(target.strides) >= 0:
        return half_converter(source, target, format.name)
    if format.name == "bfloat16":
        return partial(_narrow_bfloat16, source, target)
    return partial(target.__setitem__, ..., source)


def _stretched(source: Any, shape: tuple[int, ...]) -> Array:
    """A block or number over ``shape``. NumPy's broadcast is read-only, of which torch warns."""
    if np.ndim(source) == 0:
        return np.full(shape, source)
    strides = [0 if n == 1 else s for n, s in zip(source.shape, source.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(source, shape, strides)


def _widen_bfloat16(source: Array, target: Array) -> None:
    np.copyto(target, (source.astype(np.uint32) << np.uint32(16)).view(np.float32))


def _narrow_bfloat16(source: Array, target: Array) -> None:
    single = np.ascontiguousarray(source)
    bits = single.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    quiet = np.where(np.isnan(single), np.uint32(0x7FC0 << 16), rounded)
    np.copyto(target, (quiet >> np.uint32(16)).astype(np.uint16))


def _gather(walk: Walk, fill: Any, target: Array) -> None:
    """Bring what a walk leads to into a FIFO; ``fill`` stands where its mask says no."""
    view = walk.view()
    if view is not None:
        widening(view, target, walk.format)()
        return
    at, mask = walk.positions()
    walk.note(at, False)
    taken = walk.take(at)
    if mask is None:
        widening(taken.reshape(target.shape), target, walk.format)()
        return
    wide = np.empty(len(taken), walk.format.dtype)
    if len(taken):
        widening(taken, wide, walk.format)()
    target[...] = fill
    target[mask] = wide


def _scatter(walk: Walk, block: Array) -> None:
    """Put a block where a walk leads."""
    format, adds = walk.format, walk.instruction.op == "store_add"
    view = None if adds else walk.view()
    if view is not None:
        narrowing(block, view, format)()
        return
    at, mask = walk.positions()
    if not len(at):
        return
    values = block.reshape(-1) if mask is None else block[mask]
    if adds:
        walk.note(at, False)
        at, where = np.unique(at, return_inverse=True)
        old = np.empty(len(at), format.dtype)
        widening(walk.take(at), old, format)()
        (np.logical_or if format.kind == "bool" else np.add).at(old, where, values)
        values = old
    narrow = np.empty(len(at), format.stored)
    narrowing(values, narrow, format)()
    walk.note(at, True)
    walk.put(at, narrow)
