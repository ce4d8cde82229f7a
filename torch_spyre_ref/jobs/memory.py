"""The memory of a job: its correction slots, its program, and what the program has to itself."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING

from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.memory.placement import ANYWHERE, current_placement
from torch_spyre_ref.runtime import CompositeAddress, DeviceRange
from torch_spyre_ref.runtime.intervals import Ranges

if TYPE_CHECKING:
    from torch_spyre_ref.backend import Backend

_NOTHING = Ranges((), ())


class JobMemory:
    """One allocation; it is freed when no launch and no program refers to it any more."""

    def __init__(self, backend: Backend, device: int, nbytes: int) -> None:
        self._free = backend.memory.free
        where = copy_context()
        where.run(current_placement.set, ANYWHERE)
        self.allocation: Allocation = where.run(backend.memory.allocate, nbytes, device)

    def at(self, offset: int, nbytes: int) -> DeviceRange:
        """``nbytes`` bytes of it."""
        return DeviceRange.contiguous(self.allocation.composite, offset, nbytes)

    def behind(self, offset: int) -> CompositeAddress | None:
        """All of it from ``offset`` on; None when nothing is left."""
        length = self.allocation.nbytes - offset
        if length <= 0:
            return None
        return CompositeAddress(tuple(self.allocation.composite.pieces(offset, length)))

    def touched(self) -> Ranges:
        """What a patch touches besides this memory, which is kept by whoever may ask: nothing."""
        return _NOTHING

    def __del__(self) -> None:
        if hasattr(self, "allocation"):
            self._free(self.allocation)
