"""What makes a program one that the card can run, checked once when it is decoded.

After this no instruction names what is not there, no value is read before it is made, every tile
fits its place in scratchpad, and no two live values share a byte of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

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
from torch_spyre_ref.emulator.program.units import IN_PLACE, OPS, misfit
from torch_spyre_ref.emulator.spec import CardSpec

_MAX_TILE: Final = 1 << 32


def check(program: Program) -> None:
    """Raise ``ProgramError`` unless ``program`` is well-formed."""
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
            _require(source.entry < len(self.program.numbers), f"there is no number {source.entry}")
            return None
        _require(source.entry in self.made, f"value {source.entry} is used before it is made")
        value = self.stage.values[source.entry]
        streams, made_in = self.stage.passes, self.made[source.entry]
        reach = self.outer.union(streams[i.turn])
        _require(
            reach.issuperset(value.dimensions)
            and (
                made_in == i.turn
                or streams[made_in] == streams[i.turn]
                or self.outer.issuperset(value.dimensions)
            ),
            f"value {source.entry} varies along {self._axes(value.dimensions)}, which pass "
            f"{i.turn} does not stream as pass {made_in} does; use it in the pass that makes it",
        )
        reduced = self._reduced_in(source.entry) == i.turn
        _require(not reduced, f"value {source.entry} is complete only when pass {i.turn} is over")
        return value.format

    def _axes(self, dimensions: Sequence[int]) -> str:
        """Their names, for an error; ``dimensions`` may be any numbers."""
        known = self.stage.dimensions
        names = [known[d].name if d < len(known) else f"dimension {d}" for d in dimensions]
        return ", ".join(names) or "no dimension"

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

    def _stepped(self, i: Instruction) -> frozenset[int]:
        """The dimensions along which a load moves, or may with some symbol."""
        strides = i.place.strides if i.place else ()
        still = ("integer", 0)
        numbers = self.program.numbers
        return frozenset(
            d for d, s in enumerate(strides) if (numbers[s].op, numbers[s].value) != still
        )

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
            d for s in i.inputs if not s.number for d in self.stage.values[s.entry].dimensions
        )
        streams = self.stage.passes[i.turn]
        unit = OPS[i.op].unit
        for output in i.outputs:
            have = frozenset(self.stage.values[output].dimensions)
            if unit == "load":
                right = varies | self._stepped(i) <= have <= self.outer.union(streams)
            elif unit == "index":
                right = 0 <= i.parameter < len(self.stage.dimensions) and have == {i.parameter}
                right = right and have <= self.outer.union(streams)
            elif unit in ("reduce", "matrix"):
                right = have == varies.difference(streams)
            else:
                right = have == varies
            elsewhere = have.difference(self.outer, streams)
            _require(
                right,
                f"value {output} cannot vary along {self._axes(sorted(have))}"
                + (
                    f": pass {i.turn} does not stream {self._axes(sorted(elsewhere))}, and another "
                    "does. Have it in that pass, or end the stage before it, with asm.stage()"
                    if elsewhere
                    else ""
                ),
            )
        if i.op == "matmul":
            left, inner = (frozenset(self.stage.values[s.entry].dimensions) for s in i.inputs)
            _require(
                left.issuperset(streams) and inner.issuperset(streams),
                "both sides vary along every dimension that the pass streams",
            )
        if unit == "random":
            fixed = [self.stage.values[s.entry] for s in i.inputs[:2] if not s.number]
            _require(all(not v.dimensions for v in fixed), "seed and offset do not vary")
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
    """Raise ``ScratchpadError`` unless every stage fits the cores and their scratchpad."""
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
        _check_steps(where, stage, spec)
        _check_sharing(where, stage)


def _check_steps(where: str, stage: Stage, spec: CardSpec) -> None:
    """What walks a tile step by step, and not a value, must still be bounded by a core's size."""
    for i in stage.instructions:
        steps, most = walked(stage, i), most_walked(spec)
        if steps > most:
            raise ScratchpadError(
                f"{where}: {i.op} walks {steps} steps a core in one tile; with a scratchpad of "
                f"{spec.scratchpad} bytes it can walk {most}: use smaller tiles"
            )


def most_walked(spec: CardSpec) -> int:
    """How many steps of a tile an instruction can go through one by one."""
    return spec.scratchpad // 8


def walked(stage: Stage, i: Instruction) -> int:
    """How many steps of a tile a core goes through one by one for an instruction."""
    if i.op == "load":
        assert i.place is not None
        gathers = i.place.index_strides or i.place.masked
        dimensions = stage.values[i.outputs[0]].dimensions if gathers else ()
    elif i.place is not None or OPS[i.op].unit == "reduce":
        dimensions = (*stage.outer, *stage.passes[i.turn])
    else:
        dimensions = ()
    return prod(stage.dimensions[d].share for d in dimensions)


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
    lives = lifetimes(stage)
    for a, b in sharing(stage):
        if not may_share(lives[a], lives[b]):
            raise ScratchpadError(
                f"{where}: values {a} and {b} are alive together, but share bytes of the "
                f"scratchpad from {max(stage.values[a].offset, stage.values[b].offset)}"
            )


def sharing(stage: Stage) -> list[tuple[int, int]]:
    """The pairs of values that have bytes of the scratchpad in common."""
    spans = sorted((v.offset, v.offset + v.depth * v.nbytes, n) for n, v in enumerate(stage.values))
    pairs = []
    for place, (_, stop, a) in enumerate(spans):
        for start, _, b in spans[place + 1 :]:
            if start >= stop:
                break
            pairs.append((min(a, b), max(a, b)))
    return pairs


class Lifetime(NamedTuple):
    """When a value is needed within a tile, by the places of instructions in the stage.

    ``turn`` is its pass; None when it is held, or has several entries, and its bytes are its own.
    ``after`` is the first instruction that may overwrite it: the last reader itself, when that
    works in place.
    """

    turn: int | None
    first: int
    after: int


def lifetimes(stage: Stage) -> list[Lifetime]:
    """The lifetime of each value."""
    kept = held(stage)
    users: list[list[int]] = [[] for _ in stage.values]
    for at, i in enumerate(stage.instructions):
        for v in (*i.outputs, *(s.entry for s in i.inputs if not s.number)):
            users[v].append(at)
    lives = []
    for v, places in enumerate(users):
        alone = v in kept or stage.values[v].depth > 1
        last = places[-1]
        turn = None if alone else stage.instructions[last].turn
        lives.append(Lifetime(turn, places[0], last + (not _in_place(stage, last, v))))
    return lives


def _in_place(stage: Stage, at: int, value: int) -> bool:
    """Whether an instruction may write its result over ``value``, element by element."""
    i, read = stage.instructions[at], stage.values[value]
    return i.op in IN_PLACE and all(
        stage.values[v].dimensions == read.dimensions
        and FORMATS[stage.values[v].format].itemsize == FORMATS[read.format].itemsize
        for v in i.outputs
    )


def may_share(one: Lifetime, two: Lifetime) -> bool:
    """Whether two values may lie in the same bytes: one is made when the other is done with.

    The dispatcher sees to it that it is: who makes the later one waits for all readers of the
    earlier.
    """
    together = one.turn is not None and one.turn == two.turn
    return together and (one.after <= two.first or two.after <= one.first)
