"""What makes a program one that the card can run, checked once when it is decoded.

After this no instruction names what is not there, no value is read before it is made, every tile
fits its place in scratchpad, and no two live values share a byte of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Final

from torch_spyre_ref.emulator.program.errors import ProgramError, ScratchpadError
from torch_spyre_ref.emulator.program.formats import FORMATS
from torch_spyre_ref.emulator.program.model import (
    MAX_DIMENSIONS,
    MAX_INDICES,
    Dimension,
    Instruction,
    Place,
    Program,
    Source,
    Stage,
    Value,
)
from torch_spyre_ref.emulator.program.numbers import ARITHMETIC, LEAVES, is_float
from torch_spyre_ref.emulator.program.units import OPS, misfit
from torch_spyre_ref.emulator.spec import CardSpec

_MAX_TILE: Final = 1 << 32


def check(program: Program) -> None:
    """Raise :class:`ProgramError` unless ``program`` is well-formed."""
    _check_numbers(program)
    for operand in program.operands:
        symbol = operand.symbol
        _require(
            operand.offset >= 0 if symbol is None else symbol < program.addresses,
            f"operand {operand.name!r} is address symbol {symbol} at job offset {operand.offset}, "
            f"but there are {program.addresses} address symbols and no negative offsets",
        )
    for number, stage in enumerate(program.stages):
        try:
            _StageCheck(program, stage).run()
        except ProgramError as error:
            raise ProgramError(f"program {program.name!r}, stage {number}: {error}") from None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ProgramError(message)


def _check_numbers(program: Program) -> None:
    kinds: dict[int, str] = {}
    for index, number in enumerate(program.numbers):
        if number.op in ARITHMETIC:
            for part in (number.a, number.b):
                _require(part < index, f"number {index} is made of number {part}, which is later")
                _require(not is_float(program.numbers[part]), f"number {index} is made of a float")
        elif number.op in LEAVES[2:]:
            symbol = int(number.value)
            _require(
                0 <= symbol < program.symbols,
                f"number {index} is symbol {symbol}, but there are {program.symbols}",
            )
            _require(
                kinds.setdefault(symbol, number.op) == number.op,
                f"symbol {symbol} is both an integer and a float",
            )


class _StageCheck:
    """One walk over the instructions of a stage, in order."""

    def __init__(self, program: Program, stage: Stage) -> None:
        self.program, self.stage = program, stage
        self.outer = frozenset(stage.outer)
        self.made: dict[int, int] = {}

    def run(self) -> None:
        stage = self.stage
        _require(len(stage.dimensions) <= MAX_DIMENSIONS, "more than 8 dimensions")
        for dimension in stage.dimensions:
            self._check_dimension(dimension)
        rank = len(stage.dimensions)
        for dimensions in stage.passes:
            _require(all(d < rank for d in dimensions), f"a pass streams one of {dimensions}")
        for value in stage.values:
            self._check_value(value)
        turn = 0
        for index, instruction in enumerate(stage.instructions):
            try:
                _require(turn <= instruction.turn < len(stage.passes), f"pass {instruction.turn}")
                self._check_instruction(instruction)
            except ProgramError as error:
                message = f"instruction {index} ({instruction.op}): {error}"
                raise ProgramError(message) from None
            turn = instruction.turn
        for index in range(len(stage.values)):
            _require(index in self.made, f"value {index} is never made")

    def _check_dimension(self, dimension: Dimension) -> None:
        self._integer(dimension.size)
        _require(
            1 <= dimension.tile <= _MAX_TILE and dimension.cores >= 1,
            f"dimension {dimension.name!r} has tiles of {dimension.tile} on {dimension.cores} "
            "cores; both must be 1 or more",
        )

    def _check_value(self, value: Value) -> None:
        _require(FORMATS[value.format].computed == value.format, f"a value is in {value.format}")
        _require(
            all(d < len(self.stage.dimensions) for d in value.dimensions) and value.depth >= 1,
            f"{value} has a dimension that is not there, or no entry",
        )

    def _integer(self, number: int) -> None:
        numbers = self.program.numbers
        _require(
            number < len(numbers) and not is_float(numbers[number]),
            f"number {number} is not an integer of the {len(numbers)} there are",
        )

    def _check_instruction(self, i: Instruction) -> None:
        op = OPS[i.op]
        rule = op.rule
        _require((rule == "memory") == (i.place is not None), "a place belongs to load and store")
        if i.place is not None:
            self._check_place(i, i.place)
        else:
            _require(len(i.inputs) == op.inputs, f"takes {op.inputs} inputs, not {len(i.inputs)}")
        _require(len(i.outputs) == op.outputs, f"makes {op.outputs} values, not {len(i.outputs)}")
        formats = [self._check_source(i, source) for source in i.inputs]
        for output in i.outputs:
            _require(output < len(self.stage.values), f"there is no value {output}")
            _require(output not in self.made, f"value {output} is made twice")
        outputs = [self.stage.values[v].format for v in i.outputs]
        if i.place is not None:
            self._check_memory_formats(i, i.place, formats)
        else:
            wrong = misfit(i.op, formats, outputs)
            _require(wrong is None, str(wrong))
            if rule == "convert" or op.unit in ("reduce", "matrix"):
                _require(None not in formats, "needs values, not numbers")
        self._check_dimensions(i)
        for output in i.outputs:
            self.made[output] = i.turn

    def _check_source(self, i: Instruction, source: Source) -> str | None:
        if source.number:
            _require(
                source.index < len(self.program.numbers), f"there is no number {source.index}"
            )
            return None
        _require(source.index in self.made, f"value {source.index} is used before it is made")
        value = self.stage.values[source.index]
        streams, made_in = self.stage.passes, self.made[source.index]
        reach = self.outer.union(streams[i.turn])
        _require(
            reach.issuperset(value.dimensions)
            and (made_in == i.turn or streams[made_in] == streams[i.turn]
                 or self.outer.issuperset(value.dimensions)),
            f"value {source.index} varies along dimensions {value.dimensions}, which pass "
            f"{i.turn} does not stream as pass {made_in} does",
        )
        reduced = self._reduced_in(source.index) == i.turn
        _require(not reduced, f"value {source.index} is complete only when pass {i.turn} is over")
        return value.format

    def _reduced_in(self, value: int) -> int | None:
        """The pass that accumulates ``value``, when a unit that accumulates makes it."""
        for other in self.stage.instructions:
            if value in other.outputs:
                return other.turn if OPS[other.op].unit in ("reduce", "matrix") else None
        return None

    def _check_place(self, i: Instruction, place: Place) -> None:
        load = i.op == "load"
        _require(place.operand < len(self.program.operands), f"no operand {place.operand}")
        _require(len(place.strides) == len(self.stage.dimensions), "needs a stride a dimension")
        indices = len(place.index_strides)
        _require(indices == len(place.limits) <= MAX_INDICES, "needs a limit an index")
        for number in (place.base, *place.strides, *place.index_strides, *place.limits):
            self._integer(number)
        wanted = indices + place.masked * (2 if load else 1) + (not load)
        _require(len(i.inputs) == wanted, f"takes {wanted} inputs, not {len(i.inputs)}")

    def _check_memory_formats(
        self, i: Instruction, place: Place, formats: Sequence[str | None]
    ) -> None:
        computed = FORMATS[self.program.operands[place.operand].format].computed
        indices = len(place.index_strides)
        first = 0 if i.op == "load" else 1
        _require(all(f == "int64" for f in formats[first : first + indices]), "indices are int64")
        if place.masked:
            _require(formats[first + indices] == "bool", "a mask is a bool value")
        if i.op == "load":
            made = self.stage.values[i.outputs[0]].format
            _require(made == computed, f"makes {computed}, not {made}")
            if place.masked:
                _require(formats[-1] is None, "what stands for masked elements is a number")
        else:
            _require(formats[0] in (None, computed), f"takes {computed}, not {formats[0]}")

    def _check_dimensions(self, i: Instruction) -> None:
        varies = frozenset(
            d for s in i.inputs if not s.number for d in self.stage.values[s.index].dimensions
        )
        streams = self.stage.passes[i.turn]
        unit = OPS[i.op].unit
        for output in i.outputs:
            have = frozenset(self.stage.values[output].dimensions)
            if unit == "load":
                right = varies <= have <= self.outer.union(streams)
            elif unit == "index":
                right = 0 <= i.parameter < len(self.stage.dimensions) and have == {i.parameter}
                right = right and have <= self.outer.union(streams)
            elif unit in ("reduce", "matrix"):
                right = have == varies.difference(streams)
            else:
                right = have == varies
            _require(right, f"value {output} cannot vary along dimensions {sorted(have)}")
        if i.op == "matmul":
            left, inner = (frozenset(self.stage.values[s.index].dimensions) for s in i.inputs)
            _require(
                left.issuperset(streams) and inner.issuperset(streams),
                "both sides vary along every dimension that the pass streams",
            )
        if i.op == "uniform":
            _require(1 <= i.parameter <= 53, f"{i.parameter} digits; it must be 1 to 53")


def held(stage: Stage) -> frozenset[int]:
    """The values that outlive the pass which makes them; accumulated ones are always held."""
    made = {v: i for i in stage.instructions for v in i.outputs}
    return frozenset(
        v
        for v, i in made.items()
        if OPS[i.op].unit in ("reduce", "matrix")
        or any(r.turn != i.turn for r in readers(stage, v))
    )


def readers(stage: Stage, value: int) -> list[Instruction]:
    """The instructions that consume ``value``."""
    return [i for i in stage.instructions if Source(value) in i.inputs]


def entry_bytes(stage: Stage, value: Value, tiles: int = 1) -> int:
    """Bytes a core that an entry of ``value`` needs, when it holds so many tiles."""
    share = prod(stage.dimensions[d].share for d in value.dimensions)
    return share * FORMATS[value.format].itemsize * tiles


def fit(program: Program, spec: CardSpec) -> None:
    """Raise :class:`ScratchpadError` unless every stage fits the cores and their scratchpad."""
    for number, stage in enumerate(program.stages):
        where = f"program {program.name!r}, stage {number}"
        cores = prod(d.cores for d in stage.dimensions)
        if cores > spec.cores:
            split = " x ".join(f"{d.name} {d.cores}" for d in stage.dimensions)
            raise ScratchpadError(f"{where} uses {split} = {cores} cores of {spec.cores}")
        for index, value in enumerate(stage.values):
            need = entry_bytes(stage, value)
            if need > value.nbytes:
                raise ScratchpadError(
                    f"{where}: an entry of value {index} has {value.nbytes} bytes a core, but its "
                    f"tile needs {_product(stage, value)} = {need}"
                )
            if value.offset + value.depth * value.nbytes > spec.scratchpad:
                raise ScratchpadError(f"{where} does not fit:\n{_arithmetic(stage, spec)}")
        _check_sharing(where, stage)


def _product(stage: Stage, value: Value) -> str:
    parts = [f"{stage.dimensions[d].share} {stage.dimensions[d].name}" for d in value.dimensions]
    return " x ".join([*parts, f"{FORMATS[value.format].itemsize} bytes"])


def _arithmetic(stage: Stage, spec: CardSpec) -> str:
    lines = [
        f"  v{n}: {_product(stage, v)}, {v.nbytes} bytes x {v.depth} deep = "
        f"{v.nbytes * v.depth} at {v.offset}, ends at {v.offset + v.nbytes * v.depth}"
        for n, v in enumerate(stage.values)
    ]
    end = max(v.offset + v.nbytes * v.depth for v in stage.values)
    return "\n".join([*lines, f"  {end} bytes a core, the scratchpad has {spec.scratchpad}"])


def _check_sharing(where: str, stage: Stage) -> None:
    """Two values share bytes only where one in-order unit has finished with the first."""
    lives = lifetimes(stage)
    for (a, one), (b, two) in combinations(enumerate(stage.values), 2):
        if (
            one.offset < two.offset + two.depth * two.nbytes
            and two.offset < one.offset + one.depth * one.nbytes
            and not may_share(lives[a], lives[b])
        ):
            raise ScratchpadError(
                f"{where}: values {a} and {b} are alive together, but share bytes of the "
                f"scratchpad from {max(one.offset, two.offset)}"
            )


Lifetime = tuple[frozenset[str], int, int]
"""Units that make and use a value (none named when it is held), first and last instruction."""


def lifetimes(stage: Stage) -> list[Lifetime]:
    """For each value, who needs it from when to when within a tile."""
    kept = held(stage)
    spans: list[tuple[set[str], int, int]] = [(set(), 0, 0)] * len(stage.values)
    for at, i in enumerate(stage.instructions):
        for v in i.outputs:
            spans[v] = ({OPS[i.op].unit}, at, at)
        for source in i.inputs:
            if not source.number:
                units, first, _ = spans[source.index]
                spans[source.index] = (units | {OPS[i.op].unit}, first, at)
    return [
        (frozenset() if v in kept else frozenset(units), first, last)
        for v, (units, first, last) in enumerate(spans)
    ]


def may_share(one: Lifetime, two: Lifetime) -> bool:
    """Whether two values may lie in the same bytes: one unit, which is done with one of them."""
    return len(one[0]) == 1 and one[0] == two[0] and (one[2] < two[1] or two[2] < one[1])
