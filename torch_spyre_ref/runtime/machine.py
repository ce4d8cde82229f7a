"""The machine: the cards of this process, their queues, and what they all share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import get_args

from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.fetch import FetchUnit
from torch_spyre_ref.emulator.regions import Mode, Region, RegionTable
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.emulator.timeline import Timeline
from torch_spyre_ref.runtime.faults import Faults
from torch_spyre_ref.runtime.hazards import Hazards
from torch_spyre_ref.runtime.lowering import SHIPPED, rules
from torch_spyre_ref.runtime.memcheck import Memcheck
from torch_spyre_ref.runtime.pinned import PinnedMemory
from torch_spyre_ref.runtime.queues import Queue, Shared
from torch_spyre_ref.runtime.sanitizer import Sanitizer
from torch_spyre_ref.runtime.staging import StagingPool
from torch_spyre_ref.runtime.unwritten import Unwritten

MakeHazards = Callable[[Sequence[Queue]], Hazards]


class AttachedCard:
    """A card and its queues; there is always ``default_queue``.

    ``hazards`` has the edges that were derived between them.
    """

    def __init__(self, card: Card, shared: Shared, hazards: MakeHazards) -> None:
        self.index, self.card, self._shared = card.index, card, shared
        self.queues: list[Queue] = []
        self.hazards, self._unwritten = hazards(self.queues), Unwritten()
        self._companions: dict[Queue, Queue] = {}
        self.default_queue = self.new_queue()

    def new_queue(self, priority: int = 0, name: str = "") -> Queue:
        """One more queue; lower ``priority`` numbers get a contended pipeline first."""
        return self._new_queue(priority, name)

    def _new_queue(self, priority: int, name: str, works_for: Queue | None = None) -> Queue:
        with self._shared.clock:
            name = name or f"{self.index}.{len(self.queues)}"
            parts = self._shared, self.hazards, self._unwritten
            self.queues.append(Queue(name, self.card, *parts, priority, works_for))
            return self.queues[-1]

    def companion(self, queue: Queue) -> Queue:
        """A second queue that belongs to ``queue``, one of this card's, and works for it alone.

        Whoever uses it orders the two, by ``after`` or events: they count as one where edges are
        derived, and none is looked for while no third queue is busy.
        Only that one learns of its errors, by the events that it waits for: ``synchronize`` does
        not raise them a second time.
        """
        return self._companions.get(queue) or self._new_companion(queue)

    def _new_companion(self, queue: Queue) -> Queue:
        with self._shared.clock:
            if queue not in self._companions:
                name = f"{queue.name} preparation"
                self._companions[queue] = self._new_queue(queue.priority, name, queue)
            return self._companions[queue]

    def settle(self) -> None:
        """Hold the host until every queue is empty. Raises nothing: errors keep until asked for."""
        for queue in tuple(self.queues):
            queue.settle()

    def synchronize(self) -> None:
        """Hold the host until every queue is empty; then raise the earliest new error."""
        self.settle()
        companions = self._companions.values()
        failed = [q for q in self.queues if q.failed_at is not None and q not in companions]
        for queue in sorted(failed, key=lambda queue: queue.failed_at or 0):
            queue.synchronize()

    def __repr__(self) -> str:
        return f"AttachedCard({self.card}, {len(self.queues)} queues)"


class Runtime:
    """Cards with memory, queues and a timeline, on one clock, behind one lock.

    ``memory`` (bytes a card) and ``domains`` replace those of ``spec``. ``poison`` is only kept
    here: whoever hands out memory fills it. ``sanitize`` turns memcheck,
    racecheck and initcheck on. ``timeline`` says how
    many operations are remembered. ``operations`` has the classes that the queues take, by name,
    ``region_table`` is what hands out regions, ``fetch_unit`` what fetches programs.
    Raises ``ValueError`` for figures that make no sense.
    """

    def __init__(
        self,
        spec: CardSpec | None = None,
        *,
        devices: int = 2,
        mode: Mode = "vf",
        memory: int | None = None,
        domains: int | None = None,
        poison: bool = False,
        sanitize: bool = False,
        derive_edges: bool = False,
        queue_depth: int = 1024,
        timeline: int = 1 << 16,
        staging_buffers: int = 2,
        region_table: type[RegionTable] = RegionTable,
        hazards: type[Hazards] = Hazards,
        fetch_unit: type[FetchUnit] = FetchUnit,
        operations: object = SHIPPED,
    ) -> None:
        least_one = {
            "devices": devices,
            "queue_depth": queue_depth,
            "staging_buffers": staging_buffers,
        }
        for name, value in least_one.items():
            if value < 1:
                raise ValueError(f"runtime: {name} is {value}; it must be at least 1")
        if mode not in get_args(Mode):
            raise ValueError(f"runtime: mode is {mode!r}; it must be one of {get_args(Mode)}")
        spec = spec or CardSpec()
        self.spec = replace(
            spec,
            memory=spec.memory if memory is None else memory,
            domains=spec.domains if domains is None else domains,
        )
        self.poison = poison
        self.clock = Clock()
        self.timeline = Timeline(timeline)
        self.pinned = PinnedMemory()
        self.faults = Faults()
        self.sanitizer = Sanitizer(self.clock, self.pinned, self.spec.memory)
        shared = Shared(
            self.clock,
            self.timeline,
            self.pinned,
            self.sanitizer,
            self.faults,
            rules(operations),
            queue_depth,
        )
        precedence = hazards.shared()
        self.cards = tuple(
            AttachedCard(
                Card(
                    index,
                    self.spec,
                    self.clock,
                    mode,
                    Queue.complete_head,
                    region_table,
                    fetch_unit,
                ),
                shared,
                partial(hazards, precedence=precedence, on=derive_edges),
            )
            for index in range(devices)
        )
        self.staging = StagingPool(self.pinned, staging_buffers)
        for card in self.cards:
            card.card.regions.before_release = partial(_check_release, self.sanitizer, card)
        if sanitize:
            self.sanitizer.switch_on([card.card.memory for card in self.cards])

    @property
    def memcheck(self) -> Memcheck | None:
        """What knows who owns which memory; None while the sanitizer is off."""
        return self.sanitizer.memcheck

    @property
    def derive_edges(self) -> bool:
        """Whether edges are derived. Setting it waits until everything enqueued so far is done."""
        return self.cards[0].hazards.on

    @derive_edges.setter
    def derive_edges(self, on: bool) -> None:
        if on == self.derive_edges:
            return
        for card in self.cards:
            card.settle()
            card.hazards.switch(on)

    @contextmanager
    def deriving(self, on: bool) -> Iterator[None]:
        """Derive edges, or do not, in a block; then as before. Waits on the way in and out."""
        before, self.derive_edges = self.derive_edges, on
        try:
            yield
        finally:
            self.derive_edges = before

    def synchronize(self, device: int) -> None:
        """Hold the host until card ``device`` is idle; then raise its earliest error."""
        self.cards[device].synchronize()

    def shutdown(self) -> None:
        """Drop what is pending on every card and refuse whatever is submitted from now on."""
        for card in self.cards:
            for queue in card.queues:
                queue.close()


def _check_release(sanitizer: Sanitizer, card: AttachedCard, region: Region) -> None:
    if sanitizer.memcheck is not None:
        pending = [entry for queue in card.queues for entry in queue.pending()]
        sanitizer.memcheck.check_release(card.index, region.id, pending)
