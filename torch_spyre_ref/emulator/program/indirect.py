"""The address generator: where loads and stores go when index values or a mask say.

Each position is checked against its limit before a byte is touched, and a masked element is never
touched. Positions are counted in words that no element and no chunk straddles. What the index
values have no part in is worked out once.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd, prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_spyre_ref.emulator.memory import Visit
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program.errors import IndexFaultError
from torch_spyre_ref.emulator.program.formats import Array, Format
from torch_spyre_ref.emulator.program.lanes import Lanes, Operands
from torch_spyre_ref.emulator.program.model import Instruction, Place
from torch_spyre_ref.emulator.program.tiles import Tile
from torch_spyre_ref.emulator.walk import locate

Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]

# With more elements than this, their positions are not kept from one run to the next.
_KEPT: Final = 4_096
_WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Index(NamedTuple):
    """Index values, how many words one step of them is, and what they must stay below."""

    values: NDArray[np.int64]
    stride: np.int64
    limit: int

    def check(self, mask: Mask | None, what: str) -> None:
        """Raises ``IndexFaultError`` for a value out of bounds that ``mask`` does not take away."""
        seen = self.values
        if mask is not None:
            seen = np.broadcast_to(seen, mask.shape)[mask]
        # As an unsigned number a negative one is out of bounds too.
        if seen.size and int(seen.view(np.uint64).max()) >= max(self.limit, 0):
            wrong = int(seen.min() if seen.min() < 0 else seen.max())
            raise IndexFaultError(
                f"index {wrong} is out of bounds for {what} with size {self.limit}"
            )


class Walk:
    """The way of one load or store over one tile of its operand, elements in row-major order."""

    def __init__(
        self,
        lanes: Lanes,
        operands: Operands,
        i: Instruction,
        tile: Tile,
        shape: tuple[int, ...],
        format: Format,
    ) -> None:
        assert i.place is not None
        operand, (self.address, self.start) = operands.places[i.place.operand]
        self.instruction, self.shape, self.format = i, shape, format
        self._memory, self._numbers, self._starts = operands.memory, lanes.numbers, tile.starts
        self._what = f"{i.op} of operand {operand.name!r}"
        edges = [c.length for c in self.address.chunks[:-1]]
        edges = [self.address.grain] if self.address.grain else edges
        self._word = gcd(format.itemsize, self.start, *edges)
        self._indices = self._all_indices(lanes, i.place, tile)
        self._mask: Mask | None = None
        if i.place.masked:
            block = lanes.block(i.inputs[self._first + len(self._indices)].entry, tile)
            self._mask = np.broadcast_to(block, shape)

    @property
    def _first(self) -> int:
        """Where a load's or a store's index inputs begin."""
        return 0 if self.instruction.op == "load" else 1

    def _steps(self, number: int) -> int:
        """A stride of the table of numbers, in words."""
        return int(self._numbers[number]) * self.format.itemsize // self._word

    def _all_indices(self, lanes: Lanes, place: Place, tile: Tile) -> list[Index]:
        sources = self.instruction.inputs[self._first :]
        return [
            Index(
                np.asarray(lanes.input(source, tile, np.dtype(np.int64))),
                np.int64(self._steps(stride)),
                int(self._numbers[limit]),
            )
            for source, stride, limit in zip(
                sources, place.index_strides, place.limits, strict=False
            )
        ]

    @cached_property
    def _kept(self) -> Positions | None:
        return self._regular() if prod(self.shape) <= _KEPT else None

    def _regular(self) -> Positions:
        """Base and strides: positions of size 1 along what they do not vary along."""
        place = self.instruction.place
        assert place is not None
        at = np.full([1] * len(self.shape), self.start // self._word + self._steps(place.base))
        for d, number in enumerate(place.strides):
            if stride := self._steps(number):
                along = [-1 if axis == d else 1 for axis in range(len(self.shape))]
                steps = np.arange(self._starts[d], self._starts[d] + self.shape[d])
                at = at + (steps * stride).reshape(along)
        return at

    @cached_property
    def _stays(self) -> bool:
        """Whether indices within their limits cannot lead out of the operand's memory."""
        if self._kept is None or self._kept.size == 0:
            return False
        ends = [int(index.stride) * (index.limit - 1) for index in self._indices]
        low = int(self._kept.min()) + sum(min(0, end) for end in ends)
        high = int(self._kept.max()) + sum(max(0, end) for end in ends)
        return low >= 0 and high * self._word + self.format.itemsize <= self.address.length

    def positions(self) -> tuple[Positions, Mask | None]:
        """The words where the elements begin that are meant, and the mask that says which are.

        Raises ``IndexFaultError`` when one of them lies outside of its limit or of the operand.
        """
        at = self._regular() if self._kept is None else self._kept
        for index in self._indices:
            index.check(self._mask, self._what)
            at = at + index.values * index.stride
        if at.shape != self.shape:
            at = np.broadcast_to(at, self.shape)
        meant: Positions = at.reshape(-1) if self._mask is None else at[self._mask]
        if not self._stays and meant.size:
            low = int(meant.min()) * self._word
            high = int(meant.max()) * self._word + self.format.itemsize
            if not 0 <= low < high <= self.address.length:
                raise IndexFaultError(
                    f"{self._what} goes to bytes {low} to {high} of an address of "
                    f"{self.address.length} bytes"
                )
        return meant, self._mask

    @cached_property
    def _box(self) -> DeviceRange | None:
        """What is meant if all index values are 0, where they only shift it, within one chunk."""
        place, size = self.instruction.place, self.format.itemsize
        is_box = self._mask is None and all(index.values.size == 1 for index in self._indices)
        if place is None or not is_box or not self._stays or len(self.address.chunks) > 1:
            return None
        strides = [int(self._numbers[stride]) * size for stride in place.strides]
        start = self.start + int(self._numbers[place.base]) * size
        start += sum(at * step for at, step in zip(self._starts, strides, strict=True))
        box = DeviceRange(self.address, start, self.shape, tuple(strides), size)
        return None if box.overlaps_itself else box

    def view(self) -> Array | None:
        """The elements as they lie, where each index is one value and so all of them are a box.

        None where it is not so, and when someone wants to know where the way leads. Raises as
        ``positions`` does.
        """
        box = self._box
        if box is None or self._memory.visits is not None:
            return None
        start = box.address.chunks[0].offset + box.offset
        for index in self._indices:
            value = index.values.item()
            if not 0 <= value < index.limit:
                index.check(None, self._what)
            start += value * int(index.stride) * self._word
        region = self._memory.region(box.address.chunks[0].region)
        return np.ndarray(self.shape, self.format.stored, region, start, box.strides)

    def note(self, at: Positions, write: bool) -> None:
        """Tell the memory where the way led, if someone wants to know."""
        if self._memory.visits is not None:
            logical, size = at * self._word, self.format.itemsize
            visit = Visit(self.instruction, write, self.address, logical, size)
            self._memory.visits.append(visit)

    @cached_property
    def _rows(self) -> list[Array]:
        """The chunks of the operand, in words."""
        rows = []
        for chunk in self.address.chunks:
            region = self._memory.region(chunk.region)
            end = chunk.offset + chunk.length // self._word * self._word
            rows.append(region[chunk.offset : end].view(_WORDS[self._word]))
        return rows

    def _places(self, at: Positions) -> tuple[Positions, Positions]:
        """The chunks and the words in them of positions among several chunks."""
        which, within = locate(self.address, at * self._word)
        return which, within // self._word

    def _every_word(self, at: Positions) -> Positions:
        count = self.format.itemsize // self._word
        return at if count == 1 else (at[:, None] + np.arange(count)).reshape(-1)

    def take(self, at: Positions) -> Array:
        """The stored elements at these positions."""
        words, rows = self._every_word(at), self._rows
        if len(rows) == 1:
            return rows[0][words].view(self.format.stored)
        which, within = self._places(words)
        taken = np.empty(len(words), rows[0].dtype)
        for chunk, row in enumerate(rows):
            taken[which == chunk] = row[within[which == chunk]]
        return taken.view(self.format.stored)

    def put(self, at: Positions, elements: Array) -> None:
        """Store elements at these positions; of two at the same, the later stays."""
        words, rows = self._every_word(at), self._rows
        stored = elements.view(rows[0].dtype)
        if len(rows) == 1:
            rows[0][words] = stored
            return
        which, within = self._places(words)
        for chunk, row in enumerate(rows):
            row[within[which == chunk]] = stored[which == chunk]
