"""The runtime as a whole: the cards of this process, their queues, and what they share."""

from __future__ import annotations

from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.regions import Mode
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.emulator.timeline import Timeline
from torch_spyre_ref.runtime.memcheck import Memcheck
from torch_spyre_ref.runtime.pinned import PinnedMemory
from torch_spyre_ref.runtime.queues import Queue
from torch_spyre_ref.runtime.staging import StagingPool


class AttachedCard:
    """A card and its queues."""

    def __init__(self, runtime: Runtime, card: Card) -> None:
        self.index, self.card = card.index, card
        self.queues: list[Queue] = []
        self._runtime, self._made = runtime, 0
        self.default_queue = self.new_queue()

    def new_queue(self, priority: int = 0) -> Queue:
        """One more queue; lower ``priority`` numbers get a contended pipeline first."""
        with self._runtime.clock:
            name = f"{self.index}.{self._made}"
            self._made += 1
            queue = self._runtime.make_queue(name, self.card, priority)
            self.queues.append(queue)
        return queue


class Runtime:
    """Cards with memory, queues and a timeline, on one clock."""

    def __init__(
        self,
        *,
        spec: CardSpec | None = None,
        devices: int = 2,
        mode: Mode = "vf",
        memory: int | None = None,
        domains: int | None = None,
        poison: bool = False,
        sanitize: bool = False,
        queue_depth: int = 1024,
        timeline_limit: int = 1 << 16,
        staging_buffers: int = 2,
    ) -> None:
        spec = spec or CardSpec()
        from dataclasses import replace

        spec = replace(spec, memory=memory or spec.memory, domains=domains or spec.domains)
        self.spec, self.poison = spec, poison
        self.queue_depth = queue_depth
        self.clock = Clock()
        self.timeline = Timeline(timeline_limit)
        self.pinned = PinnedMemory()
        self.staging = StagingPool(self.pinned, self.clock, staging_buffers)
        self.memcheck = Memcheck() if sanitize else None
        self.cards = [
            AttachedCard(self, Card(i, spec, self.clock, mode, Queue.complete_head))
            for i in range(devices)
        ]

    def make_queue(self, name: str, card: Card, priority: int) -> Queue:
        return Queue(
            name,
            card,
            self.clock,
            self.timeline,
            self.pinned,
            self.memcheck,
            self.queue_depth,
            priority,
        )

    def synchronize(self, device: int) -> None:
        for queue in self.cards[device].queues:
            queue.settle(queue._last)
        for queue in self.cards[device].queues:
            queue._deliver()

    def shutdown(self) -> None:
        for card in self.cards:
            for queue in card.queues:
                queue.close()
