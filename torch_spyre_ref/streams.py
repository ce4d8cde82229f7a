"""What PyTorch asks about streams and events, for cards with one stream each.

Streams and events are PyTorch's own classes; this is what their methods reach through the device
guard. A card has its default stream, an ordered queue of the runtime, and no other yet.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.device import index_of
from torch_spyre_ref.runtime import EventSignal, EventWait, Queue


@dataclass(slots=True)
class RecordedEvent:
    """The latest recording of one event: the signal that it enqueued, and where."""

    signal: EventSignal
    queue: Queue
    ticket: int


class StreamDriver:
    """Streams by (card, id) and events by handle."""

    def __init__(self, backend: backend.Backend) -> None:
        self._backend = backend
        self._events: dict[int, RecordedEvent] = {}
        self._handles = itertools.count(1)

    def queue(self, device: int, stream: int) -> Queue:
        """The runtime's queue behind a stream."""
        return self._backend.runtime.cards[device].default_queue

    def new_stream(self, device: int, priority: int) -> int:
        """Refused: a card has its default stream only."""
        raise RuntimeError(
            f"spyre:{device} has one stream, its default one; further streams are not there yet. "
            f"Use torch.accelerator.current_stream({device})."
        )

    def synchronize_stream(self, device: int, stream: int) -> None:
        """Wait until the stream is empty, and raise its first error."""
        if self._backend.started:
            self.queue(device, stream).synchronize()

    def query_stream(self, device: int, stream: int) -> bool:
        """Whether everything enqueued so far is done."""
        return not self._backend.started or self.queue(device, stream).query()

    def stream_handle(self, device: int, stream: int) -> int:
        """A number that stands for the stream's queue: never null, one a stream."""
        return (device + 1) << 32 | (stream + 1)

    def record_event(self, handle: int, device: int, stream: int, timing: bool) -> int:
        """Enqueue a signal; its event's handle. Earlier waiters keep the earlier signal.

        Every signal knows its time: ``timing`` is PyTorch's affair, which refuses to ask otherwise.
        """
        queue = self.queue(device, stream)
        signal = EventSignal()
        ticket = queue.submit(signal)
        handle = handle or next(self._handles)
        self._events[handle] = RecordedEvent(signal, queue, ticket)
        return handle

    def block_event(self, handle: int, device: int, stream: int) -> None:
        """Make a stream wait for the event's latest recording."""
        self.queue(device, stream).submit(EventWait(self._events[handle].signal))

    def query_event(self, handle: int) -> bool:
        """Whether the latest recording has fired."""
        event = self._events[handle]
        event.queue.query()
        return event.queue.completed(event.ticket)

    def synchronize_event(self, handle: int) -> None:
        """Wait for the latest recording."""
        event = self._events[handle]
        event.queue.wait(event.ticket)

    def elapsed_time(self, start: int, end: int) -> float:
        """Virtual milliseconds between two recordings that have fired."""
        first, last = self._events[start], self._events[end]
        for event in (first, last):
            event.queue.query()
        if first.signal.time is None or last.signal.time is None:
            raise RuntimeError("an event has not fired yet: call its synchronize() first")
        return (last.signal.time - first.signal.time) / 1e6

    def destroy_event(self, handle: int, device: int) -> None:
        """Forget an event; who waits for it already keeps its signal."""
        self._events.pop(handle, None)


def reset(device: torch.device | int | str | None = None) -> None:
    """Make a card's queues good again after an error: the running operation ends, others go.

    Memory stays as it is. What was dropped has not happened.
    """
    runtime = backend.current().runtime
    for queue in runtime.cards[index_of(device)].queues:
        queue.reset()


EXPORTS = (reset,)
