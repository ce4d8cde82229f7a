"""The assembler: how a person writes a program for the card, before there is a compiler.

It names things instead of numbering them, and fills in what a program must say and a person need
not care for: formats of results, tiles, cores, FIFO depths and scratchpad offsets. Each of them can
be given; what is written is what the card will do. ::

    asm = Assembler("add")
    rows, columns = asm.dimension("rows", 64), asm.dimension("columns", 48)
    a, b, c = (asm.argument(name, "float16") for name in "abc")
    x = asm.load(a, {rows: 96, columns: 1})
    y = asm.load(b, {rows: 1, columns: 64})
    asm.store(c, {rows: 48, columns: 1}, x + y)
    program = asm.assemble()

The result, ``Program``, becomes bytes with
``encode``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torch_spyre_ref.emulator.program.check import check, fit
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.formats import FORMATS
from torch_spyre_ref.emulator.program.layout import Plan, plan
from torch_spyre_ref.emulator.program.model import (
    Dimension,
    Instruction,
    Number,
    Operand,
    Place,
    Program,
    Source,
    Stage,
    Value,
)
from torch_spyre_ref.emulator.program.numbers import is_float
from torch_spyre_ref.emulator.program.units import OPS, result_format
from torch_spyre_ref.emulator.spec import CardSpec


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """An entry of the number table; integers among them can be added, multiplied and divided."""

    asm: Assembler
    entry: int

    def __add__(self, other: Amount) -> Scalar:
        if isinstance(other, Wire):  # which knows what to do
            return NotImplemented
        return self.asm.arithmetic("add", self, other)

    def __sub__(self, other: Amount) -> Scalar:
        if isinstance(other, Wire):
            return NotImplemented
        return self.asm.arithmetic("subtract", self, other)

    def __mul__(self, other: Amount) -> Scalar:
        if isinstance(other, Wire):
            return NotImplemented
        return self.asm.arithmetic("multiply", self, other)

    def __floordiv__(self, other: Amount) -> Scalar:
        if isinstance(other, Wire):
            return NotImplemented
        return self.asm.arithmetic("floor_divide", self, other)

    def __mod__(self, other: Amount) -> Scalar:
        if isinstance(other, Wire):
            return NotImplemented
        return self.asm.arithmetic("modulo", self, other)

    __radd__ = __add__
    __rmul__ = __mul__


Amount: TypeAlias = int | Scalar
"""Sizes, strides and offsets: a constant, or an entry of the number table."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """A dimension of the present stage's iteration space."""

    position: int
    size: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An operand of the program."""

    position: int
    format: str


@dataclass(frozen=True, slots=True, eq=False)
class Wire:
    """A value of the present stage: what one instruction makes and others take."""

    asm: Assembler
    position: int
    format: str

    def __add__(self, other: Input) -> Wire:
        return self.asm.apply("add", self, other)

    def __sub__(self, other: Input) -> Wire:
        return self.asm.apply("subtract", self, other)

    def __mul__(self, other: Input) -> Wire:
        return self.asm.apply("multiply", self, other)

    def __truediv__(self, other: Input) -> Wire:
        return self.asm.apply("divide", self, other)

    def __radd__(self, other: Input) -> Wire:
        return self.asm.apply("add", other, self)

    def __rsub__(self, other: Input) -> Wire:
        return self.asm.apply("subtract", other, self)

    def __rmul__(self, other: Input) -> Wire:
        return self.asm.apply("multiply", other, self)

    def __rtruediv__(self, other: Input) -> Wire:
        return self.asm.apply("divide", other, self)

    def __neg__(self) -> Wire:
        return self.asm.apply("negative", self)


Input: TypeAlias = Wire | Scalar | int | float
Strides: TypeAlias = Mapping[Axis, Amount]


@dataclass(slots=True)
class _Draft:
    """A stage that is being written."""

    axes: list[Dimension] = field(default_factory=list)
    fixed: list[tuple[int | None, int | None]] = field(default_factory=list)
    hints: list[int] = field(default_factory=list)
    passes: list[tuple[int, ...]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)


class Assembler:
    """Writes one program, instruction by instruction, for a card of ``spec``."""

    def __init__(self, name: str, spec: CardSpec | None = None) -> None:
        self.name, self.spec = name, spec or CardSpec()
        self._numbers: list[Number] = []
        self._entries: dict[str, int] = {}
        self._operands: list[Operand] = []
        self._stages: list[Stage] = []
        self._addresses = self._symbols = 0
        self._draft = _Draft()

    # What a launch patches

    def argument(self, name: str, format: str) -> Tensor:
        """A caller's tensor of elements of ``format``: the next address symbol."""
        self._addresses += 1
        return self._operand(Operand(name, format, self._addresses - 1))

    def job_memory(self, name: str, format: str, offset: int) -> Tensor:
        """Memory of the job's own, from byte ``offset`` of the job's allocation."""
        return self._operand(Operand(name, format, None, offset))

    def _operand(self, operand: Operand) -> Tensor:
        if operand.format not in FORMATS:
            raise ProgramError(
                f"operand {operand.name!r} of format {operand.format!r} asked for; the formats "
                f"are {', '.join(FORMATS)}"
            )
        self._operands.append(operand)
        return Tensor(len(self._operands) - 1, operand.format)

    def size_symbol(self) -> Scalar:
        """An integer that each launch gives: the next number symbol."""
        return self._symbol("integer symbol")

    def float_symbol(self) -> Scalar:
        """A float64 that each launch gives: the next number symbol."""
        return self._symbol("float symbol")

    def _symbol(self, kind: str) -> Scalar:
        self._symbols += 1
        return self._number(Number(kind, value=self._symbols - 1))

    def number(self, value: float | Scalar) -> Scalar:
        """A constant as an entry of the number table."""
        if isinstance(value, Scalar):
            return value
        kind = "float" if isinstance(value, float) else "integer"
        return self._number(Number(kind, value=float(value) if kind == "float" else int(value)))

    def arithmetic(self, op: str, a: Amount, b: Amount) -> Scalar:
        """An operation that the scalar unit does on two integers at fetch."""
        entries = self.number(a).entry, self.number(b).entry
        if any(is_float(self._numbers[entry]) for entry in entries):
            raise ProgramError(
                f"{op} of a float in program {self.name!r}: the scalar unit works on integers; "
                "apply it to a value, as in load(...) * factor, or pass the result at launch"
            )
        return self._number(Number(op, *entries))

    def _number(self, number: Number) -> Scalar:
        # By their text: as keys 0.0 and -0.0 are one.
        entry = self._entries.setdefault(repr(number), len(self._numbers))
        if entry == len(self._numbers):
            self._numbers.append(number)
        return Scalar(self, entry)

    # The iteration space

    def dimension(
        self,
        name: str,
        size: Amount,
        *,
        tile: int | None = None,
        cores: int | None = None,
        likely: int = 4_096,
    ) -> Axis:
        """A dimension of ``size`` steps; ``likely`` is what a symbolic one is expected to be."""
        draft = self._draft
        entry = self.number(size)
        draft.axes.append(Dimension(name, entry.entry, tile or 1, cores or 1))
        draft.fixed.append((tile, cores))
        draft.hints.append(size if isinstance(size, int) else likely)
        return Axis(len(draft.axes) - 1, entry)

    @contextmanager
    def stream(self, *axes: Axis) -> Iterator[None]:
        """A pass over ``axes``; all reductions inside are over them."""
        self._begin(tuple(axis.position for axis in axes))
        yield
        self._draft.passes.append(())

    def _begin(self, streams: tuple[int, ...]) -> None:
        passes = self._draft.passes
        used = {i.turn for i in self._draft.instructions}
        if passes and len(passes) - 1 not in used:
            passes.pop()
        passes.append(tuple(sorted(streams)))

    # Instructions

    def load(
        self,
        tensor: Tensor,
        strides: Strides,
        offset: Amount = 0,
        *,
        indices: Sequence[tuple[Wire, Amount, Amount]] = (),
        mask: Wire | None = None,
        other: float | Scalar = 0,
    ) -> Wire:
        """Elements at ``offset`` plus each dimension's step times its stride, in elements.

        ``indices`` are (index, stride, limit): an int64 value that is another step, checked to be
        0 or more and less than its limit. Where ``mask`` is false nothing is touched, and
        ``other`` stands.
        """
        place = self._place(tensor, strides, offset, indices, mask)
        inputs: list[Input] = [index for index, _, _ in indices]
        if mask is not None:
            inputs += [mask, self.number(other)]
        varies = {axis.position for axis in strides} | self._varying(inputs)
        format = FORMATS[tensor.format].computed
        return self._emit("load", inputs, [(format, varies)], place=place)[0]

    def store(
        self,
        tensor: Tensor,
        strides: Strides,
        value: Input,
        offset: Amount = 0,
        *,
        indices: Sequence[tuple[Wire, Amount, Amount]] = (),
        mask: Wire | None = None,
        add: bool = False,
    ) -> None:
        """Put ``value`` where ``load`` would find it, or ``add`` it to what is there."""
        place = self._place(tensor, strides, offset, indices, mask)
        inputs: list[Input] = [value, *(index for index, _, _ in indices)]
        if mask is not None:
            inputs.append(mask)
        self._emit("store_add" if add else "store", inputs, [], place=place)

    def _place(
        self,
        tensor: Tensor,
        strides: Strides,
        offset: Amount,
        indices: Sequence[tuple[Wire, Amount, Amount]],
        mask: Wire | None,
    ) -> Place:
        steps = {axis.position: stride for axis, stride in strides.items()}
        return Place(
            tensor.position,
            self.number(offset).entry,
            tuple(self.number(steps.get(d, 0)).entry for d in range(len(self._draft.axes))),
            tuple(self.number(stride).entry for _, stride, _ in indices),
            tuple(self.number(limit).entry for _, _, limit in indices),
            mask is not None,
        )

    def index(self, axis: Axis) -> Wire:
        """The step of a dimension, as int64."""
        return self._emit("index", [], [("int64", {axis.position})], parameter=axis.position)[0]

    def constant(self, value: float | Scalar, format: str) -> Wire:
        """A number as a value, where no other input says which format it has."""
        return self._emit("copy", [value], [(format, set())])[0]

    def apply(self, op: str, *inputs: Input) -> Wire:
        """An elementwise instruction of the vector or special-function unit."""
        format = result_format(op, self._formats(inputs))
        return self._emit(op, inputs, [(format, self._varying(inputs))])[0]

    def convert(self, value: Wire, format: str) -> Wire:
        """``value`` in another computed format."""
        return self._emit("convert", [value], [(format, self._varying([value]))])[0]

    def reduce(self, op: str, value: Wire) -> Wire:
        """``value`` folded over the dimensions that this pass streams; whole after the pass."""
        return self.reduce_all(op, value)[0]

    def reduce_all(self, op: str, value: Wire) -> list[Wire]:
        """All results of a reduction: ``argmax`` position and value, ``welford`` mean, deviations
        and count."""
        kept = self._varying([value]).difference(self._draft.passes[-1])
        format = result_format(op, [value.format])
        formats = [format] + [value.format] * (OPS[op].outputs - 1)
        return self._emit(op, [value], [(f, kept) for f in formats])

    def varies(self, value: Wire, axes: Sequence[Axis]) -> bool:
        """Whether ``value`` varies along one of ``axes``."""
        return not self._varying([value]).isdisjoint(axis.position for axis in axes)

    def can_matmul(self, left: Wire, right: Wire) -> bool:
        """Whether both sides vary along every dimension that this pass streams."""
        streams = self._draft.passes[-1]
        return self._varying([left]).issuperset(streams) and self._varying([right]).issuperset(
            streams
        )

    def matmul(self, left: Wire, right: Wire) -> Wire:
        """Products of both sides, summed over the dimensions that this pass streams."""
        kept = self._varying([left, right]).difference(self._draft.passes[-1])
        return self._emit("matmul", [left, right], [(left.format, kept)])[0]

    def random(
        self,
        op: str,
        seed: Wire | Scalar | int,
        offset: Wire | Scalar | int,
        element: Wire,
        *limits: Wire | Scalar | int,
        digits: int = 24,
        format: str | None = None,
    ) -> Wire:
        """Random numbers of ``element`` in the stream of ``seed``; ``integers`` takes low, span."""
        inputs: list[Input] = [seed, offset, element, *limits]
        made = format or result_format(op, ["int64"])
        parameter = digits if op == "uniform" else 0
        return self._emit(op, inputs, [(made, self._varying(inputs))], parameter=parameter)[0]

    def _formats(self, inputs: Sequence[Input]) -> list[str]:
        return [i.format for i in inputs if isinstance(i, Wire)]

    def _varying(self, inputs: Sequence[Input]) -> set[int]:
        values = self._draft.values
        return {d for i in inputs if isinstance(i, Wire) for d in values[i.position].dimensions}

    def _emit(
        self,
        op: str,
        inputs: Sequence[Input],
        outputs: Sequence[tuple[str, set[int]]],
        *,
        place: Place | None = None,
        parameter: int = 0,
    ) -> list[Wire]:
        draft = self._draft
        if not draft.passes:
            draft.passes.append(())
        first = len(draft.values)
        draft.values += [Value(f, tuple(sorted(dims)), 1, 0, 0) for f, dims in outputs]
        made = tuple(range(first, len(draft.values)))
        sources = tuple(
            Source(i.position) if isinstance(i, Wire) else Source(self.number(i).entry, True)
            for i in inputs
        )
        turn = len(draft.passes) - 1
        draft.instructions.append(Instruction(op, turn, sources, made, place, parameter))
        return [Wire(self, v, draft.values[v].format) for v in made]

    # The end

    def stage(self) -> None:
        """End the present stage: what follows has an iteration space of its own, and starts when
        everything before is stored."""
        if not self._draft.instructions:
            self._draft = _Draft()
            return
        if not self._draft.axes:
            self.dimension("once", 1)
        draft, self._draft = self._draft, _Draft()
        if (
            len(draft.passes) > 1
            and draft.passes[-1] == ()
            and all(i.turn < len(draft.passes) - 1 for i in draft.instructions)
        ):
            draft.passes.pop()
        rank = len(draft.axes)
        instructions = tuple(
            replace(i, place=i.place._replace(strides=self._padded(i.place.strides, rank)))
            if i.place
            else i
            for i in draft.instructions
        )
        stage = Stage(tuple(draft.axes), tuple(draft.passes), tuple(draft.values), instructions)
        self._stages.append(plan(stage, Plan(draft.hints, draft.fixed), self.spec))

    def _padded(self, strides: tuple[int, ...], rank: int) -> tuple[int, ...]:
        return strides + (self.number(0).entry,) * (rank - len(strides))

    def assemble(self) -> Program:
        """The program, checked. Raises ``ProgramError``, or when no tiles were found that
        fit, ``ScratchpadError``."""
        self.stage()
        program = Program(
            self.name,
            self._addresses,
            self._symbols,
            tuple(self._numbers),
            tuple(self._operands),
            tuple(self._stages),
        )
        check(program)
        fit(program, self.spec)
        return program
