"""What PyTorch asks of an allocator besides memory: c10::DeviceAllocator, method by method."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch_spyre_ref.allocator import ADDRESS_BITS, Allocation, Allocator, CardMemory
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.jobs.eviction import give_way
from torch_spyre_ref.memory.map import MemoryMap
from torch_spyre_ref.runtime import DeviceRange, Fill, Queue

if TYPE_CHECKING:
    from torch_spyre_ref.backend import Backend

POISON = b"\xff"


def open_memory(backend: Backend, device: int) -> CardMemory:
    """Start a card, if it has not started, and take over its memory."""
    runtime, parts = backend.runtime, backend.parts
    attached = runtime.cards[device]
    space = parts.space(attached.card.regions, attached.card.spec)

    def settle() -> None:
        attached.settle()
        eviction.allow()

    memory: CardMemory = parts.card_memory(device, space, settle)
    eviction = give_way(backend, device, memory)
    watch(backend, memory, poisoned=backend.settings.poison)
    return memory


def watch(backend: Backend, memory: CardMemory, *, poisoned: bool) -> None:
    """Tell memcheck, if it is on, of every block, and poison what is handed out, if asked to."""
    device, memcheck = memory.device, backend.runtime.memcheck
    watchers: list[Callable[[Allocation], None]] = []
    memory.on_hand_out = memory.on_take_back = None
    if memcheck is not None:
        handed_out, given_back = memcheck.handed_out, memcheck.given_back
        watchers.append(lambda block: handed_out(device, block.composite))
        memory.on_take_back = lambda block: given_back(device, block.composite)
    if poisoned:
        watchers.append(lambda block: poison(backend.queue(device), block))

    def hand_out(block: Allocation) -> None:
        for tell in watchers:
            tell(block)

    if watchers:
        memory.on_hand_out = hand_out


# --8<-- [start:poison]
def poison(queue: Queue, block: Allocation) -> None:
    """Fill a block that is being handed out with 0xFF, which is NaN in every float format.

    It is an operation, so that it comes after the reads of whoever had the block before.
    """
    whole = DeviceRange.contiguous(block.composite, 0, block.size)
    queue.submit(Fill(whole, POISON, free=True), label="poison")


# --8<-- [end:poison]
class MemoryDriver:
    """What PyTorch asks of an allocator besides memory, card by card."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.allocate = allocator.allocate
        self.free = allocator.free

    @contextmanager
    def settled(self, device: int) -> Iterator[CardMemory]:
        """The card's memory with every pending free taken back; nobody changes it meanwhile."""
        card = self.allocator.card(device)
        with UNDISTURBED, self.allocator.lock:
            self.allocator.take_back()
            yield card

    def statistics(self, device: int) -> dict[str, dict[str, int] | int]:
        """Counters nested under the names of torch's ``DeviceStats``."""
        with self.settled(device) as card:
            return card.statistics.as_dict()

    def reset_peak(self, device: int) -> None:
        """Every peak starts again from what is there now."""
        with self.settled(device) as card:
            card.statistics.reset_peak()

    def reset_accumulated(self, device: int) -> None:
        """Everything that only grows starts again from zero."""
        with self.settled(device) as card:
            card.statistics.reset_accumulated()

    def memory_info(self, device: int) -> tuple[int, int]:
        """Bytes that are not in use, and bytes there are."""
        with self.settled(device) as card:
            total = card.space.spec.memory
            return total - card.statistics.allocated_bytes.current, total

    def memory_map(self, device: int) -> MemoryMap:
        """What lies where on a card."""
        with self.settled(device) as card:
            return MemoryMap.of(card)

    def empty_cache(self) -> None:
        """Give every wholly free region of every started card back."""
        for card in list(self.allocator.cards.values()):
            with self.allocator.lock:
                self.allocator.take_back()
                card.release()

    def find(self, address: int) -> Allocation | None:
        """The live allocation at a logical address, for storages that somebody else wrapped."""
        card = self.allocator.cards.get((address >> ADDRESS_BITS) - 1)
        if card is None:
            return None
        with self.allocator.lock:
            starts = list(card.live)  # ascending: a later allocation has a higher address
            place = bisect.bisect_right(starts, address) - 1
            found = card.live[starts[place]] if place >= 0 else None
        return found if found is not None and address <= found.address + found.size else None

    def device_of(self, address: int) -> int:
        """The card that a logical address belongs to, or -1."""
        found = self.find(address)
        return found.device if found is not None else -1

    def record_stream(self, allocation: Allocation, device: int, stream: int) -> None:
        """Accepted and not needed: the runtime sees every footprint."""

    def after_fork(self) -> None:
        """In a forked child: forget the parent's cards, so that using one asks for it anew."""
        self.allocator.lock = threading.RLock()
        self.allocator.cards.clear()
