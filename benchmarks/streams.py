"""Streams: how full the card gets when it decodes, in virtual time, which is exact; and what
derived edges cost the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Figure, in_turns, ratio
from benchmarks.programs import ADD, add, prepared
from torch_spyre_ref import backend
from torch_spyre_ref.emulator import CardSpec
from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.launch import JobPlan, launch_jobplan
from torch_spyre_ref.runtime import (
    H2D,
    Chunk,
    CompositeAddress,
    Compute,
    DeviceRange,
    HostCallback,
    Queue,
    Runtime,
)
from torch_spyre_ref.streams import TwoQueues
from torch_spyre_ref.submission import BoundLaunch, OneQueue, Slot, Submission

COMPUTE, PREPARATION, TRANSFER = 100_000, 40_000, 30_000  # virtual ns a step
STEPS, SLOTS, SLOT_BYTES = 100, 2, 128
STREAMS, PENDING = 8, 1000
BUSY = 1 << 30  # virtual ns: longer than the host needs for all launches, so that none is due


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
        self.staging: dict[tuple[int, Queue], Bytes] = {}
        self.seen: list[int] = []

    def run(self, submission: Submission, steps: int = STEPS) -> int:
        """Virtual ns from the first submission until all is done."""
        queue, start = self.card.default_queue, self.runtime.clock.now
        for step in range(steps):
            slot = self.slots[step % len(self.slots)]
            first = submission.prepares_on(queue)
            slot.ticket = submission.launch(queue, self.bound(step, slot, first))
            slot.queue = queue
        queue.synchronize()
        return self.runtime.clock.now - start

    def bound(self, step: int, slot: Slot, first: Queue) -> BoundLaunch:
        """The launch of one step: its program notes which patch it finds in its slot."""
        prepare, staging = self.card.default_queue.prepare, self._staging(slot, first)
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
        return BoundLaunch(job, slot, b"", (), (), first, preparation, program)

    def _staging(self, slot: Slot, first: Queue) -> Bytes:
        """Where ``first``, and no other queue, packs the patches of a slot."""
        if (slot.number, first) not in self.staging:
            buffer = self.runtime.pinned.allocate(SLOT_BYTES)
            self.staging[slot.number, first] = buffer.array
        return self.staging[slot.number, first]


def makespan(streams: int, **settings: Any) -> int:
    """Virtual ns of the loop with launches on one stream, or on two."""
    loop = Loop(**settings)
    submission = TwoQueues(loop.card.companion) if streams == 2 else OneQueue()
    return loop.run(submission)


def virtual() -> list[Figure]:
    """Makespan against what the busiest pipeline needs, and against one stream."""
    two, one = makespan(2) / 1e3, makespan(1) / 1e3
    bound = STEPS * max(COMPUTE, PREPARATION + TRANSFER) / 1e3
    what = f"{STEPS} decode steps, two-stream launches"
    return [
        ratio(f"{what} / busiest pipeline", two, bound, "virtual µs", 1.05),
        ratio(f"{what} / one stream", two, one, "virtual µs", 0.65),
    ]


def derivation() -> list[Figure]:
    """A launch of ``c = a + b``, three tensors of 64 elements, with derivation on / off."""
    shared = [_tensors()] * STREAMS
    own = [_tensors() for _ in range(STREAMS)]
    queues = [backend.current().streams.queue(0, 1 + number) for number in range(STREAMS)]
    many = f"{STREAMS} streams, {PENDING:,} operations pending"
    cases = (
        ("one stream, 1 launch after the other", queues[:1], shared, _in_turn, 1.05),
        (f"one stream, {PENDING:,} operations pending", queues[:1], shared, _at_once, 1.05),
        (f"{many}, all on the same tensors", queues, shared, _at_once, 1.6),
        (f"{many}, each on its own", queues, own, _at_once, 1.6),
    )
    return [_on_against_off(*case) for case in cases]


def _tensors() -> list[torch.Tensor]:
    return [torch.full((64,), value).to("spyre:0") for value in (1.0, 2.0, 0.0)]


Args = Sequence[Sequence[torch.Tensor]]
Way = Callable[[JobPlan, Sequence[Queue], Args], float]


def _on_against_off(
    what: str, queues: Sequence[Queue], args: Args, way: Way, goal: float
) -> Figure:
    runtime, plan = backend.current().runtime, prepared(add(), ADD)

    def seconds(on: bool) -> float:
        with runtime.deriving(on):
            return way(plan, queues, args)

    on, off = in_turns(partial(seconds, True), partial(seconds, False))
    return ratio(f"launch with derivation on / off: {what}", on * 1e6, off * 1e6, "µs", goal)


def _at_once(plan: JobPlan, queues: Sequence[Queue], args: Args) -> float:
    """Host seconds a launch while nothing can be done, until there are enough pending."""
    launches = PENDING // 3
    for queue in queues:
        queue.submit(HostCallback(lambda: None, BUSY))
    turns = [(queue, list(mine)) for queue, mine in zip(queues, args, strict=False)]
    start = time.thread_time()
    for number in range(launches):
        queue, tensors = turns[number % len(turns)]
        launch_jobplan(plan, tensors, queue=queue)
    seconds = (time.thread_time() - start) / launches
    for queue in queues:
        queue.synchronize()
    return seconds


def _in_turn(plan: JobPlan, queues: Sequence[Queue], args: Args) -> float:
    """Host seconds a launch, from its submission to its end."""
    (queue,), tensors, launches = queues, list(args[0]), PENDING // 3
    start = time.thread_time()
    for _ in range(launches):
        queue.wait(launch_jobplan(plan, tensors, queue=queue))
    return (time.thread_time() - start) / launches


def figures() -> list[Figure]:
    """How full the card gets, and what deriving edges costs."""
    return [*virtual(), *derivation()]
