"""What an operation of a loop body is to the card: which instruction, or which few."""

from __future__ import annotations

from typing import Final

import torch

from torch_spyre_ref.emulator.program.formats import FORMATS

_SAME: Final = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid erf erfc sin cos tan asin acos atan"
    " sinh cosh tanh asinh acosh atanh atan2 hypot minimum maximum floor ceil round sign reciprocal"
    " copysign nextafter isnan isinf signbit fmod remainder bitwise_not bitwise_and bitwise_or"
    " bitwise_xor logical_not logical_and logical_or logical_xor"
)
INSTRUCTIONS: Final = {
    **{name: name for name in _SAME.split()},
    "abs": "absolute",
    "neg": "negative",
    "trunc": "truncate",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "mul_rn": "multiply",
    "truediv": "divide",
    "div_rn": "divide",
    "floordiv": "floor_divide",
    "truncdiv": "truncate_divide",
    "mod": "fmod",
    "pow": "power",
    "fma": "multiply_add",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
    "lshift": "shift_left",
    "rshift": "shift_right",
}
"""Operations of Inductor that are one instruction."""

WHOLE: Final = frozenset({"floor", "ceil", "round", "truncate"})
"""Instructions that leave integers as they are."""

REDUCTIONS: Final = {
    "sum": "sum",
    "prod": "product",
    "max": "max",
    "min": "min",
    "any": "any",
    "xor_sum": "xor",
    "argmax": "argmax",
    "argmin": "argmin",
}


def stored(dtype: torch.dtype) -> str:
    """The format that elements of ``dtype`` have in memory. Raises NotImplementedError."""
    name = str(dtype).removeprefix("torch.")
    if name not in FORMATS:
        raise NotImplementedError(f"the card has no format for {dtype}")
    return name


def computed(dtype: torch.dtype) -> str:
    """The format that they are computed in."""
    return FORMATS[stored(dtype)].computed


def wider(a: str, b: str) -> str:
    """The computed format that two go together in."""
    if a == b:
        return a
    return computed(torch.promote_types(getattr(torch, a), getattr(torch, b)))
