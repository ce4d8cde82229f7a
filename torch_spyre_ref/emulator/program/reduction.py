"""The reduce unit: what a pass streams, folded into one element for each of its outer ones.

The unit keeps its running result in the FIFO entry that it fills; readers see the entry when the
pass is over. Every function here folds one more block in; ``first`` blocks begin the entry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torch_spyre_ref.emulator.program.formats import Array
from torch_spyre_ref.emulator.program.lanes import Lanes
from torch_spyre_ref.emulator.program.model import Instruction
from torch_spyre_ref.emulator.program.tiles import Tile

Step = Callable[[], object]

_FOLDS: Final = {
    "sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
    "xor": np.bitwise_xor,
}


def reduce(lanes: Lanes, i: Instruction, tile: Tile) -> Step:
    """The step that folds the tile of ``i``'s input into the entry of its result."""
    axes = lanes.stage.passes[i.turn]
    results = [lanes.block(v, tile) for v in i.outputs]
    if lanes.space.empty[i.turn]:
        return partial(_blank, i.op, results)
    shape = tuple(
        n if d in axes or d in lanes.stage.values[i.inputs[0].entry].dimensions else 1
        for d, n in enumerate(tile.lengths)
    )
    block = np.broadcast_to(lanes.block(i.inputs[0].entry, tile), shape)
    first = tile.inner == 0
    if i.op == "welford":
        return partial(_welford, block, axes, results, first)
    if i.op in ("argmax", "argmin"):
        return _position(lanes, i, block, tile, results)
    fold = _FOLDS[i.op]
    if first:
        return partial(
            fold.reduce, block, axes, out=results[0], dtype=results[0].dtype, keepdims=True
        )
    more = np.empty_like(results[0])

    def step() -> None:
        fold.reduce(block, axes, results[0].dtype, out=more, keepdims=True)
        fold(results[0], more, out=results[0])

    return step


def _blank(op: str, results: list[Array]) -> None:
    """The result over no elements: what leaves every other operand of the fold as it is."""
    for result in results:
        result[...] = _neutral(op, result.dtype)


def _position(lanes: Lanes, i: Instruction, block: Array, tile: Tile, results: list[Array]) -> Step:
    """Row-major position of the extremum, and itself; the first of equals, and the first NaN."""
    axes = lanes.stage.passes[i.turn]
    kept = [d for d in range(block.ndim) if d not in axes]
    turned = block.transpose(*kept, *axes)
    rows = np.arange(prod(block.shape[d] for d in kept))
    find = np.ndarray.argmax if i.op == "argmax" else np.ndarray.argmin
    position, best = results

    def step() -> None:
        lines = turned.reshape(len(rows), -1)
        at = find(lines, 1)
        found = lines[rows, at].reshape(best.shape)
        there = _in_space(lanes, axes, tile, at).reshape(position.shape)
        if tile.inner == 0:
            position[...], best[...] = there, found
        else:
            _keep_better(i.op, (position, best), (there, found))

    return step


def _in_space(
    lanes: Lanes, axes: tuple[int, ...], tile: Tile, at: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Row-major positions in what is streamed, of row-major positions in a tile of it."""
    if len(axes) == 1:
        return at + tile.starts[axes[0]]
    there = np.zeros(at.shape, np.int64)
    steps = np.unravel_index(at, [tile.lengths[d] for d in axes]) if axes else ()
    for d, step in zip(axes, steps, strict=True):
        there = there * lanes.space.sizes[d] + step + tile.starts[d]
    return there


def _keep_better(op: str, results: tuple[Array, Array], tile: tuple[Array, Array]) -> None:
    """Replace what was found so far, in place, where a tile has something better."""
    (position, best), (there, found) = results, tile
    beyond = np.greater if op == "argmax" else np.less
    lost, none = found != found, best != best
    better = np.where(lost | none, lost & ~none, beyond(found, best))
    equal = (found == best) | (lost & none)
    better |= equal & (there < position)
    np.copyto(position, there, where=better)
    np.copyto(best, found, where=better)


def _neutral(op: str, dtype: np.dtype[Any]) -> Any:
    if op in ("product", "all"):
        return 1
    if op not in ("max", "min"):
        return 0
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind == "f":
        return -np.inf if op == "max" else np.inf
    return np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max


def _welford(block: Array, axes: tuple[int, ...], results: list[Array], first: bool) -> None:
    """Mean, sum of squared deviations and count; two sets are joined as Chan et al. do."""
    mean, deviations, count = results
    here = block.dtype.type(prod(block.shape[d] for d in axes))
    new_mean = np.mean(block, axis=axes, dtype=mean.dtype, keepdims=True)
    new = np.sum(np.square(block - new_mean), axis=axes, dtype=mean.dtype, keepdims=True)
    if first:
        mean[...], deviations[...], count[...] = new_mean, new, here
        return
    total = count + here
    delta = new_mean - mean
    mean += delta * (here / total)
    deviations += new + delta * delta * (count * (here / total))
    count[...] = total
