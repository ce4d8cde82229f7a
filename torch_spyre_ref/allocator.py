"""Many tensors in few regions: the allocator behind PyTorch's storage.

A card hands out memory in large regions behind a small budget of handles. This allocator cuts
regions into aligned blocks, describes each block as a composite address, and gives it to PyTorch
with a way to take it back.
"""

from __future__ import annotations

import bisect
import gc
import threading
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch

from torch_spyre_ref.emulator.regions import (
    CardMemoryExhausted,
    Chunk,
    CompositeAddress,
    HandleBudgetExhausted,
    Region,
    RegionTable,
    dealt,
)
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.memory.map import out_of_memory_message
from torch_spyre_ref.memory.placement import (
    ANYWHERE,
    Placement,
    current_placement,
)
from torch_spyre_ref.memory.statistics import Counter, Statistics

ALIGNMENT = 128
GUARD = 4096
CACHE_BLOCKS = 4096
ADDRESS_BITS = 56


class Allocation:
    """What a storage owns: where its bytes lie, under a logical address that is never reused."""

    __slots__ = ("address", "composite", "device", "layout", "nbytes", "placement", "size")

    def __init__(
        self, composite: CompositeAddress, size: int, device: int, placement: Placement
    ) -> None:
        self.address = 0
        self.composite = composite
        self.device = device
        self.layout = "row-major"
        self.nbytes = 0
        self.placement = placement
        self.size = size

    def __repr__(self) -> str:
        return (
            f"Allocation(card {self.device}, {self.nbytes} of {self.size} bytes, "
            f"{self.placement.policy}, {self.composite})"
        )


def size_class(size: int) -> int:
    """The class of the largest power-of-two eighth that is not above ``size``."""
    sticks = size // ALIGNMENT
    shift = max(sticks.bit_length() - 4, 0)
    return (shift << 3) + (sticks >> shift)


def ceiling_class(size: int) -> int:
    """The lowest class whose every block holds ``size`` bytes."""
    sticks = size // ALIGNMENT
    shift = max(sticks.bit_length() - 4, 0)
    return size_class((sticks + (1 << shift) - 1) * ALIGNMENT)


class RegionSpace:
    """The free blocks of one region: by size class to find one, by both ends to coalesce."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.free_bytes = 0
        self._lengths: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._classes: dict[int, dict[int, None]] = {}
        self._occupied = 0
        self.give(0, region.size)

    def take(self, size: int) -> int | None:
        """Cut ``size`` bytes from the best class that has a block; its offset, or None."""
        wanted = ceiling_class(size)
        above = self._occupied >> wanted
        if above:
            best = wanted + (above & -above).bit_length() - 1
            start = next(reversed(self._classes[best]))
        else:
            fits = (s for s in self._classes.get(size_class(size), ()) if self._lengths[s] >= size)
            start = next(fits, -1)
            if start < 0:
                return None
        length = self._remove(start)
        if length > size:
            self._insert(start + size, length - size)
        return start

    def give(self, start: int, length: int) -> None:
        """Free a block, joined with the free blocks that touch it."""
        if start + length in self._lengths:
            length += self._remove(start + length)
        if start in self._starts:
            left = self._starts[start]
            length += self._remove(left)
            start = left
        self._insert(start, length)

    def _insert(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._starts[start + length] = start
        index = size_class(length)
        self._classes.setdefault(index, {})[start] = None
        self._occupied |= 1 << index
        self.free_bytes += length

    def _remove(self, start: int) -> int:
        length = self._lengths.pop(start)
        del self._starts[start + length]
        index = size_class(length)
        blocks = self._classes[index]
        del blocks[start]
        if not blocks:
            self._occupied &= ~(1 << index)
        self.free_bytes -= length
        return length

    def holes(self) -> list[tuple[int, int]]:
        """Every free block as (offset, length), by offset."""
        return sorted(self._lengths.items())


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside: a finaliser must not meet a half-changed region."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class NoRoomError(Exception):
    """No region can hold the request, also after every cached block was returned."""


class Space:
    """All regions of one card, and the one way to get chunks from them."""

    def __init__(self, table: RegionTable, spec: CardSpec) -> None:
        self.table, self.spec = table, spec
        self.regions: dict[int, RegionSpace] = {}
        self.segments, self.reserved = Counter(), Counter()

    def take(self, size: int, where: Placement, grow: bool) -> CompositeAddress:
        """Cut ``size`` bytes as ``where`` says, from new regions too if ``grow``.

        Raises:
            NoRoomError: nothing was taken.
        """
        chunks: list[Chunk] = []
        try:
            for length, domain in self._parts(size, where):
                chunks.append(self._chunk(length, domain, grow))
        except NoRoomError:
            self._give(chunks)
            raise
        grain = self.spec.interleave_grain if where.policy == "interleave" else 0
        return CompositeAddress(tuple(chunks), grain)

    def give(self, address: CompositeAddress) -> None:
        """Return every chunk of an address to its region."""
        self._give(address.chunks)

    def _give(self, chunks: Iterable[Chunk]) -> None:
        for region, offset, length in chunks:
            self.regions[region].give(offset, length)

    def _parts(self, size: int, where: Placement) -> list[tuple[int, int | None]]:
        if where.policy == "interleave":
            grain = self.spec.interleave_grain
            domains = min(self.spec.domains, -(-size // grain))
            return list(zip(dealt(size, domains, grain), range(domains), strict=True))
        whole, rest = divmod(size, self.spec.region)
        lengths = [self.spec.region] * whole + [rest] * (rest > 0)
        return [(length, where.domain) for length in lengths]

    def _chunk(self, size: int, domain: int | None, grow: bool) -> Chunk:
        for space in self.regions.values():
            if domain is None or space.region.domain == domain:
                offset = space.take(size)
                if offset is not None:
                    return Chunk(space.region.id, offset, size)
        if not grow or size > self.spec.region:
            raise NoRoomError
        space = self._open_region(range(self.spec.domains) if domain is None else [domain])
        return Chunk(space.region.id, space.take(size) or 0, size)

    def _open_region(self, domains: Iterable[int]) -> RegionSpace:
        crowd = Counts(space.region.domain for space in self.regions.values())
        for domain in sorted(domains, key=lambda domain: crowd[domain]):
            with suppress(HandleBudgetExhausted, CardMemoryExhausted):
                region = self.table.acquire(self.spec.region, domain)
                self.segments.add(1)
                self.reserved.add(region.size)
                return self.regions.setdefault(region.id, RegionSpace(region))
        raise NoRoomError

    def release_empty(self) -> int:
        """Give wholly free regions back to the card; how many bytes that was."""
        empty = [i for i, s in self.regions.items() if s.free_bytes == s.region.size]
        for region in empty:
            self.table.release(region)
            del self.regions[region]
        self.segments.current -= len(empty)
        self.reserved.current -= len(empty) * self.spec.region
        return len(empty) * self.spec.region


class CardMemory:
    """What the allocator keeps for one card."""

    def __init__(self, device: int, space: Space, synchronize: Callable[[], None]) -> None:
        self.device = device
        self.space = space
        self.synchronize = synchronize
        self.statistics = Statistics(space.segments, space.reserved)
        self.live: dict[int, Allocation] = {}
        self.next_address = (device + 1) << ADDRESS_BITS
        self.cache: dict[int, list[Allocation]] = {}
        self.cached_blocks = 0
        self.on_hand_out: Callable[[Allocation], object] | None = None
        self.on_take_back: Callable[[Allocation], object] | None = None

    def hand_out(self, allocation: Allocation, nbytes: int) -> None:
        """Count a block as live, under the next logical address."""
        allocation.nbytes = nbytes
        allocation.address = address = self.next_address
        self.next_address = address + allocation.size + GUARD
        self.live[address] = allocation
        statistics = self.statistics
        statistics.allocation.add(1)
        statistics.allocated_bytes.add(allocation.size)
        statistics.requested_bytes.add(nbytes)

    def take_back(self, allocation: Allocation) -> None:
        """Count a block as no longer live."""
        del self.live[allocation.address]
        statistics = self.statistics
        statistics.allocation.current -= 1
        statistics.allocated_bytes.current -= allocation.size
        statistics.requested_bytes.current -= allocation.nbytes

    def flush(self) -> None:
        """Return every cached block to its region, where it joins its neighbours."""
        with collection_paused():
            for bucket in self.cache.values():
                for allocation in bucket:
                    self.space.give(allocation.composite)
            self.cache.clear()
            self.cached_blocks = 0

    def carve(self, size: int, where: Placement) -> Allocation | None:
        """A new block from free space, then after a flush, then from a new region; else None."""
        if size > self.space.spec.memory:
            return None
        for attempt in ("free space", "after a flush", "new region"):
            if attempt == "after a flush":
                self.flush()
            try:
                with collection_paused():
                    composite = self.space.take(size, where, grow=attempt == "new region")
            except NoRoomError:
                continue
            return Allocation(composite, size, self.device, where)
        return None

    def release(self) -> int:
        """Give wholly free regions back, once no work is in flight; how many bytes that was."""
        self.flush()
        self.synchronize()
        with collection_paused():
            return self.space.release_empty()

    def at(self, address: int) -> Allocation | None:
        """The live allocation that holds a logical address."""
        starts = list(self.live)
        place = bisect.bisect_right(starts, address) - 1
        if place < 0:
            return None
        allocation = self.live[starts[place]]
        return allocation if address <= allocation.address + allocation.size else None


class Cards(dict[int, CardMemory]):
    """The started cards by index; asking for another one starts it."""

    def __init__(self, open_card: Callable[[int], CardMemory]) -> None:
        super().__init__()
        self._open_card = open_card

    def __missing__(self, device: int) -> CardMemory:
        card = self._open_card(device)
        return self.setdefault(device, card)


class Allocator:
    """The allocator that the bridge calls, for every card of the process.

    ``free`` is what a storage's deleter calls: it only appends, so that it may run on any thread
    and in the middle of a garbage collection. The next allocation or report takes the blocks back.
    """

    def __init__(self, open_card: Callable[[int], CardMemory]) -> None:
        self.cards = Cards(open_card)
        self.pending: deque[Allocation] = deque()
        self.free = self.pending.append
        self.lock = threading.RLock()

    def allocate(self, nbytes: int, device: int, stream: int = 0) -> Allocation:
        """A block of at least ``nbytes`` > 0 bytes on card ``device``.

        Raises:
            torch.OutOfMemoryError: also after cached blocks and cyclic garbage were given up.
        """
        card = self.cards[device]
        where = current_placement.get()
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT
        with self.lock:
            if self.pending:
                self.take_back()
            bucket = card.cache.get(size) if where is ANYWHERE else None
            if bucket:
                allocation: Allocation | None = bucket.pop()
                card.cached_blocks -= 1
            else:
                allocation = card.carve(size, where)
            if allocation is not None:
                card.hand_out(allocation, nbytes)
        if allocation is None:
            allocation = self._under_pressure(card, nbytes, size, where)
        if card.on_hand_out is not None:
            card.on_hand_out(allocation)
        return allocation

    def take_back(self) -> None:
        """Return what deleters have freed to the cache, or to its region. Needs the lock."""
        pending = self.pending
        while pending:
            allocation = pending.popleft()
            card = self.cards[allocation.device]
            card.take_back(allocation)
            if card.on_take_back is not None:
                card.on_take_back(allocation)
            if allocation.placement is ANYWHERE and card.cached_blocks < CACHE_BLOCKS:
                card.cache.setdefault(allocation.size, []).append(allocation)
                card.cached_blocks += 1
            else:
                with collection_paused():
                    card.space.give(allocation.composite)

    def _under_pressure(
        self, card: CardMemory, nbytes: int, size: int, where: Placement
    ) -> Allocation:
        gc.collect()
        with self.lock:
            card.statistics.retries += 1
            self.take_back()
            card.release()
            allocation = card.carve(size, where)
            if allocation is None:
                card.release()
                card.statistics.ooms += 1
                raise torch.OutOfMemoryError(out_of_memory_message(card, nbytes, where))
            card.hand_out(allocation, nbytes)
            return allocation

    def after_fork(self) -> None:
        """In a forked child: forget the parent's cards, so that using one asks for it anew."""
        self.lock = threading.RLock()
        self.cards.clear()
