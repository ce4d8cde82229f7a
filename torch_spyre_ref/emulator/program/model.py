"""What a program is, decoded: numbers, operands, and stages of dataflow instructions.

A program is a list of *stages*, which run one after the other. A stage has an iteration space of
named *dimensions*, each cut into tiles, each tile dealt out to cores. It has one or more *passes*:
for every tile of its outer dimensions the passes run in order, and each pass streams through the
tiles of the dimensions that it names. Instructions belong to a unit of the card and are joined by
*values*: bounded FIFOs, in scratchpad, of tiles. A value that is used in a later pass than the one
that makes it is *held*: a FIFO entry then is everything that the pass makes of it.

Nothing here is chosen by the card. The compiler writes tiles, cores and scratchpad offsets down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_DIMENSIONS: Final = 8
MAX_PASSES: Final = 16
MAX_INPUTS: Final = 8
MAX_OUTPUTS: Final = 3
MAX_INDICES: Final = 4


class Number(NamedTuple):
    """An entry of the number table: a constant, a symbol, or an operation on earlier entries.

    ``op`` is a name of ``NUMBER_OPS``; ``value`` is
    the constant, or the index of the symbol among the 8-byte symbols of the correction slot.
    """

    op: str
    a: int = 0
    b: int = 0
    value: int | float = 0


class Operand(NamedTuple):
    """Memory that a program loads from or stores to, as elements of ``format``.

    ``symbol`` is the index of the address symbol that a launch patches, or None for memory of the
    job's own, which begins at byte ``offset`` of the job's allocation.
    """

    name: str
    format: str
    symbol: int | None
    offset: int = 0


class Dimension(NamedTuple):
    """``size`` (an entry of the number table) steps in tiles of ``tile``, over ``cores`` cores."""

    name: str
    size: int
    tile: int
    cores: int

    @property
    def share(self) -> int:
        """Steps of a full tile that one core takes."""
        return -(-self.tile // self.cores)


class Value(NamedTuple):
    """A FIFO of ``depth`` entries in scratchpad, each of ``nbytes`` a core, from ``offset``.

    ``dimensions`` are those that its elements vary along, ``format`` is a computed one.
    """

    format: str
    dimensions: tuple[int, ...]
    depth: int
    offset: int
    nbytes: int


class Source(NamedTuple):
    """What an instruction reads: a value, or (``number``) an entry of the number table."""

    entry: int
    number: bool = False


class Place(NamedTuple):
    """Where a load or store finds an iteration's element, in elements from the operand's start.

    ``base + sum(i * stride) + sum(index * index_stride)``: ``strides`` one a dimension, the rest
    one an index value; an index must be 0 or more and less than its limit. All entries of the
    number table. A ``masked`` place is touched only where the mask says so.
    """

    operand: int
    base: int
    strides: tuple[int, ...]
    index_strides: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of one unit, fired once for every tile that its pass streams.

    Inputs of a load: its indices, then mask and the number that stands where the mask is false.
    Inputs of a store: what is stored, its indices, its mask. ``parameter`` is the dimension of
    ``index`` and the significant bits of ``uniform``.
    """

    op: str
    turn: int
    inputs: tuple[Source, ...]
    outputs: tuple[int, ...]
    place: Place | None = None
    parameter: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """``passes`` says for each pass which dimensions it streams."""

    dimensions: tuple[Dimension, ...]
    passes: tuple[tuple[int, ...], ...]
    values: tuple[Value, ...]
    instructions: tuple[Instruction, ...]

    @property
    def streamed(self) -> frozenset[int]:
        """The dimensions that some pass streams."""
        return frozenset(d for dimensions in self.passes for d in dimensions)

    @property
    def outer(self) -> tuple[int, ...]:
        """The dimensions that no pass streams."""
        return tuple(d for d in range(len(self.dimensions)) if d not in self.streamed)


@dataclass(frozen=True, slots=True)
class Program:
    """``addresses`` and ``symbols`` count what a launch patches: addresses, and numbers."""

    name: str
    addresses: int
    symbols: int
    numbers: tuple[Number, ...]
    operands: tuple[Operand, ...]
    stages: tuple[Stage, ...]
