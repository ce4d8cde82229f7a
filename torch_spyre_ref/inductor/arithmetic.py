"""Operations of a loop body that are computed element by element, and know of no memory."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.ops_handler import DefaultHandler

from torch_spyre_ref.emulator.assembly import Scalar
from torch_spyre_ref.inductor.emitter import Constant, Emitter, Product, Rounded, Value
from torch_spyre_ref.inductor.values import INSTRUCTIONS, WHOLE, computed, stored


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
        return self.emitter.apply(op, *_values(args))

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


def _values(args: tuple[Any, ...]) -> list[Value]:
    """Arguments with bare numbers, which a few lowerings give, as constants beside the others."""
    bare = (bool, int, float)
    format = next(arg.format for arg in args if not isinstance(arg, bare))
    return [Constant(arg, format) if isinstance(arg, bare) else arg for arg in args]
