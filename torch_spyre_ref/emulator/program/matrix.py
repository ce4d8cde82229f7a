"""The matrix array: products summed over what the pass streams, in float32 for halves.

Dimensions that both sides have and the pass does not stream are batches. The array works on
(batch, rows, inner) and (batch, inner, columns); a stage may name its dimensions in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from torch_spyre_ref.emulator.program.formats import Array
from torch_spyre_ref.emulator.program.lanes import Lanes
from torch_spyre_ref.emulator.program.model import Instruction
from torch_spyre_ref.emulator.program.tiles import Tile

Step = Callable[[], object]


class Roles(NamedTuple):
    """Which dimensions of a stage play which part in a product."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]


def roles(lanes: Lanes, i: Instruction) -> Roles:
    """The parts that the dimensions of a product's two sides play."""
    inner = lanes.stage.passes[i.turn]
    left, right = (
        [d for d in lanes.stage.values[s.entry].dimensions if d not in inner] for s in i.inputs
    )
    return Roles(
        tuple(d for d in left if d in right),
        tuple(d for d in left if d not in right),
        tuple(d for d in right if d not in left),
        inner,
    )


def matmul(lanes: Lanes, i: Instruction, tile: Tile) -> Step:
    """The step that adds the product of one tile of both sides to the entry of the result."""
    part = roles(lanes, i)
    left, right = (lanes.block(s.entry, tile) for s in i.inputs)
    result = lanes.block(i.outputs[0], tile)
    if lanes.space.empty[i.turn]:
        return partial(result.fill, 0)
    target = _grouped(result, part.batch, part.rows, part.columns)
    left_side = _side(left, part.batch, part.rows, part.inner)
    right_side = _side(right, part.batch, part.inner, part.columns)
    if tile.inner == 0 and np.may_share_memory(target, result):
        return lambda: np.matmul(left_side(), right_side(), target)
    split, back = _ungrouping(result, part)

    def accumulate() -> None:
        product = np.matmul(left_side(), right_side(), scratch(target.shape, target.dtype))
        view = product.reshape(split).transpose(back)
        np.add(result, view, result) if tile.inner else np.copyto(result, view)

    return accumulate


def _side(block: Array, *groups: tuple[int, ...]) -> Callable[[], Array]:
    """What gives the array one of its sides: a view, found once, where the block has one."""
    grouped = _grouped(block, *groups)
    if np.may_share_memory(grouped, block):
        return lambda: grouped
    return partial(_grouped, block, *groups)


def _grouped(block: Array, *groups: tuple[int, ...]) -> Array:
    """A block with the dimensions of each group made one; those in no group have size 1."""
    order = [d for group in groups for d in group]
    rest = [d for d in range(block.ndim) if d not in order]
    shape = [prod(block.shape[d] for d in group) for group in groups]
    return block.transpose(*order, *rest).reshape(shape)


def _ungrouping(result: Array, part: Roles) -> tuple[list[int], list[int]]:
    """The shape and the order of dimensions that make an entry of a grouped product."""
    order = [*part.batch, *part.rows, *part.columns]
    order += [d for d in range(result.ndim) if d not in order]
    return [result.shape[d] for d in order], np.argsort(order).tolist()


_partial_sums = np.empty(0, np.uint8)


def scratch(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """The array's own partial sums, before they are added to the entry; kept from call to call."""
    global _partial_sums
    need = prod(shape) * dtype.itemsize
    if _partial_sums.size < need:
        _partial_sums = np.empty(need, np.uint8)
    return _partial_sums[:need].view(dtype).reshape(shape)
