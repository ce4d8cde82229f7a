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
    sides = (
        partial(_grouped, left, part.batch, part.rows, part.inner),
        partial(_grouped, right, part.batch, part.inner, part.columns),
    )
    direct = tile.inner == 0 and np.may_share_memory(target, result)
    if direct:
        return lambda: np.matmul(sides[0](), sides[1](), target)

    def accumulate() -> None:
        product = np.matmul(sides[0](), sides[1](), scratch(target.shape, target.dtype))
        view = _ungrouped(product, result, part)
        np.add(result, view, result) if tile.inner else np.copyto(result, view)

    return accumulate


def _grouped(block: Array, *groups: tuple[int, ...]) -> Array:
    """A block with the dimensions of each group made one; those in no group have size 1."""
    order = [d for group in groups for d in group]
    rest = [d for d in range(block.ndim) if d not in order]
    shape = [prod(block.shape[d] for d in group) for group in groups]
    return block.transpose(*order, *rest).reshape(shape)


def _ungrouped(product: Array, result: Array, part: Roles) -> Array:
    order = [*part.batch, *part.rows, *part.columns]
    rest = [d for d in range(result.ndim) if d not in order]
    split = product.reshape([result.shape[d] for d in (*order, *rest)])
    return split.transpose(np.argsort([*order, *rest]).tolist())


_partial_sums = np.empty(0, np.uint8)


def scratch(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """The array's own partial sums, before they are added to the entry; kept from call to call."""
    global _partial_sums
    need = prod(shape) * dtype.itemsize
    if _partial_sums.size < need:
        _partial_sums = np.empty(need, np.uint8)
    return _partial_sums[:need].view(dtype).reshape(shape)
