"""What a program does to its operands, read off its text: loads, stores, and how far they reach."""

from __future__ import annotations

from typing import NamedTuple

from torch_spyre_ref.emulator.program import Instruction, Operand, Place, Program, Stage

Reach = tuple[int, int]
"""The lowest and the highest element, counted from the operand's start."""


class Access(NamedTuple):
    """One instruction's loads or stores. ``reach`` is None where a launch decides, or nothing is
    touched for certain: by a mask, by indices, over an empty space."""

    operand: Operand
    reads: bool
    writes: bool
    reach: Reach | None


def accesses(program: Program) -> list[Access]:
    """Every access of the program, in its order."""
    constants = [int(n.value) if n.op == "integer" else None for n in program.numbers]
    return [
        Access(
            program.operands[place.operand],
            i.op != "store",
            i.op != "load",
            None if place.masked or place.index_strides else _reach(stage, i, place, constants),
        )
        for stage in program.stages
        for i in stage.instructions
        if (place := i.place) is not None
    ]


def _reach(stage: Stage, i: Instruction, place: Place, constants: list[int | None]) -> Reach | None:
    base = constants[place.base]
    walked = {*stage.outer, *stage.passes[i.turn]}
    sizes = [constants[stage.dimensions[d].size] for d in walked]
    strides = [constants[place.strides[d]] for d in walked]
    if base is None or None in sizes or None in strides or 0 in sizes:
        return None
    steps = [(n - 1) * s for n, s in zip(sizes, strides, strict=True) if n and s]
    return base + sum(s for s in steps if s < 0), base + sum(s for s in steps if s > 0)
