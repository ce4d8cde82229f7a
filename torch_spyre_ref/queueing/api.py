"""What torch.spyre offers about streams: CUDA's names, around PyTorch's own classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.device import index_of
from torch_spyre_ref.queueing.pool import DEFAULT
from torch_spyre_ref.streams import TwoQueues
from torch_spyre_ref.submission import OneQueue, use

Stream, Event = torch.Stream, torch.Event


def current_stream(device: torch.device | int | str | None = None) -> torch.Stream:
    """This thread's current stream on a card; a new thread starts on the default one."""
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: torch.device | int | str | None = None) -> torch.Stream:
    """A card's default stream, which has number 0."""
    index = index_of(device)
    kind = torch.accelerator.current_stream(index).device_type
    return torch.Stream(stream_id=DEFAULT, device_index=index, device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream this thread's current one, and its card too; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class stream:  # noqa: N801 (torch's own name for it)
    """``with torch.spyre.stream(s):`` makes a stream and its card current in the block.

    None changes nothing. Afterwards that card has its former stream, and the card is current that
    was so before.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: list[tuple[int, torch.Stream]] = []  # one a block: it may be entered again

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            card = torch.accelerator.current_device_index()
            self._before.append((card, current_stream(self.stream.device)))
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            card, former = self._before.pop()
            torch.accelerator.set_stream(former)
            torch.accelerator.set_device_index(card)


def reset(device: torch.device | int | str | None = None) -> None:
    """Make a card's queues good again after an error: the running operation ends, others go.

    Memory stays as it is. What was dropped has not happened, and nobody is told: have the other
    threads that use the card stop first, or they go on with bytes that were not written.
    """
    runtime = backend.current().runtime
    for queue in tuple(runtime.cards[index_of(device)].queues):
        queue.reset()


@contextmanager
def preparation_stream(on: bool = True) -> Iterator[None]:
    """In the block, prepare launches on a second queue of a busy stream, as by default, or do not.

    It holds for all threads and cards, which it waits for on the way in and out. Results are the
    same either way, times are not.
    """
    with use(TwoQueues() if on else OneQueue()):
        _settle()
        yield
        _settle()


@contextmanager
def derive_edges(on: bool = True) -> Iterator[None]:
    """In the block, order what touches the same memory on different streams, or do not.

    Off, as on CUDA, only events do: run a test so, under ``torch.spyre.sanitizer()``, to see
    whether the code is portable. It is stricter than CUDA in one place: freed memory goes to
    whichever stream asks first (CUDA's allocator keeps it for the stream that it was made on). It
    holds for all threads and cards, which it waits for on the way in and out.
    """
    with backend.current().runtime.deriving(on):
        yield


def _settle() -> None:
    if backend.current().started:
        for card in backend.current().runtime.cards:
            card.settle()


EXPORTS = (
    Stream,
    Event,
    stream,
    current_stream,
    default_stream,
    set_stream,
    reset,
    preparation_stream,
    derive_edges,
)
