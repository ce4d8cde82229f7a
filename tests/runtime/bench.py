"""A small machine for the runtime's tests: quick figures, and shorthands for its operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_spyre_ref.emulator import CardSpec
from torch_spyre_ref.runtime import (
    D2H,
    H2D,
    Chunk,
    CompositeAddress,
    Compute,
    DeviceRange,
    PinnedBuffer,
    Queue,
    Runtime,
)

SPEC = CardSpec(
    memory=1 << 20,
    link_latency=5,
    link_rate=128,
    move_latency=3,
    move_rate=128,
    callback_time=7,
    submit_time=10,
    query_time=2,
)


class Bench:
    """A runtime whose card 0 has one region, all of it one address."""

    def __init__(self, spec: CardSpec = SPEC, **settings: Any) -> None:
        self.runtime = Runtime(spec, **settings)
        self.card = self.runtime.cards[0]
        self.queue = self.card.default_queue
        self.clock = self.runtime.clock
        region = self.card.card.regions.acquire(SPEC.region, 0)
        self.address = CompositeAddress((Chunk(region.id, 0, region.size),))
        self.bytes = self.card.card.memory.region(region.id)

    def at(self, offset: int, nbytes: int = 128) -> DeviceRange:
        return DeviceRange.contiguous(self.address, offset, nbytes)

    def pinned(self, value: int = 0, nbytes: int = 128) -> PinnedBuffer:
        buffer = self.runtime.pinned.allocate(nbytes)
        buffer.array[:] = value
        return buffer

    def h2d(self, value: int, offset: int = 0, nbytes: int = 128) -> H2D:
        return H2D(self.pinned(value, nbytes).array, self.at(offset, nbytes))

    def read(self, offset: int = 0, nbytes: int = 128, queue: Queue | None = None) -> list[int]:
        queue = queue or self.queue
        buffer = self.pinned(0, nbytes)
        queue.wait(queue.submit(D2H(self.at(offset, nbytes), buffer.array)))
        values: list[int] = np.unique(buffer.array).tolist()
        return values


def idle(duration: int) -> Compute:
    """Occupy the compute pipeline and do nothing."""
    return Compute(duration, lambda memory: None)


class BrokenError(Exception):
    """What :func:`broken` raises."""


def broken(duration: int = 100, message: str = "a fuse blew") -> Compute:
    """Occupy the compute pipeline, then fail."""

    def effect(memory: object) -> None:
        raise BrokenError(message)

    return Compute(duration, effect)
