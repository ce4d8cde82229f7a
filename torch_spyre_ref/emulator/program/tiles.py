"""The sequencer: which part of the iteration space each firing of an instruction works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.model import Stage

_MAX_TILES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of the iteration space, ``lengths`` steps from ``starts``; of a whole stage's rank.

    It is tile ``inner`` of those that its pass streams for outer tile ``outer``.
    """

    outer: int
    inner: int
    inners: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def turn(self) -> int:
        """How many tiles of this pass came before."""
        return self.outer * self.inners + self.inner


class Space:
    """The iteration space of a stage at the sizes of one launch, cut into tiles.

    Raises ``ProgramError`` when a size is negative or the tiles are absurdly many.
    """

    def __init__(self, stage: Stage, sizes: Sequence[int]) -> None:
        for dimension, size in zip(stage.dimensions, sizes, strict=True):
            if size < 0:
                raise ProgramError(f"dimension {dimension.name!r} has {size} steps; give 0 or more")
        self.stage, self.sizes = stage, tuple(sizes)
        self.tiles = [
            -(-size // dimension.tile)
            for size, dimension in zip(sizes, stage.dimensions, strict=True)
        ]
        self.outer = prod(self.tiles[d] for d in stage.outer)
        counts = [prod(self.tiles[d] for d in dimensions) for dimensions in stage.passes]
        self.empty = [count == 0 for count in counts]
        # A pass that streams nothing still has one turn, in which what it accumulates is blank.
        self.inner = [max(count, 1) for count in counts]
        total = self.outer * sum(self.inner)
        if total > _MAX_TILES:
            raise ProgramError(
                f"{self.outer} outer tiles with {sum(self.inner)} passes each are {total} tiles; "
                f"at most {_MAX_TILES} can be run: use larger tiles"
            )

    def tile(self, turn: int, count: int) -> Tile:
        """What pass ``turn`` works on when it has run ``count`` times."""
        inners = self.inner[turn]
        outer, inner = divmod(count, inners)
        starts = [0] * len(self.sizes)
        lengths = [1] * len(self.sizes)
        for dimensions, at in ((self.stage.outer, outer), (self.stage.passes[turn], inner)):
            for d in reversed(dimensions):
                at, step = divmod(at, max(self.tiles[d], 1))
                size = self.stage.dimensions[d].tile
                starts[d] = step * size
                lengths[d] = min(size, self.sizes[d] - starts[d])
        return Tile(outer, inner, inners, tuple(starts), tuple(lengths))

    def shapes(self, turn: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """The shapes of the tiles of a pass, and how many there are of each."""
        classes: list[list[tuple[int, int]]] = []
        moved = {*self.stage.outer, *self.stage.passes[turn]}
        for d, size in enumerate(self.sizes):
            tile = self.stage.dimensions[d].tile
            whole, rest = divmod(size, tile)
            steps = [(tile, whole), (rest, 1)] if d in moved else [(1, 1)]
            classes.append([(length, count) for length, count in steps if length and count])
        for combination in product(*classes):
            yield tuple(length for length, _ in combination), prod(n for _, n in combination)
