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
# # A card is asked, not called
#
# Work for a dataflow card is a typed operation in an ordered queue. Separate pipelines move bytes
# and compute, on a virtual clock that only calls can move, over memory that comes in regions behind
# a few handles. This chapter builds the operations, runs them on the emulated card, and takes each
# promise away once to see what it was for. There is no PyTorch in it yet.
#
# The card plays IBM's Spyre, as far as public sources describe it ([In the field](#in-the-field)
# says which). *Dataflow* is how such a card computes: its units follow no common list of
# instructions, each one works as soon as its operands are there. Here only the outside of that
# matters: how the card is asked.
#
# ## You will build
#
# - **The module** `torch_spyre_ref/runtime/operations.py`: the eight things that may be asked of a
#   card, each of which says which bytes it reads and which it writes.
# - **What it enables**: you can send bytes to a card, compute on them and fetch them, make the
#   three overlap, read the trace, and recognise the usual ways of getting it wrong.
# - **Not built here**: the card itself and its queues, which are written by hand in `emulator/` and
#   `runtime/` and quoted where they matter; an allocator, which is [chapter 2](02_allocator.ipynb);
#   and programs. Until programs arrive, a computation is a duration and a Python function.
# - **Time**: about an hour, with a cell or two changed on the way.
# - **You need**: Python, NumPy, and a rough idea of what C's `memcpy` does.
#
# If you can tell what this prints before you look, you are ready:

# %%
import numpy as np

matrix = np.arange(12, dtype=np.uint8).reshape(3, 4)
column = matrix[:, 1]
print(column, column.strides, column.base is not None)

# %% [markdown]
# ## The constraint
#
# A function does its work and then returns. A card does not work like that: you put a request in a
# queue, the call returns, and the card gets to it. The next cell starts one emulated card, takes a
# megabyte of its memory and 256 bytes of host memory, all of which is explained further down, and
# asks the card to copy 256 sevens.

# %%
from torch_spyre_ref import runtime as shipped

machine = shipped.Runtime(devices=1)
card = machine.cards[0].card
region = card.regions.acquire(1 << 20, domain=0)
address = shipped.CompositeAddress((shipped.Chunk(region.id, 0, region.size),))
target = shipped.DeviceRange.contiguous(address, 0, 256)
sevens = machine.pinned.allocate(256).array
sevens[:] = 7

queue = machine.cards[0].default_queue
ticket = queue.submit(shipped.H2D(sevens, target))
print("after submit:", card.memory.read(target)[:4], "at", machine.clock.now, "ns")
queue.wait(ticket)
print("after wait:  ", card.memory.read(target)[:4], "at", machine.clock.now, "ns")

# %% [markdown]
# `submit` returned and not a byte had moved. The bytes came with `wait`, and by then it was later
# on a clock that has nothing to do with the one on your wall. (`card.memory.read` is a window that
# an emulator has and a real card lacks. Looking through it costs no time and changes nothing.)
#
# Everything in these chapters follows from that one inconvenience. The order in which you call
# things no longer says in which order they happen. So the **driver**, the software that asks the
# card on everybody's behalf, needs another way to say *what depends on what*, and PyTorch will need
# it from the driver.

# %% [markdown]
# ## The contract
#
# In the other chapters this section says what PyTorch calls. Here it says what a driver may ask of
# a card: what the card is made of, how its memory is named, when things happen, and which calls
# there are.
#
# ### The data sheet
#
# Some figures are public. The others are assumed, and say so.

# %%
from IPython.display import Markdown

from torch_spyre_ref.emulator import CardSpec


def amount(value):
    """2097152 is 2 Mi."""
    for shift, prefix in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << shift and value % (1 << shift) == 0:
            return f"{value >> shift} {prefix}"
    return str(value)


spec = CardSpec()
figures = list(spec.figures())
rows = [f"| `{f.name}` | {amount(f.value)} | {f.unit} | {f.source} |" for f in figures]
Markdown("\n".join(["| figure | value | unit | source |", "| --- | ---: | --- | --- |", *rows]))

# %%
assumed = {figure.name for figure in figures if figure.source == "assumed"}
print(len(figures) - len(assumed), "figures have a source,", len(assumed), "are assumed")
assert {"submit_time", "link_latency", "move_rate"} <= assumed
assert not {"cores", "scratchpad", "stick", "memory_limit"} & assumed

# %% [markdown]
# Every duration below mixes both kinds. So virtual times are good for comparing one way of using
# the card with another, and worthless for predicting the real one.
#
# Of the two memories, this chapter sees only the large one, LPDDR5: `memory` bytes of it here, up to
# `memory_limit` on a real card. The scratchpads, a small memory inside each core, belong to the
# compiler: a program says what goes there and when, and no call of the driver reaches them.
#
# Bytes travel in **sticks** of 128. A transfer over the **link**, which joins host and card, pays a
# fixed latency, and then for sticks:
#
# ```python title="torch_spyre_ref/emulator/spec.py"
# --8<-- "torch_spyre_ref/emulator/spec.py:cost"
# ```
#
# ### Memory: regions behind handles
#
# A card does not give out addresses. It gives out **regions**: each one contiguous block of one
# memory **domain**, behind a **handle**, and handles are few. A card can be used in two ways. In PF
# mode (physical function) it is yours alone, with many handles, and a region goes by its physical
# base. In VF mode (virtual function) it is shared, with eight handles, and a region goes by its
# index in a small table.

# %%
private = shipped.Runtime(devices=1, mode="pf").cards[0].card.regions
shared = shipped.Runtime(devices=1, mode="vf").cards[0].card.regions
for mode, table in {"PF": private, "VF": shared}.items():
    taken = [table.acquire(spec.region, domain) for domain in (0, 0, 1)]
    print(f"{mode}: {table.budget:3} handles, region ids {[region.id for region in taken]}")

# %% [markdown]
# Nothing above the card may care which kind of id it got. What does matter is that the table runs
# out: small regions use up the handles long before they use up the memory.

# %% tags=["raises-exception"]
while True:
    shared.acquire(1 << 20, domain=2)

# %%
used = sum(region.size for region in shared.live())
print(f"{len(shared.live())} regions, {used / spec.memory:.0%} of the memory")
assert len(shared.live()) == shared.budget == spec.vf_handles
assert used < spec.memory / 2

# %% [markdown]
# So a driver takes a few large regions and deals them out itself. That is [chapter
# 2](02_allocator.ipynb); here, one region is enough.
#
# Inside regions, an address is a short list of **chunks** `(region, offset, length)`. Mostly it is
# one. It is several when a block is spread over memory domains, a grain at a time:

# %%
spread = shipped.CompositeAddress(
    (shipped.Chunk(0, 0, 8192), shipped.Chunk(1, 0, 8192)), grain=4096
)
for piece in spread.pieces(2048, 8192):
    print(piece)
assert sum(piece.length for piece in spread.pieces(2048, 8192)) == 8192

# %% [markdown]
# ### Time: a clock that only calls can move
#
# The card is a simulation, and its clock counts virtual nanoseconds. Work that has started waits in
# an agenda, by the moment at which it ends. When a call moves the clock past that moment, the
# work's effect on memory happens, all at once.
#
# ```python title="torch_spyre_ref/emulator/clock.py"
# --8<-- "torch_spyre_ref/emulator/clock.py:advance"
# ```
#
# Nothing else moves the clock. The host may think for as long as it likes: on this clock that takes
# no time, and between two calls no byte of the card changes.

# %%
queue.submit(shipped.Fill(target, b"\x01"))
before = machine.clock.now, card.memory.region(region.id).tobytes()
sum(number * number for number in range(200_000))
assert (machine.clock.now, card.memory.region(region.id).tobytes()) == before

polls = 0
while not queue.query():
    polls += 1
print("polls that said no:", polls)
print("virtual ns a poll:", spec.query_time)
assert card.memory.read(target)[0] == 1

# %% [markdown]
# This is what makes everything in these pages repeatable. A race is lost by the same margin on
# every machine, and a figure drawn from a trace is the same figure tomorrow.
#
# ### Pipelines
#
# Four **pipelines** do the work: `h2d` brings bytes in, `d2h` takes them out, `move` copies and
# fills inside the card, `compute` computes. All four can be busy at once, and each of them does one
# thing at a time: whoever comes second waits. When several wait, the pipeline goes to the queue
# with the highest priority (the lowest number, as for PyTorch's streams), and among equals to the
# operation that was ready first; and nothing is decided before everything that ends at the same
# nanosecond has ended.
#
# ```python title="torch_spyre_ref/emulator/pipelines.py"
# --8<-- "torch_spyre_ref/emulator/pipelines.py:start"
# ```
#
# (Two more names, `host` and `control`, stand for host callbacks, and for events and fills that take
# no time. They need no hardware of the card and never wait for any.)
#
# ### Queues
#
# A driver never sees a pipeline. It submits operations to **queues**, as many as it wants. An
# operation starts once three things are true: the one before it in its queue is complete, the event
# it waits for has fired, and its pipeline is free. A queue only ever looks at its first operation.
# Here it does so; the last line leads to `start` above, which knows the third condition:
#
# ```python title="torch_spyre_ref/runtime/queues.py"
# --8<-- "torch_spyre_ref/runtime/queues.py:start_head"
# ```
#
# These are the calls:
#
# | call of a `Queue` | costs the host | promises |
# | --- | --- | --- |
# | `submit(operation, label="") -> int` | `submit_time`, and a wait while the queue is full | a ticket; what is refused is refused here, before it is enqueued |
# | `wait(ticket) -> None` | at least `query_time`, and until that operation is over | it was done; otherwise raises |
# | `synchronize() -> None` | at least `query_time`, and until the queue is empty | raises the queue's error, once |
# | `settle() -> None` | the same | raises nothing |
# | `query() -> bool` | `query_time` | whether all that was submitted is complete; raises as `synchronize` does |
# | `completed(ticket) -> bool` | `query_time` | whether that operation is over, well or not, and touches memory no more |
# | `reset() -> None` | until the running operation ends | drops the others, forgets the error |
#
# And these are the operations, which the rest of the chapter builds:
#
# | operation | touches | pipeline | takes |
# | --- | --- | --- | --- |
# | `H2D(source, target)` | pinned host bytes → card | `h2d` | latency, and the target's sticks |
# | `D2H(source, target)` | card → pinned host bytes | `d2h` | latency, and the source's sticks |
# | `D2D(source, target)` | card → card | `move` | latency, and the sticks of the more scattered side |
# | `Fill(target, pattern, free=False)` | → card | `move` | latency and sticks; nothing when `free` |
# | `Compute(duration, effect, inputs, outputs)` | card → card | `compute` | its duration |
# | `HostCallback(function, duration=None, staging=None)` | host | none | its duration, or the data sheet's `callback_time` |
# | `EventSignal()` | | none | nothing |
# | `EventWait(signal)` | | none | until the signal has fired |
#
# What is *not* there matters as much. No operation carries a program's meaning, a shape's meaning
# or a tensor: a queue is given bytes to move and places they touch. It cannot misread what it never
# sees.

# %% [markdown]
# ## In the field
#
# Spyre's own runtime, flex, is closed. What follows about it is second-hand: from the public
# [torch-spyre](https://github.com/torch-spyre/torch-spyre) sources, RFCs and issues, from the
# PyTorch blog's post on Spyre, and from a third party's port of flex.
#
# | concept | torch-spyre and flex | here |
# | --- | --- | --- |
# | kinds of operation | `H2D`, `D2H`, `Compute`, `HostCallback`, `Fill`, `EventSignal`, `EventWait`, and copies between cards | eight classes; card to card is a `D2H`, an event and an `H2D` |
# | order | each stream completes in order; flex has a mode `STRICT_ORDERING` and a mode `OP_ORDERING` | a queue is in order, always |
# | pipelines | data movement is apart from compute; computes share one queue and take turns | `h2d`, `d2h`, `move`, `compute` |
# | errors | first error wins, `synchronize()` throws it once; a launch after shutdown is refused | the same, with `reset()` |
# | addresses | `CompositeAddress` of `Chunk{addr{region_id, offset}, size, domain_id}`, offsets in multiples of 128 | `CompositeAddress` of `Chunk(region, offset, length)` with a grain |
# | region ids | PF: physical address; VF: index in a firmware table of 8 to 16 entries (RFC 0643) | the same, with 8 |
# | host side of a transfer | page-aligned buffers, locked with `mlock`, or a warning | pinned pages; anything else is refused |
# | fresh memory | never zeroed (issue 3290) | undefined, and poisoned on request |
# | order across queues | signal and wait, most of them derived by the runtime from what operations touch | signal and wait, by hand in this chapter |
# | without a card | a mock mode in which no byte moves, so that tests of bytes pass whatever the code does | every byte moves, in virtual time |

# %% [markdown]
# ## A picture: there and back on one queue
#
# The smallest useful job: three blocks of half a megabyte go to the card, get every byte doubled,
# and come back. First a bench to work on, with one region of card memory cut into blocks by hand.
# It is given a module or namespace, `ops`, whose classes its queues will take: that is how the
# operations you build below will be the ones that run.

# %%
BLOCK = 512 << 10


class Bench:
    """One card whose queues take the operations of ``ops``, and some memory on both sides."""

    def __init__(self, ops, **settings):
        self.machine = shipped.Runtime(devices=1, operations=ops, **settings)
        self.card = self.machine.cards[0]
        self.queue = self.card.default_queue
        self.region = self.card.card.regions.acquire(16 * BLOCK, domain=0)
        self.address = shipped.CompositeAddress((shipped.Chunk(self.region.id, 0, 16 * BLOCK),))

    def block(self, number, nbytes=BLOCK):
        """The card memory of a block, or its first bytes."""
        return shipped.DeviceRange.contiguous(self.address, number * BLOCK, nbytes)

    def host(self, value, nbytes=BLOCK):
        """Pinned host bytes that all have the same value."""
        array = self.machine.pinned.allocate(nbytes).array
        array[:] = value
        return array

    def peek(self, span):
        """The first byte of a range, through the emulator's window."""
        return int(self.card.card.memory.read(span)[0])

    @property
    def now(self):
        return self.machine.clock.now

    def __repr__(self):
        return f"Bench({self.machine.clock.now} ns, {len(self.machine.timeline)} operations done)"


def double(span):
    """The effect of a computation: every byte of ``span`` times two."""
    return lambda memory: memory.write(span, memory.read(span) * 2)


Bench(shipped)

# %%
DOUBLING = 6_000

bench = Bench(shipped)
results = []
for number, name in enumerate("ABC"):
    block = bench.block(number)
    results.append(bench.host(0))
    bench.queue.submit(shipped.H2D(bench.host(number + 1), block), name)
    bench.queue.submit(shipped.Compute(DOUBLING, double(block), (block,), (block,)), name)
    bench.queue.submit(shipped.D2H(block, results[number]), name)
bench.queue.synchronize()
print("back:", [int(result[0]) for result in results], "at", bench.now, "ns")
assert [set(result) for result in results] == [{2}, {4}, {6}]

# %% [markdown]
# Everything a card does leaves a record in its timeline, and a figure can be drawn from it. Time
# runs to the right; each row is a pipeline.

# %%
from torch_spyre_ref.emulator.figures import gantt

gantt(bench.machine.timeline, "Three blocks on one queue: in, compute, out, one after another")

# %% [markdown]
# Read it column by column: at any moment exactly one pipeline works. The queue did what it
# promised, and that is the trouble. It was told nothing about *which* order matters, so it kept all
# of it.

# %%
from itertools import pairwise

records = list(bench.machine.timeline)
assert all(a.end == b.start for a, b in pairwise(records)), "never two at once, and never none"
busy = sum(record.end - record.start for record in records)

# %% [markdown]
# ## Naive first: a byte array and a memcpy
#
# Why a simulation with a clock at all? The obvious emulator is a byte array, with calls that do
# what they say and return. It works:


# %%
class PlainCard:
    """A card as a byte array: each call does its work, adds up its time, and returns."""

    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes, np.uint8)
        self.time = 0

    def copy_in(self, offset, data):
        self.bytes[offset : offset + data.size] = data
        self.time += spec.link_time(spec.sticks(1, data.size))

    def double(self, offset, nbytes):
        self.bytes[offset : offset + nbytes] *= 2
        self.time += DOUBLING

    def copy_out(self, offset, nbytes):
        self.time += spec.link_time(spec.sticks(1, nbytes))
        return self.bytes[offset : offset + nbytes].copy()

    def __repr__(self):
        return f"PlainCard({self.bytes.size} bytes, {self.time} ns)"


plain = PlainCard(3 * BLOCK)
returned = []
for number in range(3):
    plain.copy_in(number * BLOCK, np.full(BLOCK, number + 1, np.uint8))
    plain.double(number * BLOCK, BLOCK)
    returned.append(plain.copy_out(number * BLOCK, BLOCK))
print("back:", [int(block[0]) for block in returned])
plain

# %% [markdown]
# The right bytes, and even the time is that of the figure: the sum of its bars. But a sum is all it
# can give. There is no way to write these calls that makes its time come out shorter, so it cannot
# tell a good schedule from a bad one.

# %%
assert plain.time == busy

# %% [markdown]
# The second defect is worse. Here are the same three steps for one block, on three queues, and with
# nothing that says that one needs the other. On the left what the byte array makes of these steps,
# on the right what the card does:

# %%
bench = Bench(shipped)
sending, computing, fetching = (bench.card.new_queue() for _ in range(3))
block, result = bench.block(0), bench.host(0)
sending.submit(shipped.H2D(bench.host(7), block))
computing.submit(shipped.Compute(DOUBLING, double(block), (block,), (block,)))
fetching.submit(shipped.D2H(block, result))
bench.machine.synchronize(0)

plain.copy_in(0, np.full(BLOCK, 7, np.uint8))
plain.double(0, BLOCK)
print("byte array:", plain.copy_out(0, BLOCK)[0], "  card:", result[0])

# %%
assert plain.bytes[0] == 14
assert result[0] != 14

# %% [markdown]
# The program is wrong, and the byte array says 14. A test-suite that runs on it is green, and the
# first real card is not. An emulator earns its keep by being wrong when the program is wrong: that
# takes queues, pipelines that run at once, and a clock.

# %% [markdown]
# ## Build
#
# ### An operation says what it touches
#
# A queue, a checker that looks for misused memory, and (later) the code that orders queues by itself
# all ask the same question of an operation: which bytes of the card do you read, and which do you
# write? So that is what an operation *is*. The answer is its **footprint**.

# %% Say what an operation touches tags=["export"] file="runtime/operations.py"
"""What may be asked of a card: eight typed operations with explicit operands.

An operation says which bytes it reads and which it writes, and never what a program means. DMA
sees only pinned host memory. Sizes are bytes, durations virtual ns.
"""

from torch_spyre_ref.emulator.operands import DeviceRange


class Operation:
    """Anything that a queue takes. ``reads`` and ``writes`` are its footprint on the card."""

    __slots__ = ()

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        """The card memory that this operation reads."""
        return ()

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        """The card memory that this operation writes."""
        return ()


# %% [markdown]
# A `DeviceRange` is how an operand is described: a loop nest over an address, exactly what a load
# unit or a DMA engine steps through. Any strided view of a tensor is one.
#
# ```python title="torch_spyre_ref/emulator/operands.py"
# --8<-- "torch_spyre_ref/emulator/operands.py:range"
# ```

# %%
address = shipped.CompositeAddress((shipped.Chunk(0, 0, 4096),))
dense = DeviceRange.contiguous(address, 0, 64)
strided = DeviceRange(address, 4, shape=(16,), strides=(64,), itemsize=4)
for name, span in {"dense": dense, "strided": strided}.items():
    print(f"{name:7}: {span.nbytes} bytes in {span.runs:2} runs of {span.run}", span.footprint())
assert Operation().reads == Operation().writes == ()

# %% [markdown]
# Both have 64 bytes; the second is a column of sixteen rows of `float32`. Its footprint, `(region,
# start, stop)`, is wider than what it touches: it reaches from the first byte to the last. A
# footprint may say too much, which costs at worst an order that nobody needed. It may never say too
# little.

# %%
assert dense.nbytes == strided.nbytes == 64
(_, start, stop) = strided.footprint()[0]
assert stop - start > strided.nbytes

# %% [markdown]
# ### To the card and back
#
# The engine at the end of the link reads and writes host memory without the CPU's help. That is
# called DMA, direct memory access, and it is simple: it walks host memory as one dense run, and
# does not ask the host where a page has gone. So pages must be **pinned**, that is kept where they
# are, as long as it may look. The shape is checked here; whether the pages are pinned, at submission.

# %% Refuse a host buffer that no DMA engine can walk tags=["export"] file="runtime/operations.py"
from torch_spyre_ref.emulator.pages import Bytes


def check_host_buffer(operation: Operation, buffer: Bytes, nbytes: int) -> None:
    """Raise ``ValueError`` unless ``buffer`` is ``nbytes`` dense bytes in one dimension."""
    if buffer.ndim != 1 or buffer.itemsize != 1 or not buffer.flags.c_contiguous:
        raise ValueError(
            f"{operation}: the host buffer has shape {buffer.shape} and dtype {buffer.dtype}; "
            "give a dense one-dimensional uint8 view of it"
        )
    if buffer.size != nbytes:
        raise ValueError(
            f"{operation}: the host buffer has {buffer.size} bytes, the card range {nbytes}"
        )


# %% [markdown]
# An operation does not change once it is made, since a queue may hold it for a long time. It
# compares by identity: two equal copies are still two copies. And its `repr` shows no address of
# this process, so that reports and tests read the same in every run.

# %% Copy to the card tags=["export"] file="runtime/operations.py"
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class H2D(Operation):
    """Copy pinned host bytes, dense and one-dimensional, to a range of the card."""

    source: Bytes
    target: DeviceRange

    def __post_init__(self) -> None:
        check_host_buffer(self, self.source, self.target.nbytes)

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return (self.target,)

    def __repr__(self) -> str:
        return f"H2D(host -> {self.target})"


# %% [markdown]
# From here on the bench is given `here`, this notebook. Its queues take the classes that you have
# just defined, and no others: change one, run its cell and the next, and you see your change.

# %%
import sys

here = sys.modules[__name__]

bench = Bench(here)
source, block = bench.host(3), bench.block(0)
operation = H2D(source, block)
print(operation)
ticket = bench.queue.submit(operation)
bench.queue.wait(ticket)
print(bench.peek(block), "on the card,", bench)

assert operation != H2D(source, block), "two copies, though of the same bytes"
sticks = spec.sticks(1, BLOCK)
assert sticks == BLOCK // 128
assert bench.now == spec.submit_time + spec.link_time(sticks)

# %% [markdown]
# Now the part that drivers get wrong. **A DMA reads its source, and writes its target, when it
# ends.** Change the source after `submit`, and the card gets the changed bytes, since nobody had
# looked yet. (A real engine reads as it goes, so that some bytes would be new and some old. Here it
# is all of them, which is easier to notice and no better to rely on.)

# %%
bench = Bench(here)
source = bench.host(1)
ticket = bench.queue.submit(H2D(source, bench.block(0)))
source[:] = 2
bench.queue.wait(ticket)
source[:] = 3
print("the card has", bench.peek(bench.block(0)))
assert bench.peek(bench.block(0)) == 2

# %% [markdown]
# So a source may be used again when its copy is *over*, not when it is submitted. That sentence is
# the whole of a staging pool, the few pinned buffers that carry ordinary memory across
# ([`runtime/staging.py`](../torch_spyre_ref/runtime/staging.py)). Ordinary, pageable memory itself
# is refused, before anything is enqueued:

# %% tags=["raises-exception"]
bench.queue.submit(H2D(np.zeros(BLOCK, np.uint8), bench.block(0)))

# %%
assert bench.queue.pending() == []

# %% [markdown]
# The way back is the mirror image, but for one thing: its buffer will be written.


# %% Copy from the card tags=["export"] file="runtime/operations.py"
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class D2H(Operation):
    """Copy a range of the card to pinned host bytes, dense and one-dimensional."""

    source: DeviceRange
    target: Bytes

    def __post_init__(self) -> None:
        check_host_buffer(self, self.target, self.source.nbytes)
        if not self.target.flags.writeable:
            raise ValueError(f"{self}: the host buffer is read-only; give one that can be written")

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        return (self.source,)

    def __repr__(self) -> str:
        return f"D2H({self.source} -> host)"


# %% [markdown]
# Here it shows what scattered bytes cost. The same 4096 bytes each time, in fewer and longer runs
# or in more and shorter ones, 512 bytes apart. A run that does not fill its stick pays for all of
# it:

# %%
bench = Bench(here)
arrived = bench.host(0, 4096)
costs = {}
for run in (4096, 256, 128, 64, 4, 1):
    span = DeviceRange(bench.address, 0, (4096 // run, run), (512, 1), 1)
    bench.queue.wait(bench.queue.submit(D2H(span, arrived)))
    record = list(bench.machine.timeline)[-1]
    costs[run] = record.end - record.start
    print(f"runs of {run:4} bytes: {record.sticks:4} sticks, {costs[run]:5} ns")

assert costs[4096] == costs[256] == costs[128] < costs[64] < costs[4] < costs[1]

# %% [markdown]
# This is why layout matters on such a card. One column of a `float32` matrix of 1024 rows costs as
# much as the 32 columns that share its sticks:

# %%
assert spec.sticks(1024, 4) == spec.sticks(1024, 32 * 4) == 1024

# %% [markdown]
# ### Inside the card
#
# Bytes that are on the card already need no link. They have an engine of their own, the pipeline
# `move`. It reads everything before it writes anything, so that a range may be moved over itself.


# %% Copy within the card tags=["export"] file="runtime/operations.py"
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class D2D(Operation):
    """Copy between two ranges of one card, as if all were read before anything is written."""

    source: DeviceRange
    target: DeviceRange

    def __post_init__(self) -> None:
        if self.source.nbytes != self.target.nbytes:
            raise ValueError(
                f"{self}: {self.source.nbytes} bytes cannot be moved to {self.target.nbytes}"
            )

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return (self.target,)

    def __repr__(self) -> str:
        return f"D2D({self.source} -> {self.target})"


# %%
bench = Bench(here)
few = bench.host(0, 8)
few[:] = np.arange(8)
whole = bench.block(0, 8)
first = DeviceRange.contiguous(bench.address, 0, 7)
last = DeviceRange.contiguous(bench.address, 1, 7)
bench.queue.submit(H2D(few, whole))
bench.queue.submit(D2D(first, last))
bench.queue.synchronize()
print("moved over itself:", bench.card.card.memory.read(whole))
assert bench.card.card.memory.read(whole).tolist() == [0, 0, 1, 2, 3, 4, 5, 6]

# %% [markdown]
# The same engine fills memory with a pattern. A fill can also be `free`: that is **poison**, which
# marks fresh memory as nobody's data. It is a tool for finding faults, and a tool that changed when
# things happen would hide them. So it takes no time, neither on the card nor on the host.


# %% Fill with a pattern tags=["export"] file="runtime/operations.py"
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fill(Operation):
    """Repeat ``pattern`` over a range. ``free`` is poison: it takes no time, on card or host."""

    target: DeviceRange
    pattern: bytes
    free: bool = False

    def __post_init__(self) -> None:
        if not self.pattern or self.target.nbytes % len(self.pattern):
            raise ValueError(
                f"{self}: a pattern of {len(self.pattern)} bytes does not fill "
                f"{self.target.nbytes} bytes a whole number of times"
            )

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return (self.target,)

    def __repr__(self) -> str:
        return f"Fill({self.target}, {self.pattern.hex()}{', free' if self.free else ''})"


# %% [markdown]
# Memory is poisoned in queue order, when it is handed *out*. Poisoning it when it is given back
# would be a fault of its own: an operation that reads the old bytes may still be in flight, as
# here.

# %%
bench = Bench(here)
few, whole = bench.host(0, 4), bench.block(0, 4)
bench.queue.submit(Fill(whole, b"\x01\x02"))
bench.queue.submit(D2H(whole, few))
before = bench.now
bench.queue.submit(Fill(whole, b"\xff", free=True))
print("poison took", bench.now - before, "ns of the host's time")
bench.queue.synchronize()
print("fetched:", few, " left behind:", bench.card.card.memory.read(whole))
record = list(bench.machine.timeline)[-1]
assert record.kind == "Fill" and record.start == record.end
assert few.tolist() == [1, 2, 1, 2]

# %% [markdown]
# ### Computing, and the host's own turn
#
# `Compute` keeps the compute pipeline busy for a while and then has an effect on memory. Which
# effect, the queue does not know; what it touches, the operation says. (When there are programs,
# the program will say how long it takes, and operands will be read as it starts.)

# %% Compute tags=["export"] file="runtime/operations.py"
from collections.abc import Callable

from torch_spyre_ref.emulator.memory import Memory


def check_duration(operation: Operation, duration: int) -> None:
    """Raise ``ValueError`` for a negative duration."""
    if duration < 0:
        raise ValueError(f"{operation}: {duration} ns asked for; a duration is 0 or more")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compute(Operation):
    """Occupy the compute pipeline for ``duration``, then apply ``effect`` to the card's memory.

    ``inputs`` and ``outputs`` are the ranges that the effect reads and writes.
    """

    duration: int
    effect: Callable[[Memory], None]
    inputs: tuple[DeviceRange, ...] = ()
    outputs: tuple[DeviceRange, ...] = ()

    def __post_init__(self) -> None:
        check_duration(self, self.duration)

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return self.outputs

    def __repr__(self) -> str:
        return f"Compute({self.duration} ns, {len(self.inputs)} in, {len(self.outputs)} out)"


# %% [markdown]
# Two computations in two queues have nothing to do with each other, and still take turns. All 32
# cores may work on one program, but there is one compute pipeline, and two programs never run at
# once. Overlap on this card comes from moving bytes *while* computing, and from nothing else. (Where
# nobody will look at a footprint, as here, we leave `inputs` and `outputs` out.)

# %%
bench = Bench(here)
left, right = bench.card.new_queue(), bench.card.new_queue()
left.submit(Compute(8_000, double(bench.block(0))), "left")
right.submit(Compute(8_000, double(bench.block(1))), "right")
right.submit(D2H(bench.block(2), bench.host(0)), "out")
left.submit(H2D(bench.host(0), bench.block(3)), "in")
bench.machine.synchronize(0)
gantt(bench.machine.timeline, "Two queues: their computations take turns, their transfers do not")

# %%
spans = {record.label: (record.start, record.end) for record in bench.machine.timeline}
print(spans)
assert spans["right"][0] == spans["left"][1], "one starts at the moment the other ends"
assert spans["in"][0] < spans["right"][1], "but moving and computing overlap"

# %% [markdown]
# Whose turn it is, priority decides. Four queues want the same pipeline; when the first is done, the
# others go by their numbers, and not by who asked first:

# %%
bench = Bench(here)
turns = {"first": 0, "later": 1, "usual": 0, "urgent": -1}
for name, priority in turns.items():
    bench.card.new_queue(priority).submit(Compute(9_000, double(bench.block(0))), name)
bench.machine.synchronize(0)
print([record.label for record in bench.machine.timeline])
assert [record.label for record in bench.machine.timeline] == ["first", "urgent", "usual", "later"]

# %% [markdown]
# `HostCallback` gives the host a turn *in queue order*: to fill in a buffer after what came before
# and ahead of what comes after. It may touch the memory it was given, and nothing else. Were it
# allowed to call the runtime, it could wait for the very queue that waits for it.


# %% Give the host a turn tags=["export"] file="runtime/operations.py"
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostCallback(Operation):
    """Run ``function`` on the host, in queue order.

    It works on values captured at submission and on its own ``staging`` buffer, pinned bytes that
    it writes, and never calls the runtime. ``duration`` of None is the card's ``callback_time``.
    """

    function: Callable[[], None]
    duration: int | None = None
    staging: Bytes | None = None

    def __post_init__(self) -> None:
        check_duration(self, self.duration or 0)

    def __repr__(self) -> str:
        return f"HostCallback({getattr(self.function, '__name__', 'function')})"


# %%
bench = Bench(here)
buffer = bench.host(0)
bench.queue.submit(Compute(DOUBLING, double(bench.block(0))))
bench.queue.submit(HostCallback(lambda: buffer.fill(5)))
bench.queue.submit(H2D(buffer, bench.block(0)))
print("enqueued, not called:", buffer[0])
bench.queue.synchronize()
print("on the card:         ", bench.peek(bench.block(0)))
assert bench.peek(bench.block(0)) == 5

# %% [markdown]
# And one that tries it all the same (`settle` waits like `synchronize`, and raises nothing):

# %%
bench = Bench(here)
bench.queue.submit(HostCallback(bench.queue.synchronize))
bench.queue.settle()
print(bench.queue.error)
assert "called the runtime" in str(bench.queue.error)

# %% [markdown]
# ### Order between queues
#
# Within a queue order is free. Between queues it has to be said, and **events** say it: a signal in
# one queue fires when everything before it there is complete, and a wait in another queue holds
# that queue until the signal has fired. A signal remembers when it fired.

# %% Let one queue wait for another tags=["export"] file="runtime/operations.py"
from dataclasses import field

from torch_spyre_ref.runtime.events import Event


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EventSignal(Operation):
    """Fire ``event`` when everything before it in the queue is complete. Enqueue it once."""

    event: Event = field(default_factory=Event, init=False)

    @property
    def time(self) -> int | None:
        """The virtual ns at which it fired; None while it has not."""
        return self.event.time

    def __repr__(self) -> str:
        return f"EventSignal({self.event})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EventWait(Operation):
    """Hold the queue until ``signal``, which is enqueued already, has fired."""

    signal: EventSignal

    def __repr__(self) -> str:
        return f"EventWait({self.signal.event})"


# %%
bench = Bench(here)
other = bench.card.new_queue()
signal = EventSignal()
bench.queue.submit(H2D(bench.host(9), bench.block(0)))
bench.queue.submit(signal)
other.submit(EventWait(signal))
other.submit(Compute(DOUBLING, double(bench.block(0))))
print("enqueued:", signal)  # its ticket, and its state
other.synchronize()
print("fired:   ", signal)
assert bench.peek(bench.block(0)) == 18
assert signal.time == spec.submit_time + spec.link_time(sticks)

# %% [markdown]
# A wait must name a signal that is in a queue already. It sounds like a small restriction, and it
# buys a large thing: every wait points back in time, so no circle of waits can be written down, and
# there is no deadlock to debug.

# %% tags=["raises-exception"]
other.submit(EventWait(EventSignal()))

# %% [markdown]
# And a signal is good for one use. Otherwise nobody could say which of its firings a wait means:

# %% tags=["raises-exception"]
other.submit(signal)

# %% [markdown]
# ## Watch it run
#
# All eight operations exist. Here is the job of the picture again, with four blocks, written so
# that its three steps may live on one queue, on two or on three. `join` is the only new thing:
# where one step's queue differs from the next one's, it says that they depend on each other.


# %%
def join(ops, earlier, later):
    """Hold queue ``later`` until what is in queue ``earlier`` now is complete."""
    if earlier is not later:
        signal = ops.EventSignal()
        earlier.submit(signal)
        later.submit(ops.EventWait(signal))


def double_blocks(ops, queues, join=join, think=lambda: None, **settings):
    """Send four blocks, double their bytes, fetch them. Returns the bench and what came back."""
    bench = Bench(ops, **settings)
    first, second, third = (bench.queue, bench.card.new_queue(), bench.card.new_queue())
    send, work, fetch = {
        1: (first, first, first),
        2: (first, second, second),
        3: (first, second, third),
    }[queues]
    results = []
    for number, name in enumerate("ABCD"):
        block = bench.block(number)
        results.append(bench.host(0))
        send.submit(ops.H2D(bench.host(number + 1), block), name)
        join(ops, send, work)
        work.submit(ops.Compute(DOUBLING, double(block), (block,), (block,)), name)
        join(ops, work, fetch)
        fetch.submit(ops.D2H(block, results[number]), name)
        think()
    bench.machine.synchronize(0)
    return bench, [int(result[0]) for result in results]


def bars(bench):
    """What kept a pipeline of the card busy."""
    return [record for record in bench.machine.timeline if record.pipeline != "control"]


one, from_one = double_blocks(here, queues=1)
two, from_two = double_blocks(here, queues=2)
three, from_three = double_blocks(here, queues=3)
assert from_one == from_two == from_three == [2, 4, 6, 8]
for name, run in {"one queue": one, "two queues": two, "three queues": three}.items():
    print(f"{name:12}: {run.now:6} ns")
assert three.now < two.now < one.now

# %%
gantt(bars(one), "One queue", until=one.now)

# %%
gantt(bars(two), "Two queues: blocks come in while others are computed and fetched", until=one.now)

# %%
gantt(bars(three), "Three queues: all three pipelines work at once", until=one.now)

# %% [markdown]
# The same operations, the same bytes, the same axis. Nothing was made faster: every bar is as long
# as it was. What changed is what the card was told. On one queue, an operation comes after
# *everything* submitted before it; on three, after little more than what it needs.
#
# With three queues no schedule can do better. All blocks have to come in through `h2d`, one at a
# time, which never pauses; and the last one has still to be computed and fetched.

# %%
lengths = [sorted(r.end - r.start for r in bars(run)) for run in (one, two, three)]
assert lengths[0] == lengths[1] == lengths[2]

worked = dict.fromkeys(("h2d", "compute", "d2h"), 0)
for record in bars(three):
    worked[record.pipeline] += record.end - record.start
print(worked, "of", three.now)
last_in = max(record.end for record in bars(three) if record.pipeline == "h2d")
assert last_in == spec.submit_time + worked["h2d"], "the link in never paused"
assert three.now == last_in + DOUBLING + spec.link_time(sticks), "and D goes on alone"

# %% [markdown]
# The log of block A and what ties it together, on three queues. A wait is over when its signal
# fires, at the same nanosecond, and costs the card nothing:

# %%
print("ticket  queue  operation    label   start     end")
for record in sorted(three.machine.timeline)[:7]:
    print(
        f"{record.ticket:6}  {record.queue:5}  {record.kind:11}  {record.label:5}"
        f"  {record.start:6}  {record.end:6}"
    )

# %% [markdown]
# Run it again and you get the same timeline, to the nanosecond: also when the host dawdles between
# its calls, and also on a card that names its regions in the other way:

# %%
import time

again, _ = double_blocks(here, queues=3)
slowly, _ = double_blocks(here, queues=3, think=lambda: time.sleep(0.02))
alone, _ = double_blocks(here, queues=3, mode="pf")
for repeated in (again, slowly, alone):
    assert list(repeated.machine.timeline) == list(three.machine.timeline)
print(len(three.machine.timeline), "records, four times the same")

# %% [markdown]
# A timeline can also leave as Chrome trace JSON. Write the text to a file and open it at
# [ui.perfetto.dev](https://ui.perfetto.dev), where you can zoom, search and measure: one row for
# each pipeline, and one for the events of each queue.

# %%
import json

trace = json.loads(three.machine.timeline.to_chrome_trace())["traceEvents"]
spans_shown = [event for event in trace if event["ph"] == "X"]
names = [event["args"]["name"] for event in trace if event["name"] == "thread_name"]
print(len(spans_shown), "spans in the rows", sorted(names))
assert len(spans_shown) == len(three.machine.timeline)

# %% [markdown]
# ## Break it
#
# ### Leave out the event
#
# One guarantee less: the same two queues, and nobody joins them.

# %%
raced, from_raced = double_blocks(here, queues=2, join=lambda ops, earlier, later: None)
print("with events:", from_two, "  without:", from_raced)
assert from_raced != from_two

# %%
gantt(bars(raced), "Two queues, not joined: A is computed before it has arrived", until=one.now)

# %% [markdown]
# It is faster, too. Block A is computed while it is still on its way: the card doubles what lay
# there before, and then the block arrives on top of the result and is fetched as it was sent. B, C
# and D come back right, but only because the work in front of them took long enough. Nothing
# complains: no operation touched memory that it may not touch. This is what
# [events](#order-between-queues) are for. Put back, they cure it:

# %%
_, cured = double_blocks(here, queues=2)
assert from_raced == [1, 4, 6, 8]
assert raced.now < two.now
assert cured == [2, 4, 6, 8]

# %% [markdown]
# ### Look too early
#
# The host can lose a race as well. A fetched buffer is good after `wait`, `synchronize`, or a
# `query` that said yes, and not before, however much time the host spends hoping:

# %%
bench = Bench(here)
bench.queue.submit(Fill(bench.block(0), b"\x05"))
result = bench.host(0)
bench.queue.submit(D2H(bench.block(0), result))
early = int(result[0])
bench.queue.synchronize()
print("early:", early, "  in time:", result[0])
assert (early, int(result[0])) == (0, 5)

# %% [markdown]
# ### Fail in the middle
#
# An operation that fails on the card cannot raise where it was submitted: that line has long
# returned. Nor does it raise in whichever call happens to move the clock. Its queue keeps the error
# and is **poisoned**: what comes after the failed operation is dropped, since it would work on
# bytes that never came.


# %%
def broken(memory):
    raise RuntimeError("parity error in core 7")


bench = Bench(here)
other, waiting = bench.card.new_queue(), bench.card.new_queue()
result, promise = bench.host(0), EventSignal()
bench.queue.submit(H2D(bench.host(1), bench.block(0)))
bench.queue.submit(Compute(DOUBLING, broken), "breaks")
bench.queue.submit(D2H(bench.block(0), result))
bench.queue.submit(promise)
waiting.submit(EventWait(promise))
other.submit(H2D(bench.host(2), bench.block(1)))

other.synchronize()
for queue in (bench.queue, other, waiting):
    print(queue)
assert [record.kind for record in bench.machine.timeline if record.failed] == ["Compute"]

# %% [markdown]
# `other` noticed nothing, though it was `other` that moved the clock over the accident. `waiting`
# failed with the queue it waits for, since the signal was dropped and will never fire. Whoever asks
# a poisoned queue is told, once:

# %% tags=["raises-exception"]
bench.queue.synchronize()

# %%
bench.queue.synchronize()
assert result[0] == 0, "the fetch behind it never happened"

# %% [markdown]
# Asked a second time it is silent, so that one accident is not reported twice. It has not
# forgotten: it takes no more work, and says why.

# %% tags=["raises-exception"]
bench.queue.submit(D2H(bench.block(0), result))

# %%
bench.queue.reset()
bench.queue.wait(bench.queue.submit(D2H(bench.block(0), result)))
print(bench.queue, "fetched", result[0])
assert result[0] == 1, "what came before the accident was done"

# %% [markdown]
# ### Use memory after it was given back
#
# The last fault leaves no trace in any timeline. A block is given back, and somebody still writes
# to it. The card obliges. **Memcheck** is told what is handed out and given back, compares it with
# the footprint of every operation, and refuses the bad one before it is enqueued, with the line
# that submitted it and the line that gave the block back:

# %% tags=["raises-exception"]
bench = Bench(here, sanitize=True)
block = bench.block(0)
bench.machine.memcheck.handed_out(0, bench.address)
bench.queue.submit(Fill(block, b"\x01"))
bench.machine.memcheck.given_back(0, bench.address)
bench.queue.submit(Fill(block, b"\x02"))

# %%
report = bench.machine.memcheck.reports[0]
print(report.kind, "of bytes", report.start, "to", report.stop)
bench.queue.synchronize()
assert (report.kind, report.stop - report.start) == ("use after free", BLOCK)
assert bench.peek(block) == 1, "the first fill was in time; the second never happened"

# %% [markdown]
# The first `Fill` was still pending when its block was given back, and that is no fault: it was
# submitted while somebody owned the memory. Whoever hands the block out again will submit later,
# and so in one queue comes later.

# %% [markdown]
# ## Assembled
#
# The exported cells above, in order and under their titles, are
# [`torch_spyre_ref/runtime/operations.py`](../torch_spyre_ref/runtime/operations.py). The shipped
# module does what yours did, nanosecond by nanosecond:

# %%
assert shipped.H2D is not H2D
for queues in (1, 2, 3):
    mine, from_mine = double_blocks(here, queues)
    theirs, from_theirs = double_blocks(shipped, queues)
    assert from_mine == from_theirs == [2, 4, 6, 8]
    assert list(mine.machine.timeline) == list(theirs.machine.timeline)
    print(f"on {queues}: {len(theirs.machine.timeline)} records are the same")

# %% [markdown]
# What an operation *is* on a card stands beside the module and not in it, in one small function for
# each. This is the one for `H2D`:
#
# ```python title="torch_spyre_ref/runtime/lowering.py"
# --8<-- "torch_spyre_ref/runtime/lowering.py:h2d"
# ```
#
# Which pipeline, how long, to what effect: that is all a queue ever learns. And PyTorch is not in
# the room:

# %%
assert "torch" not in sys.modules

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/00_the_card.py`, and are tested.
#
# ### 1. Predict
#
# Six operations on two queues; nothing joins the queues except what is written. At which nanosecond
# does each of the four named ones *start*? A submission takes 1000 ns and happens before its
# operation can start; a transfer of one block takes 9192.

# %%
prediction = {"load": None, "think": None, "save": None, "more": None}


def check_prediction(prediction):
    """Compare with a run."""
    bench = Bench(here)
    other = bench.card.new_queue()
    signal = EventSignal()
    bench.queue.submit(H2D(bench.host(1), bench.block(0)), "load")
    bench.queue.submit(signal)
    other.submit(Compute(3_000, double(bench.block(1))), "think")
    other.submit(EventWait(signal))
    other.submit(D2H(bench.block(0), bench.host(0)), "save")
    bench.queue.submit(Compute(3_000, double(bench.block(1))), "more")
    bench.machine.synchronize(0)
    starts = {r.label: r.start for r in bench.machine.timeline if r.label}
    if None in prediction.values():
        return "no prediction yet"
    wrong = sorted(name for name in starts if prediction[name] != starts[name])
    return f"wrong: {', '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: eight blocks through two
#
# In `double_blocks` each block had card memory of its own. Now there are eight blocks and room for
# *two*. Write `stream_through`: send, double and fetch every block, on as many queues as you like,
# using each of the two places again and again. One more kind of dependence appears, and it points
# backwards. About 20 lines.
#
# The checker wants the right bytes, and a schedule that keeps the card busy, on three different
# cards: a race that is won on one of them is lost on another.


# %%
def stream_through(ops, bench, blocks, results, duration):
    """Fill ``results`` with the bytes of ``blocks`` (both lists of pinned arrays), doubled.

    Card memory: ``bench.block(0)`` and ``bench.block(1)``. A computation takes ``duration``, its
    effect is ``double(span)``. Enqueue everything and return; the checker synchronizes.
    """


class TwoPlaces(Bench):
    """A bench with room for two blocks."""

    def block(self, number, nbytes=BLOCK):
        if number not in (0, 1):
            raise IndexError(f"block {number} asked for, but there is room for blocks 0 and 1 only")
        return super().block(number, nbytes)


def check_stream_through(answer):
    """Run an answer on three cards."""
    cards = {"usual": (64, 6_000), "slow link": (16, 6_000), "slow programs": (64, 40_000)}
    for name, (link_rate, duration) in cards.items():
        bench = TwoPlaces(here, spec=CardSpec(link_rate=link_rate))
        blocks = [bench.host(number + 1) for number in range(8)]
        results = [bench.host(0) for _ in blocks]
        answer(here, bench, blocks, results, duration)
        bench.machine.synchronize(0)
        if len(bench.machine.timeline) == 0:
            return "no answer yet"
        if [set(result) for result in results] != [{2 * number} for number in range(1, 9)]:
            return f"{name}: wrong bytes, {[int(result[0]) for result in results]}"
        alone = duration + 2 * bench.machine.spec.link_time(sticks)
        goal = max(8 * duration, 4 * alone) * 6 // 5
        if bench.now > goal:
            return f"{name}: right, but after {bench.now} ns; aim at {goal}"
    return "right, and busy all the time"


check_stream_through(stream_through)

# %% [markdown]
# ### 3. Open
#
# Memcheck did not see the missing event: every operation touched memory that it might. Two
# operations *race* when they touch a common byte, at least one of them writes it, and nothing
# orders them. All you need is there: `reads` and `writes` say what an operation touches, and order
# comes from queues and events. Write `races(submitted)`: it takes a list of `(queue, operation)` in
# submission order and returns the pairs of operations that race. It should find those of the drill
# above, and none when the events are there. Then think about its cost: what would it take to run it
# at every submission, with a thousand operations pending?

# %% [markdown]
# ## Summary
#
# - A card is asked, by a typed **operation** in an ordered **queue**; the call returns before
#   anything happens, and says nothing about when.
# - Operations of a queue happen one after another; different **pipelines** work at once, but there
#   is one for computing, so overlap means moving while computing.
# - Between queues, order exists only where an **event** says so. A missing one gives wrong bytes
#   and no error.
# - Memory comes in **regions** behind few handles, an address is a list of **chunks**, and what an
#   operation touches, its **footprint**, is part of the operation. Bytes travel in **sticks**.
# - Only calls move the virtual **clock**, so every run, race and figure here can be repeated.
#
# The words are in the [glossary](../docs/glossary.md): [card](../docs/glossary.md#card),
# [operation](../docs/glossary.md#operation), [queue](../docs/glossary.md#queue),
# [pipeline](../docs/glossary.md#pipeline), [event](../docs/glossary.md#event),
# [footprint](../docs/glossary.md#footprint), [region](../docs/glossary.md#region),
# [chunk](../docs/glossary.md#chunk), [stick](../docs/glossary.md#stick), [pinned
# memory](../docs/glossary.md#pinned-memory), [poison](../docs/glossary.md#poison), [virtual
# time](../docs/glossary.md#virtual-time).
#
# Next, [chapter 1](01_device.ipynb): the card gets a name that PyTorch knows.
