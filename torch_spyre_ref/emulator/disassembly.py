"""The disassembler: what a program says, as text for a person.

One line an instruction: the unit that it belongs to, and what it makes of what. Operands are shown
as places, ``source[4 rows + columns]``, in elements; symbols that a launch patches are ``s0``,
``s1`` and so on. At the end of a stage stands its scratchpad, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_spyre_ref.emulator.program.check import held
from torch_spyre_ref.emulator.program.model import (
    Dimension,
    Instruction,
    Number,
    Place,
    Program,
    Source,
    Stage,
)
from torch_spyre_ref.emulator.program.numbers import ARITHMETIC, SIGNS
from torch_spyre_ref.emulator.program.units import OPS


def disassemble(program: Program) -> str:
    """The text of a program."""
    return "\n".join(_Text(program).lines()) + "\n"


class _Text:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: list[str] = []
        for number in program.numbers:
            self.numbers.append(self._number(number))

    def _number(self, number: Number) -> str:
        if number.op not in ARITHMETIC:
            return f"s{number.value}" if number.op.endswith("symbol") else repr(number.value)
        a, b = self.numbers[number.a], self.numbers[number.b]
        if number.op in SIGNS:
            return f"({a} {SIGNS[number.op]} {b})"
        return f"{number.op}({a}, {b})"

    def lines(self) -> Iterator[str]:
        program = self.program
        yield f"program {program.name}: {program.addresses} addresses, {program.symbols} numbers"
        width = max((len(o.name) for o in program.operands), default=0)
        for operand in program.operands:
            where = (
                f"the job's memory + {operand.offset}"
                if operand.symbol is None
                else f"address {operand.symbol}"
            )
            yield f"  {operand.name:{width}}  {operand.format:8}  {where}"
        for number, stage in enumerate(program.stages):
            yield ""
            yield f"stage {number}"
            yield from self._stage(stage)

    def _stage(self, stage: Stage) -> Iterator[str]:
        for dimension in stage.dimensions:
            yield f"  {self._dimension(dimension)}"
        for turn, streams in enumerate(stage.passes):
            named = ", ".join(stage.dimensions[d].name for d in streams)
            yield f"  pass {turn}, streams {named}" if named else f"  pass {turn}"
            for i in stage.instructions:
                if i.turn == turn:
                    yield f"    {OPS[i.op].unit:7}  {self._instruction(stage, i)}"
        yield from self._scratchpad(stage)

    def _dimension(self, d: Dimension) -> str:
        cores = f"{d.cores} cores" if d.cores > 1 else "1 core"
        return f"{d.name} {self.numbers[d.size]}, tile {d.tile} on {cores}"

    def _instruction(self, stage: Stage, i: Instruction) -> str:
        made = ", ".join(f"v{v}" for v in i.outputs)
        if i.place is not None:
            return self._memory(stage, i, i.place, made)
        if i.op == "index":
            return f"{made} = index {stage.dimensions[i.parameter].name}"
        inputs = ", ".join(self._source(s) for s in i.inputs)
        if i.op == "convert":
            return f"{made} = {stage.values[i.outputs[0]].format} {inputs}"
        digits = f" ({i.parameter} digits)" if i.op == "uniform" else ""
        return f"{made} = {i.op} {inputs}{digits}"

    def _source(self, source: Source) -> str:
        return self.numbers[source.entry] if source.number else f"v{source.entry}"

    def _memory(self, stage: Stage, i: Instruction, place: Place, made: str) -> str:
        inputs = [self._source(s) for s in i.inputs]
        stored = inputs.pop(0) if i.op != "load" else ""
        count = len(place.index_strides)
        terms = [
            self._term(self.numbers[stride], dimension.name)
            for stride, dimension in zip(place.strides, stage.dimensions, strict=True)
        ]
        terms += [
            self._term(self.numbers[stride], f"{index} < {self.numbers[limit]}", bracket=True)
            for stride, index, limit in zip(
                place.index_strides, inputs[:count], place.limits, strict=True
            )
        ]
        base = self.numbers[place.base]
        shown = [term for term in terms if term]
        if base != "0" or not shown:
            shown.append(base)
        where = f"{self.program.operands[place.operand].name}[{' + '.join(shown)}]"
        mask = f" where {inputs[count]}" if place.masked else ""
        if i.op == "load":
            other = f" else {inputs[count + 1]}" if place.masked else ""
            return f"{made} = {where}{mask}{other}"
        return f"{where} {'+=' if i.op == 'store_add' else '='} {stored}{mask}"

    def _term(self, stride: str, name: str, bracket: bool = False) -> str:
        if stride == "0":
            return ""
        name = f"({name})" if bracket else name
        return name if stride == "1" else f"{stride} {name}"

    def _scratchpad(self, stage: Stage) -> Iterator[str]:
        if not stage.values:
            return
        kept = held(stage)
        end = max(v.offset + v.depth * v.nbytes for v in stage.values)
        yield f"  scratchpad, {end} bytes a core"
        for number, v in enumerate(stage.values):
            along = " x ".join(stage.dimensions[d].name for d in v.dimensions) or "one"
            entries = f"{v.depth} x {v.nbytes}"
            note = "  held" if number in kept else ""
            yield f"    v{number:<3} {v.format:8} at {v.offset:<8} {entries:12} {along}{note}"
