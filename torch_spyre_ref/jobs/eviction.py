"""Programs give way to tensors: the one launched longest ago first, and no more than are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_spyre_ref.allocator import Allocation, CardMemory
from torch_spyre_ref.memory.placement import Placement

if TYPE_CHECKING:
    from torch_spyre_ref.backend import Backend


class Eviction:
    """A card's ``carve`` with one more thing to try before memory is called exhausted.

    ``allow`` says that all else was tried: caches are flushed, garbage is collected, and nothing is
    in flight. The next carve that fails may then take programs off the card, one after another
    until there is room.
    """

    def __init__(self, backend: Backend, device: int, memory: CardMemory) -> None:
        self._backend, self._device, self._memory = backend, device, memory
        self._carve, self._is_allowed = memory.carve, False

    def allow(self) -> None:
        """Programs may give way to the allocation that is asked for next."""
        self._is_allowed = True

    def carve(self, size: int, where: Placement) -> Allocation | None:
        """See :meth:`CardMemory.carve`. The caller holds the allocator's lock."""
        block = self._carve(size, where)
        is_allowed, self._is_allowed = self._is_allowed, False
        while block is None and is_allowed and self._backend.programs(self._device).evict():
            self._backend.memory.allocator.take_back()
            self._memory.release()
            block = self._carve(size, where)
        self._is_allowed = False
        return block


def give_way(backend: Backend, device: int, memory: Any) -> Eviction:
    """Have the programs of a card give way to what is asked of its memory."""
    eviction = Eviction(backend, device, memory)
    memory.carve = eviction.carve
    return eviction
