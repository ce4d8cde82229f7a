"""The launch spec: what a launch of a program must be given, and where in the correction slot it
goes.

An *extent* is a size or a stride, counted in elements: a number, a *dimension symbol* ``"n"``, or a
product ``"64*n*m"``. A symbol has a range, and one artifact serves every size in it. A launch reads
a symbol off the first size, or failing that the first stride, that is this symbol alone; all other
extents must then agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple, cast

from torch_spyre_ref.emulator.program.formats import NAMES
from torch_spyre_ref.emulator.program.slot import ADDRESS_BYTES, STICK, slot_bytes
from torch_spyre_ref.spyrecode.errors import LaunchMismatchError
from torch_spyre_ref.spyrecode.schema import AtMost, Place, Record, Text, Whole

NUMBER_BYTES: Final = 8
MAX_SIZE: Final = (1 << 63) - 1
MAX_RANK: Final = 64
MAX_ENTRIES: Final = 4_096
MAX_SLOT: Final = 1 << 20

_SHOWN: Final = 12
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_PRODUCT: Final = rf"(?:[1-9][0-9]{{0,17}}\*)?{_NAME}(?:\*{_NAME}){{0,7}}"


def _extent(value: int | str, place: Place) -> None:
    if isinstance(value, int):
        Whole(0, MAX_SIZE)(value, place)
    else:
        Text(_PRODUCT, 'a number, a symbol or a product such as "64*n*m"')(value, place)


Name = Annotated[str, Text(_NAME, "a name of letters, digits and _, at most 64")]
Size = Annotated[int, Whole(0, MAX_SIZE)]
Extents = Annotated[tuple[Annotated[int | str, _extent], ...], AtMost(MAX_RANK)]
Extent = Literal["shape", "strides"]
EXTENTS: Final[tuple[Extent, ...]] = ("shape", "strides")
Role = Literal["input", "output", "input_output"]
SymbolKind = Literal["address", "dimension", "scalar"]
Sizes = Mapping[str, int]


class Description(NamedTuple):
    """One argument as a launch finds it: ``card`` is the index of its device, if that has one."""

    device: str
    card: int | None
    dtype: str
    layout: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Argument(Record):
    """One tensor that a launch is given."""

    name: Name
    role: Role
    dtype: Annotated[str, Text("|".join(NAMES), f"one of {', '.join(NAMES)}")]
    shape: Extents
    strides: Extents
    device: Literal["spyre"] = "spyre"
    layout: Literal["row-major"] = "row-major"

    def __post_init__(self) -> None:
        self._require_type("dtype", str, "its name, 'float32' or another")
        for what in EXTENTS:
            self._require_type(what, tuple, "a tuple, one entry for each axis")

    def _require_type(self, what: str, kind: type, expected: str) -> None:
        given = getattr(self, what)
        if not isinstance(given, kind):
            raise TypeError(
                f"argument {self.name!r}: {what} {given!r} was given; expected {expected}"
            )

    def verify(self, place: Place) -> None:
        rank = len(self.shape)
        place.require(len(self.strides) == rank, f"{len(self.strides)} strides", f"{rank}")


@dataclass(frozen=True, slots=True)
class Dimension(Record):
    """A dimension symbol, and the sizes that it may take."""

    name: Name
    min: Size
    max: Size

    def verify(self, place: Place) -> None:
        place.require(self.min <= self.max, f"max {self.max}", f"min, {self.min}, or more")


@dataclass(frozen=True, slots=True)
class Scalar(Record):
    """A number that each launch is given: an int64 or a float64 in the correction slot."""

    name: Name
    type: Literal["integer", "float"]


@dataclass(frozen=True, slots=True)
class Symbol(Record):
    """What goes to byte ``offset`` of the slot: entry ``index`` of the spec's list of that kind.

    The address of an argument takes 256 bytes, a dimension or a scalar 8.
    """

    kind: SymbolKind
    index: Annotated[int, Whole(0, MAX_ENTRIES - 1)]
    offset: Annotated[int, Whole(0, MAX_SLOT, step=NUMBER_BYTES)]

    @property
    def end(self) -> int:
        """The first byte of the slot behind the symbol."""
        return self.offset + (ADDRESS_BYTES if self.kind == "address" else NUMBER_BYTES)


class _Axis(NamedTuple):
    """Where an extent stands."""

    argument: int
    what: Extent
    axis: int


@dataclass(frozen=True)
class LaunchSpec(Record):
    """All that a launch is given, in order, and the symbols of its correction slot, in order.

    ``correction_size`` is the whole slot in bytes, as the program asks for it.
    """

    arguments: Annotated[tuple[Argument, ...], AtMost(MAX_ENTRIES)]
    dimensions: Annotated[tuple[Dimension, ...], AtMost(MAX_ENTRIES)]
    scalars: Annotated[tuple[Scalar, ...], AtMost(MAX_ENTRIES)]
    symbols: Annotated[tuple[Symbol, ...], AtMost(MAX_ENTRIES)]
    correction_size: Annotated[int, Whole(0, MAX_SLOT, step=STICK)]

    @classmethod
    def of(
        cls,
        arguments: Sequence[Argument],
        dimensions: Sequence[Dimension] = (),
        scalars: Sequence[Scalar] = (),
    ) -> LaunchSpec:
        """The spec in which everything is a symbol, once, in the slot's own order."""
        numbers: list[tuple[SymbolKind, int]] = [
            *(("dimension", index) for index in range(len(dimensions))),
            *(("scalar", index) for index in range(len(scalars))),
        ]
        start = len(arguments) * ADDRESS_BYTES
        symbols = (
            *(Symbol("address", i, i * ADDRESS_BYTES) for i in range(len(arguments))),
            *(Symbol(kind, i, start + n * NUMBER_BYTES) for n, (kind, i) in enumerate(numbers)),
        )
        size = slot_bytes(len(arguments), len(numbers))
        return cls(tuple(arguments), tuple(dimensions), tuple(scalars), symbols, size)

    def __str__(self) -> str:
        entries = [f"{a.role} {a.name} {a.dtype} {_shown(a.shape)}" for a in self.arguments]
        entries += [f"{s.type} {s.name}" for s in self.scalars]
        if len(entries) > _SHOWN:
            entries[_SHOWN:] = [f"and {len(entries) - _SHOWN} more"]
        return ", ".join(entries) or "nothing"

    def check(
        self, arguments: Sequence[Description], scalars: Sequence[int | float] = (), *, card: int
    ) -> dict[str, int]:
        """The size of every dimension symbol in a launch on this card.

        A stride matters only where it is stepped: along more than one element, of a tensor that
        has any. Raises ``LaunchMismatchError``, which names the argument, what was given and
        what was expected.
        """
        if len(arguments) != len(self.arguments) or len(scalars) != len(self.scalars):
            raise LaunchMismatchError(
                f"{len(arguments)} tensors and {len(scalars)} scalars were given; expected "
                f"{len(self.arguments)} and {len(self.scalars)}, in this order: {self}"
            )
        for index, (got, a) in enumerate(zip(arguments, self.arguments, strict=True)):
            if len(got.shape) != len(a.shape):
                raise self._mismatch(index, "shape", got.shape, _shown(a.shape))
        sizes = self._bind(arguments)
        for index, (got, a) in enumerate(zip(arguments, self.arguments, strict=True)):
            shape, strides = _values(a.shape, sizes), _values(a.strides, sizes)
            want = Description(a.device, card, a.dtype, a.layout, shape, strides)
            if got != want:
                self._compare(index, got, want, sizes)
        for scalar, value in zip(self.scalars, scalars, strict=True):
            _check_scalar(scalar, value)
        return sizes

    def _bind(self, arguments: Sequence[Description]) -> dict[str, int]:
        sizes = {}
        for dimension, axes in zip(self.dimensions, self._axes, strict=True):
            size = dimension.min
            for index, what, axis in axes:
                got = arguments[index]
                if what == "shape" or _is_stepped(got.shape, axis):
                    size = (got.shape if what == "shape" else got.strides)[axis]
                    if not dimension.min <= size <= dimension.max:
                        allowed = f"{dimension.name} of {dimension.min} to {dimension.max}"
                        raise self._mismatch(index, what, getattr(got, what), allowed)
                    break
            sizes[dimension.name] = size
        return sizes

    def _compare(self, index: int, got: Description, want: Description, sizes: Sizes) -> None:
        """Raise the first difference, unless it is in a stride that is not stepped."""
        pairs = enumerate(zip(got.strides, want.strides, strict=True))
        strides = [have if _is_stepped(got.shape, axis) else must for axis, (have, must) in pairs]
        seen = got._replace(strides=tuple(strides))
        for what, have, must in zip(Description._fields, seen, want, strict=True):
            if have != must:
                extents = getattr(self.arguments[index], what) if what in EXTENTS else ()
                expected = _shown(extents, sizes) if extents else must
                raise self._mismatch(index, what, getattr(got, what), expected)

    def _mismatch(
        self, index: int, what: str, given: object, expected: object
    ) -> LaunchMismatchError:
        argument = self.arguments[index]
        return LaunchMismatchError(
            f"argument {index}, {argument.role} {argument.name!r}: {what} {given} was given; "
            f"expected {expected}. The launch takes, in this order: {self}"
        )

    def _extents(self) -> Iterator[tuple[_Axis, int | str]]:
        """Every extent and its place; sizes before strides."""
        for what in EXTENTS:
            for index, argument in enumerate(self.arguments):
                for axis, extent in enumerate(getattr(argument, what)):
                    yield _Axis(index, what, axis), extent

    @cached_property
    def _axes(self) -> list[list[_Axis]]:
        """Where each dimension symbol can be read."""
        axes: dict[int | str, list[_Axis]] = {d.name: [] for d in self.dimensions}
        for axis, extent in self._extents():
            if extent in axes:
                axes[extent].append(axis)
        return list(axes.values())

    def verify(self, place: Place) -> None:
        for key in ("arguments", "dimensions", "scalars"):
            names = set[str]()
            for index, record in enumerate(getattr(self, key)):
                if record.name in names:
                    wrong = f"another {record.name!r}"
                    raise place.at(key).at(index).refusal(wrong, "a name of its own")
                names.add(record.name)
        self._verify_extents(place)
        self._verify_symbols(place.at("symbols"))

    def _verify_extents(self, place: Place) -> None:
        known = {dimension.name for dimension in self.dimensions}
        for (index, what, axis), extent in self._extents():
            if not known.issuperset(_factors(extent)[1]):
                here = place.at("arguments").at(index).at(what).at(axis)
                raise here.refusal(f"{extent!r}", "symbols that dimensions lists")
        for index, axes in enumerate(self._axes):
            here = place.at("dimensions").at(index)
            here.require(bool(axes), "no size or stride is this symbol alone", "one to read it off")

    def _verify_symbols(self, place: Place) -> None:
        """The symbols fill the slot without a gap, and leave out nothing that a launch gives."""
        counts = {"address": len(self.arguments), "scalar": len(self.scalars)}
        missing = {(kind, index) for kind, count in counts.items() for index in range(count)}
        counts["dimension"] = len(self.dimensions)
        end = 0
        for number, symbol in sorted(enumerate(self.symbols), key=lambda entry: entry[1].offset):
            here, count = place.at(number), counts[symbol.kind]
            here.require(symbol.index < count, f"index {symbol.index}", f"less than {count}")
            here.require(symbol.offset == end, f"offset {symbol.offset}", f"{end}, the next free")
            missing.discard((symbol.kind, symbol.index))
            end = symbol.end
        for kind, index in sorted(missing):
            raise place.refusal(f"no {kind} {index}", "a symbol for every argument and scalar")
        size = -(-end // STICK) * STICK
        wrong = f"{end} bytes, {size} in sticks"
        place.require(size == self.correction_size, wrong, f"{self.correction_size}, a whole slot")


def _factors(extent: int | str) -> tuple[int, list[str]]:
    """The number in a product, and its symbols."""
    if isinstance(extent, int):
        return extent, []
    first, *rest = extent.split("*")
    return (int(first), rest) if first.isdecimal() else (1, [first, *rest])


def _values(extents: tuple[int | str, ...], sizes: Sizes) -> tuple[int, ...]:
    if not sizes:  # a spec without dimensions has no symbol in an extent
        return cast(tuple[int, ...], extents)
    return tuple([e if isinstance(e, int) else _product(e, sizes) for e in extents])


def _product(extent: str, sizes: Sizes) -> int:
    if extent in sizes:
        return sizes[extent]
    number, names = _factors(extent)
    return math.prod((sizes[name] for name in names), start=number)


def _shown(extents: tuple[int | str, ...], sizes: Sizes | None = None) -> str:
    """Extents as text, with the sizes that their symbols are bound to."""
    values = _values(extents, sizes or {})
    pairs = zip(extents, values, strict=True)
    entries = [str(e) if e == v else f"{e}={v}" for e, v in pairs]
    return f"({', '.join(entries)}{',' * (len(entries) == 1)})"


def _is_stepped(shape: tuple[int, ...], axis: int) -> bool:
    return shape[axis] > 1 and 0 not in shape


def _check_scalar(scalar: Scalar, value: int | float) -> None:
    # A bool is an int for isinstance, and the slot has no place for one.
    fits = type(value) is (int if scalar.type == "integer" else float)
    if not fits or (scalar.type == "integer" and not -MAX_SIZE - 1 <= value <= MAX_SIZE):
        raise LaunchMismatchError(
            f"scalar {scalar.name!r}: {value!r}, of type {type(value).__name__}, was given; "
            f"expected {'an int of 64 bits' if scalar.type == 'integer' else 'a float'}"
        )
