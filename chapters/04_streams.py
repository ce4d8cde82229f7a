# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A stream is a queue of the card, an event its latest signal, and a launch uses two queues
#
# Streams and events are PyTorch's own classes; this is what their methods reach through the device
# guard. Every stream stands for an ordered queue of the runtime. Moving and computing are separate
# pipelines, and one queue keeps all but one of them idle: so a launch is prepared on a second queue,
# which its stream has to itself, while the stream computes what was launched before.
#
# ## You will build
#
# - **The modules** `torch_spyre_ref/runtime/hazards.py`, which finds the order that two queues need
#   from the bytes they touch, and `torch_spyre_ref/streams.py`, what PyTorch's streams and events
#   mean on this card, and launches that are prepared ahead of their turn.
# - **What it enables**: `torch.Stream` and `torch.Event` with everything that PyTorch promises of
#   them; transfers that run under computations; memory that changes hands between streams and stays
#   right.
# - **Not built here**: the queues themselves, the interval map, the vector clocks and the race
#   checker, which are written by hand and used; and the guard in C++ that carries PyTorch's questions
#   to Python.
# - **Time**: about two hours.
# - **You need**: operations, queues and events of [chapter 0](00_the_card.ipynb). The last third is
#   about launches and their correction slots, which are [chapter 3](03_launch.ipynb).
#
# If you can tell what this prints before you look, you are ready:

# %%
from itertools import permutations

orders = [order for order in permutations("abxy") if order.index("a") < order.index("b")]
orders = [order for order in orders if order.index("x") < order.index("y")]
right = [order for order in orders if order.index("b") < order.index("x")]
print(len(orders), len(right))

# %% [markdown]
# Two queues, `a` before `b` in one of them and `x` before `y` in the other: six things can happen. If
# `x` needs what `b` made, only one of the six is right. This chapter is about saying that, and no more
# than that.

# %% [markdown]
# ## The constraint: one queue does one thing at a time
#
# Four batches go to the card, every number is doubled, and the results come back. All of it on one
# stream, as most PyTorch programs are written. (Programs for the card are chapter 3's matter, and come
# back when launches do. Until then a computation is once more a duration and a NumPy function.)

# %%
import dataclasses
import gc
import os

import numpy as np
import torch

import torch_spyre_ref
from torch_spyre_ref import backend
from torch_spyre_ref.aten.copies import device_range, queue_of
from torch_spyre_ref.parts import Parts
from torch_spyre_ref.runtime import Compute
from torch_spyre_ref.submission import OneQueue

os.environ["TORCH_SPYRE_REF_MEMORY"] = "512M"
os.environ["TORCH_SPYRE_REF_DERIVE_EDGES"] = "0"
os.environ["TORCH_SPYRE_REF_EAGER"] = "fallback"  # operators compute on the CPU until chapter 5


def is_on_card(value):
    """Whether a value is a tensor of a card."""
    return isinstance(value, torch.Tensor) and value.device.type == "spyre"


def install(**parts):
    """Have PyTorch use these classes, and the shipped ones for every other part.

    The parts that made a tensor must free it, so this notebook drops its own.
    """
    for name in [name for name, value in globals().items() if is_on_card(value)]:
        del globals()[name]
    gc.collect()  # errors hold on to the calls that they came from
    chosen = {"submission": OneQueue, **parts}
    torch_spyre_ref.register(parts=dataclasses.replace(Parts(), **chosen))


ELEMENTS = 1 << 18  # of float32: a mebibyte


def pinned(value):
    """Host memory that the card can copy from and to by itself."""
    return torch.full((ELEMENTS,), float(value)).pin_memory()


def only(tensor):
    """The one number that a tensor is full of."""
    return int(tensor[0]) if tensor.eq(tensor[0]).all() else "a mixture"


def compute(function, source, target, label="", duration=10_000):
    """On the current stream, ``target`` becomes a NumPy function of ``source``."""
    reads, writes = device_range(source), device_range(target)

    def effect(memory):
        values = memory.read(reads).view(np.float32)
        memory.write(writes, function(values).astype(np.float32).view(np.uint8))

    queue_of(target).submit(Compute(duration, effect, (reads,), (writes,)), label)


def double(values):
    return values * 2


install()
torch.spyre.set_fallback_policy("silent")

# %% [markdown]
# `install` swaps classes of the backend, as in the chapters before. `DERIVE_EDGES=0` says that the
# runtime must not order queues by itself. That comes later, and would hide what comes first.
#
# The job is written so that its three steps may run on any three streams. What makes a stream wait for
# another is an argument, too: `torch.Stream.wait_stream` where the two differ.


# %%
from torch_spyre_ref.emulator.figures import gantt


def join(earlier, later):
    """Have ``later`` wait for what ``earlier`` has been given so far."""
    if earlier != later:
        later.wait_stream(earlier)


def observe(action, *arguments):
    """Run an action to its end: what it gave, and what the card did, from 0 on its clock."""
    with torch.spyre.profiler() as profile:
        result = action(*arguments)
    begun = profile.window[0]
    return result, [
        one._replace(submitted=one.submitted - begun, start=one.start - begun, end=one.end - begun)
        for one in profile.operations
        if one.label != "poison"  # what the sanitizer fills new memory with takes no time
    ]


def double_batches(send, work, fetch, join=join):
    """Send four batches, double them, fetch them: what came back, and what the card did."""
    batches, results = [pinned(number) for number in (1, 2, 3, 4)], [pinned(0) for _ in range(4)]
    sent, doubled = torch.zeros(2, 4, ELEMENTS, device="spyre")

    def run():
        for number, name in enumerate("ABCD"):
            with send:
                sent[number].copy_(batches[number], non_blocking=True)
            join(send, work)
            with work:
                compute(double, sent[number], doubled[number], name)
            join(work, fetch)
            with fetch:
                results[number].copy_(doubled[number], non_blocking=True)

    _, records = observe(run)
    return [only(result) for result in results], records


def bars(records):
    """What kept a pipeline busy, with the letter of the batch: a pipeline takes them in turn."""
    letters = {pipeline: iter("ABCDEFGH") for pipeline in ("h2d", "compute", "d2h")}
    return [
        record._replace(label=record.label or next(letters[record.pipeline]))
        for record in records
        if record.pipeline in letters
    ]


one = torch.Stream("spyre")
from_one, one_stream = double_batches(one, one, one)
print("back:", from_one)
assert from_one == [2, 4, 6, 8]
gantt(bars(one_stream), "Four batches on one stream: in, compute, out, one after another")

# %% [markdown]
# The card has a pipeline for each of the three things, and at any moment two of them are idle. Nothing
# is wrong with the card. A stream promises that its operations come one after another, and it keeps
# that promise where nobody needs it: the second batch could travel while the first is computed.

# %%
from itertools import pairwise

assert all(a.end == b.start for a, b in pairwise(bars(one_stream)))
makespan = one_stream[-1].end
for pipeline in ("h2d", "compute", "d2h"):
    busy = sum(record.end - record.start for record in one_stream if record.pipeline == pipeline)
    print(f"{pipeline:<8}{busy:7,} of {makespan:,} ns, {busy / makespan:.0%}")

# %% [markdown]
# ## The contract: what PyTorch asks about streams and events
#
# `torch.Stream` and `torch.Event` are classes of PyTorch's. A backend writes no class of its own. It
# implements one C++ interface, `c10::impl::DeviceGuardImplInterface`, and PyTorch's classes work. In
# PyTorch 2.13 (`…` stands for `torch.accelerator`):
#
# | when this happens | the guard is asked |
# | --- | --- |
# | `torch.Stream("spyre", priority=-1)` | `Stream getNewStream(Device, int priority)` |
# | `….current_stream()`, and each time an operator needs to know | `Stream getStream(Device)` |
# | `with stream:`, `….set_stream(stream)` | `Stream exchangeStream(Stream)` |
# | `stream.query()` | `bool queryStream(const Stream&)` |
# | `stream.synchronize()` | `void synchronizeStream(const Stream&)` |
# | `….synchronize()` | `void synchronizeDevice(const DeviceIndex)` |
# | `event.record(stream)`, `stream.record_event()` | `void record(void** event, const Stream&, const DeviceIndex, const EventFlag)` |
# | `event.wait(stream)`, `stream.wait_event(event)` | `void block(void* event, const Stream&)` |
# | `later.wait_stream(earlier)` | both: `record` on `earlier`, then `block` on `later` |
# | `event.query()`, `event.synchronize()` | `bool queryEvent(void*)`, `void synchronizeEvent(void*)` |
# | `start.elapsed_time(end)` | `double elapsedTime(void*, void*, const DeviceIndex)` |
# | the last reference to an event goes | `void destroyEvent(void*, const DeviceIndex) noexcept` |
# | `stream.native_handle` | `void* getStreamNativeHandle(const Stream)` |
# | a future's value is used on another stream; `tensor.record_stream(stream)` ends in the same place | `void recordDataPtrOnStream(const DataPtr&, const Stream&)` |
#
# To PyTorch a stream is a device and a number, and an event is a `void*` that it keeps and never
# follows. Which stream is current, for each thread and each card, is kept in C++, because that is asked
# all the time. Everything else our guard hands to the [driver](../docs/glossary.md#driver):
#
# ```cpp title="csrc/guard.cpp"
# --8<-- "csrc/guard.cpp:guard-events"
# ```
#
# An event is a null pointer until it is recorded. Nobody waits for a null pointer, and it counts as
# done. Here the shipped driver says what reaches it:

# %%
from inspect import signature

import torch_spyre_ref.streams as shipped


def telling(base, *names):
    """A class like ``base`` whose methods of these names say what they are asked, and answer."""

    def tell(name):
        _, *words = signature(getattr(base, name)).parameters

        def method(self, *asked):
            answer = getattr(base, name)(self, *asked)
            pairs = ", ".join(f"{word} {value}" for word, value in zip(words, asked, strict=True))
            print(f"    {name}({pairs}) -> {answer}")
            return answer

        return method

    return type(f"Telling{base.__name__}", (base,), {name: tell(name) for name in names})


install(
    stream_driver=telling(shipped.StreamDriver, "new_stream", "query_stream", "synchronize_stream"),
    event_driver=telling(
        shipped.EventDriver, "record_event", "block_event", "query_event", "destroy_event"
    ),
)
print("first, second = torch.Stream(), torch.Stream()")
first, second = torch.Stream("spyre"), torch.Stream("spyre")
print("event = torch.Event(); event.query()")
event = torch.Event("spyre")
assert event.query()
print("with first: event.record()")
with first:
    event.record()
print("second.wait_event(event)")
second.wait_event(event)
print("event.query(); second.synchronize()")
event.query()
second.synchronize()
print("del event")
del event
assert torch.spyre.Stream is torch.Stream
assert torch.spyre.Event is torch.Event

# %% [markdown]
# Cards and streams are numbers, and an event goes by the handle that the driver gave it when it was
# recorded first (before that, 0). `with first:` asked nothing, and neither did the query of an event
# that was never recorded.
#
# ### The calls beside CUDA's
#
# Whoever comes from CUDA knows all of these by other names. On this card each of them is an operation
# in a queue, or a question about one.
#
# | CUDA | PyTorch | here |
# | --- | --- | --- |
# | `cudaStreamCreateWithPriority`; PyTorch keeps a pool of 32 a priority | `torch.Stream(device, priority=…)` | a number from the card's pool, 32 a priority; its queue is made at first use |
# | the legacy default stream, which waits for blocking streams and they for it (those of PyTorch's pool are not) | `torch.accelerator.current_stream()` at first | number 0: a queue like any other |
# | `cudaEventRecord(event, stream)` | `event.record(stream)` | enqueues a new `EventSignal`; it fires when everything enqueued before it is complete |
# | `cudaStreamWaitEvent(stream, event)` | `stream.wait_event(event)` | enqueues an `EventWait` for the latest signal; fails at once when the producing queue ends first |
# | `cudaEventQuery(event)`, `cudaEventSynchronize(event)` | `event.query()`, `event.synchronize()` | whether the latest signal has fired; holds the host until it has |
# | `cudaEventElapsedTime`, milliseconds, as the GPU measured them | `start.elapsed_time(end)` | milliseconds of virtual time, exact |
# | `cudaStreamQuery`, `cudaStreamSynchronize` | `stream.query()`, `stream.synchronize()` | the second holds the host until the queue is empty, and raises the queue's first error, once |
# | `cudaDeviceSynchronize` | `torch.accelerator.synchronize()` | all queues of the card; raises the earliest error |
# | `cudaLaunchHostFunc(stream, function, …)` | none | `HostCallback(function)`; it may not call the runtime, as CUDA's may not |
# | `cudaMemcpyAsync(…, stream)` | `copy_(…, non_blocking=True)` on pinned memory | `H2D`, `D2H`, `D2D` |
# | a kernel's fault is sticky: every later call of the process returns it | | [poisons](../docs/glossary.md#poisoned-queue) one queue; others go on; `torch.spyre.reset()` |
# | order between streams: events, and nothing else | the same | events, and what the runtime derives |

# %% [markdown]
# ## In the field
#
# CUDA's column is from its documentation and PyTorch's sources, openreg's from PyTorch's sources.
# torch-spyre's is from its public sources, issues and pull requests and from the PyTorch blog's post;
# the runtime below it is closed. (A *companion* is a second queue that prepares a stream's launches.
# RAW, WAR and WAW are the three reasons to wait: a read after a write, a write after a read, a write
# after a write. Each has a section below.)
#
# | concept | CUDA | torch-spyre | openreg | here |
# | --- | --- | --- | --- | --- |
# | what runs on a stream | kernels and copies | copies and launches; a launch's preparation on a stream of another pool | nothing: kernels and copies run at once, in the calling thread | copies, fills and launches |
# | streams of a card | a pool of 32 a priority | the default one, 32 low, 32 high, and a pool for host work, 4 by default | 32 a priority, each with a thread of its own | the default one, 32 a priority, and a companion for each that launches |
# | events by users | yes | not in the version read: announced, not implemented | yes | yes |
# | an event recorded again | earlier waiters keep the earlier recording | the draft has events that are used once | earlier waiters wait for the later recording | earlier waiters keep the earlier recording |
# | `query` and what is running | not done until it is over | | a stream is done when its queue is empty, though its last task still runs | not done until it is over |
# | order by footprints | none | first by events in the plan of a launch; now the runtime below finds RAW and WAR as it enqueues (pull request 4101) | none | RAW, WAR and WAW, by default |
# | memory that another stream uses | `record_stream` | a no-op; the blog counts tensors among what is ordered by footprint | a no-op | a no-op, with nothing left to do |
# | preparation of the next launch | the driver's affair | stream 65 prepares, the current stream computes; one stream when the tracker is off | none | a companion queue, while the stream is busy; `torch.spyre.preparation_stream(False)` for one |
# | host staging | the driver's affair | one buffer a plan, which two streams could overwrite (issue 2520); a callback that ran too early (issue 3561); now a fresh buffer for each launch, kept until its transfer is over | none | a buffer for each slot, in queue order or when its launch is over |
# | errors | sticky, for the process | the first one wins, and is thrown once by `synchronize` | error codes | the same as torch-spyre's, by queue, with causes and `reset` |

# %% [markdown]
# ## A picture: the same bars, further to the left
#
# The same job once more on three streams, each step on its own, joined where one step needs the other.
# The axis is that of the first figure.

# %%
install()
streams = [torch.Stream("spyre") for _ in range(3)]
from_three, three_streams = double_batches(*streams)
assert from_three == from_one
gantt(bars(three_streams), "The same on three streams, joined by events", until=makespan)

# %%
lengths = [
    sorted(record.end - record.start for record in bars(run)) for run in (one_stream, three_streams)
]
assert lengths[0] == lengths[1], "nothing was made faster"
print(f"{makespan:,} ns on one stream, {three_streams[-1].end:,} on three")
assert three_streams[-1].end < 0.6 * makespan

# %% [markdown]
# ## Naive first: three streams, and nobody waits
#
# Streams are for overlap, so let us have all of it: the same job, and `join` does nothing.

# %%
raced, racing = double_batches(*streams, join=lambda earlier, later: None)
print("joined:    ", from_three)
print("not joined:", raced)
assert raced != from_three

# %%
fetched_from = min(record.start for record in racing if record.pipeline == "d2h")
computed_at = min(record.end for record in racing if record.pipeline == "compute")
print(f"the first result is fetched from {fetched_from:,} ns on, and computed at {computed_at:,}")
assert fetched_from < computed_at
gantt(
    bars(racing),
    "Nobody waits: A is computed before it has come, and fetched before it is computed",
    until=makespan,
)

# %% [markdown]
# It is even faster, and all zeros: what is fetched is what `doubled` was made with. No call failed,
# and nothing in the results says that they are none.
#
# The [sanitizer](../docs/glossary.md#sanitizer) has a race checker. For each operation it asks: who
# else touches these bytes, and does anything say which of the two comes first? It does not look at who
# happened to win. (`expect` is for drills: it fails if the fault does *not* come.)

# %%
from textwrap import fill

with torch.spyre.sanitizer.expect("race") as reports:
    double_batches(*streams, join=lambda earlier, later: None)


def shown(report):
    """A report, folded to the width of the page."""
    return "\n".join(fill(line, 96, subsequent_indent="    ") for line in str(report).split("\n"))


print(shown(reports[0]))
print(f"... and {len(reports) - 1} more")
assert len(reports) == 8, "for each batch, compute after copy and copy after compute"

# %% [markdown]
# Both operations, both lines of the program (`cell:30` is line 30 of its cell), and what is missing:
# an event. With `join` back in its place the same checker is silent:

# %%
with torch.spyre.sanitizer():
    assert double_batches(*streams)[0] == from_three
print("joined: nothing to report")

# %% [markdown]
# ## Build
#
# ### Every stream has a queue
#
# PyTorch names a stream by its card and a number. Number 0 is there from the beginning, the others
# come from a pool (`StreamPool`, written by hand: 32 of each priority, in turn, as CUDA's). The queue
# behind a number is made when somebody first asks for it. Two threads may ask at once, hence the lock,
# which is the clock's: whoever has it may touch queues. On a card that has not started, every stream
# is idle; in a forked child there are no cards ([chapter 1](01_device.ipynb)), and whoever asks for a
# queue is told so.

# %% Give every stream a queue tags=["export"]
import torch  # noqa: F401 (it loads the libraries that the bridge needs)

from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.queueing.pool import StreamPool, priority_of
from torch_spyre_ref.runtime import Queue


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


# %%
install(stream_driver=StreamDriver)
had_started = torch.spyre.is_initialized()
made = [torch.Stream("spyre", priority=priority) for priority in (0, 0, -1)]
default = torch.accelerator.current_stream()
assert torch.spyre.is_initialized() == had_started, "streams are numbers: they start no card"

print("numbers: ", [stream.stream_id for stream in (default, *made)])
driver = backend.current().streams
queues = [driver.queue(0, stream.stream_id) for stream in (default, *made)]
print("queues:  ", [queue.name for queue in queues])
print("priority:", [queue.priority for queue in queues])

same = torch.Stream(stream_id=made[0].stream_id, device_index=0, device_type=default.device_type)
assert same == made[0] != made[1]
assert len({stream.native_handle for stream in (default, *made)}) == 4
assert torch.Stream("spyre") in [torch.Stream("spyre") for _ in range(32)], "the pool goes round"

# %% [markdown]
# A lower number is a higher priority, and decides who gets a contended pipeline. It never interrupts
# what is running. Three copies to the card, the last of them urgent:

# %%


def copies(streams, target, source):
    """Copy the source to a row of the target on each stream."""
    for stream, row in zip(streams, target, strict=True):
        with stream:
            row.copy_(source, non_blocking=True)


_, records = observe(copies, made, torch.zeros(3, ELEMENTS, device="spyre"), pinned(1))
names = dict(zip([queue.name for queue in queues[1:]], ("first", "second", "urgent"), strict=True))
finished = [names[record.queue] for record in bars(records)]
print("finished:", finished)
assert finished == ["first", "urgent", "second"]

# %% [markdown]
# And every thread has a current stream of its own, as with every device of PyTorch's. A new thread
# begins on the default one, whatever its parent was doing:

# %%
from threading import Thread

seen = []
with made[0]:
    thread = Thread(target=lambda: seen.append(torch.accelerator.current_stream().stream_id))
    thread.start()
    thread.join()
    seen.append(torch.accelerator.current_stream().stream_id)
print("in the thread:", seen[0], "- here:", seen[1])
assert seen == [0, made[0].stream_id]

# %% [markdown]
# ### An event is its latest signal
#
# The runtime has a strict notion of an event: one signal, enqueued once, that fires once; a wait names
# a signal that is in a queue already, so that no circle of waits can be written. PyTorch's event is
# looser. It can be recorded again and again, and everybody who asks means the latest recording, except
# those who wait already: they mean the recording that was the latest *then*.
#
# One becomes the other in one line: each `record` makes a new signal, and the event is a name for the
# last one. Nothing has to be versioned, because no signal ever changes.

# %% Let an event mean its latest signal tags=["export"]
import itertools

from torch_spyre_ref.runtime import EventSignal, EventWait


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


# %% [markdown]
# Who waits for which recording? `busy` keeps a stream, and no pipeline, from being done.

# %%
from torch_spyre_ref.runtime import HostCallback

OURS = {"stream_driver": StreamDriver, "event_driver": EventDriver}
install(**OURS)


def queue_behind(stream):
    """The queue that a stream stands for."""
    return backend.current().streams.queue(stream.device_index, stream.stream_id)


def busy(stream, nanoseconds):
    """Keep a stream busy."""
    queue_behind(stream).submit(HostCallback(lambda: None, nanoseconds))


short, long, early, late = (torch.Stream("spyre") for _ in range(4))
event = torch.Event("spyre")
busy(short, 10_000)
event.record(short)
early.wait_event(event)
busy(long, 1_000_000)
event.record(long)
late.wait_event(event)

early.synchronize()
print("early:", early.query(), " late:", late.query(), " event:", event.query())
assert (early.query(), late.query(), event.query()) == (True, False, False)
late.synchronize()
assert event.query()

# %% [markdown]
# `query` counts what is running, and only a call moves the card's clock. So polling is honest: it says
# no until the work is over, and each poll costs a little.

# %%
busy(short, 3_000)
event.record(short)
answers = [event.query()]
while not answers[-1]:
    answers.append(event.query())
print(f"{len(answers) - 1} times no, then yes")
assert len(answers) > 5

# %% [markdown]
# And two events measure. Their times are virtual, so they can be compared with the data sheet, to the
# nanosecond:

# %%
start, end = (torch.Event("spyre", enable_timing=True) for _ in range(2))
destination = torch.empty(ELEMENTS, device="spyre")
source = pinned(1)
torch.accelerator.synchronize()
with short:
    busy(short, 5_000)  # so that the copy is in the queue before its predecessor ends
    start.record()
    destination.copy_(source, non_blocking=True)
    end.record()
end.synchronize()
spec = backend.current().runtime.spec
took = round(start.elapsed_time(end) * 1e6)
print(f"{took:,} ns for {source.nbytes:,} bytes")
assert took == spec.link_time(spec.sticks(1, source.nbytes))

# %% [markdown]
# With that, the job of the picture runs on your streams and your events, and races no more:

# %%
from_ours, by_ours = double_batches(*(torch.Stream("spyre") for _ in range(3)))
assert from_ours == from_three
assert [record[4:] for record in by_ours] == [record[4:] for record in three_streams]
print(len(by_ours), "operations, each at the same nanosecond as with the shipped classes")

# %% [markdown]
# What it does with streams and events is right on every device of PyTorch's. Each `join` is somebody's
# work, though: somebody has to know what needs what, and be right in all places. A GPU leaves that to
# its users, and cannot do otherwise: the driver of a GPU is handed pointers, and has no idea what a
# kernel does with them. This runtime is handed operations that say what they touch.

# %% [markdown]
# ### Three reasons to wait
#
# Two operations on different queues that use a common byte, one of them to write it, are a **hazard**.
# There are three kinds. A read after a write (RAW) needs the value. A write after a read (WAR) must
# not spoil it. A write after a write (WAW) must be the one that lasts. (Two reads are none.) Which of
# the two comes first? The one that was *submitted* first: that is what the program says, read from top
# to bottom.
#
# To see to it, the runtime adds an **edge**: a signal behind the first, a wait in front of the second.

# %% Say what an edge is tags=["export"] file="runtime/hazards.py"
"""Derived edges: the order between queues that follows from what operations touch.

Two operations on different queues that use the same bytes, one of them to write, need an order: a
reader comes after the writer before it (RAW), a writer after the readers (WAR) and the writer (WAW)
before it. Submission order says which of the two is first. The runtime sees every footprint, so it
adds the order itself, and no more of it than is needed: none within a queue, none against work that
is over, none that follows from other waits.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch_spyre_ref.runtime.intervals import Interval
from torch_spyre_ref.runtime.lowering import new

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.pending import Pending
    from torch_spyre_ref.runtime.queues import Queue


class Edge(NamedTuple):
    """Operation ``ticket`` of ``queue`` comes after operation ``after`` of ``producer``.

    ``reason`` is "RAW", "WAR" or "WAW", ``where`` the first bytes found that both use.
    """

    reason: str
    producer: "Queue"
    after: int
    queue: "Queue"
    ticket: int
    where: Interval

    def __repr__(self) -> str:
        region, start, stop = self.where
        return (
            f"Edge({self.reason} on r{region}[{start}:{stop}]: {self.ticket} of queue "
            f"{self.queue.name} after {self.after} of queue {self.producer.name})"
        )


# %% [markdown]
# ### Who touched these bytes last?
#
# For each new operation, then: whom does it conflict with? To compare it with everything that is
# pending would do, and gets slower with every pending operation; there may be a thousand. The
# **interval map** ([`runtime/intervals.py`](../torch_spyre_ref/runtime/intervals.py)) turns the
# question around. It cuts the bytes of a region into runs. Each run knows its last writer, and for each
# queue its last reader since. A newcomer that reads has to come after the writer. One that writes has
# to come after the readers, or after the writer if nobody has read: the readers came after it
# themselves. Whoever came before these is behind them already. The runs are found by bisection, and
# cut where a newcomer begins or ends inside one. Here it is alone, with letters in the place of queues
# (a **spot** is an interval that somebody reads or writes):

# %%
from torch_spyre_ref.runtime.intervals import Access, IntervalMap, Spot

touched = IntervalMap()
for number, (letter, verb, first_byte, behind) in enumerate(
    (
        ("A", "write", 0, 100),
        ("B", "read", 20, 60),
        ("C", "read", 0, 40),
        ("A", "write", 50, 80),
        ("B", "write", 0, 100),
    ),
    start=1,
):
    spot = Spot(verb == "write", ("r0", first_byte, behind))
    found = touched.take([spot], Access(number, letter))
    after = sorted({f"{reason} {other.queue}{other.ticket}" for reason, other, _ in found})
    print(f"{letter}{number} {verb:<5} {first_byte:2} to {behind:3}, runs: {len(touched)}", end="")
    print(f", after: {', '.join(after) or 'nobody'}")
assert after == ["WAR B2", "WAR C3", "WAW A1", "WAW A4"]
assert len(touched) == 1

# %% [markdown]
# The third row needs to come after `A1` only: two readers may read at once. The last one finds four
# whom it has to come after, in the five runs that were there before it; and when it has written all
# of them, they are one run again, with nothing to remember but itself. The race checker of the
# sanitizer asks the same map, and reports what this module adds.
#
# A loop touches the same bytes over and over. So a spot remembers which run it was, and if that still
# ends where the spot does, nothing has to be found.
#
# An operation may have many operands, and meet the same predecessor in several places. So: each
# predecessor once, and none of its own queue, which is in order anyway.


# %% Find whom an operation must come after tags=["export"] file="runtime/hazards.py"
from collections.abc import Iterable, Sequence

from torch_spyre_ref.runtime.intervals import Access, Conflict, IntervalMap, Spot


def conflicts(touched: IntervalMap, spots: Iterable[Spot], access: Access) -> Sequence[Conflict]:
    """Take in what an operation touches; whom it must come after, the latest first."""
    queue = access.queue
    found = [one for one in touched.take(spots, access) if one[1].queue is not queue]
    if len(found) < 2:
        return found
    first_met = {other.ticket: (reason, other, spot) for reason, other, spot in reversed(found)}
    return [first_met[ticket] for ticket in sorted(first_met, reverse=True)]


# %%
touched = IntervalMap()
writing = [Spot(True, ("r0", 0, 64)), Spot(True, ("r0", 128, 192))]
conflicts(touched, writing, Access(1, "A"))
conflicts(touched, [Spot(True, ("r0", 64, 128))], Access(2, "B"))
adding = [Spot(False, ("r0", 0, 64)), Spot(False, ("r0", 64, 192)), Spot(True, ("r0", 128, 192))]
for reason, other, spot in conflicts(touched, adding, Access(3, "B")):
    region, first_byte, behind = spot.interval
    print(f"{reason} {other.queue}{other.ticket}, found on {region}[{first_byte}:{behind}]")

# %% [markdown]
# Operation 3 meets `A1` three times, and is told once. `B2` is of its own queue.
#
# ### Look only when two queues are busy
#
# All of this would be a waste while one queue has all the work, which is how most programs run. So the
# runtime does not even look. It remembers which queue is **alone**, and when a second one comes, it
# takes in what the first has pending. And what is over is dropped from the map whenever the map has
# grown to twice its size, so that it stays about as large as what is pending.
#
# One second queue is an exception. Further down, launches are prepared on a companion that works for
# their stream's queue and for no other, and whoever uses it says what comes after what. The two are
# alone together. (`is_overwritten` is for those who come after a failure: what an operation did not
# write matters no more where a later one writes anyway. `seen` is for the race checker: whoever the
# runtime has found to be over is in order, too.)


# %% Know who is done tags=["export"] file="runtime/hazards.py"
def done(queue: "Queue") -> int:
    """The last operation of ``queue`` that is over."""
    return queue.done


def is_over(access: Access) -> bool:
    """Whether an access is over, so that nobody has to wait for it."""
    return access.ticket <= access.queue.done


# %% Look only when two queues are busy tags=["export"] file="runtime/hazards.py"
from operator import itemgetter

from torch_spyre_ref.runtime.footprints import footprint, is_scratch


class Watch:
    """What pending work touches, looked at only while two of a card's ``queues`` are busy.

    A queue that has all the pending work is ``alone``: what it has pending is taken in when another
    queue comes. With it is whatever works for it. Nobody looks at all unless it is ``on``.
    """

    def __init__(self, queues: Sequence["Queue"], on: bool) -> None:
        self.on = on
        self.alone: Queue | None = None
        self._queues, self._touched = queues, IntervalMap()
        self._left = self._room = 0  # until somebody looks again who is idle, and what is over

    @property
    def seen(self) -> Sequence["Queue"]:
        """The queues that are watched how far they are."""
        return self._queues if self.on else ()

    def switch(self, on: bool) -> None:
        """Look from now on, or do not. Nothing may be pending."""
        self.on, self.alone, self._left = on, None, 0
        self._touched.clear()

    def is_needed(self, queue: "Queue") -> bool:
        """Whether any other queue is busy. Asked now and then: to be wrong costs only time."""
        self._left -= 1
        if self.alone is not None or self._left < 0:
            self.look()
            us = queue.works_for
            if not any(other.is_busy and other.works_for is not us for other in self._queues):
                self._touched.clear()
                self.alone = us
                return False
            self._left = 64
            if len(self._touched) > self._room:
                self._touched.forget(is_over)
                self._room = 64 + 2 * len(self._touched)
        return True

    def look(self) -> None:
        """Take in what was enqueued by who was alone until now, in the order in which it was."""
        alone, self.alone = self.alone, None
        if alone is not None:
            queues = [queue for queue in self._queues if queue.works_for is alone]
            pending = [(one.ticket, queue, one) for queue in queues for one in queue.pending()]
            for _, queue, entry in sorted(pending, key=itemgetter(0)):
                self.take_in(queue, entry)

    def take_in(self, queue: "Queue", entry: "Pending") -> None:
        """Take in an operation that was enqueued before."""
        self._touched.take(footprint(entry.operation, entry.work), Access(entry.ticket, queue))

    def is_overwritten(self, interval: Interval, ticket: int) -> bool:
        """Whether all that is known of an interval is written again by operations after one."""
        writers = self._touched.writers(interval)
        return bool(writers) and all(writer.ticket > ticket for writer in writers)


# %% [markdown]
# ### No edge that follows from another
#
# Not every hazard needs an edge of its own. If `C` must come after `A`, and waits for `B` already,
# and `B` has waited for `A`, then nothing is missing. To know that, the runtime keeps **vector
# clocks** ([`runtime/vector_clocks.py`](../torch_spyre_ref/runtime/vector_clocks.py)): for each
# queue, how far it is known to come after each other queue. A wait brings along everything that the
# signal's queue knew at that point.

# %%
from torch_spyre_ref.runtime.vector_clocks import Order

order = Order(over=lambda queue: 0)
order.wait("B", 2, other="A", until=1)  # B's operation 2 waits for A's operation 1
order.wait("C", 3, other="B", until=2)  # C's operation 3 waits for B's operation 2
print("C comes after", order.known("C"))
assert order.known("C")["A"] == 1, "though it never waited for A"

# %% [markdown]
# To bring all that along has its price, at every wait, and most questions are easier than that. Has
# nobody ever waited for that operation, or a later one of its queue? Then nobody comes after it. Was
# the very last wait for it, and by the one who asks? Then that is the answer. So waits are only noted,
# and the clocks are set when a question comes that these two do not answer. Waits for what is over by
# then are dropped: nobody will ask.
#
# Events that the user asked for are waits like any other. And there are two orders. Who reads what
# another queue writes needs it *written*: if the writer fails, so must the reader. But who overwrites a
# program's scratch memory, or a correction slot that its last reader has left behind, needs only that
# the other has *ended*, well or not; or one stream's broken program would poison every stream that
# launches the same one. Only what must have been done spares a reader its edge.


# %% Ask the clocks only where no wait tells tags=["export"] file="runtime/hazards.py"
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.vector_clocks import Order


class Precedence:
    """Who comes after whom, by the waits of all queues: after its end, or after it was done.

    Waits are ``noted`` only. Clocks are set when a question cannot be answered without, or when
    more than ``kept`` are noted.
    """

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        self.noted: list[tuple[Queue, int, Queue, int, bool]] = []  # waits that no clock knows yet
        self._awaited: dict[Queue, int] = {}  # the last operation that anybody waits for
        self._ended, self._done = Order(done), Order(done)

    def waits(self, queue: "Queue", ticket: int, event: Event) -> None:
        """Operation ``ticket`` of ``queue``, and what is behind it, waits for ``event``."""
        producer, after = event.queue, event.ticket
        if producer is None or after is None:
            return
        self.noted.append((queue, ticket, producer, after, event.of_end))
        if after > self._awaited.get(producer, 0):
            self._awaited[producer] = after
        if len(self.noted) > self._kept:
            self._set_clocks()

    def comes_after(self, queue: "Queue", producer: "Queue", after: int, of_end: bool) -> bool:
        """Whether the next operation of ``queue`` comes after one of ``producer`` anyway."""
        if after > self._awaited.get(producer, 0):
            return False
        if self.noted:
            waiter, _, other, until, ended = self.noted[-1]
            if waiter is queue and other is producer and until >= after and of_end >= ended:
                return True
            self._set_clocks()
        order = self._ended if of_end else self._done
        return after <= order.known(queue).get(producer, 0)

    def _set_clocks(self) -> None:
        for queue, ticket, producer, after, of_end in self.noted:
            if after > producer.done:
                self._ended.wait(queue, ticket, producer, after)
                if not of_end:
                    self._done.wait(queue, ticket, producer, after)
        self.noted.clear()


# %%
class Letter:
    """A queue, for who only asks how far it is."""

    done = 0


def event_of(queue, ticket):
    """The event that fires when an operation is done."""
    event = Event()
    event.queue, event.ticket = queue, ticket
    return event


precedence, (a, b, c) = Precedence(), (Letter(), Letter(), Letter())
precedence.waits(b, 2, event_of(a, 1))
answers = [precedence.comes_after(b, a, 1, of_end=False)]
answers += [precedence.comes_after(c, b, 2, of_end=False)]
print("B after A1, C after B2:", answers, "- waits that are only noted:", len(precedence.noted))
assert (answers, len(precedence.noted)) == ([True, False], 1)

precedence.waits(c, 3, event_of(b, 2))
answers = [precedence.comes_after(c, a, 1, of_end=False)]
print("C after A1:", answers, "- waits that are only noted:", len(precedence.noted))
assert (answers, len(precedence.noted)) == ([True], 0)

# %% [markdown]
# Now all of it. For each conflict, the latest first: is that operation over? Does this queue come
# after it anyway? Only if the answer is no twice, an edge is made. (`owe` has the producer fire an
# event when that very operation is complete, and the queue holds this one back until all its events
# have fired. `accepts` is a door for drills.)


# %% Derive the edges of a card tags=["export"] file="runtime/hazards.py"
from collections import deque


class Hazards(Watch):
    """The edges of one card's ``queues``; the last ``kept`` of them are in ``edges``.

    ``count`` is how many there were. ``precedence`` is that of all cards.
    """

    shared = Precedence  # what the cards of a machine have one of

    def __init__(
        self, queues: Sequence["Queue"], precedence: Precedence, on: bool, kept: int = 4096
    ) -> None:
        super().__init__(queues, on)
        self.count, self.edges = 0, deque[Edge](maxlen=kept)
        self._precedence = precedence

    def waits(self, queue: "Queue", ticket: int, event: Event) -> None:
        """Operation ``ticket`` of ``queue`` waits for ``event``: an order like any other."""
        if not self.on or event.queue is None:
            return
        if self.alone is not None:
            if queue.works_for is event.queue.works_for is self.alone:
                return  # taken in with all that is pending, if ever
            self.look()
        self._precedence.waits(queue, ticket, event)

    def take_in(self, queue: "Queue", entry: "Pending") -> None:
        """Take in an operation that was enqueued before, and what it waits for."""
        for event in queue.line.awaited(entry):
            self._precedence.waits(queue, entry.ticket, event)
        super().take_in(queue, entry)

    def submitted(self, queue: "Queue", entry: "Pending", fresh: bool = False) -> Sequence[Event]:
        """The events that an operation of a queue that is not alone has to wait for.

        It is ``fresh`` if what was to be in the bytes that it writes is of no use to anybody.
        """
        spots = footprint(entry.operation, entry.work)
        if not spots or not self.is_needed(queue):
            return ()
        found = conflicts(self._touched, spots, new(Access, (entry.ticket, queue, None)))
        if not found:
            return ()
        events, precedence = [], self._precedence
        for reason, (after, producer, _), spot in found:
            if after <= producer.done:
                continue
            over = reason != "RAW" and (fresh or is_scratch(entry.operation, spot.interval))
            if precedence.comes_after(queue, producer, after, over or reason == "WAR"):
                continue
            edge = new(Edge, (reason, producer, after, queue, entry.ticket, spot.interval))
            if self.accepts(edge):
                self.count += 1
                self.edges.append(edge)
                events.append(producer.owe(after, over))
                precedence.waits(queue, entry.ticket, events[-1])
        return events

    def accepts(self, edge: Edge) -> bool:
        """Whether an edge that is needed is added: always, but in drills that leave one out."""
        return True


# %% [markdown]
# Install it, switch derivation on for a block, by `torch.spyre.derive_edges`, and run the racing
# program of the beginning as it stands: three streams, and nobody waits.

# %%
OURS["hazards"] = Hazards
install(**OURS)


def hazards():
    """What derives the edges of card 0."""
    return backend.current().runtime.cards[0].hazards


def nobody_waits(earlier, later):
    """In the place of ``join``."""


streams = [torch.Stream("spyre") for _ in range(3)]
with torch.spyre.derive_edges():
    hazards().edges.clear()
    derived, by_derivation = double_batches(*streams, join=nobody_waits)
    edges = list(hazards().edges)

print("back:", derived)
for edge in edges[:4]:
    print(edge)
assert derived == from_three
assert type(hazards()) is Hazards
assert [edge.reason for edge in edges] == ["RAW"] * 8

# %% [markdown]
# Right, without an event in the program, and just as fast: the runtime has found the eight waits that
# we had written by hand. Even their nanoseconds are the same.


# %%
def times(records):
    """Which kind of operation ran from when to when."""
    return [(record.kind, record.start, record.end) for record in bars(records)]


assert times(by_derivation) == times(three_streams)
print("the last one ends at", f"{by_derivation[-1].end:,} ns, as before")

# %% [markdown]
# And while one stream has all the work, nobody looks for anything:

# %%
with torch.spyre.derive_edges():
    alone, before = torch.Stream("spyre"), hazards().count
    double_batches(alone, alone, alone)
    print("alone:", hazards().alone, "- edges before and after:", before, hazards().count)
    assert hazards().alone is queue_behind(alone)
assert hazards().count == before

# %% [markdown]
# ### All three, and what is left out
#
# Now the other two kinds, and the edges that are *not* there. Each line is a small program on two or
# three streams; beside it what the runtime added.


# %%
def play(*steps):
    """Run steps such as ``"A reads x"`` without waiting in between; the reasons of the edges."""
    streams = {letter: torch.Stream("spyre") for letter in "ABC"}
    tensors = dict(zip("xy", torch.zeros(2, ELEMENTS, device="spyre"), strict=True))
    hosts = [pinned(1) for _ in steps]
    torch.spyre.synchronize()
    hazards().edges.clear()
    for step, host in zip(steps, hosts, strict=True):
        letter, verb, name = step.split()
        with streams[letter]:
            if verb == "reads":
                host.copy_(tensors[name], non_blocking=True)
            elif verb == "writes":
                tensors[name].copy_(host, non_blocking=True)
            elif verb == "awaits":
                streams[letter].wait_stream(streams[name])
            elif verb == "ends":
                streams[letter].synchronize()
    torch.spyre.synchronize()
    return [edge.reason for edge in hazards().edges]


SMALL = {
    ("A writes x", "B reads x"): ["RAW"],
    ("A reads x", "B writes x"): ["WAR"],
    ("A writes x", "B writes x"): ["WAW"],
    ("A reads x", "B reads x"): [],
    ("A writes x", "B writes y"): [],
    ("A writes x", "A reads x", "A writes x"): [],
    ("A writes x", "A ends now", "B reads x"): [],
    ("A writes x", "B awaits A", "B reads x"): [],
    ("A writes x", "B reads x", "C writes x"): ["RAW", "WAR"],
    ("A writes x", "B writes x", "C writes x", "A reads x"): ["WAW", "WAW", "RAW"],
}
with torch.spyre.derive_edges():
    for steps, expected in SMALL.items():
        derived_here = play(*steps)
        print(f"{', '.join(steps):<50} {', '.join(derived_here) or 'nothing'}")
        assert derived_here == expected

# %% [markdown]
# Lines six to eight are the three savings: nothing within a queue, nothing against work that is over,
# nothing where an event is. In the ninth, `C` must come after `A` *and* after `B`, and gets one edge:
# `B` came after `A`.
#
# ### Enough, and none too many
#
# Two claims, then: the edges are enough, and each is needed. One program is not evidence. So here is a
# longer one, of two dozen random steps on three streams and four tensors. First, what would it be
# without the savings? The hazards between different streams can be counted on the program itself:

# %%
import random

KINDS = {"in": ((), (0,)), "out": ((0,), ()), "copy": ((1,), (0,)), "add": ((0, 1), (0,))}


def random_steps(count=24, seed=4):
    """Steps (stream, kind, tensors): what a kind reads and writes of its tensors says KINDS."""
    chance = random.Random(seed)
    return [
        (chance.randrange(3), chance.choice(list(KINDS)), chance.sample(range(4), 2))
        for _ in range(count)
    ]


def all_hazards(steps):
    """Every pair of steps on different streams that use one tensor, one of them to write."""
    count, earlier = 0, []
    for stream, kind, tensors in steps:
        reads, writes = ({tensors[place] for place in places} for places in KINDS[kind])
        for other, also_reads, also_writes in earlier:
            is_hazard = writes & (also_reads | also_writes) or reads & also_writes
            count += bool(is_hazard and stream != other)
        earlier.append((stream, reads, writes))
    return count


def compute_sum(target, other):
    """For 10 µs on the current stream: ``target += other``."""
    spans = device_range(target), device_range(other)

    def effect(memory):
        first, second = (memory.read(span).view(np.float32) for span in spans)
        memory.write(spans[0], (first + second).view(np.uint8))

    queue_of(target).submit(Compute(10_000, effect, spans, spans[:1]))


def run_steps(steps, streams):
    """Run them; the bytes of all tensors, and of all that was fetched, at the end."""
    tensors, fetched = torch.zeros(4, 64, device="spyre"), []
    sources = [torch.full((64,), float(number)).pin_memory() for number in range(len(steps))]
    torch.spyre.synchronize()
    for stream in set(streams):
        busy(stream, 100_000)  # so that all of it is pending at once
    for (stream, kind, (one, other)), source in zip(steps, sources, strict=True):
        with streams[stream]:
            if kind == "in":
                tensors[one].copy_(source, non_blocking=True)
            elif kind == "out":
                fetched.append(torch.zeros(64).pin_memory().copy_(tensors[one], non_blocking=True))
            elif kind == "copy":
                tensors[one].copy_(tensors[other])
            else:
                compute_sum(tensors[one], tensors[other])
    torch.spyre.synchronize()
    return [only(row) for row in (*tensors.cpu(), *fetched)]


steps = random_steps()
in_turn = run_steps(steps, [torch.Stream("spyre")] * 3)
with torch.spyre.derive_edges():
    before = hazards().count
    at_once = run_steps(steps, streams)
    needed = hazards().count - before
print(f"{len(steps)} steps, {all_hazards(steps)} hazards between streams, {needed} edges")
assert at_once == in_turn
assert 0 < needed < all_hazards(steps) / 2

# %% [markdown]
# Enough: on three streams the program leaves the bytes that it leaves on one. Now take away a single
# edge, run it under the race checker, put it back, and take away the next, until each has been left out
# once:


# %%
class OneLess(Hazards):
    """Leaves out the edge with number ``missing``."""

    missing = None

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.asked = 0

    def accepts(self, edge):
        self.asked += 1
        return self.asked - 1 != OneLess.missing


def without(missing):
    """Run the steps with one edge less: how many races are reported, and are the bytes right?"""
    OneLess.missing, hazards().asked = missing, 0
    with torch.spyre.sanitizer.expect("race") as reports:
        bytes_left = run_steps(steps, streams)
    return len(reports), bytes_left == in_turn


install(**{**OURS, "hazards": OneLess})
streams = [torch.Stream("spyre") for _ in range(3)]
with torch.spyre.derive_edges():
    outcomes = [without(missing) for missing in range(needed)]
OneLess.missing = None
print("edges left out, one at a time:", len(outcomes))
print("reported by the race checker: ", sum(count > 0 for count, _ in outcomes))
print("wrong bytes this time:        ", sum(not right for _, right in outcomes))
assert all(count > 0 for count, _ in outcomes)

# %% [markdown]
# None is too many: the checker notices the absence of every one of them. The last line is the
# reason for having a checker at all. Most of the holes changed no byte in this run, and would have
# passed any test that compares results. (`tests/runtime/test_hazards_random.py` does this with
# programs that Hypothesis invents, with events, aliasing views and freed memory in them.)

# %% [markdown]
# ### Memory that changes hands
#
# A tensor is dropped while another stream still reads it, and its block goes to somebody else. On a GPU
# this is the classic fault of streams, because the allocator cannot see what is in flight. It must be
# told, by `tensor.record_stream(stream)`, and whoever forgets has bytes of two tensors in one. Here is
# that program, first without derivation.


# %%
from torch_spyre_ref import _bridge


def give_away(record=False):
    """Drop a tensor that a stream is about to read, and make another: what was read, and when."""
    reader, fetched = torch.Stream("spyre"), pinned(0)
    first = torch.full((ELEMENTS,), 3.0, device="spyre")
    place = _bridge.allocation(first).composite

    def run():
        nonlocal first
        with reader:
            busy(reader, 30_000)
            fetched.copy_(first, non_blocking=True)
        if record:
            first.record_stream(reader)
        del first
        second = torch.full((ELEMENTS,), 4.0, device="spyre")
        assert _bridge.allocation(second).composite == place, "the same block"
        return second

    second, records = observe(run)
    return [only(fetched), only(second)], records


install(**OURS)
without_edges, _ = give_away()
with torch.spyre.derive_edges():
    with_edges, ordered = give_away()
print("read, and the new tensor, without edges:", without_edges)
print("read, and the new tensor, with edges:   ", with_edges)
assert without_edges == [4, 4]
assert with_edges == [3, 4]

# %% [markdown]
# Nothing special was done for it. The fill of the new tensor writes bytes that a pending copy reads;
# that is a WAR hazard like any other, whoever the bytes belong to. So `record_stream` is accepted, and
# has nothing left to do. It changes no result, and not one nanosecond:

# %%
with torch.spyre.derive_edges():
    recorded, ordered_too = give_away(record=True)
assert recorded == with_edges
assert times(ordered_too) == times(ordered)
print("with record_stream: the same", len(ordered_too), "operations at the same nanoseconds")

# %% [markdown]
# ### What derivation does not see
#
# It sees card memory, in queues of one card, and only while it is on. Three things follow.
#
# - **It does not travel.** A program that relies on derived edges is right here and wrong on CUDA. The
#   race at the beginning of this chapter is what a GPU would make of it. Code that must run elsewhere
#   has events in all the places where it needs them, and costs nothing extra here: where an event is,
#   no edge is added. To test such code, run it with `torch.spyre.derive_edges(False)` and under
#   `torch.spyre.sanitizer()`: what then is silent is ordered by events alone.
# - **The host's memory has no footprint.** When may a pinned buffer be filled again? That is a rule of
#   its own, and comes below.
# - **Two cards** are joined by events. A copy between them brings its own, as the last line shows: one
#   for the card that receives, and with derivation off one back, so that whoever comes after either
#   stream comes after the copy, as on CUDA.

# %%
with torch.spyre.derive_edges():
    here = double_batches(*streams, join=nobody_waits)[0]
elsewhere = double_batches(*streams, join=nobody_waits)[0]
portable = double_batches(*streams)[0]
print("relies on edges, and has them: ", here)
print("relies on edges, has them not: ", elsewhere)
print("has events:                    ", portable)
assert here == portable != elsewhere

crossing = torch.ones(64, device="spyre:0")
_, copied = observe(crossing.to, "spyre:1")
kinds = [record.kind for record in sorted(copied)]
print("from card to card:             ", ", ".join(kinds))
assert {"EventSignal", "EventWait"} <= set(kinds)

# %% [markdown]
# ### A launch on one queue waits for its own preparation
#
# Now launches. Chapter 3 made three operations of each of them: a callback packs a patch, a transfer
# brings it to a correction slot, a run computes. On one queue they come one after another, and the next
# launch's callback comes after this launch's run. Here is a loop as a language model has it, where each
# step needs the result of the step before:

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, Scalar, write_artifact

scratch = TemporaryDirectory()
STEP = Path(scratch.name) / "step"
asm = Assembler("step")
n = asm.dimension("n", ELEMENTS)
x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
asm.store(out, {n: 1}, asm.load(x, {n: 1}) * 0.5 + asm.float_symbol())
tensors = [Argument("x", "input", "float32", (ELEMENTS,), (1,))]
tensors += [Argument("out", "output", "float32", (ELEMENTS,), (1,))]
spec_of_step = LaunchSpec.of(tensors, [], [Scalar("number", "float")])
write_artifact(STEP, encode(asm.assemble()), spec_of_step, name="step")


def decode(steps=4):
    """Each step halves the value and adds the step's number: the value, and what the card did."""
    plan = prepare_kernel(STEP)
    values = list(torch.ones(2, ELEMENTS, device="spyre"))

    def run():
        with torch.Stream("spyre"):
            for step in range(steps):
                launch_jobplan(plan, values, [float(step)])
                values.reverse()

    _, records = observe(run)
    return values[0].unique().tolist(), records


one_value, one_queue = decode()
print("value:", one_value)
assert one_value == [(((0.5 + 0) / 2 + 1) / 2 + 2) / 2 + 3]
gantt(
    [record for record in one_queue if record.pipeline != "control"],
    "Four launches on one queue: each waits for its own callback and transfer",
)

# %%
computing = [record for record in one_queue if record.pipeline == "compute"]
gaps = [later.start - earlier.end for earlier, later in pairwise(computing)]
print("between two computations the card does not compute for", gaps, "ns")
assert min(gaps) >= spec.callback_time + spec.link_latency

# %% [markdown]
# The data of a step depends on the step before. Its *preparation* does not: where the tensors lie, and
# which number comes, was known when it was launched. So preparation can go to a queue of its own, where
# it runs ahead, and the two are joined where they really depend on each other.
#
# Each queue that launches gets one companion for this. The card makes it, and remembers it.

# %% Find the queue that launches are prepared on tags=["export"]


def preparation_queue(queue: Queue) -> Queue:
    """The queue on which the launches of ``queue`` are prepared."""
    return backend.current().runtime.cards[queue.device].companion(queue)


# %% [markdown]
# Where do they depend on each other? In two places.
#
# 1. **Forward**: a program waits until its patch is in its slot.
# 2. **Backward**: a patch goes to a slot when the program that was patched from it before has ended. It
#    is a WAR hazard on the slot. With several slots, that program was launched several launches ago.
#
# Packing is in neither of them. It fills a staging buffer, which is the host's memory, and waits for
# the transfer before it and for nothing else, because both are in one queue. So it can run under a
# program even when there is only one slot.
#
# Nothing has to be enqueued for the two rules. The slot knows the last operation of the launch before,
# and `submit_prepared` takes the operation that its own must wait for: it is the same edge that
# derivation adds, asked for by name, and the first operation that is not a callback has it. Forward, a
# program comes `after` the transfer, which must have been *done*. Backward, a transfer comes `behind` the
# earlier program, which need only be *over*. A launch on two queues is the same three operations as on
# one.
#
# A launch arrives *bound*: lowered to operations, in two groups, `preparation` and `compute`. A
# submission decides where each goes, and that is all of it. The one of chapter 3, `OneQueue`, puts both
# on the caller's queue. This one splits them, when there is something to win: while the stream has
# nothing to do, nothing could overlap, and the launch stays on one queue. (Errors: a failed preparation
# reaches the stream by the edge between the two. If it fails before anything is enqueued on the stream,
# `pass_on` sees to it.)

# %% Prepare the next launch while this one computes tags=["export"]
from collections.abc import Callable

from torch_spyre_ref.queueing.errors import pass_on
from torch_spyre_ref.runtime import QueueError
from torch_spyre_ref.submission import BoundLaunch, OneQueue


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


# %%
install(**OURS, submission=TwoQueues)
two_value, two_queues = decode()
assert two_value == one_value
gantt(
    [record for record in two_queues if record.pipeline != "control"],
    "The same on two queues: the next callback and transfer run under this computation",
    until=one_queue[-1].end,
)

# %%
computing = [record for record in two_queues if record.pipeline == "compute"]
gaps = [later.start - earlier.end for earlier, later in pairwise(computing)]
prepared = {record.queue for record in two_queues if record.kind in ("HostCallback", "H2D")}
print("gaps between computations:", gaps)
print("prepared on", sorted(prepared), "- computed on", sorted({run.queue for run in computing}))
assert gaps == [0, 0, 0]

# %% [markdown]
# The topology is chosen in one place, `Parts.submission`, and can be changed while a program runs, by
# `torch.spyre.preparation_stream`. The bytes may not depend on it, and do not:

# %%
values = []
for on in (False, True, False):
    with torch.spyre.preparation_stream(on):
        value, records = decode(steps=20)
        values.append(value)
    print(f"{'two queues' if on else 'one queue':<10} {records[-1].end:,} ns")
assert values[0] == values[1] == values[2]

# %% [markdown]
# And what does a launch touch? Its slot and its program, which are its job's, and which the two rules
# have put in order. The rest stands in its patch, and the runtime reads it back from there when another
# queue is busy. So launches on different streams are ordered like anything else, by the tensors that
# they were given:


# %%
def relay():
    """Launch on one stream, and on another with the first one's result."""
    plan = prepare_kernel(STEP)
    first, second, third = torch.ones(3, ELEMENTS, device="spyre")
    torch.spyre.synchronize()
    with torch.Stream("spyre"):
        launch_jobplan(plan, [first, second], [1.0])
    with torch.Stream("spyre"):
        launch_jobplan(plan, [second, third], [1.0])
    torch.spyre.synchronize()
    return third[0].item()


with torch.spyre.derive_edges():
    hazards().edges.clear()
    relayed = relay()
    reasons = [edge.reason for edge in hazards().edges]
print("the result of two launches:", relayed, "- edges:", reasons)
assert relayed == (0.5 + 1) / 2 + 1
assert reasons == ["RAW"]

# %% [markdown]
# ### How far the pipelines can fill
#
# Two queues cannot make anything faster, they only stop making things wait. So there is a limit, and it
# can be written down before anything runs. All computations need the compute pipeline, one after
# another: no run is shorter than Σ compute. All packing and all transfers of patches go through one
# queue: no run is shorter than Σ (packing + transfer). The larger of the two is the **limit**, and what
# a run takes from its first submission to its last end, its *makespan*, can be measured by it.
#
# (Only the first launch is prepared on its stream's own queue, which has nothing else to do yet.)
#
# `benchmarks/streams.py` has a loop in which all three take their time, as they would for large
# programs on a slower host: 100 µs to compute, 40 to pack, 30 to transfer. (It lies in the
# repository, beside `chapters/`.) One queue, and two with one, two or three correction slots:

# %%
import sys

sys.path.append("..")  # `benchmarks` is not part of the package

from IPython.display import Markdown

from benchmarks.streams import COMPUTE, PREPARATION, STEPS, TRANSFER, Loop

print(f"compute {COMPUTE:,} ns, pack {PREPARATION:,} ns, transfer {TRANSFER:,} ns, {STEPS} steps")
limit = STEPS * max(COMPUTE, PREPARATION + TRANSFER)


def loop(slots, two=True):
    """A loop, after it has run, and its makespan."""
    loop = Loop(slots, derive_edges=False)
    return loop, loop.run(TwoQueues(loop.card.companion) if two else OneQueue())


rows = ["| launches on | slots | ns a step | makespan / limit |", "| --- | ---: | ---: | ---: |"]
ratios = {}
for two, slots in ((False, 2), (True, 1), (True, 2), (True, 3)):
    finished, took = loop(slots, two)
    assert finished.seen == list(range(STEPS)), "each program found its own patch"
    ratios[two, slots] = took / limit
    name = "two queues" if two else "one queue"
    rows.append(f"| {name} | {slots} | {took // STEPS:,} | {took / limit:.3f} |")
assert ratios[True, 2] <= 1.05
first_preparation = PREPARATION + TRANSFER + spec.submit_time
assert abs(ratios[True, 2] * limit - limit - first_preparation) < 100, "nothing else is left"
Markdown("\n".join(rows))

# %% [markdown]
# Each step of the ladder takes one thing out of computing's way. One queue: everything is in the
# way, 170 µs a step. Two queues and one slot: packing is not, but the transfer has to wait until
# the program has let go of the slot, so 130. Two slots: nothing is, 100, and what is left above the
# limit is the very first preparation, which no computation could hide. A third slot has nothing
# left to give.


# %%
def steps_of(finished, count=4):
    """The first steps of a loop, as a figure needs them."""
    shown = [one for one in finished.runtime.timeline if one.pipeline != "control"]
    return [one._replace(label="") for one in shown if one.end <= count * (COMPUTE + PREPARATION)]


until = 4 * (COMPUTE + PREPARATION)
gantt(
    steps_of(loop(1)[0]),
    "Two queues, one slot: a transfer waits until the slot has been read",
    until=until,
)

# %%
gantt(steps_of(loop(2)[0]), "Two queues, two slots: computing never waits", until=until)

# %% [markdown]
# (The first two callbacks lie over each other: one is on the stream's own queue, the other on its
# companion, and callbacks of two queues may run at once.)

# %% [markdown]
# ### The host's buffer is nobody's footprint
#
# One thing was passed over. A patch travels through a **staging buffer**, pinned host memory that the
# callback fills and the transfer reads. When may it be filled again? When the transfer out of it is
# *over*. Nothing derived helps, since no card memory is involved. Five ways to arrange it; in each of
# them six steps have correction slots of their own on the card, so that only the host's buffer is
# shared, and derivation is on.

# %%
from functools import partial

from torch_spyre_ref.runtime import H2D, StagingPool

PATCH = 512 << 10


def through(send, queues=1):
    """Six steps, prepared on one queue or more; which patch each of them found in its slot."""
    card, found = backend.current().runtime.cards[0], []
    slots = torch.full((6, PATCH), 99, dtype=torch.uint8, device="spyre")
    torch.spyre.synchronize()
    device, *preparing = (card.new_queue() for _ in range(1 + queues))

    def note(where, memory):
        found.append(int(memory.read(where)[0]))

    for step, slot in enumerate(slots):
        where, first, ready = device_range(slot), preparing[step % queues], EventSignal()
        send(step, where, first)
        first.submit(ready)
        device.submit(EventWait(ready))
        device.submit(Compute(4_000, partial(note, where), (where,)))
    torch.spyre.synchronize()
    return found


def callback_and_transfer():
    """The host packs in queue order, always into the same buffer."""
    buffer = backend.current().runtime.pinned.allocate(PATCH).array

    def send(step, where, first):
        first.submit(HostCallback(lambda: buffer.fill(step), 3_000, staging=buffer))
        first.submit(H2D(buffer, where))

    return send


def packed_ahead():
    """The host packs at once, ahead of the queue, always into the same buffer."""
    buffer = backend.current().runtime.pinned.allocate(PATCH).array

    def send(step, where, first):
        buffer.fill(step)
        first.submit(H2D(buffer, where))

    return send


def packed_into_a_pool():
    """The host packs at once, into a buffer whose last transfer is over; there are two."""
    pool = StagingPool(backend.current().runtime.pinned, buffers=2)

    def send(step, where, first):
        staging = pool.acquire(PATCH)
        staging.array.fill(step)
        ticket = first.submit(H2D(staging.array, where))
        pool.release_after(staging, first, ticket)

    return send


CASES = {
    "one queue, packed in order": (callback_and_transfer, 1, True),
    "two queues, packed in order": (callback_and_transfer, 2, False),
    "one queue, packed ahead": (packed_ahead, 1, False),
    "one queue, packed ahead, gated pool": (packed_into_a_pool, 1, True),
    "two queues, packed ahead, gated pool": (packed_into_a_pool, 2, True),
}
first_reports = {}
with torch.spyre.derive_edges():
    for words, (make, queues, is_safe) in CASES.items():
        checked = torch.spyre.sanitizer() if is_safe else torch.spyre.sanitizer.expect("race")
        with checked as reports:
            found = through(make(), queues)
        first_reports[words] = shown(reports[0]) if reports else ""
        print(f"{words:<38} found {found}, races: {len(reports)}")
        assert (found == list(range(6))) == is_safe

# %% [markdown]
# With **one queue** the buffer needs no guard. A callback comes after the transfer before it, because
# everything in that queue does. **Two queues** know nothing of each other, and one packs while the
# other's transfer is still reading. **Packing ahead**, in the call itself, ignores even the one queue.
# What repairs both is a **completion-gated pool**: whoever takes a buffer from it gets one whose last
# transfer is over, and waits if there is none. (`acquire` and `release_after` are all of it,
# [`runtime/staging.py`](../torch_spyre_ref/runtime/staging.py).)
#
# A real backend has had both faults, as the table above says. The checker sees them, though the memory
# is the host's: a callback says what it fills, and what a transfer reads is summed up when it is
# submitted and once more when it is read.

# %%
for words in ("two queues, packed in order", "one queue, packed ahead"):
    print(first_reports[words], end="\n\n")

# %% [markdown]
# What does a launch do? It packs in queue order, and its buffer belongs to its correction slot. The
# queue that packed it may use it again at once; another queue, when that launch is over
# ([`jobs/lanes.py`](../torch_spyre_ref/jobs/lanes.py), `is_free`). It is the first row and the last
# one, each where it is right.

# %% [markdown]
# ### What happens when something fails
#
# An operation fails long after the call that submitted it, so the error has to find its way. Who must
# learn of it? The queue, and whoever comes after the failed operation: in the queue, by an event, or by
# a derived edge. Everybody else goes on. (A queue that has failed is *poisoned*. The end of the `with`
# block waits for all of them, and raises nothing.)


# %%
def fails(stream, words):
    """Have the stream's next operation fail."""

    def function():
        raise ArithmeticError(words)

    queue_behind(stream).submit(HostCallback(function, 50_000))


torch.spyre.reset()  # for whoever runs this cell again
broken, waiting, third, reading, other = (torch.Stream("spyre") for _ in range(5))
lost, kept = torch.zeros(2, ELEMENTS, device="spyre")
source, fetched = pinned(1), pinned(0)
with torch.spyre.derive_edges():
    fails(broken, "parity error in core 7")
    fails(broken, "the second error")
    with broken:
        lost.copy_(source, non_blocking=True)  # never happens
    owed = broken.record_event()
    waiting.wait_event(owed)
    third.wait_stream(waiting)
    with reading:
        fetched.copy_(lost, non_blocking=True)  # a derived edge: comes after the copy
    with other:
        kept.copy_(source, non_blocking=True)

parties = {"broken": broken, "waiting": waiting, "third": third, "reading": reading, "other": other}
for name, stream in parties.items():
    print(f"{name:<8} {queue_behind(stream)}")
assert (only(fetched), only(kept)) == (0, 1)


# %% [markdown]
# `reading` has no event in the program, and failed all the same: the edge that orders it also tells it.
# Who asks the broken stream gets the **first** error, once.

# %% tags=["raises-exception"]
broken.synchronize()

# %%
broken.synchronize()
print("asked again: nothing new")

# %% [markdown]
# The others get an error of their own, with the reason as its cause. Here is the chain from the third
# stream, which had nothing to do with the broken one directly:


# %%
def chain(stream):
    """The error of a stream, and what it says caused it."""
    try:
        stream.synchronize()
    except Exception as error:
        while error is not None:
            yield error
            error = error.__cause__


causes = list(chain(third))
for error in causes:
    print(type(error).__name__, "-", str(error).split(": ")[0])
assert isinstance(causes[-1], ArithmeticError)
assert len(causes) == 3

# %% [markdown]
# An event that will never fire says so too, at once: there is no way to wait for ever. A poisoned
# stream takes no more work. (A new stream does, and so does this one after `torch.spyre.reset()`, below;
# memory stays as it was.)


# %%
def refusal(ask):
    """What a call raises, on a line or two."""
    try:
        ask()
    except RuntimeError as error:
        return fill(f"{type(error).__name__} - {str(error).split(': ')[0]}", 92)


for ask in (
    owed.synchronize,
    lambda: torch.Stream("spyre").wait_event(owed),
    lambda: broken.record_event(),
):
    print(refusal(ask))

# %% [markdown]
# And the bytes? `lost` still holds what it held before, and nobody can tell by looking at it. Who asked
# for them while the copy was pending, as `reading` did, has failed. Who asks *now* has nothing to wait
# for. With derivation off they are read as they are. With derivation on, the runtime knows which bytes
# were to be written and were not, and refuses to read them, until somebody writes them or the broken
# queue is reset.

# %%
print("derivation off:", only(lost), "(it should be 1)")
with torch.spyre.derive_edges():
    refused = refusal(lost.cpu)
    print("derivation on:", refused, sep="\n")
    lost.copy_(torch.full((ELEMENTS,), 5.0))
    print("written anew:", only(lost))
assert "did not write" in refused

torch.spyre.reset()
with broken:
    lost.copy_(source, non_blocking=True)
broken.synchronize()
print("after reset:", only(lost))
assert only(lost) == 1

# %% [markdown]
# ## Watch it run: a loop without a single event
#
# Everything at once. A plain loop on three streams: it makes tensors and drops them, its memory
# goes round and round, and there is no event and no `record_stream` in it. `held` says for how many
# turns more a batch's two tensors are held before they are dropped. (A computation takes 20 µs
# here, a copy 17.)

# %%
from collections import deque as last_few

from torch_spyre_ref.emulator.figures import Drawing


def careless(held, batches=4):
    """Double batches, with fresh tensors for each: the results, the records and the edges."""
    sources = [pinned(3 * number + 1) for number in range(batches)]
    results = [pinned(0) for _ in range(batches)]
    send, work, fetch = (torch.Stream("spyre") for _ in range(3))
    kept = last_few(maxlen=held)

    def run():
        for source, result, name in zip(sources, results, "ABCDEFGH", strict=False):
            with send:
                there = source.to("spyre", non_blocking=True)
            with work:
                twice = torch.empty_like(there)
                compute(double, there, twice, name, 20_000)
            with fetch:
                result.copy_(twice, non_blocking=True)
            kept.append((there, twice))
            del there, twice

    torch.spyre.empty_cache()
    hazards().edges.clear()
    _, records = observe(run)
    names = {queue_behind(send).name: "send", queue_behind(work).name: "work"}
    names[queue_behind(fetch).name] = "fetch"
    records = [record._replace(queue=names[record.queue]) for record in records]
    return [only(result) for result in results], records, list(hazards().edges)


def by_queue(records, edges, title, until=0):
    """A row for each queue, a bar for each operation, a line for each edge, time to the right."""
    rows, last = ["send", "work", "fetch"], max(until, *(record.end for record in records))
    drawing, scale, place = Drawing(44 * len(rows) + 26, title), 480 / last, {}
    for record in bars(records):
        x, y = 100 + record.start * scale, 44 * rows.index(record.queue) + 8
        width = (record.end - record.start) * scale
        place[record.ticket] = x, x + width, y
        hint = f"{record.kind} {record.label}, from {record.start} to {record.end} ns"
        drawing.box(x, y, width - 1, 16, record.pipeline, hint)
        drawing.text(x + width / 2, y + 12, record.label, "middle", small=True)
    for edge in edges:
        (_, left, above), (right, _, below) = place[edge.after], place[edge.ticket]
        down = 16 if above < below else 0
        for _ in range(4):  # a line is faint, made for the grid of a chart
            drawing.line(left - 2, above + down, right + 2, below + 16 - down)
        drawing.box(right, below + 14 - down, 4, 4, "bad", f"{edge.reason}: waits")
    for number, name in enumerate(rows):
        drawing.text(92, 44 * number + 20, name, "end")
    drawing.text(580, 44 * len(rows) + 12, f"{last // 1000} µs", "end", small=True)
    return drawing


install(**OURS)
with torch.spyre.derive_edges():
    tight, tight_records, tight_edges = careless(held=0)
    roomy, roomy_records, roomy_edges = careless(held=1)
assert tight == roomy == [2, 8, 14, 20]
until = max(tight_records[-1].end, roomy_records[-1].end)
by_queue(
    tight_records, tight_edges, "A batch's tensors are dropped at once: lines are edges", until
)

# %%
by_queue(roomy_records, roomy_edges, "They are held for one turn more", until)

# %% [markdown]
# Every line is an edge: from the end of an operation to the start of the one that waits for it,
# where it has a red head. Those that go down carry a value (RAW). Those that go up are for memory
# that has changed hands (WAR). In the upper figure all of it is dropped at once, and the allocator
# hands out first what was freed last: so `B` is sent to the very block that `A`'s result is fetched
# from, and has to wait until that is done. The three streams work one after another, as if they
# were one. In the lower figure the tensors of the turn before are still held, `B` gets blocks of
# its own, and `C` is the first that has to wait. Both are right, whatever was dropped when. Being
# right comes by itself. Being fast takes a little room.


# %%
def counted(edges):
    """How many edges of each kind."""
    reasons = [edge.reason for edge in edges]
    return {reason: reasons.count(reason) for reason in ("RAW", "WAR", "WAW")}


print(f"dropped at once: {tight_records[-1].end:7,} ns, {counted(tight_edges)}")
print(f"held for a turn: {roomy_records[-1].end:7,} ns, {counted(roomy_edges)}")
assert roomy_records[-1].end < tight_records[-1].end

# %% [markdown]
# The edges of the first, one by one, as the runtime keeps them (`what` says which operation a ticket
# was):

# %%
what = {}
for queue in ("send", "work", "fetch"):
    in_turn = sorted(record for record in tight_records if record.queue == queue)
    what |= {one.ticket: f"{one.kind} {name}" for one, name in zip(in_turn, "ABCD", strict=True)}
for edge in tight_edges:
    print(f"{edge.reason}: {what[edge.ticket]:<9} comes after {what[edge.after]}")

# %% [markdown]
# And the profile of the roomy run, as `torch.spyre.profiler` prints it (a notebook also draws it, and
# `export_chrome_trace` writes a file for Perfetto):

# %%
with torch.spyre.derive_edges(), torch.spyre.profiler() as profile:
    careless(held=1)
print(profile.table().split("\n\nqueue")[0])

# %% [markdown]
# ## Break it
#
# ### Record the event too early
#
# The commonest fault with events is not to forget one. It is to record it a line too early. The program
# looks right, and has a wait in every place:


# %%
def early_event(is_early):
    """Copy, then compute on another stream, joined by an event: what is computed from ones."""
    send, work = torch.Stream("spyre"), torch.Stream("spyre")
    source, (there, twice) = pinned(1), torch.zeros(2, ELEMENTS, device="spyre")
    torch.spyre.synchronize()
    event = torch.Event("spyre")
    with send:
        if is_early:
            event.record()
        there.copy_(source, non_blocking=True)
        if not is_early:
            event.record()
    work.wait_event(event)
    with work:
        compute(double, there, twice)
    torch.spyre.synchronize()
    return only(twice)


with torch.spyre.sanitizer.expect("race") as reports:
    early = early_event(is_early=True)
with torch.spyre.sanitizer():
    in_time = early_event(is_early=False)
print("recorded before the copy:", early, " after it:", in_time)
assert (early, in_time) == (0, 2)
print(shown(reports[0]))

# %% [markdown]
# ### Leave out one edge, and look at the bytes
#
# `OneLess` above left out edges to count them. Here is what a single one is worth: derivation is
# on, and all that is missing is the edge behind the tensor that was given away.

# %%
install(**{**OURS, "hazards": OneLess})
with torch.spyre.derive_edges():
    OneLess.missing, hazards().asked = 0, 0
    with torch.spyre.sanitizer.expect("race") as reports:
        spoilt, _ = give_away()
    OneLess.missing = None
    with torch.spyre.sanitizer():
        mended, _ = give_away()
print("without it:", spoilt, " with it:", mended)
print(shown(reports[0]))
assert (spoilt, mended) == ([4, 4], [3, 4])

# %% [markdown]
# ### Take the rules of the launch away
#
# The two rules of `TwoQueues`, each left out. The loop notes which patch each program found in its slot.
# (It is prepared on a queue like any other. Between a queue and its companion the runtime would not
# look.)

# %%
install(**OURS)


class NoForwardRule(TwoQueues):
    """A program does not wait for its patch."""

    def _launch(self, first, queue, bound):
        first.submit_prepared(bound.preparation, behind=bound.slot.reader())
        return queue.submit_prepared(bound.compute)


class NoBackwardRule(TwoQueues):
    """A patch does not wait until its slot has been read."""

    def _launch(self, first, queue, bound):
        bound.slot.queue = None  # as if nobody had been patched from it
        return super()._launch(first, queue, bound)


def checked_loop(rule, derive):
    """A loop on two queues, after it has run under the race checker."""
    loop = Loop(slots=2, derive_edges=derive)
    loop.runtime.sanitizer.switch_on([loop.card.card.memory])
    loop.runtime.memcheck.handed_out(0, loop.memory)
    second = loop.card.new_queue()
    loop.run(rule(lambda queue: second))
    return loop


rows = ["| rule left out | derivation | edges | races | programs with a wrong patch |"]
rows += ["| --- | --- | ---: | ---: | ---: |"]
NAMES = {TwoQueues: "none", NoForwardRule: "forward", NoBackwardRule: "backward"}
for rule, name in NAMES.items():
    for derive in (False, True):
        finished = checked_loop(rule, derive)
        edges, races = finished.card.hazards.count, len(finished.runtime.sanitizer.reports)
        wrong = sum(step != found for step, found in enumerate(finished.seen))
        switch = "on" if derive else "off"
        rows.append(f"| {name} | {switch} | {edges} | {races} | {wrong} of {STEPS} |")
        is_whole = rule is TwoQueues
        assert (edges > 0) == (derive and not is_whole)
        assert (races > 0) == (not derive and not is_whole)
        assert wrong == 0 or races > 0
Markdown("\n".join(rows))

# %% [markdown]
# Off, each rule is needed. Without the second, nearly every program finds the patch of a later one.
# Without the first, no program is wrong, this time: patches are early in this loop, and each one
# wins its race. The checker is not taken in. On, the runtime finds both orders by itself, from the
# slot's footprint: a transfer writes it, a program reads it. That is how torch-spyre has it since
# its pull request 4101. Here the rules are written down all the same, so that launches are right
# with derivation off, too, and so that the runtime need not look: what a launch does to its slot and
# its program counts as ordered, and derivation leaves it out.

# %% [markdown]
# ## Assembled
#
# All of this is [`streams.py`](../torch_spyre_ref/streams.py) on
# [`runtime/hazards.py`](../torch_spyre_ref/runtime/hazards.py). Install the shipped classes, and run on
# both, on cards that have just started: the job with events, the same job without, the careless loop,
# and launches on two queues. Results and traces must agree to the nanosecond.

# %%
from torch_spyre_ref.runtime import hazards as shipped_hazards


def everything():
    """All of the chapter's programs: what they gave, and when."""
    streams = [torch.Stream("spyre") for _ in range(3)]
    runs = [double_batches(*streams), decode()]
    with torch.spyre.derive_edges():
        runs.append(double_batches(*streams, join=nobody_waits))
        runs.append(careless(held=0)[:2])
        edges = [(edge.reason, edge.after, edge.ticket) for edge in hazards().edges]
        runs.append(decode())
    return [values for values, _ in runs], [times(records) for _, records in runs], edges


install(**OURS, submission=TwoQueues)
assert (type(hazards()), type(backend.current().streams)) == (Hazards, StreamDriver)
yours = everything()
install(submission=shipped.TwoQueues)
assert type(hazards()) is shipped_hazards.Hazards is not Hazards
theirs = everything()
assert yours == theirs
print(
    "operations:", sum(map(len, theirs[1])), " edges of the loop:", len(theirs[2]), " all the same"
)

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/04_streams.py`, and are tested.
#
# ### 1. Predict
#
# Seven steps on three streams, submitted in this order, with derivation on. For each, which earlier
# steps does the runtime make it wait for, by an edge of its own? Write their numbers as a tuple, the
# latest first, and `()` for none. (All of it is pending at once.)

# %%
prediction = {
    "1: A writes x": (),
    "2: B reads x": None,
    "3: C reads x": None,
    "4: A reads x": None,
    "5: C writes x": None,
    "6: B writes x": None,
    "7: A reads x": None,
}


def check_prediction(prediction):
    """Compare with a run."""
    if None in prediction.values():
        return "no prediction yet"
    streams = {letter: torch.Stream("spyre") for letter in "ABC"}
    x, hosts = torch.zeros(64, device="spyre"), [torch.zeros(64).pin_memory() for _ in prediction]
    runtime = backend.current().runtime
    with torch.spyre.derive_edges():
        hazards = runtime.cards[0].hazards
        hazards.edges.clear()
        runtime.timeline.clear()
        for stream in streams.values():
            queue = backend.current().streams.queue(0, stream.stream_id)
            queue.submit(HostCallback(lambda: None, 100_000))
        for step, host in zip(prediction, hosts, strict=True):
            _, letter, verb, _ = step.split()
            with streams[letter]:
                if verb == "reads":
                    host.copy_(x, non_blocking=True)
                else:
                    x.copy_(host, non_blocking=True)
        torch.spyre.synchronize()
        copies = [one.ticket for one in sorted(runtime.timeline) if one.pipeline in ("h2d", "d2h")]
        step_of = {ticket: number for number, ticket in enumerate(copies, start=1)}
        waits = {number: [] for number in step_of.values()}
        for edge in hazards.edges:
            waits[step_of[edge.ticket]].append(step_of[edge.after])
    pairs = zip(prediction.items(), waits.values(), strict=True)
    wrong = [step for (step, guess), found in pairs if tuple(guess) != tuple(found)]
    return f"wrong: {', '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: the missing edge
#
# Eight batches, and card memory for two. The forward edges are there: a computation waits for its copy.
# One edge is missing, and it points backwards: nothing keeps a copy from overwriting a batch that has
# not been computed yet. Derivation is off, as on a GPU, so the edge is yours to write, with PyTorch's
# events and nothing else. About 5 lines.
#
# The checker is the sanitizer. It also wants the overlap to stay: to make `send` wait for all that
# `work` has been given so far is right, and too slow.


# %%
from torch_spyre_ref.sanitizer import SanitizerError


def double_buffered(sources, buffers, send, work, use):
    """Copy each of ``sources`` to one of two ``buffers`` in turn, and compute on it.

    ``use(buffer, number)`` enqueues the computation of a batch on the current stream. Copies go to
    stream ``send``, computations to stream ``work``.
    """
    for number, source in enumerate(sources):
        buffer = buffers[number % 2]
        with send:
            buffer.copy_(source, non_blocking=True)
        work.wait_stream(send)
        with work:
            use(buffer, number)


def check_double_buffered(answer):
    """Run it under the race checker, with derivation off, and look at bytes and time."""
    send, work = torch.Stream("spyre"), torch.Stream("spyre")
    sources, seen = [pinned(number) for number in range(8)], []
    buffers = list(torch.zeros(2, ELEMENTS, device="spyre"))

    def use(buffer, number):
        where = device_range(buffer)

        def effect(memory):
            seen.append(float(memory.read(where).view(np.float32)[0]))

        queue_of(buffer).submit(Compute(30_000, effect, (where,)), f"batch {number}")

    with torch.spyre.derive_edges(False):
        try:
            with torch.spyre.sanitizer(), torch.spyre.profiler() as profile:
                answer(sources, buffers, send, work, use)
        except SanitizerError as error:
            first = str(error.reports[0]).split("; ")[0]
            return f"{len(error.reports)} races; the first: {first}"
    if seen != list(range(8)):
        return f"wrong bytes: {seen}"
    makespan = max(one.end for one in profile.operations) - profile.window[0]
    goal = 8 * 30_000 + 20_000
    if makespan > goal:
        return f"right, but after {makespan:,} ns; aim at {goal:,}"
    return "right, and busy all the time"


print(fill(check_double_buffered(double_buffered), 96))

# %% [markdown]
# ### 3. Open
#
# Which chain of operations made a run as long as it was? An operation starts when the last thing it
# waited for ends: its predecessor in the queue, an edge, its pipeline, or the call that submitted it.
# Write `critical_path(records)`: from the timeline alone, walk back from the operation that ended last,
# each time to one that ended when this one started. Try it on `tight_records` and `roomy_records`. What
# would you have to change in the program to make its path shorter? And when does a timeline alone not
# tell *which* of several operations was really waited for?

# %% [markdown]
# ## Summary
#
# - A stream is a number for an ordered queue, an event a name for its latest signal. PyTorch's own
#   classes do the rest, through one C++ interface.
# - One queue serialises pipelines that could all work. Several overlap, and race. Order between them
#   comes from events that a program says, and from edges that the runtime derives: RAW, WAR and WAW,
#   found in an interval map, and none that vector clocks know already.
# - Derived edges are enough and each is needed. They order reuse of freed memory, so
#   `record_stream` has nothing left to do. They do not travel to CUDA, and do not see the host's
#   memory: a staging buffer is used again in the order of one queue, or from a pool that is gated
#   by completion.
# - A launch is prepared on a companion queue. With two correction slots, computing never waits, and a
#   loop reaches its limit, the larger of all computing and all preparing.
# - The first error poisons its queue, reaches whoever waits for it at once and with its cause, is
#   raised once, and leaves the others alone.
#
# New words: [stream](../docs/glossary.md#stream), [hazard](../docs/glossary.md#hazard),
# [race](../docs/glossary.md#race), [derived edge](../docs/glossary.md#derived-edge),
# [interval map](../docs/glossary.md#interval-map), [vector clock](../docs/glossary.md#vector-clock),
# [preparation stream](../docs/glossary.md#preparation-stream),
# [device stream](../docs/glossary.md#device-stream),
# [completion-gated pool](../docs/glossary.md#completion-gated-pool).
#
# Before: what [chapter 3](03_launch.ipynb) prepared on one queue now runs ahead. Next: programs were
# written by hand so far. In [chapter 5](05_eager.ipynb) a compiler writes them, and every operator of
# PyTorch becomes a small launch.
