# Produced by chapters/02_allocator.py: edit it there, then run `make tangle`.
"""Regions: the large blocks that a card's memory is handed out in, and their few handles.

A region is one contiguous block of one memory domain. It goes by a number that only the card can
resolve; what the number means depends on how the card is shared.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch_spyre_ref.emulator.domains import lowest_base
from torch_spyre_ref.emulator.errors import HandleBudgetExhausted, RegionError
from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.spec import CardSpec

# Name a region
Mode = Literal["pf", "vf"]


class Region(NamedTuple):
    """One contiguous block of card memory: ``size`` bytes of ``domain`` behind ``handle``."""

    id: int
    size: int
    domain: int
    handle: int


# Hand out regions behind handles
class RegionTable:
    """The handles of one card. One caller at a time: the allocator's lock sees to that.

    In VF mode the card is shared, handles are few, and a region's id is its index in the table. In
    PF mode the card is all ours, handles are many, and a region's id is its physical base. Who
    uses an id need not know which.
    """

    def __init__(self, memory: Memory, spec: CardSpec, mode: Mode) -> None:
        self.budget = spec.vf_handles if mode == "vf" else spec.pf_handles
        self.before_release: Callable[[Region], None] | None = None
        self._memory, self._spec, self._mode = memory, spec, mode
        self._live: dict[int, tuple[Region, int]] = {}

    def acquire(self, size: int, domain: int) -> Region:
        """A region of ``size`` bytes in ``domain``; what its bytes are is undefined.

        Raises ``ValueError`` for a request that never makes sense, ``HandleBudgetExhausted``
        and ``CardMemoryExhausted`` for one that does not fit now.
        """
        free = set(range(self.budget)) - {region.handle for region in self.live()}
        if not free:
            raise HandleBudgetExhausted(
                f"all {self.budget} region handles of the card are in use ({self._mode} mode); "
                "give a region back, or place several allocations in one region"
            )
        taken = [(base, region.size) for region, base in self._live.values()]
        base, handle = lowest_base(taken, self._spec, size, domain), min(free)
        region = Region(base if self._mode == "pf" else handle, size, domain, handle)
        self._memory.attach(region.id, size)
        self._live[region.id] = region, base
        return region

    def release(self, region_id: int) -> None:
        """Give a region and its handle back. Raises ``RegionError`` when it is not live."""
        if region_id not in self._live:
            raise RegionError(
                f"region {region_id} given back, but live regions are {sorted(self._live)}; "
                "give each one back once"
            )
        if self.before_release is not None:
            self.before_release(self._live[region_id][0])
        del self._live[region_id]
        self._memory.detach(region_id)

    def live(self) -> list[Region]:
        """The regions handed out, by handle."""
        return sorted((region for region, _ in self._live.values()), key=lambda r: r.handle)
