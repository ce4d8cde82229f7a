"""How the assembler lays a stage out: tiles, cores, FIFO depths and scratchpad offsets.

None of this is the card's: it is the small planner of a person's assembler, and a program may say
anything else that fits.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from torch_spyre_ref.emulator.program.check import (
    entry_bytes,
    held,
    lifetimes,
    may_share,
    most_walked,
    walked,
)
from torch_spyre_ref.emulator.program.model import Dimension, Stage, Value
from torch_spyre_ref.emulator.program.units import OPS
from torch_spyre_ref.emulator.spec import CardSpec

_ELEMENTS: Final = 1 << 17
_PRODUCTS: Final = 1 << 22
_INNER: Final = 512
_LEAST_INNER: Final = 128
_STICK: Final = 128


class Plan(NamedTuple):
    """Sizes to expect of each dimension, and (tile, cores) where the person gave them."""

    sizes: list[int]
    fixed: list[tuple[int | None, int | None]]


def plan(stage: Stage, wishes: Plan, spec: CardSpec) -> Stage:
    """``stage`` with tiles that fit the scratchpad, smaller ones where large do not.

    What does not fit even so is returned as it is, for the check to show its arithmetic.
    """
    tiles = _tiles(stage, wishes)
    while True:
        laid = _place_values(_with_cores(stage, tiles, wishes, spec), wishes)
        end = max((v.offset + v.depth * v.nbytes for v in laid.values), default=0)
        free = [d for d, (tile, _) in enumerate(wishes.fixed) if tile is None and tiles[d] > 1]
        walks = max((walked(laid, i) for i in laid.instructions), default=0)
        if (end <= spec.scratchpad and walks <= most_walked(spec)) or not free:
            return laid
        is_matrix = any(i.op == "matmul" for i in stage.instructions)
        outer = [d for d in free if d in stage.outer or (is_matrix and tiles[d] > _LEAST_INNER)]
        _halve_one(stage, wishes, tiles, outer or free)


def _tiles(stage: Stage, wishes: Plan) -> list[int]:
    """Blocks of 128 K elements, whole along what is streamed; a product streams 512 at a time."""
    if any(i.op == "matmul" for i in stage.instructions):
        return _matrix_tiles(stage, wishes)
    tiles = [1] * len(stage.dimensions)
    room = _ELEMENTS
    for d in (*sorted(stage.streamed, reverse=True), *reversed(stage.outer)):
        tiles[d] = wishes.fixed[d][0] or max(min(wishes.sizes[d], room), 1)
        room = max(room // tiles[d], 1)
    return tiles


def _matrix_tiles(stage: Stage, wishes: Plan) -> list[int]:
    """Blocks of 4 M results, of the shape that loads the factors least often."""
    most = [_INNER if d in stage.streamed else size for d, size in enumerate(wishes.sizes)]
    tiles = [
        fixed or max(min(size, limit), 1)
        for (fixed, _), size, limit in zip(wishes.fixed, wishes.sizes, most, strict=True)
    ]
    free = [d for d in stage.outer if wishes.fixed[d][0] is None]
    while prod(tiles[d] for d in stage.outer) > _PRODUCTS and any(tiles[d] > 1 for d in free):
        _halve_one(stage, wishes, tiles, [d for d in free if tiles[d] > 1])
    return tiles


def _halve_one(stage: Stage, wishes: Plan, tiles: list[int], free: list[int]) -> None:
    """Halve the tile of the dimension that costs the fewest loads; of several, the largest."""

    def halved(d: int) -> list[int]:
        return [-(-tile // 2) if n == d else tile for n, tile in enumerate(tiles)]

    best = min(free, key=lambda d: (_loaded(stage, wishes, halved(d)), -tiles[d]))
    tiles[:] = halved(best)


def _loaded(stage: Stage, wishes: Plan, tiles: list[int]) -> int:
    """Elements that all loads of a stage bring in: all of theirs for each tile of the others."""
    counts = [-(-size // tile) for size, tile in zip(wishes.sizes, tiles, strict=True)]
    loads = [i for i in stage.instructions if i.op == "load"]
    varies = [stage.values[i.outputs[0]].dimensions for i in loads]
    return sum(
        prod(
            wishes.sizes[d] if d in dimensions else counts[d]
            for d in (*stage.outer, *stage.passes[i.turn])
        )
        for i, dimensions in zip(loads, varies, strict=True)
    )


def _with_cores(stage: Stage, tiles: list[int], wishes: Plan, spec: CardSpec) -> Stage:
    """Halve the largest share, outer dimensions first, until the cores are used up."""
    cores = [given or 1 for _, given in wishes.fixed]
    free = [d for d, (_, given) in enumerate(wishes.fixed) if given is None]
    outer = [d for d in free if d in stage.outer]
    while prod(cores) * 2 <= spec.cores:
        open_ = [d for d in outer if tiles[d] > cores[d]] or [
            d for d in free if tiles[d] > cores[d]
        ]
        if not open_:
            break
        cores[max(open_, key=lambda d: tiles[d] / cores[d])] *= 2
    dimensions = tuple(
        Dimension(d.name, d.size, tile, count)
        for d, tile, count in zip(stage.dimensions, tiles, cores, strict=True)
    )
    return replace(stage, dimensions=dimensions)


def _place_values(stage: Stage, wishes: Plan) -> Stage:
    """Give each value the lowest offset that no value alive with it covers."""
    deep = [v._replace(depth=_depth(stage, number)) for number, v in enumerate(stage.values)]
    lives = lifetimes(replace(stage, values=tuple(deep)))
    placed: list[Value] = []
    for number, value in enumerate(deep):
        size = -(-entry_bytes(stage, value, _tiles_held(stage, number, wishes)) // _STICK) * _STICK
        taken = sorted(
            (v.offset, v.offset + v.depth * v.nbytes)
            for n, v in enumerate(placed)
            if not may_share(lives[n], lives[number])
        )
        offset = 0
        for start, stop in taken:
            if start - offset >= size * value.depth:
                break
            offset = max(offset, stop)
        placed.append(value._replace(offset=offset, nbytes=size))
    return replace(stage, values=tuple(placed))


def _depth(stage: Stage, value: int) -> int:
    """Two entries where a load fills it, so that it fetches one tile while the last is used."""
    return 2 if any(i.op == "load" and value in i.outputs for i in stage.instructions) else 1


def _tiles_held(stage: Stage, value: int, wishes: Plan) -> int:
    if value not in held(stage):
        return 1
    maker = next(i for i in stage.instructions if value in i.outputs)
    if OPS[maker.op].unit in ("reduce", "matrix"):
        return 1
    dimensions = stage.values[value].dimensions
    return prod(
        -(-wishes.sizes[d] // stage.dimensions[d].tile)
        for d in stage.passes[maker.turn]
        if d in dimensions
    )
