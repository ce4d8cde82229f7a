"""A program at the numbers of one launch: what is worked out once for all launches that share them.

Units fire by the availability of their operands; the order in which they do depends on nothing but
the program and its numbers, so it is written down once. So is the step of every firing. That of a
load or store depends on where its operand lies, and on nothing else: it is kept by that, for
launches bring the same tensors in ever new company.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from torch_spyre_ref.emulator.alu import operation
from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program import matrix, movement, randomness, reduction
from torch_spyre_ref.emulator.program.firing import firings
from torch_spyre_ref.emulator.program.lanes import Lanes, Operands
from torch_spyre_ref.emulator.program.model import Instruction, Program
from torch_spyre_ref.emulator.program.numbers import evaluate
from torch_spyre_ref.emulator.program.slot import Location
from torch_spyre_ref.emulator.program.tiles import Tile
from torch_spyre_ref.emulator.program.timing import cost
from torch_spyre_ref.emulator.program.units import OPS
from torch_spyre_ref.emulator.spec import CardSpec

Step = Callable[[], object]
"""One firing of one instruction, all its operands resolved."""

Kept = TypeVar("Kept")

_STEPS_KEPT: Final = 4_096
_PLACES_KEPT: Final = 8_192


class Firing(NamedTuple):
    """One firing of one instruction; its step, unless that depends on where operands lie."""

    lanes: Lanes
    instruction: Instruction
    tile: Tile
    step: Step | None


class Sized:
    """A program at the numbers of one launch: tiles, the order of firing, and time.

    It has everything that does not depend on where operands lie, and serves all launches with the
    same sizes and scalars.
    """

    def __init__(self, program: Program, symbols: Sequence[int | float], spec: CardSpec) -> None:
        self.numbers = evaluate(program.numbers, symbols)
        self.stages = [Lanes(stage, self.numbers, spec) for stage in program.stages]
        self.live = [_live(lanes) for lanes in self.stages]
        self.costs = tuple(
            cost(lanes, program.operands, live, spec)
            for lanes, live in zip(self.stages, self.live, strict=True)
        )
        self.duration = sum(stage.duration for stage in self.costs)
        count = sum(
            lanes.space.outer * lanes.space.inner[lanes.stage.instructions[i].turn]
            for lanes, live in zip(self.stages, self.live, strict=True)
            for i in live
        )
        self._order = list(self._fire()) if count <= _STEPS_KEPT else None
        self.accesses = [
            (lanes, i)
            for lanes, live in zip(self.stages, self.live, strict=True)
            for index in live
            if (i := lanes.stage.instructions[index]).place is not None
        ]
        self._boxes: dict[tuple[int, Location], DeviceRange] = {}
        self._moves: dict[tuple[int, Location], Step] = {}
        self._seen: tuple[Memory, int] | None = None

    @property
    def is_short(self) -> bool:
        """Whether there are few enough firings to keep the step of each."""
        return self._order is not None

    def order(self) -> Iterable[Firing]:
        """All firings, in order; those that touch no memory with their steps made."""
        return self._fire() if self._order is None else self._order

    def box(self, number: int, operands: Operands) -> DeviceRange:
        """All memory that one of the ``accesses`` may touch. Raises ``ProgramError``."""
        lanes, i = self.accesses[number]
        key = number, _location(operands, i)
        box = self._boxes.get(key)
        if box is None:
            box = _reach(lanes, operands, i)
            _put(self._boxes, key, box)
        return box

    def steps(self, operands: Operands) -> list[Step]:
        """The steps of all firings, in order."""
        memory, moves = operands.memory, self._moves
        if self._seen != (memory, memory.changes):
            self._seen = memory, memory.changes
            moves.clear()
        steps = []
        for number, (lanes, i, tile, step) in enumerate(self.order()):
            if step is None:
                key = number, _location(operands, i)
                step = moves.get(key)
                if step is None:
                    step = move(lanes, operands, i, tile)
                    _put(moves, key, step)
            steps.append(step)
        return steps

    def forget(self) -> None:
        """Let go of every region that operands were found in."""
        self._seen = None
        self._moves.clear()

    def _fire(self) -> Iterator[Firing]:
        for lanes, live in zip(self.stages, self.live, strict=True):
            space, instructions = lanes.space, lanes.stage.instructions
            for index, count in firings(lanes.stage, space.outer, space.inner, live):
                i = instructions[index]
                tile = space.tile(i.turn, count)
                yield Firing(lanes, i, tile, None if i.place else _step(lanes, i, tile))


def _location(operands: Operands, i: Instruction) -> Location:
    """Where the operand of a load or store lies."""
    assert i.place is not None
    return operands.places[i.place.operand][1]


def _live(lanes: Lanes) -> list[int]:
    """The instructions that fire at all: none over an empty space, and of a pass that streams
    nothing only those which accumulate."""
    if lanes.space.outer == 0:
        return []
    return [
        index
        for index, i in enumerate(lanes.stage.instructions)
        if not lanes.space.empty[i.turn] or OPS[i.op].unit in ("reduce", "matrix")
    ]


def _reach(lanes: Lanes, operands: Operands, i: Instruction) -> DeviceRange:
    """All memory that a load or store may touch."""
    if movement.indirect(i):
        assert i.place is not None
        address = operands.places[i.place.operand][1].address
        return DeviceRange.contiguous(address, 0, address.length)
    if i.op == "load":
        varies = lanes.stage.values[i.outputs[0]].dimensions
        shape = tuple(n if d in varies else 1 for d, n in enumerate(lanes.space.sizes))
    else:
        moved = {*lanes.stage.outer, *lanes.stage.passes[i.turn]}
        sizes = tuple(n if d in moved else 1 for d, n in enumerate(lanes.space.sizes))
        shape = movement.store_shape(lanes, i, sizes)
    return movement.span(lanes, operands, i, shape)


def move(lanes: Lanes, operands: Operands, i: Instruction, tile: Tile) -> Step:
    """What one firing of a load or store does."""
    unit = movement.load if i.op == "load" else movement.store
    return unit(lanes, operands, i, tile)


def _step(lanes: Lanes, i: Instruction, tile: Tile) -> Step:
    """What one firing does of an instruction that touches no memory."""
    match OPS[i.op].unit:
        case "reduce":
            return reduction.reduce(lanes, i, tile)
        case "matrix":
            return matrix.matmul(lanes, i, tile)
        case "random":
            return partial(randomness.draw, lanes, i, tile)
        case "index":
            return partial(_count, lanes, i, tile)
    return operation(i.op, lanes.inputs(i, tile), lanes.block(i.outputs[0], tile))


def _count(lanes: Lanes, i: Instruction, tile: Tile) -> None:
    out = lanes.block(i.outputs[0], tile)
    start, length = tile.starts[i.parameter], tile.lengths[i.parameter]
    out[...] = np.arange(start, start + length).reshape(out.shape)


def _put(cache: dict[tuple[int, Location], Kept], key: tuple[int, Location], value: Kept) -> None:
    """Put an entry in a cache that is begun anew when it is full."""
    if len(cache) >= _PLACES_KEPT:
        cache.clear()
    cache[key] = value
