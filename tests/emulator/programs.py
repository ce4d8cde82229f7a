"""A card to run programs on, and random tensor views in its memory.

Views are described once, and seen twice: as an argument of a program, and through NumPy on a copy
of the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from torch_spyre_ref.emulator import CardSpec, Chunk, CompositeAddress, Memory
from torch_spyre_ref.emulator.assembly import Assembler, Axis
from torch_spyre_ref.emulator.program import (
    FORMATS,
    Location,
    Program,
    decode,
    encode,
    pack_slot,
)

Array = NDArray[Any]

REGION_BYTES = 1 << 16
FORMAT_NAMES = tuple(FORMATS)
COMPUTED = tuple(name for name, line in FORMATS.items() if line.computed == name)
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Card:
    """A few regions, and arrays placed in them one after the other."""

    def __init__(self, region_bytes: int = REGION_BYTES) -> None:
        self.memory = Memory()
        for region in range(3):
            self.memory.attach(region, region_bytes)
        self._free = 0

    def place(self, array: Array, region: int = 0) -> Location:
        """Put the bytes of ``array`` on the card, dense; returns where."""
        nbytes = max(array.nbytes, 1)
        start = self._free
        self._free += -(-nbytes // 128) * 128
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.memory.region(region)[start : start + array.nbytes] = data
        return Location(CompositeAddress((Chunk(region, start, nbytes),)), 0)

    def room(self, count: int, dtype: Any) -> Location:
        """Space for ``count`` elements, filled with 0xFF."""
        nbytes = count * np.dtype(dtype).itemsize
        return self.place(np.full(nbytes, 0xFF, np.uint8))

    def read(self, patch: Location, dtype: Any) -> Array:
        """All elements at ``patch``, in a new array."""
        address = patch.address
        pieces = [
            self.memory.region(region)[offset : offset + length]
            for region, offset, length in address.pieces(patch.start, address.length - patch.start)
        ]
        data = np.concatenate(pieces)
        size = np.dtype(dtype).itemsize
        return data[: len(data) // size * size].view(dtype)

    def run(
        self,
        program: Program,
        patches: Sequence[Location],
        symbols: Sequence[int | float] = (),
        spec: CardSpec | None = None,
        job: CompositeAddress | None = None,
    ) -> int:
        """Encode, decode and run ``program``; returns its duration."""
        slot = pack_slot(patches, symbols)
        return decode(encode(program), spec or CardSpec()).run(self.memory, slot, job)


@dataclass(frozen=True)
class View:
    """Elements of a flat array at ``offset`` plus strides, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    length: int

    def of(self, flat: Array) -> Array:
        """This view of ``flat``, through NumPy."""
        if 0 in self.shape:
            return np.zeros(self.shape, flat.dtype)
        size = flat.itemsize
        return np.ndarray(
            self.shape, flat.dtype, flat.data, self.offset * size, [s * size for s in self.strides]
        )


@st.composite
def views(
    draw: st.DrawFn, shape: tuple[int, ...], *, distinct: bool = False, room: int = 512
) -> View:
    """Any strides: permuted, negative, 0, overlapping; no element twice when ``distinct``."""
    rank = len(shape)
    strides = [0] * rank
    step = draw(st.integers(1, 2))
    for d in draw(st.permutations(range(rank))):
        strides[d] = step
        step *= max(shape[d], 1) + draw(st.integers(0, 1))
    if not distinct:
        for d in range(rank):
            if draw(st.integers(0, 3)) == 0:
                strides[d] = draw(st.integers(0, 2))
    for d in range(rank):
        if draw(st.booleans()):
            strides[d] = -strides[d]
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return View(shape, tuple(strides), before - low, before + after + 1 + high - low)


shapes = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 1 << 31)


def numbers(seed: int, count: int, format: str) -> Array:
    """Random stored elements of ``format``, small enough that arithmetic stays finite."""
    random = np.random.default_rng(seed)
    line = FORMATS[format]
    if line.kind == "half":
        return narrow(random.normal(0, 4, count).astype(np.float32), format)
    if line.kind == "float":
        return random.normal(0, 4, count).astype(line.stored)
    if line.kind == "bool":
        return random.integers(0, 2, count).astype(bool)
    return random.integers(0, 256, count * line.itemsize, np.uint8).view(line.stored)


def narrow(values: Array, format: str) -> Array:
    """float32 as stored halves, by torch; other formats as they are."""
    if format == "float16":
        return torch.from_numpy(values.copy()).half().numpy()
    if format == "bfloat16":
        return torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy()
    return values.astype(FORMATS[format].stored)


def widen(stored: Array, format: str) -> Array:
    """What the card computes with, from stored elements."""
    if format == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(FORMATS[format].dtype)


def axes(asm: Assembler, shape: Sequence[int], tile: Sequence[int] | None = None) -> list[Axis]:
    """A dimension for each of ``shape``."""
    names = "abcdefgh"
    tiles = tile or [None] * len(shape)
    return [
        asm.dimension(name, size, tile=t)
        for name, size, t in zip(names, shape, tiles, strict=False)
    ]


def along(dimensions: Sequence[Axis], strides: Sequence[int]) -> dict[Axis, int]:
    """Strides as the assembler takes them."""
    return dict(zip(dimensions, strides, strict=True))


def run_elementwise(
    formats: Sequence[str],
    result: str,
    inputs: Sequence[Array],
    compute: Callable[..., Any],
    tile: int | None = None,
) -> Array:
    """Flat arrays through ``compute(asm, *values)`` on a card; the stored results."""
    count = len(inputs[0])
    card = Card(1 << 20)
    asm = Assembler("elementwise")
    n = asm.dimension("n", count, tile=tile)
    tensors = [asm.argument(f"in{i}", format) for i, format in enumerate(formats)]
    out = asm.argument("out", result)
    asm.store(out, {n: 1}, compute(asm, *(asm.load(t, {n: 1}) for t in tensors)))
    patches = [card.place(array) for array in inputs]
    patches.append(card.room(count, FORMATS[result].stored))
    card.run(asm.assemble(), patches)
    return card.read(patches[-1], FORMATS[result].stored)[:count]
