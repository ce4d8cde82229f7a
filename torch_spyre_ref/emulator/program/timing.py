"""How long a program takes, in virtual ns, from its tiles and the rates of the units.

Every unit works through its own instructions, and all overlap. A stage takes the time of its
busiest unit, and before that the *fill*: the work of the other units on the first tile, while it
travels through them. Stages follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_spyre_ref.emulator.operands import fold
from torch_spyre_ref.emulator.program.formats import FORMATS
from torch_spyre_ref.emulator.program.lanes import Lanes
from torch_spyre_ref.emulator.program.matrix import roles
from torch_spyre_ref.emulator.program.model import Instruction, Operand
from torch_spyre_ref.emulator.program.movement import store_shape
from torch_spyre_ref.emulator.program.units import OPS, UNITS
from torch_spyre_ref.emulator.spec import CardSpec


@dataclass(frozen=True, slots=True)
class StageCost:
    """Virtual ns that each unit is busy in a stage, the fill before, and what goes through memory.

    ``loaded`` and ``stored`` are sticks.
    """

    busy: dict[str, int]
    fill: int
    loaded: int
    stored: int

    @property
    def duration(self) -> int:
        """Virtual ns from the start of the stage to its last store."""
        return self.fill + max(self.busy.values(), default=0)


def cost(
    lanes: Lanes,
    operands: Sequence[Operand],
    live: Sequence[int],
    spec: CardSpec,
) -> StageCost:
    """What a stage costs at the sizes of one launch."""
    busy = dict.fromkeys(UNITS, 0)
    first = dict.fromkeys(UNITS, 0)
    sticks = {"load": 0, "store": 0}
    for index in live:
        i = lanes.stage.instructions[index]
        unit = OPS[i.op].unit
        for number, (shape, count) in enumerate(lanes.space.shapes(i.turn)):
            if unit in sticks:
                moved = _sticks(lanes, operands, i, shape, spec)
                sticks[unit] += moved * count
                time = -(-moved * spec.stick // spec.memory_rate)
            else:
                time = -(-_work(lanes, i, shape) // getattr(spec, f"{unit}_rate"))
            busy[unit] += time * count
            if number == 0:
                first[unit] += time
    slowest = max(UNITS, key=lambda unit: busy[unit])
    fill = spec.stage_latency + sum(first.values()) - first[slowest]
    # Loads and stores share the memory: together they cannot be faster than it is.
    memory = busy["load"] + busy["store"]
    return StageCost({**busy, "memory": memory}, fill, sticks["load"], sticks["store"])


def _sticks(
    lanes: Lanes,
    operands: Sequence[Operand],
    i: Instruction,
    shape: tuple[int, ...],
    spec: CardSpec,
) -> int:
    """Sticks that one tile of a load or store moves; a gathered element moves its own stick."""
    assert i.place is not None
    size = FORMATS[operands[i.place.operand].format].itemsize
    if i.op == "load":
        varies = lanes.stage.values[i.outputs[0]].dimensions
        box = tuple(n if d in varies else 1 for d, n in enumerate(shape))
    else:
        box = store_shape(lanes, i, shape)
    if i.place.index_strides:
        return prod(box)
    strides = [int(lanes.numbers[s]) * size for s in i.place.strides]
    moving = [(n, abs(s)) for n, s in zip(box, strides, strict=True) if s]
    moving.sort(key=lambda step: -step[1])
    run, loops = fold(tuple(n for n, _ in moving), tuple(s for _, s in moving), size)
    lines = prod(count for count, _ in loops)
    if loops and loops[-1][1] < spec.stick:
        # Elements that lie closer than a stick share it.
        count, stride = loops[-1]
        return lines // count * -(-((count - 1) * stride + run) // spec.stick)
    return spec.sticks(lines, run)


def _work(lanes: Lanes, i: Instruction, shape: tuple[int, ...]) -> int:
    """Elements, or products, that the busiest core does of one tile."""
    shares = [-(-n // lanes.stage.dimensions[d].cores) for d, n in enumerate(shape)]
    if i.op == "matmul":
        return prod(shares[d] for group in roles(lanes, i) for d in group)
    values = lanes.stage.values
    varies = {d for s in i.inputs if not s.number for d in values[s.entry].dimensions}
    varies.update(d for v in i.outputs for d in values[v].dimensions)
    return prod(shares[d] for d in varies)
