"""The operand descriptor: which bytes of card memory an operation touches, and in what order.

The load and store units, and every DMA engine, walk such a descriptor: a loop nest over a
composite address. A tensor view of any offset and any strides is one of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_spyre_ref.emulator.addresses import CompositeAddress

Loop = tuple[int, int]
"""How often, and by how many bytes (0 and negative allowed) a loop steps."""


_put = object.__setattr__


# --8<-- [start:range]
@dataclass(frozen=True, slots=True, repr=False)
class DeviceRange:
    """``itemsize``-byte elements at ``offset + sum(index * stride)`` of ``address``, row-major.

    ``strides`` are bytes and may be 0 or negative; one index tuple runs over ``shape``. Derived:
    ``nbytes`` (the dense size), and the same nest folded to the fewest ``loops`` around contiguous
    runs of ``run`` bytes; ``block`` is the region, start and stop where that is one run in one
    chunk. Raises ``ValueError`` when an element lies outside the address.
    """

    address: CompositeAddress
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    # --8<-- [end:range]
    nbytes: int = field(init=False, compare=False)
    run: int = field(init=False, compare=False)
    loops: tuple[Loop, ...] = field(init=False, compare=False)
    bounds: tuple[int, int] = field(init=False, compare=False)
    block: tuple[int, int, int] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if (
            len(self.shape) != len(self.strides)
            or self.itemsize < 1
            or min(self.shape, default=0) < 0
        ):
            raise ValueError(
                f"a range of shape {self.shape}, strides {self.strides}, item size "
                f"{self.itemsize}: give one stride per dimension, sizes >= 0, an item size >= 1"
            )
        run, loops = fold(self.shape, self.strides, self.itemsize)
        runs, low, high = 1, self.offset, self.offset + run
        for count, stride in loops:
            runs *= count
            low += min(0, (count - 1) * stride)
            high += max(0, (count - 1) * stride)
        if not run:
            low = high = 0
        if low < 0 or high > self.address.length:
            raise ValueError(
                f"bytes [{low}, {high}) asked for by shape {self.shape} with strides "
                f"{self.strides} at {self.offset}, but {self.address} has "
                f"{self.address.length} bytes"
            )
        self._derive(runs * run, run, loops, (low, high))

    @classmethod
    def contiguous(cls, address: CompositeAddress, offset: int, nbytes: int) -> DeviceRange:
        """``nbytes`` bytes in a row, from ``offset``."""
        if offset < 0 or nbytes < 1 or offset + nbytes > address.length:
            return cls(address, offset, (nbytes,), (1,), 1)
        span = object.__new__(cls)
        _put(span, "address", address)
        _put(span, "offset", offset)
        _put(span, "shape", (nbytes,))
        _put(span, "strides", (1,))
        _put(span, "itemsize", 1)
        span._derive(nbytes, nbytes, (), (offset, offset + nbytes))
        return span

    def _derive(
        self, nbytes: int, run: int, loops: tuple[Loop, ...], bounds: tuple[int, int]
    ) -> None:
        _put(self, "nbytes", nbytes)
        _put(self, "run", run)
        _put(self, "loops", loops)
        _put(self, "bounds", bounds)
        block, chunks = None, self.address.chunks
        if not loops and len(chunks) == 1:
            start = chunks[0].offset + self.offset
            block = chunks[0].region, start, start + run
        _put(self, "block", block)

    @property
    def runs(self) -> int:
        """How many contiguous runs the nest makes."""
        return self.nbytes // self.run if self.run else 0

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may share a byte; never False when two do."""
        if not self.loops:
            return False
        extent = self.run
        for stride, count in sorted((abs(stride), count) for count, stride in self.loops):
            if stride < extent:
                return True
            extent += (count - 1) * stride
        return False

    def footprint(self) -> list[tuple[int, int, int]]:
        """(region, start, stop) of physical bytes: all that is touched, and perhaps more."""
        return [(c.region, c.offset, c.offset + c.length) for c in self.address.spans(*self.bounds)]

    def __repr__(self) -> str:
        if len(self.loops) == 0:
            return f"DeviceRange({self.address} + {self.offset}, {self.nbytes} bytes)"
        return (
            f"DeviceRange({self.address} + {self.offset}, shape={self.shape}, "
            f"strides={self.strides}, itemsize={self.itemsize})"
        )


def fold(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, tuple[Loop, ...]]:
    """A loop nest as bytes in one contiguous run, and the fewest loops around it, outermost first.

    A nest without elements folds to a run of 0 bytes.
    """
    run = itemsize
    loops: list[Loop] = []
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count == 0:
            return 0, ()
        if count == 1:
            continue
        if not loops and stride == run:
            run *= count
        elif loops and stride == loops[-1][0] * loops[-1][1]:
            loops[-1] = (loops[-1][0] * count, loops[-1][1])
        else:
            loops.append((count, stride))
    return run, tuple(reversed(loops))
