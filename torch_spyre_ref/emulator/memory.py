"""The card's LPDDR5: bytes in regions, read and written through operand descriptors.

Each region is its own block of anonymous pages, so a card's memory is committed as it is used and
goes back to the host with its region. Nothing here has a notion of time: effects call this when
the clock says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.pages import Bytes, Pages
from torch_spyre_ref.emulator.walk import gather, scatter

# complex128 and not a 16-byte void: NumPy has a copy loop for it, and never looks at the values.
_WORDS: dict[int, np.dtype[Any]] = {
    16: np.dtype(np.complex128),
    8: np.dtype(np.uint64),
    4: np.dtype(np.uint32),
    2: np.dtype(np.uint16),
    1: np.dtype(np.uint8),
}


class RegionFaultError(RuntimeError):
    """An operation met a region that is not there, or ran over its end."""


class Visit(NamedTuple):
    """Where an index or a mask took a load or store: ``size``-byte elements at logical ``at``."""

    visitor: object
    is_write: bool
    address: CompositeAddress
    at: NDArray[np.int64]
    size: int


class Memory:
    """The memory of one card, by region id. Bytes of a region that were never written are zero."""

    def __init__(self) -> None:
        self._regions: dict[int, Bytes] = {}
        self._views: dict[int, memoryview] = {}  # of the same bytes: quicker to cut
        self.changes = 0  # how often regions came or went
        self.watch: Callable[[DeviceRange], None] | None = None  # told of what is written
        self.visits: list[Visit] | None = None  # notes of indirect accesses, for who wants them
        self.on_detach: Callable[[], None] | None = None

    def attach(self, region: int, size: int) -> None:
        """Put ``size`` bytes behind the id ``region``."""
        self._regions[region] = Pages(size).bytes()
        self._views[region] = self._regions[region].data
        self.changes += 1

    def detach(self, region: int) -> None:
        """Take the bytes behind ``region`` away; views handed out earlier stay valid."""
        del self._regions[region], self._views[region]
        self.changes += 1
        if self.on_detach is not None:
            self.on_detach()

    def region(self, region: int) -> Bytes:
        """All bytes of a region. Raises ``RegionFaultError`` when it was given back."""
        try:
            return self._regions[region]
        except KeyError:
            raise RegionFaultError(
                f"region {region} is not there, live regions are {sorted(self._regions)}: it was "
                "given back while an operation on it was pending; wait for the operation first"
            ) from None

    def dense(self, source: DeviceRange) -> bytes:
        """The bytes of ``source``, as a value."""
        run = self._run(source)
        return self.read(source).tobytes() if run is None else run.tobytes()

    def read(self, source: DeviceRange) -> Bytes:
        """The bytes of ``source``, dense and in row-major order, as a new array."""
        out = np.empty(source.nbytes, np.uint8)
        self.read_into(source, out)
        return out

    def read_into(self, source: DeviceRange, out: Bytes) -> None:
        """Copy ``source`` to the dense array ``out`` of ``source.nbytes`` bytes."""
        run = self._run(source)
        if run is not None:
            out.data[:] = run
            return
        view = self._view(source)
        if view is None:
            gather(source, self.region, out)
        else:
            np.copyto(out.view(view.dtype).reshape(view.shape), view)

    def write(self, target: DeviceRange, data: Bytes) -> None:
        """Copy the dense array ``data`` of ``target.nbytes`` bytes to ``target``.

        Where elements of the target overlap, the last in row-major order stays.
        """
        if self.watch is not None:
            self.watch(target)
        run = self._run(target)
        if run is not None:
            run[:] = data.data
            return
        view = self._view(target)
        if view is None or target.overlaps_itself:
            scatter(target, self.region, data)
        else:
            np.copyto(view, data.view(view.dtype).reshape(view.shape))

    def move(self, source: DeviceRange, target: DeviceRange) -> None:
        """Copy ``source`` to ``target``, as if all were read before anything is written."""
        if self.watch is not None:
            self.watch(target)
        old, new = self._view(source), self._view(target)
        if old is None or new is None or old.shape != new.shape or target.overlaps_itself:
            self.write(target, self.read(source))
        else:
            np.copyto(new, old)

    def fill(self, target: DeviceRange, pattern: bytes) -> None:
        """Repeat ``pattern`` over ``target``, in row-major order, as often as it fits."""
        if self.watch is not None:
            self.watch(target)
        for size, word in _WORDS.items():
            if target.run % size == 0 and size % len(pattern) == 0 and not target.overlaps_itself:
                view = self._view(target, size)
                if view is not None:
                    np.copyto(view, np.frombuffer(pattern * (size // len(pattern)), word))
                    return
        self.write(target, np.tile(np.frombuffer(pattern, np.uint8), target.nbytes // len(pattern)))

    def _run(self, span: DeviceRange) -> memoryview | None:
        """The bytes themselves, where they are one run in one chunk: the quick way for small ones.

        None also where they are not there: `_view` says why.
        """
        block = span.block
        if block is None or (view := self._views.get(block[0])) is None:
            return None
        _, start, stop = block
        run = view[start:stop]
        return run if len(run) == stop - start else None

    def _view(self, span: DeviceRange, word: int = 0) -> NDArray[Any] | None:
        """A view of the bytes in words, its last axis one run; None when chunks are several."""
        if len(span.address.chunks) > 1:
            return None
        number, base, _ = span.address.chunks[0]
        region = self.region(number)
        if base + span.bounds[1] > region.size:
            raise RegionFaultError(
                f"{span} ends at byte {base + span.bounds[1]} of region {number}, which has "
                f"{region.size} bytes: the region is not the one this address was made for"
            )
        start = base + span.offset
        if not span.loops:
            run = region[start : start + span.run]
            return run.view(_WORDS[word]) if word else run
        word = word or min(span.run & -span.run, 16)
        shape = (*(count for count, _ in span.loops), span.run // word)
        strides = (*(stride for _, stride in span.loops), word)
        return np.ndarray(shape, _WORDS[word], region, start, strides)
