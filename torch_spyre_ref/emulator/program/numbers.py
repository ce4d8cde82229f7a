"""The scalar unit: the number table of a program, evaluated once at fetch.

Sizes, strides, offsets and scalar operands are entries of one table. An entry is a constant, a
symbol that the launch patched, or an operation on entries before it, so one program serves every
size. Integers have 64 bits; an operation that would not fit is refused, never wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.model import Number

LEAVES: Final = ("integer", "float", "integer symbol", "float symbol")
ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "floor_divide": lambda a, b: a // b,
    "modulo": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
}
NUMBER_OPS: Final = (*LEAVES, *ARITHMETIC)
"""In the order of their codes in a program."""

SIGNS: Final = {"add": "+", "subtract": "-", "multiply": "*", "floor_divide": "//", "modulo": "%"}

_LIMIT = 1 << 63


def is_float(number: Number) -> bool:
    """Whether an entry is a float; all arithmetic is on integers."""
    return number.op.startswith("float") and number.op != "floor_divide"


def evaluate(numbers: Sequence[Number], symbols: Sequence[int | float]) -> list[int | float]:
    """The value of every entry. Raises ``ProgramError`` where there is none in 64 bits."""
    values: list[int | float] = []
    for index, (op, a, b, value) in enumerate(numbers):
        if op in ("integer", "float"):
            values.append(value)
        elif op in LEAVES:
            values.append(symbols[int(value)])
        else:
            values.append(_apply(index, op, values[a], values[b]))
    return values


def _apply(index: int, op: str, a: int | float, b: int | float) -> int:
    if b == 0 and op in ("floor_divide", "modulo"):
        raise ProgramError(f"number {index} divides {a} by 0; check the sizes of this launch")
    result: int = ARITHMETIC[op](a, b)
    if not -_LIMIT <= result < _LIMIT:
        raise ProgramError(f"number {index}: {op} of {a} and {b} does not fit in 64 bits")
    return result
