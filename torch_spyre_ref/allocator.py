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

    __slots__ = ("address", "card", "composite", "layout", "nbytes", "placement", "size")

    def __init__(
        self, composite: CompositeAddress, size: int, card: CardMemory, placement: Placement
    ) -> None:
        self.address = 0
        self.card = card
        self.composite = composite
        self.layout = "row-major"
        self.nbytes = 0
        self.placement = placement
        self.size = size

    @property
    def device(self) -> int:
        """The index of the card that it lies on."""
        return self.card.device

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
                self.segments.allocated += 1
                self.reserved.allocated += region.size
                return self.regions.setdefault(region.id, RegionSpace(region))
        raise NoRoomError

    def release_empty(self) -> int:
        """Give wholly free regions back to the card; how many bytes that was."""
        empty = [i for i, s in self.regions.items() if s.free_bytes == s.region.size]
        for region in empty:
            self.table.release(region)
            del self.regions[region]
        for counter, freed in ((self.segments, 1), (self.reserved, self.spec.region)):
            counter.note_peak()
            counter.freed += len(empty) * freed
        return len(empty) * self.spec.region


class CardMemory:
    """What the allocator keeps for one card."""

    def __init__(self, device: int, space: Space, synchronize: Callable[[], None]) -> None:
        self.device = device
        self.space = space
        self.synchronize = synchronize
        self.statistics = Statistics(space.segments, space.reserved)
        self.blocks = self.statistics.allocation
        self.held = self.statistics.allocated_bytes
        self.asked = self.statistics.requested_bytes
        self.live: dict[int, Allocation] = {}
        self.next_address = (device + 1) << ADDRESS_BITS
        self.cache: dict[int, list[Allocation]] = {}
        self.carved = 0
        self.on_hand_out: Callable[[Allocation], object] | None = None
        self.on_take_back: Callable[[Allocation], object] | None = None

    def note_peaks(self) -> None:
        """To be called before blocks are taken back."""
        self.blocks.note_peak()
        self.held.note_peak()
        self.asked.note_peak()

    def give(self, allocation: Allocation) -> None:
        """Return a block to its regions, where it joins its neighbours."""
        self.carved -= 1
        with collection_paused():
            self.space.give(allocation.composite)

    def flush(self) -> None:
        """Return every cached block; a finaliser may allocate between two of them."""
        while self.cache:
            _, bucket = self.cache.popitem()
            while bucket:
                self.give(bucket.pop())

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
            self.carved += 1
            return Allocation(composite, size, self, where)
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

    def allocate(
        self, nbytes: int, device: int, stream: int = 0, relieved: bool = False
    ) -> Allocation:
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
            allocation = bucket.pop() if bucket else card.carve(size, where)
            if allocation is not None:
                allocation.nbytes = nbytes
                allocation.address = address = card.next_address
                card.next_address = address + size + GUARD
                card.live[address] = allocation
                card.blocks.allocated += 1
                card.held.allocated += size
                card.asked.allocated += nbytes
        if allocation is None:
            self._relieve(card, nbytes, where, relieved)
            return self.allocate(nbytes, device, stream, relieved=True)
        if card.on_hand_out is not None:
            try:
                card.on_hand_out(allocation)
            except BaseException:
                self.free(allocation)
                raise
        return allocation

    def take_back(self) -> None:
        """Return what deleters have freed to its card's cache, or to its region. Needs the lock."""
        pending, card = self.pending, None
        while pending:
            allocation = pending.popleft()
            if allocation.card is not card:
                card = allocation.card
                card.note_peaks()
            size = allocation.size
            del card.live[allocation.address]
            card.blocks.freed += 1
            card.held.freed += size
            card.asked.freed += allocation.nbytes
            if card.on_take_back is not None:
                card.on_take_back(allocation)
            if allocation.placement is ANYWHERE and card.carved - len(card.live) <= CACHE_BLOCKS:
                bucket = card.cache.get(size)
                if bucket is None:
                    bucket = card.cache[size] = []
                bucket.append(allocation)
            else:
                card.give(allocation)

    def _relieve(self, card: CardMemory, nbytes: int, where: Placement, relieved: bool) -> None:
        """Give up cyclic garbage, cached blocks and empty regions; the second time, give up."""
        if not relieved:
            gc.collect()
        with self.lock:
            self.take_back()
            card.release()
            if not relieved:
                card.statistics.retries += 1
                return
            card.statistics.ooms += 1
            with collection_paused():
                message = out_of_memory_message(card, nbytes, where)
        raise torch.OutOfMemoryError(message)

    def after_fork(self) -> None:
        """In a forked child: forget the parent's cards, so that using one asks for it anew."""
        self.lock = threading.RLock()
        self.cards.clear()
