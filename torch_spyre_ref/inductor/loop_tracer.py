"""From a loop body to a dataflow program.

Inductor runs the body of a loop once, on a handler that is told of every operation. This handler
answers each with instructions of the card: affine indices are strided loads, all other indices are
computed values, and a reduction is a value that is whole when its pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.utils import sympy_index_symbol

from torch_spyre_ref.emulator.assembly import Amount, Assembler, Axis, Scalar, Tensor, Wire
from torch_spyre_ref.inductor.expressions import Expressions, take_apart
from torch_spyre_ref.inductor.values import (
    INSTRUCTIONS,
    REDUCTIONS,
    WHOLE,
    computed,
    stored,
    wider,
)

ANYWHERE: Final = 1 << 62
"""The limit of an index that is bounded by its operand's memory alone."""


# Stand for a value that needs no instruction yet
@dataclass(frozen=True)
class Constant:
    """A number, the same for all elements, and the format that it is computed in."""

    number: int | float | Scalar
    format: str


@dataclass(frozen=True)
class Rounded:
    """A value that is to be rounded to a half, which a store of that half does by itself."""

    value: Wire
    half: str
    format: str = "float32"


@dataclass(frozen=True)
class Product:
    """Two factors; when their products are summed, the matrix array takes them as they are."""

    left: Value
    right: Value

    @property
    def format(self) -> str:
        """The format that the product is computed in."""
        return wider(self.left.format, self.right.format)


Value: TypeAlias = Wire | Constant | Rounded | Product


class OverwrittenError(Exception):
    """A body cannot run again: the program has overwritten what it loads."""


# Emit an instruction once
class Emitter:
    """Instructions of one stage, each once for the same inputs, in formats that go together."""

    def __init__(self, asm: Assembler) -> None:
        self.asm = asm
        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What ``make`` gave the first time that it was asked for under this key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def forget(self, axes: Sequence[Axis]) -> None:
        """Make anew what changes along ``axes``."""
        self._made = {k: made for k, made in self._made.items() if not self.changes(made, axes)}

    def changes(self, value: Any, axes: Sequence[Axis]) -> bool:
        """Whether a value, or one of several, changes along one of ``axes``."""
        if isinstance(value, list):
            return any(self.changes(each, axes) for each in value)
        if isinstance(value, Product):
            return self.changes([value.left, value.right], axes)
        wire = value.value if isinstance(value, Rounded) else value
        return isinstance(wire, Wire) and self.asm.varies(wire, axes)

    def wire(self, value: Value, format: str | None = None) -> Wire:
        """The value as one that instructions take, in ``format`` where that is given."""
        if isinstance(value, Rounded):
            value = self.apply(f"round_{value.half}", value.value)
        if isinstance(value, Product):
            value = self.apply("multiply", value.left, value.right)
        if isinstance(value, Constant):
            number, made = value.number, format or value.format
            return self.once((repr(number), made), lambda: self.asm.constant(number, made))
        if format in (None, value.format):
            return value
        return self.once(("convert", value, format), lambda: self.asm.convert(value, str(format)))

    def apply(self, op: str, *values: Value) -> Wire:
        """An elementwise instruction, its inputs in the format that they have in common."""
        format = values[0].format
        for value in values[1:]:
            format = wider(format, value.format)
        return self._emitted((op,), values, format)

    def select(self, condition: Value, yes: Value, no: Value) -> Wire:
        """``yes`` where the condition holds, else ``no``."""
        test = self.wire(condition, "bool")
        return self._emitted(("select", test), (yes, no), wider(yes.format, no.format))

    def _emitted(self, first: tuple[Any, ...], values: tuple[Value, ...], format: str) -> Wire:
        inputs = [v.number if isinstance(v, Constant) else self.wire(v, format) for v in values]
        if not any(isinstance(i, Wire) for i in inputs):
            inputs[0] = self.wire(values[0], format)
        key = (*first, *(i if isinstance(i, Wire) else repr(i) for i in inputs))
        return self.once(key, lambda: self.asm.apply(*first, *inputs))


# Answer what is computed element by element
class Arithmetic(DefaultHandler):
    """Operations that are one instruction, or a few."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.asm = emitter, emitter.asm

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name not in INSTRUCTIONS or kwargs:
            raise NotImplementedError(f"the card has no instruction for {name}")
        op = INSTRUCTIONS[name]
        if op in WHOLE and not args[0].format.startswith("float"):
            return args[0]
        return self.emitter.apply(op, *args)

    def constant(self, value: Any, dtype: torch.dtype) -> Value:
        return Constant(value, computed(dtype))

    def to_dtype(
        self, x: Value, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True
    ) -> Value:
        format = computed(dtype)
        if isinstance(x, Constant) and not isinstance(x.number, Scalar):
            kind = bool if format == "bool" else float if dtype.is_floating_point else int
            return Constant(kind(x.number), format)
        if stored(dtype) == format or src_dtype == dtype:
            return self.emitter.wire(x, format)
        return Rounded(self.emitter.wire(x, format), stored(dtype))

    def where(self, condition: Value, input: Value, other: Value) -> Value:
        return self.emitter.select(condition, input, other)

    def identity(self, x: Value) -> Value:
        return x

    def relu(self, x: Value) -> Value:
        return self.emitter.apply("maximum", x, Constant(0, x.format))

    def square(self, x: Value) -> Value:
        return self.emitter.apply("multiply", x, x)

    def ldexp(self, x: Value, n: Value) -> Value:
        power = self.emitter.apply("exp2", self.emitter.wire(n, x.format))
        return self.emitter.apply("multiply", x, power)

    def int_truediv(self, a: Value, b: Value) -> Value:
        sides = [self.emitter.wire(side, "float64") for side in (a, b)]
        return self.emitter.apply("divide", *sides)

    def _rounded(self, op: str, x: Value, dtype: torch.dtype) -> Value:
        return self.emitter.wire(self.emitter.apply(op, x), computed(dtype))

    def trunc_to_int(self, x: Value, dtype: torch.dtype) -> Value:
        return self._rounded("truncate", x, dtype)

    def floor_to_int(self, x: Value, dtype: torch.dtype) -> Value:
        return self._rounded("floor", x, dtype)

    def ceil_to_int(self, x: Value, dtype: torch.dtype) -> Value:
        return self._rounded("ceil", x, dtype)

    def round_to_int(self, x: Value, dtype: torch.dtype) -> Value:
        return self._rounded("round", x, dtype)

    def dot(self, x: Value, y: Value) -> Value:
        return Product(x, y)


# Find elements, wherever they lie
@dataclass
class Buffers:
    """The memory of a kernel by Inductor's names. What is ``unstored`` nobody else reads."""

    operands: dict[str, Tensor]
    dtype: Callable[[str], torch.dtype]
    unstored: Container[str]


class Memory(Arithmetic):
    """Loads and stores at any index: affine ones strided, others gathered and scattered."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter)
        self.places, self.axes, self.buffers = places, axes, buffers
        self.known: dict[str, Value] = {}
        self.again: dict[str, Callable[[], None]] = {}
        self._is_again = False
        self._limits: dict[sympy.Symbol, Amount] = {}
        self._mask: Wire | None = None
        self._stored: list[Tensor] = []

    def load(self, name: str, index: sympy.Expr) -> Value:
        if name not in self.known and name in self.again:
            self._run_again(name)
        if name in self.known:
            return self.known[name]
        operand = self.buffers.operands[name]
        if self._is_again and operand in self._stored:
            raise OverwrittenError(name)
        mask = self._mask
        key = ("load", name, index, mask)
        return self.emitter.once(key, lambda: self.asm.load(operand, mask=mask, **self._at(index)))

    def _run_again(self, name: str) -> None:
        """Have a node make in this pass what it made in an earlier one, and store nothing."""
        before = self._mask, self._is_again
        self._mask, self._is_again = None, True
        self.again[name]()
        self._mask, self._is_again = before

    def forget(self, axes: Sequence[Axis]) -> None:
        """Make anew, where it is needed, what changes along ``axes``."""
        self.emitter.forget(axes)
        self.places.forget_values()
        changed = [name for name, v in self.known.items() if self.emitter.changes(v, axes)]
        for name in changed:
            del self.known[name]

    def store(self, name: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        if mode not in (None, "atomic_add"):
            raise NotImplementedError(f"the card has no store with {mode}")
        if mode is None:
            self.known[name] = value
        if name not in self.buffers.unstored and not self._is_again:
            self.put(name, index, value, mode == "atomic_add")

    def put(self, name: str, index: sympy.Expr, value: Value, add: bool = False) -> None:
        """Store in the format of the buffer."""
        dtype = self.buffers.dtype(name)
        if isinstance(value, Rounded) and value.half == stored(dtype):
            value = value.value
        source = value.number if isinstance(value, Constant) else None
        if source is None or add:
            source = self.emitter.wire(value, computed(dtype))
        operand = self.buffers.operands[name]
        self._stored.append(operand)
        self.asm.store(operand, value=source, add=add, **self._at(index))

    def _at(self, index: sympy.Expr) -> dict[str, Any]:
        """The strides, offset and index values of a place."""
        steps = {**self.axes, **self._limits}
        place, amount = take_apart(index, steps), self.places.amount
        indices = [
            (self.places.values[s], amount(stride), limit)
            for s, limit in self._limits.items()
            if (stride := place.strides.get(s)) is not None
        ]
        strides = {self.axes[s]: amount(n) for s, n in place.strides.items() if s in self.axes}
        offset = amount(place.offset)
        if place.rest != 0:
            terms = sympy.Add.make_args(place.rest)
            if any(term.could_extract_minus_sign() for term in terms) and not indices:
                place, strides, offset = place._replace(rest=index), {}, 0
            indices.append((self.emitter.wire(self.places.term(place.rest)), 1, ANYWHERE))
        return {"strides": strides, "offset": offset, "indices": indices}

    def indirect_indexing(
        self, index: Value, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        position = self.emitter.wire(index, "int64")
        limit = self.places.amount(sympy.sympify(size))
        if wrap_neg:
            below = self.emitter.apply("less", position, Constant(0, "int64"))
            wrapped = self.emitter.apply("add", position, Constant(limit, "int64"))
            position = self.emitter.select(below, wrapped, position)
        symbol = sympy_index_symbol(f"tmp{len(self._limits)}")
        self.places.values[symbol], self._limits[symbol] = position, limit
        return symbol

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """Nothing to do: the load and store units check every index."""

    def device_assert_async(self, cond: Value, msg: str) -> None:
        """Nothing to do, for the same reason: such assertions are about indices."""

    def masked(self, mask: Value, body: Callable[[], Value], other: Any) -> Value:
        before, inner = self._mask, self.emitter.wire(mask, "bool")
        self._mask = inner if before is None else self.emitter.apply("logical_and", before, inner)
        try:
            value = body()
        finally:
            self._mask = before
        outside = other if isinstance(other, Wire | Constant) else Constant(other, value.format)
        return self.emitter.select(inner, value, outside)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        term = self.places.term(sympy.sympify(expr))
        if isinstance(term, Wire):
            return self.emitter.wire(term, computed(dtype))
        return Constant(term, computed(dtype))

    value_expr = index_expr


# Fold what a pass streams, and draw random numbers
class LoopTracer(Memory):
    """The handler: what is left are reductions, and numbers of the device's random stream."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter, places, axes, buffers)
        self._waiting: list[tuple[str, sympy.Expr, Value]] = []

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: Any, value: Any) -> Any:
        if kind == "dot":
            return self._summed(value, computed(dtype))
        if kind == "welford_reduce":
            return tuple(self._reduced("welford", self.emitter.wire(value, computed(dtype))))
        if kind not in REDUCTIONS or isinstance(value, tuple):
            raise NotImplementedError(f"the card has no reduction {kind}")
        folded = dtype if kind in ("sum", "prod") else src_dtype
        return self._reduced(REDUCTIONS[kind], self.emitter.wire(value, computed(folded)))[0]

    def _reduced(self, op: str, value: Wire) -> Any:
        return self.emitter.once(("reduce", op, value), lambda: self.asm.reduce_all(op, value))

    def _summed(self, value: Value, format: str) -> Wire:
        """A sum of products: by the matrix array, where both factors change along it."""
        if isinstance(value, Product):
            left, right = (self.emitter.wire(side, format) for side in (value.left, value.right))
            if self.asm.can_matmul(left, right):
                key = ("matmul", left, right)
                return self.emitter.once(key, lambda: self.asm.matmul(left, right))
        return self._reduced("sum", self.emitter.wire(value, format))[0]

    def store_reduction(self, name: str, index: sympy.Expr, value: Value) -> None:
        self.known[name] = value
        if name not in self.buffers.unstored and not self._is_again:
            self._waiting.append((name, index, value))

    def finish_pass(self) -> None:
        """Store what the pass has folded, now that it is whole."""
        for name, index, value in self._waiting:
            self.put(name, index, value)
        self._waiting.clear()

    def load_seed(self, name: str, offset: Any) -> Value:
        return self.load(name, sympy.sympify(offset))

    def _random(self, op: str, seed: Value, offset: Value, *limits: Value) -> Value:
        numbers = [self.emitter.wire(v, "int64") for v in (seed, offset, *limits)]
        first, element, *rest = numbers
        key = (op, *numbers)
        return self.emitter.once(key, lambda: self.asm.random(op, first, 0, element, *rest))

    def rand(self, seed: Value, offset: Value) -> Value:
        return self._random("uniform", seed, offset)

    def randn(self, seed: Value, offset: Value) -> Value:
        return self._random("normal", seed, offset)

    def randint64(self, seed: Value, offset: Value, low: Value, high: Value) -> Value:
        span = self.emitter.apply("subtract", high, low)
        return self._random("integers", seed, offset, low, span)
