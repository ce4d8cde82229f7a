# Produced by chapters/04_streams.py: edit it there, then run `make tangle`.
"""A stream is a queue of the card, an event its latest signal, and a launch uses two queues.

Streams and events are PyTorch's own classes; this is what their methods reach through the device
guard. Every stream stands for an ordered queue of the runtime. Moving and computing are separate
pipelines, and one queue keeps all but one of them idle: so a launch is prepared on a second queue,
which its stream has to itself, while the stream computes what was launched before.
"""

import itertools
from collections.abc import Callable

import torch  # noqa: F401 (it loads the libraries that the bridge needs)

from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.queueing.errors import pass_on
from torch_spyre_ref.queueing.pool import StreamPool, priority_of
from torch_spyre_ref.runtime import EventSignal, EventWait, Queue, QueueError
from torch_spyre_ref.submission import BoundLaunch, OneQueue


# Give every stream a queue
class StreamDriver:
    """What PyTorch asks about streams, each known by its card and its number on it."""

    def __init__(self, backend: backend.Backend) -> None:
        self._backend = backend
        self._pools: dict[int, StreamPool] = {}
        self._queues: dict[tuple[int, int], Queue] = {}

    def current_queue(self, device: int) -> Queue:
        """The queue of this thread's current stream on a card."""
        return self.queue(device, _bridge.current_stream(device))

    def queue(self, device: int, stream: int) -> Queue:
        """The queue behind a stream, made when it is first asked for."""
        return self._queues.get((device, stream)) or self._open(device, stream)

    def _open(self, device: int, stream: int) -> Queue:
        priority, runtime = priority_of(stream), self._backend.runtime
        with runtime.clock:
            if (device, stream) not in self._queues:
                card = runtime.cards[device]
                queue = card.new_queue(priority) if stream else card.default_queue
                self._queues[device, stream] = queue
            return self._queues[device, stream]

    def new_stream(self, device: int, priority: int) -> int:
        """A stream of the card's pool, and none that an error has poisoned."""
        queues = self._queues

        def is_good(stream: int) -> bool:
            queue = queues.get((device, stream))
            return queue is None or queue.error is None

        return self._pools.setdefault(device, StreamPool()).take(priority, is_good)

    def synchronize_stream(self, device: int, stream: int) -> None:
        """Wait until the stream is empty, and raise its first error."""
        if self._backend.started or self._backend.in_bad_fork:
            self.queue(device, stream).synchronize()

    def query_stream(self, device: int, stream: int) -> bool:
        """Whether everything enqueued so far is done."""
        idle = not (self._backend.started or self._backend.in_bad_fork)
        return idle or self.queue(device, stream).query()

    def stream_handle(self, device: int, stream: int) -> int:
        """A number that stands for the stream's queue: never null, one a stream.

        Raises ``ValueError`` for a number that no stream has.
        """
        priority_of(stream)
        return (device + 1) << 32 | (stream + 1)

    def after_fork(self) -> None:
        """In a forked child: the parent's queues are out of reach."""
        self._queues.clear()

    def refuse_in_fork(self) -> None:
        """Raise ``RuntimeError`` in a child that was forked after the cards had started."""
        self._backend.require_cards()


# Let an event mean its latest signal
class EventDriver:
    """What PyTorch asks about events, each known by a handle."""

    def __init__(self, streams: StreamDriver) -> None:
        self._streams = streams
        self._signals: dict[int, EventSignal] = {}
        self._handles = itertools.count(1)

    def record_event(self, handle: int, device: int, stream: int, timing: bool) -> int:
        """Enqueue a new signal; its event's handle. Earlier waiters keep the earlier signal.

        Every signal knows its time: ``timing`` is PyTorch's affair, which refuses to ask otherwise.
        """
        signal = EventSignal()
        self._streams.queue(device, stream).submit(signal)
        handle = handle or next(self._handles)
        self._signals[handle] = signal
        return handle

    def block_event(self, handle: int, device: int, stream: int) -> None:
        """Make a stream wait for the event's latest signal."""
        self._streams.queue(device, stream).submit(EventWait(self._signals[handle]))

    def query_event(self, handle: int) -> bool:
        """Whether the latest signal has fired. Raises as ``synchronize_event`` does."""
        signal = self._latest(handle)
        queue, ticket = _place(signal)
        if queue.completed(ticket) and signal.time is None:
            queue.wait(ticket)
        return signal.time is not None

    def synchronize_event(self, handle: int) -> None:
        """Wait for the latest signal. Raises the error that kept it from firing."""
        queue, ticket = _place(self._latest(handle))
        queue.wait(ticket)

    def elapsed_time(self, start: int, end: int) -> float:
        """Virtual milliseconds between two signals, which PyTorch has seen to have fired."""
        first, last = self._latest(start).time, self._latest(end).time
        if first is None or last is None:
            raise RuntimeError("an event has not fired yet: call its synchronize() first")
        return (last - first) / 1e6

    def destroy_event(self, handle: int, device: int) -> None:
        """Forget an event; who waits for it already keeps its signal."""
        self._signals.pop(handle, None)

    def _latest(self, handle: int) -> EventSignal:
        """The latest signal. Raises ``RuntimeError`` in a forked child, which has no cards."""
        self._streams.refuse_in_fork()
        return self._signals[handle]


def _place(signal: EventSignal) -> tuple[Queue, int]:
    event = signal.event
    assert event.queue is not None and event.ticket is not None
    return event.queue, event.ticket


# Find the queue that launches are prepared on
def preparation_queue(queue: Queue) -> Queue:
    """The queue on which the launches of ``queue`` are prepared."""
    return backend.current().runtime.cards[queue.device].companion(queue)


# Prepare the next launch while this one computes
class TwoQueues(OneQueue):
    """A launch is prepared on a queue of its own, and computed on its stream's.

    Two rules order the two: a program waits until its patch is in its slot; a patch goes to a slot
    when the program that was patched from it before has ended. Packing itself is held up by
    neither, only by the transfers before it in its queue. So it overlaps computing, and with two
    slots the transfer of a patch does too.

    While a stream has nothing to do there is nothing to overlap: its launch stays on its own queue.
    """

    def __init__(self, companion: Callable[[Queue], Queue] = preparation_queue) -> None:
        self._companion = companion

    def prepares_on(self, queue: Queue) -> Queue:
        """See :class:`torch_spyre_ref.submission.Submission`."""
        return self._companion(queue) if queue.is_busy else queue

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        """See :class:`torch_spyre_ref.submission.Submission`."""
        first = bound.prepared_on
        if first is queue or not bound.preparation:
            return super().launch(queue, bound)
        try:
            return self._launch(first, queue, bound)
        except QueueError:
            pass_on(first, queue)
            raise

    def _launch(self, first: Queue, queue: Queue, bound: BoundLaunch) -> int:
        with queue.clock:  # entering it once is cheaper than once for each queue
            before = bound.slot.reader()
            ready = first.submit_prepared(bound.preparation, bound.label, behind=before)
            return queue.submit_prepared(bound.compute, bound.label, after=(first, ready))
