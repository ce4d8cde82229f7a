"""The load and store units: between LPDDR5 and scratchpad, and between formats.

Both walk an operand's composite address with one stride a dimension. One contiguous chunk is seen
as it lies, through a NumPy view; anything else is gathered and scattered element by element, by
the same walker that DMA uses. With index values the walk is over computed positions: each is
checked against its limit before a byte is touched, and a masked element is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_spyre_ref.emulator.memory import Visit
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.emulator.program.errors import IndexFaultError, ProgramError
from torch_spyre_ref.emulator.program.formats import FORMATS, Array, Format
from torch_spyre_ref.emulator.program.halves import half_converter
from torch_spyre_ref.emulator.program.lanes import Lanes, Operands, scalar
from torch_spyre_ref.emulator.program.model import Instruction, Place
from torch_spyre_ref.emulator.program.tiles import Tile
from torch_spyre_ref.emulator.walk import locate

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
        return partial(_gather, lanes, operands, i, tile, format, target)
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
    if indirect(i) or i.op == "store_add":
        return partial(_scatter, lanes, operands, i, tile, format)
    source = lanes.input(i.inputs[0], tile, format.dtype)
    shape = store_shape(lanes, i, tile.lengths)
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
    return partial(np.copyto, target, source)


def narrowing(source: Array, target: Array, format: Format) -> Step:
    """The step from computed to stored elements."""
    if format.kind == "half" and source.size >= _LARGE and min(target.strides) >= 0:
        return half_converter(source, target, format.name)
    if format.name == "bfloat16":
        return partial(_narrow_bfloat16, source, target)
    return partial(np.copyto, target, source, "unsafe")


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


Positions = NDArray[np.int64]


def _positions(
    lanes: Lanes, operands: Operands, i: Instruction, tile: Tile, shape: tuple[int, ...]
) -> tuple[Positions, NDArray[np.bool_] | None]:
    """Logical bytes of the elements of a tile that are meant, in row-major order, and the mask."""
    place, numbers = _place(i), lanes.numbers
    first = 0 if i.op == "load" else 1
    count = len(place.index_strides)
    indices = [lanes.input(s, tile, np.dtype(np.int64)) for s in i.inputs[first : first + count]]
    mask = None
    if place.masked:
        mask = np.broadcast_to(lanes.block(i.inputs[first + count].entry, tile), shape)
    at = np.full(shape, int(numbers[place.base]), np.int64)
    for d, stride in enumerate(place.strides):
        steps = np.arange(tile.starts[d], tile.starts[d] + shape[d], dtype=np.int64)
        along = [-1 if axis == d else 1 for axis in range(len(shape))]
        at += (steps * int(numbers[stride])).reshape(along)
    for index, stride, limit in zip(indices, place.index_strides, place.limits, strict=True):
        _check_limit(lanes, operands, i, index, mask, int(numbers[limit]))
        at += index * np.int64(numbers[stride])
    operand, (address, start) = operands.places[place.operand]
    size = FORMATS[operand.format].itemsize
    meant: Positions = at[mask] if mask is not None else at.reshape(-1)
    meant = meant * size + start
    if meant.size and not 0 <= meant.min() <= meant.max() <= address.length - size:
        raise IndexFaultError(
            f"{i.op} of operand {operand.name!r} goes to bytes {meant.min()} to "
            f"{meant.max() + size} of an address of {address.length} bytes"
        )
    return meant, mask


def _check_limit(
    lanes: Lanes,
    operands: Operands,
    i: Instruction,
    index: Any,
    mask: NDArray[np.bool_] | None,
    limit: int,
) -> None:
    seen = np.asarray(index)
    if mask is not None:
        seen = np.broadcast_to(seen, mask.shape)[mask]
    if seen.size and not 0 <= seen.min() <= seen.max() < limit:
        wrong = int(seen.min() if seen.min() < 0 else seen.max())
        name = operands.places[_place(i).operand][0].name
        raise IndexFaultError(
            f"index {wrong} is out of bounds for {i.op} of operand {name!r} with size {limit}"
        )


def _rows(
    lanes: Lanes, operands: Operands, i: Instruction, at: Positions, format: Format
) -> tuple[list[Bytes], Positions, Positions]:
    """The chunks of an operand in units that no element straddles, and where each unit lies."""
    address, start = operands.places[_place(i).operand][1]
    edges = [address.grain] if address.grain else [c.length for c in address.chunks[:-1]]
    unit = gcd(format.itemsize, start, *edges)
    if unit < format.itemsize:
        at = (at[:, None] + np.arange(0, format.itemsize, unit)).reshape(-1)
    rows = []
    for chunk in address.chunks:
        whole = chunk.length // unit * unit
        region = operands.memory.region(chunk.region)
        rows.append(region[chunk.offset : chunk.offset + whole].view(_WORDS[unit]))
    which, within = locate(address, at)
    return rows, which, within // unit


_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _take(lanes: Lanes, operands: Operands, i: Instruction, at: Positions, format: Format) -> Array:
    rows, which, within = _rows(lanes, operands, i, at, format)
    if len(rows) == 1:
        return rows[0][within].view(format.stored)
    taken = np.empty(len(within), rows[0].dtype)
    for chunk, row in enumerate(rows):
        taken[which == chunk] = row[within[which == chunk]]
    return taken.view(format.stored)


def _put(
    lanes: Lanes, operands: Operands, i: Instruction, at: Positions, format: Format, data: Array
) -> None:
    rows, which, within = _rows(lanes, operands, i, at, format)
    words = data.view(rows[0].dtype)
    for chunk, row in enumerate(rows):
        here = which == chunk
        row[within[here]] = words[here]


def _note(operands: Operands, i: Instruction, at: Positions, format: Format, write: bool) -> None:
    visits = operands.memory.visits
    if visits is not None:
        address = operands.places[_place(i).operand][1].address
        visits.append(Visit(i, write, address, at, format.itemsize))


def _gather(
    lanes: Lanes, operands: Operands, i: Instruction, tile: Tile, format: Format, target: Array
) -> None:
    at, mask = _positions(lanes, operands, i, tile, target.shape)
    _note(operands, i, at, format, False)
    taken = _take(lanes, operands, i, at, format)
    wide = np.empty(len(taken), format.dtype)
    if len(taken):
        widening(taken, wide, format)()
    if mask is None:
        target[...] = wide.reshape(target.shape)
    else:
        target[...] = scalar(lanes.numbers[i.inputs[-1].entry], format.dtype)
        target[mask] = wide


def _scatter(lanes: Lanes, operands: Operands, i: Instruction, tile: Tile, format: Format) -> None:
    shape = store_shape(lanes, i, tile.lengths)
    at, mask = _positions(lanes, operands, i, tile, shape)
    value = np.broadcast_to(lanes.input(i.inputs[0], tile, format.dtype), shape)
    values = value[mask] if mask is not None else value.reshape(-1)
    if not len(at):
        return
    if i.op == "store_add":
        _note(operands, i, at, format, False)
        at, where = np.unique(at, return_inverse=True)
        old = np.empty(len(at), format.dtype)
        widening(_take(lanes, operands, i, at, format), old, format)()
        (np.logical_or if format.kind == "bool" else np.add).at(old, where, values)
        values = old
    narrow = np.empty(len(at), format.stored)
    narrowing(values, narrow, format)()
    _note(operands, i, at, format, True)
    _put(lanes, operands, i, at, format, narrow)
