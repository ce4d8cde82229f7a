"""Values of a loop body, and the instructions that make them: each one once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch_spyre_ref.emulator.assembly import Assembler, Axis, Scalar, Wire
from torch_spyre_ref.inductor.values import wider

Made = TypeVar("Made")


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


class Emitter:
    """Instructions of one stage, each once for the same inputs, in formats that go together."""

    def __init__(self, asm: Assembler) -> None:
        self.asm = asm
        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What ``make`` gave the first time that it was asked for under this key."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

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
