# Produced by chapters/02_allocator.py: edit it there, then run `make tangle`.
"""Many tensors live in a few regions.

A card gives out memory in large regions, behind a small budget of handles. The allocator cuts
regions into aligned blocks, describes each block as a composite address, and hands it to PyTorch
under a logical address, with a way to take it back when the last reference has gone.
"""

import gc
import threading
from collections import Counter as Counts
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch

from torch_spyre_ref.emulator.addresses import Chunk, CompositeAddress
from torch_spyre_ref.emulator.errors import CardMemoryExhausted, HandleBudgetExhausted
from torch_spyre_ref.emulator.regions import Region, RegionTable
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.memory.map import out_of_memory_message
from torch_spyre_ref.memory.placement import ANYWHERE, Placement, asked_for, current_placement
from torch_spyre_ref.memory.statistics import Counter, Statistics

# Put sizes into classes
ALIGNMENT = 128


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


# Keep the free blocks of a region
class RegionSpace:
    """The free blocks of one region: by size class to find one, by both ends to join them."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.free_bytes = 0
        self._length_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._classes: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._occupied = 0
        self.give(0, region.size)

    def take(self, size: int) -> int | None:
        """Cut ``size`` bytes from the smallest class that has a block; its offset, or None."""
        wanted = ceiling_class(size)
        above = self._occupied >> wanted
        if above:
            smallest = wanted + (above & -above).bit_length() - 1
            start = next(reversed(self._classes[smallest]))
        else:
            near = self._classes[size_class(size)]
            start = next((s for s in near if self._length_at[s] >= size), -1)
            if start < 0:
                return None
        length = self._remove(start)
        if length > size:
            self._insert(start + size, length - size)
        return start

    def give(self, start: int, length: int) -> None:
        """Free a block, joined with the free blocks that touch it."""
        if start + length in self._length_at:
            length += self._remove(start + length)
        if start in self._start_before:
            start = self._start_before[start]
            length += self._remove(start)
        self._insert(start, length)

    def holes(self) -> list[tuple[int, int]]:
        """Every free block as (offset, length), by offset."""
        return sorted(self._length_at.items())

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        self._classes[size_class(length)][start] = None
        self._occupied |= 1 << size_class(length)
        self.free_bytes += length

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        index = size_class(length)
        del self._classes[index][start]
        if not self._classes[index]:
            self._occupied &= ~(1 << index)
        self.free_bytes -= length
        return length


# Get chunks from all regions of a card
class NoRoomError(Exception):
    """No region can hold the request as things are."""


class Space:
    """All regions of one card, and the one way to get chunks from them."""

    region_space = RegionSpace

    def __init__(self, table: RegionTable, spec: CardSpec) -> None:
        self.table, self.spec = table, spec
        self.regions: dict[int, RegionSpace] = {}
        self.segments, self.reserved = Counter(), Counter()

    def take(self, size: int, where: Placement, grow: bool) -> CompositeAddress:
        """Cut ``size`` bytes by ``where``, from new regions too if ``grow``; else NoRoomError."""
        if size > self.spec.memory:
            raise NoRoomError
        chunks: list[Chunk] = []
        try:
            for length, domain in where.cut(size, self.spec):
                chunks.append(self._chunk(length, domain, grow))
        except NoRoomError:
            self.give(chunks)
            raise
        return CompositeAddress(tuple(chunks), where.grain(self.spec))

    def give(self, chunks: Iterable[Chunk]) -> None:
        """Return chunks to their regions."""
        for region, offset, length in chunks:
            self.regions[region].give(offset, length)

    def release_empty(self) -> None:
        """Give wholly free regions back to the card."""
        for space in list(self.regions.values()):
            if space.free_bytes == space.region.size:
                self.table.release(space.region.id)
                del self.regions[space.region.id]
                self.segments.free(1)
                self.reserved.free(space.region.size)

    def _chunk(self, size: int, domain: int | None, grow: bool) -> Chunk:
        for space in self.regions.values():
            if domain in (None, space.region.domain) and (offset := space.take(size)) is not None:
                return Chunk(space.region.id, offset, size)
        if not grow:
            raise NoRoomError
        self._open_region(range(self.spec.domains) if domain is None else [domain])
        return self._chunk(size, domain, grow)

    def _open_region(self, domains: Iterable[int]) -> None:
        crowd = Counts(space.region.domain for space in self.regions.values())
        for domain in sorted(domains, key=lambda domain: crowd[domain]):
            with suppress(HandleBudgetExhausted, CardMemoryExhausted):
                region = self.table.acquire(self.spec.region, domain)
                self.regions[region.id] = self.region_space(region)
                self.segments.allocated += 1
                self.reserved.allocated += region.size
                return
        raise NoRoomError


# Describe what a storage owns
@dataclass(slots=True, eq=False, repr=False)
class Allocation:
    """What a storage owns: where its bytes lie, under a logical address that is never reused."""

    card: "CardMemory"
    composite: CompositeAddress
    size: int
    placement: Placement
    layout: str = "row-major"
    address: int = 0
    nbytes: int = 0

    @property
    def device(self) -> int:
        """The index of the card that it lies on."""
        return self.card.device

    def __repr__(self) -> str:
        return (
            f"Allocation(card {self.device}, {self.nbytes} of {self.size} bytes, "
            f"{self.placement.policy}, {self.composite})"
        )


# Keep what is live and what is cached
ADDRESS_BITS = 56
GUARD = 4096
CACHE_BLOCKS = 4096


class CardMemory:
    """What is kept for one card: live blocks by logical address, cached ones by size."""

    on_hand_out: Callable[[Allocation], object] | None = None
    on_take_back: Callable[[Allocation], object] | None = None

    def __init__(self, device: int, space: Space, synchronize: Callable[[], None]) -> None:
        self.device, self.space, self.synchronize = device, space, synchronize
        self.statistics = Statistics(space.segments, space.reserved)
        self.live: dict[int, Allocation] = {}
        self.cache: dict[int, list[Allocation]] = {}
        self.carved, self.next_address = 0, (device + 1) << ADDRESS_BITS

    def hand_out(self, block: Allocation, nbytes: int) -> None:
        """Make a block live, under an address that nobody has had."""
        self.statistics.took(block.size, nbytes)
        block.nbytes, block.address = nbytes, self.next_address
        self.next_address += block.size + GUARD
        self.live[block.address] = block

    def take_back(self, block: Allocation) -> None:
        """Cache a block that was live, or return it to its regions."""
        size, cache, spare = block.size, self.cache, self.carved - len(self.live)
        if spare < CACHE_BLOCKS and block.placement is ANYWHERE and size in cache:
            self.statistics.gave(size, block.nbytes)
            del self.live[block.address]
            cache[size].append(block)
        else:
            with UNDISTURBED:
                self.statistics.gave(size, block.nbytes)
                del self.live[block.address]
                self._give(block)

    def carve(self, size: int, where: Placement) -> Allocation | None:
        """A new block from free space, then after a flush, then from a new region; else None.

        The caller is undisturbed.
        """
        for grow in (False, False, True):
            with suppress(NoRoomError):
                composite = self.space.take(size, where, grow)
                self.carved += 1
                self.cache.setdefault(size, [])
                return Allocation(self, composite, size, where)
            self.flush()
        return None

    def _give(self, block: Allocation) -> None:
        self.carved -= 1
        self.space.give(block.composite.chunks)

    def flush(self) -> None:
        """Return every cached block. The caller is undisturbed."""
        while self.cache:
            _, blocks = self.cache.popitem()
            while blocks:
                self._give(blocks.pop())

    def release(self) -> None:
        """Give wholly free regions back to the card, once no work is in flight."""
        with UNDISTURBED:
            self.flush()
        self.synchronize()
        with UNDISTURBED:
            self.space.release_empty()


# Answer the bridge
class Allocator:
    """The allocator that the bridge calls, for every card of the process.

    ``free`` is what a storage's deleter calls: it only appends, so that it may run on any thread
    and in the middle of a garbage collection. The next allocation or report takes the blocks back.
    """

    def __init__(self, open_card: Callable[[int], CardMemory]) -> None:
        self.open_card, self.lock = open_card, threading.RLock()
        self.cards: dict[int, CardMemory] = {}
        self.pending: deque[Allocation] = deque()
        self.free = self.pending.append

    def card(self, device: int) -> CardMemory:
        """What is kept for a card; asking for one that has not started starts it."""
        return self.cards.get(device) or self.cards.setdefault(device, self.open_card(device))

    def allocate(self, nbytes: int, device: int, stream: int = 0) -> Allocation:
        """A block of at least ``nbytes`` > 0 bytes on a card, or ``torch.OutOfMemoryError``."""
        card = self.cards.get(device) or self.card(device)
        where = current_placement.get() if asked_for else ANYWHERE
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT
        lock, block = self.lock, None
        try:
            try:
                lock.acquire()  # `with` takes twice as long; inside, since Ctrl-C may come at once
                if self.pending:
                    self.take_back()
                if where is ANYWHERE and (bucket := card.cache.get(size)):
                    block = bucket[-1]
                    del bucket[-1]  # pop() is a call, and at its end Ctrl-C might drop the block
                    card.hand_out(block, nbytes)
            finally:
                lock.release()
            if block is None:
                block = self._carve(card, size, where, nbytes)
            if card.on_hand_out is not None:
                card.on_hand_out(block)
            return block
        except BaseException:
            self._let_go(card, block, nbytes)
            raise

    def take_back(self) -> None:
        """Take back what deleters have freed. The caller holds the lock."""
        pending = self.pending
        while pending:
            if (tell := pending[0].card.on_take_back) is not None:
                with UNDISTURBED:
                    tell(block := pending.popleft())
                    block.card.take_back(block)
                continue
            block = pending[0]
            del pending[0]
            try:
                block.card.take_back(block)
            except BaseException:
                if block.card.live.get(block.address) is block:
                    pending.append(block)
                raise

    def _carve(
        self, card: CardMemory, size: int, where: Placement, nbytes: int, last: bool = False
    ) -> Allocation:
        """A block that the cache does not have. Makes room for it if need be."""
        block = None
        try:
            with UNDISTURBED, self.lock:
                self.take_back()
                block = card.carve(size, where)
                if block is not None:
                    card.hand_out(block, nbytes)
        except BaseException:
            self._let_go(card, block, nbytes)
            raise
        if block is None:
            self._relieve(card, nbytes, where, last)
            return self._carve(card, size, where, nbytes, last=True)
        return block

    def _let_go(self, card: CardMemory, block: Allocation | None, nbytes: int) -> None:
        """Free a block that nobody will get."""
        if block is not None:
            with UNDISTURBED, self.lock:
                if card.live.get(block.address) is not block:
                    card.hand_out(block, nbytes)
                self.free(block)

    def _relieve(self, card: CardMemory, nbytes: int, where: Placement, last: bool) -> None:
        if not last:
            gc.collect()  # not under the lock: a finaliser is anybody's code
        with self.lock:
            self.take_back()
            card.release()
            if not last:
                card.statistics.retries += 1
                return
        with UNDISTURBED, self.lock:
            card.statistics.ooms += 1
            message = out_of_memory_message(card, nbytes, where)
        raise torch.OutOfMemoryError(message)
