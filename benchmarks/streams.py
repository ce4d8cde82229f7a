"""Two-stream launches: how full the card gets when it decodes, in virtual time, which is exact."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.measure import Figure, ratio
from torch_spyre_ref.emulator import CardSpec
from torch_spyre_ref.runtime import (
    H2D,
    Chunk,
    CompositeAddress,
    Compute,
    DeviceRange,
    HostCallback,
    Runtime,
)
from torch_spyre_ref.streams import TwoQueues
from torch_spyre_ref.submission import BoundLaunch, OneQueue, Slot, Submission

COMPUTE, PREPARATION, TRANSFER = 100_000, 40_000, 30_000  # virtual ns a step
STEPS, SLOTS, SLOT_BYTES = 100, 2, 128


class Loop:
    """A decode-like loop: in every step one launch, whose program awaits its patch."""

    def __init__(self, slots: int = SLOTS, derive_edges: bool = True) -> None:
        spec = CardSpec(memory=32 << 20)
        spec = replace(spec, link_latency=TRANSFER - (spec.link_time(1) - spec.link_latency))
        self.runtime = Runtime(spec, devices=1)
        if hasattr(self.runtime, "derive_edges"):
            self.runtime.derive_edges = derive_edges
        self.card = self.runtime.cards[0]
        region = self.card.card.regions.acquire(spec.region, 0)
        self.memory = CompositeAddress((Chunk(region.id, 0, region.size),))
        self.slots = [Slot(number) for number in range(slots)]
        self.staging = [self.runtime.pinned.allocate(SLOT_BYTES).array for _ in self.slots]
        self.seen: list[int] = []

    def run(self, submission: Submission, steps: int = STEPS) -> int:
        """Virtual ns from the first submission until all is done."""
        queue, start = self.card.default_queue, self.runtime.clock.now
        for step in range(steps):
            slot = self.slots[step % len(self.slots)]
            slot.ticket = submission.launch(queue, self.bound(step, slot))
            slot.queue = queue
        queue.synchronize()
        return self.runtime.clock.now - start

    def bound(self, step: int, slot: Slot) -> BoundLaunch:
        """The launch of one step: its program notes which patch it finds in its slot."""
        prepare, staging = self.card.default_queue.prepare, self.staging[slot.number]
        where = DeviceRange.contiguous(self.memory, slot.number * SLOT_BYTES, SLOT_BYTES)

        def pack() -> None:
            staging[:] = step

        def compute(memory: Any) -> None:
            found = np.empty(SLOT_BYTES, np.uint8)
            memory.read_into(where, found)
            self.seen.append(int(found[0]))

        packing = HostCallback(pack, PREPARATION, staging)
        preparation = [prepare(packing), prepare(H2D(staging, where))]
        program = [prepare(Compute(COMPUTE, compute, inputs=(where,)))]
        job: Any = SimpleNamespace(artifact=SimpleNamespace(name="step"))
        return BoundLaunch(job, slot, b"", (), (), preparation, program)


def makespan(streams: int, **settings: Any) -> int:
    """Virtual ns of the loop with launches on one stream, or on two."""
    loop = Loop(**settings)
    submission = TwoQueues(loop.card.companion) if streams == 2 else OneQueue()
    return loop.run(submission)


def figures() -> list[Figure]:
    """Makespan against what the busiest pipeline needs, and against one stream."""
    two, one = makespan(2) / 1e3, makespan(1) / 1e3
    bound = STEPS * max(COMPUTE, PREPARATION + TRANSFER) / 1e3
    what = f"{STEPS} decode steps, two-stream launches"
    return [
        ratio(f"{what} / busiest pipeline", two, bound, "virtual µs", 1.05),
        ratio(f"{what} / one stream", two, one, "virtual µs", 0.65),
    ]
