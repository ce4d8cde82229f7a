# Produced by chapters/05_eager.py: edit it there, then run `make tangle`.
"""From a loop body to a dataflow program.

Inductor runs the body of a loop once, on a handler that is told of every operation. This handler
answers each with instructions of the card: affine indices are strided loads, all other indices are
computed values, and a reduction is a value that is whole when its pass is over.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch
from torch._inductor.utils import sympy_index_symbol

from torch_spyre_ref.emulator.assembly import Amount, Axis, Input, Tensor, Wire
from torch_spyre_ref.inductor.arithmetic import Arithmetic
from torch_spyre_ref.inductor.emitter import Constant, Emitter, Product, Rounded, Value
from torch_spyre_ref.inductor.expressions import Expressions, take_apart
from torch_spyre_ref.inductor.values import REDUCTIONS, computed, stored


# Know what memory there is
@dataclass
class Buffers:
    """The memory of a kernel by Inductor's names. What is ``unstored`` nobody else reads."""

    operands: dict[str, Tensor]
    dtype: Callable[[str], torch.dtype]
    unstored: Container[str]


class OverwrittenError(Exception):
    """A body cannot run again: the program has overwritten what it loads."""


# Find elements, wherever they lie
ANYWHERE: Final = 1 << 62
"""The limit of an index that is bounded by its operand's memory alone."""


class Places(Arithmetic):
    """Indices: affine ones are strides, all others are computed values."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter)
        self.places, self.axes, self.buffers = places, axes, buffers
        self._limits: dict[sympy.Symbol, Amount] = {}

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        term = self.places.term(sympy.sympify(expr))
        if isinstance(term, Wire):
            return self.emitter.wire(term, computed(dtype))
        return Constant(term, computed(dtype))

    value_expr = index_expr

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

    def at(self, index: sympy.Expr) -> dict[str, Any]:
        """The strides, offset and index values of a place."""
        place = take_apart(index, {**self.axes, **self._limits})
        amount, values = self.places.amount, self.places.values
        steps = [s for s in self._limits if s in place.strides]
        indices = [(values[s], amount(place.strides[s]), self._limits[s]) for s in steps]
        strides = {self.axes[s]: amount(n) for s, n in place.strides.items() if s in self.axes}
        offset, rest = amount(place.offset), place.rest
        if rest != 0:
            terms = sympy.Add.make_args(rest)
            # An index value below 0 is a fault, which a part may be where the whole place is not.
            if any(term.could_extract_minus_sign() for term in terms) and not indices:
                strides, offset, rest = {}, 0, index
            position = self.places.term(rest)
            assert isinstance(position, Wire)
            indices.append((position, 1, ANYWHERE))
        return {"strides": strides, "offset": offset, "indices": indices}


# Load and store them
class Memory(Places):
    """Loads and stores; what a node has stored, the next one takes from where it was made."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter, places, axes, buffers)
        self.known: dict[str, Value] = {}
        self._stored: list[Tensor] = []
        self._mask: Wire | None = None
        self.is_silent = False

    def load(self, name: str, index: sympy.Expr) -> Value:
        if name in self.known:
            return self.known[name]
        operand, mask = self.buffers.operands[name], self._mask
        if self.is_silent and operand in self._stored:
            raise OverwrittenError(name)
        key = ("load", name, index, mask)
        made: Wire = self.emitter.once(
            key, lambda: self.asm.load(operand, mask=mask, **self.at(index))
        )
        return made

    def load_seed(self, name: str, offset: Any) -> Value:
        return self.load(name, sympy.sympify(offset))

    def store(self, name: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        if mode not in (None, "atomic_add"):
            raise NotImplementedError(f"the card has no store with {mode}")
        if mode is None:
            self.known[name] = value
        self.put(name, index, value, mode == "atomic_add")

    def put(self, name: str, index: sympy.Expr, value: Value, add: bool = False) -> None:
        """Store in the format of the buffer, unless nobody reads it."""
        if name in self.buffers.unstored or self.is_silent:
            return
        dtype, operand = self.buffers.dtype(name), self.buffers.operands[name]
        if isinstance(value, Rounded) and value.half == stored(dtype):
            value = value.value
        source: Input
        if isinstance(value, Constant) and not add:
            source = value.number
        else:
            source = self.emitter.wire(value, computed(dtype))
        self._stored.append(operand)
        self.asm.store(operand, value=source, add=add, **self.at(index))

    def masked(self, mask: Value, body: Callable[[], Value], other: Any) -> Value:
        before, inner = self._mask, self.emitter.wire(mask, "bool")
        self._mask = inner if before is None else self.emitter.apply("logical_and", before, inner)
        try:
            value = body()
        finally:
            self._mask = before
        outside = other if isinstance(other, Wire | Constant) else Constant(other, value.format)
        return self.emitter.select(inner, value, outside)


# Make again in a later pass what an earlier one has made
class Repeating(Memory):
    """``again`` has for each buffer how its node's body is run once more."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter, places, axes, buffers)
        self.again: dict[str, Callable[[], None]] = {}

    def forget(self, axes: Sequence[Axis]) -> None:
        """Make anew, where it is needed, what changes along ``axes``."""
        self.emitter.forget(axes)
        self.places.forget_values()
        changed = [name for name, v in self.known.items() if self.emitter.changes(v, axes)]
        for name in changed:
            del self.known[name]

    def load(self, name: str, index: sympy.Expr) -> Value:
        if name not in self.known and name in self.again:
            before = self._mask, self.is_silent
            self._mask, self.is_silent = None, True
            self.again[name]()
            self._mask, self.is_silent = before
        return super().load(name, index)


# Fold what a pass streams
class LoopTracer(Repeating):
    """The handler: what is left are reductions, whose results are stored when a pass is over."""

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

    def _summed(self, value: Value, format: str) -> Any:
        """A sum of products: by the matrix array, where both factors change along it."""
        if isinstance(value, Product):
            left, right = (self.emitter.wire(side, format) for side in (value.left, value.right))
            if self.asm.can_matmul(left, right):
                key = ("matmul", left, right)
                return self.emitter.once(key, lambda: self.asm.matmul(left, right))
        return self._reduced("sum", self.emitter.wire(value, format))[0]

    def store_reduction(self, name: str, index: sympy.Expr, value: Value) -> None:
        self.known[name] = value
        self._waiting.append((name, index, value))

    def finish_pass(self) -> None:
        """Store what the pass has folded, now that it is whole."""
        for name, index, value in self._waiting:
            self.put(name, index, value)
        self._waiting.clear()
