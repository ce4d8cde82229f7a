"""What the tests of streams share: work that takes known virtual time, and who did what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.emulator.timeline import Record
from torch_spyre_ref.runtime import HostCallback, Queue

LONG = 1 << 18
"""Elements of float32 whose transfer takes some 17 µs: far longer than a few calls do."""


def queue_of(stream: torch.Stream) -> Queue:
    """The queue behind a stream."""
    queue: Queue = backend.current().streams.queue(stream.device_index, stream.stream_id)
    return queue


def busy(stream: torch.Stream, nanoseconds: int = 50_000) -> None:
    """Keep a stream busy, and no pipeline."""
    queue_of(stream).submit(HostCallback(_nothing, nanoseconds))


def _nothing() -> None:
    pass


def fail(stream: torch.Stream, error: Exception) -> None:
    """Have an operation of a stream fail, after what it has to do already."""

    def function() -> None:
        raise error

    queue_of(stream).submit(HostCallback(function, 50_000))


def pinned(elements: int, value: float = 1.0) -> torch.Tensor:
    """Host memory that a stream copies from or to while the host goes on."""
    return torch.full((elements,), float(value)).pin_memory()


@contextmanager
def recorded() -> Iterator[list[Record]]:
    """What the cards did in the block, once it is over; poison and what tests add are left out."""
    timeline, done = backend.current().runtime.timeline, []
    settle()
    timeline.clear()
    yield done
    settle()
    done += [r for r in timeline if r.label != "poison" and r.pipeline not in ("host", "control")]


def settle() -> None:
    """Wait for both cards, whatever errors there are."""
    for card in backend.current().runtime.cards:
        card.settle()
