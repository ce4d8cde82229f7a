"""What an instruction sees of the card while it fires: FIFO entries, numbers and memory.

The scratchpads of all cores are one block of host memory, byte ``b`` of every core side by side, so
that NumPy works on the tile of all cores at once, and values that a program puts at the same offset
really do share their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.pages import Bytes, Pages
from torch_spyre_ref.emulator.program.check import entry_bytes, held, readers
from torch_spyre_ref.emulator.program.errors import ProgramError, ScratchpadError
from torch_spyre_ref.emulator.program.formats import FORMATS, Array
from torch_spyre_ref.emulator.program.model import Instruction, Operand, Source, Stage
from torch_spyre_ref.emulator.program.slot import Location
from torch_spyre_ref.emulator.program.tiles import Space, Tile
from torch_spyre_ref.emulator.program.units import OPS
from torch_spyre_ref.emulator.spec import CardSpec


@cache
def scratchpads(spec_bytes: int) -> Bytes:
    """The scratchpads of a card's cores, committed as they are used. One program at a time."""
    return Pages(spec_bytes).bytes()


class Operands(NamedTuple):
    """What a launch adds to the lanes of a program: where each operand lies, in which memory."""

    places: Sequence[tuple[Operand, Location]]
    memory: Memory


class Lanes:
    """One stage at the numbers of one launch: everything but where its operands lie."""

    def __init__(self, stage: Stage, numbers: Sequence[int | float], spec: CardSpec) -> None:
        self.stage, self.numbers = stage, numbers
        self.space = Space(stage, [int(numbers[d.size]) for d in stage.dimensions])
        self.held = held(stage)
        self.streams = self._streams()
        self._layouts = self._matrix_layouts()
        self._cores = spec.cores
        self._scratch = scratchpads(spec.cores * spec.scratchpad)

    def _streams(self) -> dict[int, int]:
        """For each value the pass that makes it; refuses a held one that outgrows its place."""
        turns = {}
        for instruction in self.stage.instructions:
            for v in instruction.outputs:
                turns[v] = instruction.turn
        for v in self.held:
            value = self.stage.values[v]
            streams = set(value.dimensions).intersection(self.stage.passes[turns[v]])
            tiles = prod(self.space.tiles[d] for d in streams)
            need = entry_bytes(self.stage, value, tiles)
            if need > value.nbytes:
                raise ScratchpadError(
                    f"value {v} is held over {tiles} tiles of {entry_bytes(self.stage, value)} "
                    f"bytes a core = {need}, but its entry has {value.nbytes}; load it again in "
                    "the later pass, or use smaller tiles"
                )
        return turns

    def _matrix_layouts(self) -> dict[int, list[int]]:
        """What only the matrix array reads keeps the order of its memory, outermost first.

        The array takes rows or columns first alike; turning a tile round would cost more than its
        product.
        """
        layouts = {}
        for i in self.stage.instructions:
            if i.op == "load" and i.place is not None:
                strides = [abs(int(self.numbers[s])) for s in i.place.strides]
                if all(r.op == "matmul" for r in readers(self.stage, i.outputs[0])):
                    layouts[i.outputs[0]] = sorted(range(len(strides)), key=lambda d: -strides[d])
        return layouts

    def shape(self, value: int, tile: Tile) -> tuple[int, ...]:
        """The block of ``value`` at a tile: of the stage's rank, 1 where it does not vary."""
        varies = self.stage.values[value].dimensions
        return tuple(n if d in varies else 1 for d, n in enumerate(tile.lengths))

    def block(self, value: int, tile: Tile) -> Array:
        """The part of a FIFO entry of ``value`` that belongs to a tile, dense."""
        v = self.stage.values[value]
        dtype = FORMATS[v.format].stored
        start = 0
        if value not in self.held:
            entry = tile.turn % v.depth
        else:
            entry = tile.outer % v.depth
            streams = self.stage.passes[self.streams[value]]
            # Held tiles lie one after the other; what does not vary along the stream is one tile.
            at, step = tile.inner, 1
            for d in reversed(streams):
                at, index = divmod(at, max(self.space.tiles[d], 1))
                if d in v.dimensions:
                    start += index * step
                    step *= self.space.tiles[d]
            start *= prod(self.stage.dimensions[d].tile for d in v.dimensions) * dtype.itemsize
        offset = (v.offset + entry * v.nbytes) * self._cores + start
        whole = self.shape(value, tile)
        if value not in self._layouts:
            return np.ndarray(whole, dtype, self._scratch, offset)
        layout = self._layouts[value]
        block = np.ndarray([whole[d] for d in layout], dtype, self._scratch, offset)
        return block.transpose(np.argsort(layout).tolist())

    def input(self, source: Source, tile: Tile, dtype: np.dtype[Any]) -> Any:
        """A block, or a number of the table as a scalar of ``dtype``."""
        if source.number:
            return scalar(self.numbers[source.entry], dtype)
        return self.block(source.entry, tile)

    def inputs(self, i: Instruction, tile: Tile) -> list[Any]:
        """All inputs of an elementwise instruction; numbers take the format of the others."""
        formats = [self.stage.values[s.entry].format for s in i.inputs if not s.number]
        if OPS[i.op].unit == "random":
            dtype = np.dtype(np.int64)
        elif formats and formats[-1] != "bool":
            dtype = FORMATS[formats[-1]].stored
        else:
            dtype = FORMATS[self.stage.values[i.outputs[0]].format].stored
        return [self.input(source, tile, dtype) for source in i.inputs]


def scalar(number: int | float, dtype: np.dtype[Any]) -> Any:
    """``number`` in a format: integers wrap, floats round."""
    if dtype.kind in "iu":
        if not isfinite(number):
            raise ProgramError(f"{number} is no {dtype}; give the scalar as an integer")
        bits = 8 * dtype.itemsize
        return np.array(int(number) & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype)[()]
    if dtype.kind == "b":
        return np.bool_(number != 0)
    return dtype.type(number)
