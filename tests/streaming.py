"""What the tests of streams share: work that takes known virtual time, and who did what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.emulator.timeline import Record
from torch_spyre_ref.runtime import HostCallback, Queue
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, Scalar, write_artifact

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


def write_scale(directory: Path, elements: int) -> Path:
    """An artifact in ``directory``: out = x * factor + shift, so many elements of float32."""
    asm = Assembler("scale")
    n = asm.dimension("n", elements)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    factor, shift = asm.float_symbol(), asm.size_symbol()
    asm.store(out, {n: 1}, asm.load(x, {n: 1}) * factor + shift)
    spec = LaunchSpec.of(
        [
            Argument("x", "input", "float32", (elements,), (1,)),
            Argument("out", "output", "float32", (elements,), (1,)),
        ],
        [],
        [Scalar("factor", "float"), Scalar("shift", "integer")],
    )
    write_artifact(directory, encode(asm.assemble()), spec, name="scale")
    return directory
