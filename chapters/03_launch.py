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
# # A program learns where its tensors are when it is launched
#
# Programs are compiled ahead of time, and only a launch knows where its tensors lie. So a program is
# prepared once, with its addresses left open, and launched often: a launch packs what was open into
# a correction slot, a transfer brings the slot to the card, and the card patches the program from it
# as it fetches the two. Nothing of a caller is ever in the program.
#
# ## You will build
#
# - **The modules** `torch_spyre_ref/emulator/fetch.py`, the unit of the card that feeds programs to
#   its cores, and `torch_spyre_ref/launch.py`, from an artifact on disk to operations in a queue.
# - **What it enables**: you write a program, save it, and launch it on PyTorch's tensors wherever
#   they lie, whatever size they have. The card computes at last.
# - **Not built here**: a compiler. You write programs with an assembler, which stands beside the card
#   and is written by hand, like the program format, the units that execute it, and the artifact's
#   files. PyTorch's own operators still run on the CPU; that is chapter 5.
# - **Time**: about two hours.
# - **You need**: queues, events and the timeline of [chapter 0](00_the_card.ipynb), and allocations
#   and composite addresses of [chapter 2](02_allocator.ipynb).
#
# If you can tell what this prints before you look, you are ready:

# %%
from functools import partial

spot = "where it was"
first_call, second_call = partial(print, spot), lambda: print(spot)
spot = "where it is"
first_call()
second_call()

# %% [markdown]
# One of the two looked when it was made, the other looks when it is called. Everything below is
# about programs that must do the second.

# %% [markdown]
# ## The constraint: a program is finished before its tensors exist
#
# A program for this card says what each **unit** of a core does: load units bring tiles of data
# from the card's memory into scratchpad, vector units compute on them, store units take them back.
# Nobody calls a unit; it works when its operands are there. Which tile goes to which core, and where
# in scratchpad it waits, is all decided by whoever writes the program. Here is one. `{n: 1}` is a
# stride, in elements: one step along `n` is one element further. The assembler fills in what we
# leave out, and the disassembler shows what it chose.

# %%
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.disassembly import disassemble

COUNT = 1024


def sum_program(inputs):
    """The sum of several tensors of 1024 numbers, in one pass."""
    asm = Assembler(f"sum of {inputs}")
    n = asm.dimension("n", COUNT)
    tensors = [asm.argument(f"x{index}", "float32") for index in range(inputs)]
    out = asm.argument("out", "float32")
    total = asm.load(tensors[0], {n: 1})
    for tensor in tensors[1:]:
        total = total + asm.load(tensor, {n: 1})
    asm.store(out, {n: 1}, total)
    return asm.assemble()


print(disassemble(sum_program(2)))

# %% [markdown]
# Read it from below. The scratchpad of a core is laid out to the byte. 1024 elements are one tile,
# 32 on each of 32 cores, which makes 128 bytes a core; `2 x 128` is room for two of them, so that
# the next tile can come while this one is added. (Here there is no next one.) Two values are loaded,
# added, stored. Only the three lines at the top leave something open: `address 0`, `address 1`,
# `address 2`. They cannot say more, and here is why. A tensor's place is decided by the allocator,
# when the tensor is made, from all that was allocated and freed before.
#
# (What else programs are made of: a *pass* runs over all tiles, and `with asm.stream(n):` makes one
# whose reductions, such as `asm.reduce("sum", value)`, are whole when it ends. A *stage* begins when
# the one before it is stored; `asm.stage()` begins one. `asm.apply("exp", value)` is any elementwise
# instruction. The assembler is [`emulator/assembly.py`](../torch_spyre_ref/emulator/assembly.py), and
# the instructions are [`emulator/program/units.py`](../torch_spyre_ref/emulator/program/units.py).)
#
# Three times the same line:

# %%
import dataclasses
import os

import torch

import torch_spyre_ref
from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.emulator.program import Location
from torch_spyre_ref.parts import Parts
from torch_spyre_ref.submission import OneQueue

os.environ["TORCH_SPYRE_REF_MEMORY"] = "512M"
os.environ["TORCH_SPYRE_REF_DERIVE_EDGES"] = "0"


def install(**parts):
    """Have PyTorch use these classes, and the shipped ones for every other part."""
    chosen = {"submission": OneQueue, **parts}
    torch_spyre_ref.register(parts=dataclasses.replace(Parts(), **chosen))


def whereabouts(tensor):
    """A tensor's place: the chunks of its allocation, and the byte at which it starts in them."""
    allocation = _bridge.allocation(tensor)
    return Location(allocation.composite, tensor.data_ptr() - allocation.address)


install()
torch.spyre.set_fallback_policy("silent")

three = []  # or a second run of this cell would hold six for a moment
three = [torch.zeros(COUNT, device="spyre") for _ in range(3)]
offsets = [whereabouts(tensor).address.chunks[0].offset for tensor in three]
print("offsets in the region:", offsets)
assert len(set(offsets)) == 3
three.clear()

# %% [markdown]
# (`install` swaps classes of the backend, as in the chapters before. Whatever is launched goes to one
# queue here, and what orders two queues is written by hand, so that nothing happens behind our backs.)
#
# And the addresses that were known yesterday are no good today. The compiler knows what is computed,
# the allocator knows where, and neither knows the other. Somewhere the two must meet before the card
# runs. Where?
#
# ## Where the boundary lies
#
# One answer comes first, because everything else leans on it: **not below the queue**. Whatever knows
# what a program *means* (which byte of it stands for which tensor, what shapes it allows) stays on
# PyTorch's side. What goes into a queue is an operation with explicit operands. Before we build the
# machinery, here it is at work, as shipped. First a program goes to disk, as an **artifact**: the
# binary, and beside it a document that says how to prepare it, how each launch goes, and what a
# launch must be given.

# %%
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from torch_spyre_ref.spyrecode import Argument, LaunchSpec, write_artifact

scratch = TemporaryDirectory()
FOLDER = Path(scratch.name)


def sum_artifact(inputs):
    """Save ``sum_program(inputs)`` with the spec of its launches; the directory."""
    names = [f"x{index}" for index in range(inputs)]
    arguments = [Argument(name, "input", "float32", (COUNT,), (1,)) for name in names]
    spec = LaunchSpec.of([*arguments, Argument("out", "output", "float32", (COUNT,), (1,))])
    directory = FOLDER / f"sum_of_{inputs}"
    write_artifact(directory, sum_program(inputs), spec, name=f"sum of {inputs}")
    return directory


directory = sum_artifact(2)
document = json.loads((directory / "spyrecode.json").read_text())
print(sorted(file.name for file in directory.iterdir()))
for plan_name in ("JobPreparationPlan", "JobExecPlan"):
    print(plan_name)
    for step in document[plan_name]:
        shown = {k: v for k, v in step["properties"].items() if k != "sha256"}
        print("   ", step["command"], shown)

# %% [markdown]
# The upper plan is for once, the lower one for every launch. Nothing in either says `add`; that is
# in the binary, which only the card reads. Now prepare, launch, and look into the queue before the
# card gets to it:

# %%
from dataclasses import fields

from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import Compute, DeviceRange


def numbers(*values):
    """Tensors of 1024 equal numbers, on the card."""
    return [torch.full((COUNT,), float(value), device="spyre") for value in values]


def look(operations):
    """Print what card memory each operation names, by its place in the job's allocation."""
    for operation in operations:
        named = [(field.name, getattr(operation, field.name)) for field in fields(operation)]
        ranges = [
            f"{name}: {span.nbytes} bytes from {span.offset} on"
            for name, span in named
            if isinstance(span, DeviceRange)
        ]
        print(f"{type(operation).__name__:<14}{', '.join(ranges)}")


plan, queue = prepare_kernel(directory), backend.current().queue(0)
x, y, z = numbers(1, 2, 0)
torch.spyre.synchronize()
queue.submit(Compute(10_000, lambda memory: None))  # keeps the card busy while we look
launch_jobplan(plan, [x, y, z])
look(entry.operation for entry in queue.pending()[1:])
print("computed:", z.unique().tolist())
assert z.tolist() == [3] * COUNT

# %% [markdown]
# A callback on the host, which packs the places of the three tensors; a transfer that brings them to
# a slot; a run of the program with that slot. (Both lie 768 bytes further on than the document says:
# this job has two slots, and the plan on disk one.) Each names the bytes that it needs. The lower
# layer cannot misread what a program means, because it is never told; and whoever stands below the
# queue can be replaced without anybody above noticing. It is a rule that a machine can check:
# `lint-imports`, which runs with the tests, finds no module of `runtime/` or `emulator/` that imports
# anything from above.

# %%
import torch_spyre_ref.runtime as below

told = [field.name for field in fields(below.Execute)]
print("what the runtime is told of a run:", ", ".join(told))
assert not {"args", "spec", "symbols", "artifact"} & set(told)
del x, y, z, plan

# %% [markdown]
# ### What was: a second graph
#
# This boundary was not there from the beginning. The first integration of Spyre started from PyTorch's
# FX graph, which is fine, since that graph belongs to the compiler. But what came out at the other end
# was a *second* graph, one for the runtime: to run a program meant to read that graph and take it
# apart, to add the call's tensors to it as nodes and edges, to put the result in order, and only then
# to emit operations. A transfer to the card went the same way, in a small graph of its own.
#
# Here is such a launcher, an honest one. It stands in `benchmarks/` (so run this notebook where it
# lies, in the repository's `chapters/`) and goes in through the one door between PyTorch's side and the
# queues, the submission. It is given a call, does its work with graphs, and hands over the same
# operations:

# %%
import sys

sys.path.append("..")  # `benchmarks` lies beside `chapters`, and is not part of the package

from benchmarks.graph_launcher import graph_mediated


def ten_calls(plan, z):
    """Ten times two copies and a launch: what was computed, and what the card did."""
    torch.spyre.synchronize()
    timeline = backend.current().runtime.timeline
    timeline.clear()
    for number in range(10):
        x, y = (torch.full((COUNT,), float(value)).spyre() for value in (number, 1))
        launch_jobplan(plan, [x, y, z])
    torch.spyre.synchronize()
    trace = [(record.kind, record.nbytes, record.end - record.start) for record in timeline]
    return z[0].item(), trace


plan, z = prepare_kernel(directory), torch.zeros(COUNT, device="spyre")
direct, direct_trace = ten_calls(plan, z)
with graph_mediated() as launcher:
    by_graph, graph_trace = ten_calls(plan, z)

counts = launcher.counts
print(f"computed {direct:g} by {len(direct_trace)} operations,", end=" ")
print(f"and {by_graph:g} by {len(graph_trace)}")
print(f"graphs: {counts.graphs_read} read from disk, {counts.copies} made for copies")
print(f"in them: {counts.nodes} nodes, {counts.edges} edges")
assert direct == by_graph == 10
assert direct_trace == graph_trace
assert (counts.launches, counts.copies) == (10, 20)
del z, plan

# %% [markdown]
# Not one operation differs. All those nodes and edges were made, ordered and dropped to arrive at the
# very steps that stand in the artifact's plan, and that were known when it was compiled. A graph is
# worth its price where something has yet to be decided. Here nothing is; what a launch adds is where
# three tensors lie.
#
# (The price can be measured, with `python -m benchmarks`. It is host time, so no notebook shows it.
# For a model of 8 billion parameters on a real card, "Building Spyre as a Native PyTorch Device", on
# [PyTorch's blog](https://pytorch.org/blog/), reports that without graphs on the way the prompt is
# read 1.7 times as fast, and each further token comes 2.4 times as fast.)
#
# %% [markdown]
# ## The contract: what PyTorch hands to a launch
#
# PyTorch has no hook called *launch*. It has two places in which it calls a kernel of ours, and in
# both of them what arrives is a list of tensors. Everything else a launcher asks of the tensors
# themselves. In PyTorch 2.13:
#
# | when this happens | what is called or read | in its file |
# | --- | --- | --- |
# | compiled code reaches a kernel | a line that our wrapper class wrote: `generate_kernel_call(self, kernel_name, call_args, *, device=None, …)` | `_inductor/codegen/wrapper.py` |
# | … and Triton's kernels, for comparison | `run(self, *args, stream, benchmark_run=False, **kwargs)` | `_inductor/runtime/triton_heuristics.py` |
# | an op is called on a card tensor | a function that was given to `Library.impl(op_name, fn, dispatch_key="", …)` | `library.py` |
# | where does it lie? | `void* data_ptr()`: the storage's data pointer plus the view's offset | `TensorBase.h` |
# | what does it own? | `void* DataPtr::get_context()`, our `Allocation` | `Allocator.h` |
# | what is it? | `sizes()`, `strides()`, `dtype()`, `device()` | `TensorImpl.h` |
# | which stream is current? | `Stream getStream(Device)` of the guard | `DeviceGuardImplInterface.h` |
#
# (Who calls from the first three rows comes with chapter 5. Here we are the caller.) The row that is
# missing matters most: *nobody promises that the tensors live until the kernel has run*. On a queue
# in order that is no trouble, because whoever gets the memory next also comes later. And nobody
# checks that the tensors are what the kernel was compiled for. A launcher that does not check
# computes nonsense in silence.

# %% [markdown]
# ## In the field
#
# CUDA's column is its driver API, openreg's from PyTorch's sources. torch-spyre's is from its public
# sources, RFCs and issues; the runtime below and the compiler are closed, and that post on [PyTorch's
# blog](https://pytorch.org/blog/) is the only source for the fetch barrier.
#
# | concept | CUDA | torch-spyre | openreg | here |
# | --- | --- | --- | --- | --- |
# | a compiled program | a cubin, with the kernel's name and launch parameters beside it | `spyreCodeDir/` with `spyrecode.json` and `init_binary.bin`; numbers are decimal strings | none: compiled code is C++ for the CPU, or plain ATen calls | a directory with `spyrecode.json` and `program.bin` |
# | done once | `cuModuleLoadData`, `cuModuleGetFunction` | `prepare_kernel(spyrecode_dir)` → `JobPlan` | nothing to do | `prepare_kernel(directory)` → `JobPlan` |
# | done at each launch | `cuLaunchKernel`, which copies the parameters | `launch_jobplan(job_plan, args)`: `HostCompute`, `H2D`, `Compute` | a function call | `launch_jobplan(plan, args)`: `HostCallback`, `H2D`, `Execute` |
# | how an address gets in | a parameter, by value | first buffers of the job, then one of seven tensor segments, now patching at launch | a C pointer | patching at launch |
# | what lies in memory | code, apart from parameters | correction region, then binary, in one allocation | | correction slots, then binary, then the job's own memory |
# | symbols | none: sizes are parameters too | `SymbolicArg`, of kind address or dimension, taken by position; dimensions raise | | addresses, dimensions and scalars; the launch spec says which goes where, and is checked against the program |
# | arguments are checked | by whoever calls | for their device; a wrong shape or dtype runs and gives wrong data (RFC 4755) | by ATen's kernel | for all that the launch spec says, before anything is enqueued |
# | staging of the patch | the driver's business | once one pinned buffer a plan, which two streams could overwrite (issue 2520); now a fresh one for each launch | | for each slot, reused in queue order or when its launch is over |
# | fetch against patch | no such hazard in the model | a barrier below the queue holds the fetch back | | the same |

# %% [markdown]
# ## A picture: once, and often
#
# The card's own trace: a program is prepared, and launched three times. On the left is what happens
# once: slots are cleared, and the program travels to the card. Then three times the same three steps.

# %%
from torch_spyre_ref.emulator.figures import gantt


def observe(action, *arguments):
    """Run an action to its end: what it gave, and what the card did, from time 0 on."""
    torch.spyre.synchronize()
    runtime = backend.current().runtime
    runtime.timeline.clear()
    begun = runtime.clock.now
    result = action(*arguments)
    torch.spyre.synchronize()
    return result, [
        one._replace(submitted=one.submitted - begun, start=one.start - begun, end=one.end - begun)
        for one in runtime.timeline
    ]


def prepare_and_launch(x, y, *outs):
    """Prepare a program, and launch it once for each of ``outs``."""
    plan = prepare_kernel(directory)
    for out in outs:
        launch_jobplan(plan, [x, y, out])


_, picture = observe(prepare_and_launch, *numbers(1, 2, 0, 0, 0))
gantt(picture, "A program is prepared, then launched three times on one queue")

# %%
kinds = [record.kind for record in picture]
print(", ".join(kinds))
assert kinds[:2] == ["Fill", "H2D"]
assert kinds[2:] == ["HostCallback", "H2D", "Execute"] * 3

# %% [markdown]
# ## Naive first: bake the addresses in
#
# A kernel that knows where its operands are needs no launch worth the name. So let us compile for
# the tensors that we have: their places are written beside the program when it is loaded, and a run
# is one operation. (Both lie in one tensor of bytes, so that PyTorch owns the memory.)

# %%
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.emulator.program import encode, pack_slot
from torch_spyre_ref.runtime import Execute


class BakedKernel:
    """A program on the card, with the places of its operands as they were when it was loaded."""

    def __init__(self, program, places):
        slot, code = pack_slot(places), encode(program)
        self.home = torch.frombuffer(bytearray(slot + code), dtype=torch.uint8).spyre()
        parts = self.home[len(slot) :], self.home[: len(slot)]
        self.execute = Execute(*(device_range(part) for part in parts))

    def run(self):
        """One operation, and nothing to fill in."""
        backend.current().queue(0).submit(self.execute, "baked")


x, y, z = numbers(1, 2, 0)
baked = BakedKernel(sum_program(2), [whereabouts(tensor) for tensor in (x, y, z)])
_, baked_in = observe(baked.run)
print(len(baked_in), "operation, and z is", z.unique().tolist())
assert z.tolist() == [3] * COUNT

# %% [markdown]
# It works, and no launch could be shorter. Then the program goes on, as programs do: `z` is dropped,
# somebody else makes a tensor, and the kernel runs again.

# %%
del z
bystander = torch.full((COUNT,), 7.0, device="spyre")
baked.run()
print("the bystander was 7, and is", bystander.unique().tolist())
assert bystander.tolist() == [3] * COUNT
del x, y, bystander, baked

# %% [markdown]
# The allocator did what it promised: the block was free, so the next tensor of that size got it. No
# error, no warning, no address out of bounds; a tensor that never met the kernel has its result.
# Nothing compiled may contain a caller's address.

# %% [markdown]
# ## Three ways to bind
#
# Whatever is compiled ahead of time has this problem, and Spyre's runtime solved it three times. All
# three are here, small. The first two are built on `BakedKernel`, since they too fix addresses; they
# only see to it that the fixed addresses stay true.
#
# ### The job owns the buffers
#
# What was wrong with the baked addresses was that the memory belonged to somebody else. So let the
# job own it: buffers of its own, at fixed places for as long as it lives. Inputs are copied in,
# the result is copied out.


# %%
class OwningKernel(BakedKernel):
    """Its operands are buffers of its own: each call copies in, runs, and copies out."""

    def __init__(self, program):
        self.buffers = [torch.empty(COUNT, device="spyre") for _ in range(program.addresses)]
        super().__init__(program, [whereabouts(buffer) for buffer in self.buffers])

    def __call__(self, *inputs, out):
        for buffer, tensor in zip(self.buffers[:-1], inputs, strict=True):
            buffer.copy_(tensor)
        self.run()
        out.copy_(self.buffers[-1])


def report(name, records):
    """One line about what the card did."""
    copies = [record for record in records if record.pipeline in ("h2d", "d2h", "move")]
    moved = sum(record.nbytes for record in copies)
    print(f"{name}: {len(records)} operations, {moved:,} bytes moved, {records[-1].end:,} ns")


def try_owning(where):
    """One call of an owning kernel on tensors that lie on ``where``; what the card did."""
    kernel = OwningKernel(sum_program(2))
    x, y, out = (torch.full((COUNT,), float(value), device=where) for value in (1, 2, 0))
    _, records = observe(partial(kernel, x, y, out=out))
    assert out.tolist() == [3] * COUNT
    return records


owning_host, owning = try_owning("cpu"), try_owning("spyre")
report("tensors on the host", owning_host)
report("tensors on the card", owning)
assert [record.kind for record in owning_host] == ["H2D", "H2D", "Execute", "D2H"]
assert [record.kind for record in owning] == ["D2D", "D2D", "Execute", "D2D"]

# %% [markdown]
# Right, always: no call can hurt a bystander. The first line is how it began, when values lived on
# the host and visited the card for one computation. It is the copying card of [chapter
# 2](02_allocator.ipynb#copy-in-compute-copy-out) again. The second line shows that tensors which
# *stay* on the card do not help: every operand of every call is moved once for nothing, and each
# program holds memory for operands that nobody needs between calls.
#
# ### Windows onto tensors
#
# Next idea: do not move the tensor to the address, move the address to the tensor. The card gets a
# small translation table. A program is compiled for *windows*, and before it runs the table is told
# what lies behind each of them. Our card has no such table, so here is one, in front of the unit
# that reads programs. It has seven rows, as many as torch-spyre's early runtime had segments for
# tensors (the eighth was the program's).

# %%
from torch_spyre_ref.emulator.addresses import Chunk, CompositeAddress
from torch_spyre_ref.emulator.executables import Executables
from torch_spyre_ref.emulator.fetch import FetchUnit
from torch_spyre_ref.emulator.program import decode, parse
from torch_spyre_ref.emulator.program.slot import read_slot
from torch_spyre_ref.runtime import HostCallback

WINDOWS = 7


class TranslationTable(Executables):
    """Programs name windows where others name regions; ``rows`` says what lies behind each."""

    def __init__(self, memory, spec):
        super().__init__(memory, spec)
        self.rows = [None] * WINDOWS

    def fetch(self, program, slot, job):
        code = self.memory.dense(program)
        windows, symbols = read_slot(parse(code), self.memory.dense(slot))
        behind = [self.rows[window.address.chunks[0].region] for window in windows]
        return decode(code, self.spec).patch(pack_slot(behind, symbols), job)


class TranslatingUnit(FetchUnit):
    """A fetch unit with a translation table in front of memory."""

    def __init__(self, executables):
        super().__init__(TranslationTable(executables.memory, executables.spec))


class WindowedKernel(BakedKernel):
    """Its operands are windows; each call says what is behind them, and runs."""

    def __init__(self, program):
        if program.addresses > WINDOWS:
            raise ValueError(
                f"program {program.name!r} has {program.addresses} tensors, and the card has "
                f"{WINDOWS} windows: split the program"
            )
        windows = [CompositeAddress((Chunk(w, 0, 128),)) for w in range(program.addresses)]
        super().__init__(program, [Location(window, 0) for window in windows])
        self.rows = backend.current().runtime.cards[0].card.fetch.executables.rows

    def __call__(self, *tensors):
        places = [whereabouts(tensor) for tensor in tensors]
        turn = partial(self.rows.__setitem__, slice(len(places)), places)
        backend.current().queue(0).submit(HostCallback(turn), "turn windows")
        self.run()


def try_windows(inputs):
    """The sum of ``inputs`` ones through windows; the result, and what the card did."""
    kernel, tensors = WindowedKernel(sum_program(inputs)), numbers(*[1] * inputs, 0)
    _, records = observe(kernel, *tensors)
    return tensors[-1][0].item(), records


install(fetch_unit=TranslatingUnit)
two, windowed = try_windows(2)
six, windowed_six = try_windows(6)
report(f"two ones are {two:g}", windowed)
report(f"six ones are {six:g}", windowed_six)
assert (two, six) == (2, 6)
assert not any(record.nbytes for record in windowed)

# %% [markdown]
# No byte of a tensor moves any more, and the tensors lie wherever the allocator put them. What is
# short now is windows. Compilers fuse: the more operations go into one program, the fewer times
# values travel, and the more tensors that program has. One input more, and its result is the eighth
# tensor:

# %% tags=["raises-exception"]
try_windows(7)

# %% [markdown]
# The card is nearly empty, and the program is refused for its number of *arguments*. A compiler for
# such a card would have to count tensors before it fuses, and give up good programs.
#
# ### Patching at launch
#
# The third way is the one you saw at work in the beginning. The places in the program stay open, and
# each launch brings its own answers, as data, beside the program. Eight tensors or eighty make the
# data longer and nothing else:

# %%
install()


def try_patching(inputs):
    """The sum of ``inputs`` ones, patched at launch; the result, and what the card did."""
    plan, tensors = prepare_kernel(sum_artifact(inputs)), numbers(*[1] * inputs, 0)
    _, records = observe(launch_jobplan, plan, tensors)
    return tensors[-1][0].item(), records


for inputs in (2, 7, 79):
    total, patched = try_patching(inputs)
    report(f"{inputs:2} ones are {total:2g}", patched)
    assert total == inputs
    assert [record.kind for record in patched] == ["HostCallback", "H2D", "Execute"]

# %% [markdown]
# Three operations, always; 256 bytes for each tensor's place, and not one byte of any tensor. This
# is what the rest of the chapter builds.

# %% [markdown]
# ## Build
#
# ### The card's side: one program is fetched while another runs
#
# The cores work from an instruction buffer, and a unit of the card keeps it filled. It reads a
# program together with its correction slot, all at once; from then on nothing that is written to
# either matters. What it reads is named by three operands:

# %% Say where a program and its patch lie tags=["export"] file="emulator/fetch.py"
"""The fetch unit: it feeds the instruction buffer, and runs ahead of what is computing.

A program is fetched together with its correction slot, all at once: from then on nothing that is
written to either matters. The unit fetches as soon as the program before has left the buffer, that
is when it has started, and looks at no queue: a patch that is still on its way is missed. Only a
barrier in the dispatch itself can hold its fetch back, until the program's own start.
"""

from typing import NamedTuple

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.operands import DeviceRange


class Source(NamedTuple):
    """What a fetch reads: a program and its correction slot. ``job`` is memory of its own."""

    program: DeviceRange
    slot: DeviceRange | None
    job: CompositeAddress | None


# %% [markdown]
# A **dispatch** is one run of a program, from its submission to its end, and there are two moments at
# which it may be fetched. *Ahead*, when the instruction buffer is free: that hides the time a fetch
# takes, so it is what hardware does unless it is told otherwise. Or, with the **barrier** up, at its
# own *start*, when everything before it in its queue is complete. (Here a fetch takes no time, so the
# barrier looks free; a real card pays for it.)
#
# How long a run takes is known once it is fetched, so `start` says. Operands are read and results
# stored at the end (`finish`); should somebody write to an operand in between, a `Span` turns what
# both use into [poison](../docs/glossary.md#poison). And a fetch that goes wrong raises nothing: it
# happens inside whichever call moved the clock, and that caller is not to blame. The error is kept
# until the run ends. (`ticket`, `before` and `accesses` are notes for the sanitizer: which operation
# this is, behind which program it stood in the buffer, and what it read and wrote.)

# %% Run a program tags=["export"] file="emulator/fetch.py"
from collections.abc import Sequence

from torch_spyre_ref.emulator.overlap import Span
from torch_spyre_ref.emulator.program import Patched
from torch_spyre_ref.emulator.program.executable import execute


class Dispatch:
    """One run of a program, from its submission to its end.

    ``barrier`` holds its fetch back until it starts.
    """

    is_fetched = has_left = False
    ticket = 0
    before: int | None = None  # the program that was in the buffer at submission
    next: "Dispatch | None" = None
    accesses: Sequence[tuple[bool, DeviceRange, object]] = ()
    patched: Patched | None = None
    span: Span | None = None
    wrong: Exception | None = None

    def __init__(self, unit: "FetchUnit", source: Source, barrier: bool) -> None:
        self.unit, self.source, self.barrier = unit, source, barrier

    def run_ahead(self) -> None:
        """The instruction buffer is free: fetch, unless the barrier is up."""
        if not self.barrier and not self.is_fetched:
            self._fetch()

    def start(self) -> int:
        """The compute pipeline is free: fetch what is not fetched yet; the run's duration."""
        if not self.is_fetched:
            self._fetch()
        self.leave()
        if self.patched is None:
            return 0
        self.span = Span(self.unit.executables.memory, self.patched.exact)
        return self.patched.duration

    def leave(self) -> None:
        """Make room in the buffer: the run has started, or was dropped and never will."""
        self.has_left = True
        if self.next is not None:
            following, self.next = self.next, None
            following.run_ahead()

    def finish(self) -> None:
        """The run ends: what it computed is in memory. Raises what went wrong since the fetch."""
        patched, wrong, span = self.patched, self.wrong, self.span
        self.patched = self.wrong = self.span = None  # the next run still knows this one
        if patched is None or span is None:
            assert wrong is not None
            raise wrong
        self.accesses = patched.accesses
        is_disturbed = span.close()
        execute(patched, self.unit.executables.memory)
        if is_disturbed:
            span.poison()

    def _fetch(self) -> None:
        self.is_fetched = True
        try:
            self.patched = self.unit.executables.fetch(*self.source)
        except Exception as error:  # kept for the queue: whoever moved the clock is not at fault
            self.wrong = error.with_traceback(None)  # its frames lead to a caller's tensors
            error.__context__ = None  # and so do those of what it came from


# %% [markdown]
# The unit itself is small. Runs come in the order of their submission. One that is submitted while
# another is still in the buffer stands behind it, and gets its chance when that one starts. Look for
# the word *queue* in it: there is none.

# %% Fetch one program after another tags=["export"] file="emulator/fetch.py"
from torch_spyre_ref.emulator.executables import Executables


class FetchUnit:
    """Fetches programs in the order of their submission; one unit a card."""

    def __init__(self, executables: Executables) -> None:
        self.executables = executables
        self._last: Dispatch | None = None

    def dispatch(self, source: Source, barrier: bool) -> Dispatch:
        """A run of the program at ``source``, not submitted yet."""
        return Dispatch(self, source, barrier)

    def take(self, dispatch: Dispatch, ticket: int) -> None:
        """A program was submitted: fetch it now, if the one before it has left the buffer."""
        before, self._last = self._last, dispatch
        dispatch.ticket = ticket
        if before is not None and not before.has_left:
            before.next, dispatch.before = dispatch, before.ticket
        else:
            dispatch.run_ahead()


# %% [markdown]
# Install it in the card, and look. The queue is busy for ten microseconds with something else, and
# behind it stands a run. Is it fetched before its turn?

# %%
install(fetch_unit=FetchUnit)


def early_fetch(barrier):
    """Whether a run is fetched while something else is computing; and its result."""
    x, y, z = numbers(1, 2, 0)
    kernel = BakedKernel(sum_program(2), [whereabouts(tensor) for tensor in (x, y, z)])
    torch.spyre.synchronize()
    queue = backend.current().queue(0)
    queue.submit(Compute(10_000, lambda memory: None))
    queue.submit(dataclasses.replace(kernel.execute, barrier=barrier))
    dispatch = queue.pending()[-1].work.dispatch
    assert type(dispatch) is Dispatch
    return dispatch.is_fetched, z[0].item()


for barrier in (False, True):
    early, result = early_fetch(barrier)
    print(f"barrier {barrier!s:5}: fetched ahead of its turn: {early!s:5}  result {result:g}")
    assert early is not barrier
    assert result == 3

# %% [markdown]
# Both results are right, since nothing was patched in between. And a neighbour that writes to an
# operand while the run is under way? A fill takes half a microsecond here, and this one, in another
# queue, begins 400 ns before the run does, and ends while it is running:

# %%
from torch_spyre_ref.runtime import EventSignal, EventWait, Fill


def disturbed():
    """A run, and a fill of its first operand meanwhile; the result."""
    x, y, z = numbers(1, 2, 0)
    kernel = BakedKernel(sum_program(2), [whereabouts(tensor) for tensor in (x, y, z)])
    torch.spyre.synchronize()
    card, go = backend.current().runtime.cards[0], EventSignal()
    beside = card.new_queue()
    busy = [Compute(duration, lambda memory: None) for duration in (10_000, 400)]
    for operation in (busy[0], go, busy[1], kernel.execute):
        card.default_queue.submit(operation)
    for operation in (EventWait(go), Fill(device_range(x[:32]), bytes(4))):
        beside.submit(operation)
    torch.spyre.synchronize()
    return z


together = disturbed().isnan().tolist()
print(together.count(True), "of", len(together), "results are poison")
assert together == [True] * 32 + [False] * (COUNT - 32)

# %% [markdown]
# Running ahead is a good idea as long
# as a program in memory is a *finished* program. We are about to make programs that are finished only
# at the last moment.

# %% [markdown]
# ### A correction slot
#
# On the card's side a **correction slot** is a table. First the places, 256 bytes each: a composite
# address has at most eight chunks, so its description has a fixed size, and load and store units can
# walk it. Then numbers, 8 bytes each: sizes, and scalars. Everything is little-endian, whatever the
# host is.
#
# On PyTorch's side there are tensors, and a launch spec that says which of them is which **symbol**.
# `Packer` stands between the two. What can be worked out once is: the order of the symbols, a
# `struct` for the numbers, and, for each allocation, the 256 bytes that name it (`pack_address` keeps
# them with its address). What is left for a launch is where each tensor lies *now*: `located` has its
# allocation and its data pointer, as `_bridge.locate` gives them; the difference is the byte at which
# the view starts, as in chapter 2.

# %% Pack a correction slot tags=["export"]
import struct
from collections.abc import Sequence

import torch

from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.emulator.program.slot import STICK, pack_address, slot_end
from torch_spyre_ref.jobs.arguments import Binding, Located
from torch_spyre_ref.spyrecode import LaunchSpec


class Packer:
    """Where everything goes in the correction slot: addresses in front, then numbers."""

    def __init__(self, spec: LaunchSpec) -> None:
        symbols = sorted(spec.symbols, key=lambda symbol: symbol.offset)
        self._addresses = [s.index for s in symbols if s.kind == "address"]
        self._numbers = [(s.kind == "scalar", s.index) for s in symbols if s.kind != "address"]
        letters = (
            "d" if is_scalar and spec.scalars[index].type == "float" else "q"
            for is_scalar, index in self._numbers
        )
        taken = slot_end(len(self._addresses), len(self._numbers))
        self._tail = struct.Struct(f"<{''.join(letters)}{-taken % STICK}x")

    def pack(
        self,
        scalars: Sequence[int | float],
        binding: Binding,
        located: Located,
        nowhere: Allocation,
    ) -> bytes:
        """The slot of a launch. Arguments without elements lie ``nowhere``, which must exist."""
        parts = []
        for index in self._addresses:
            owner, address = located[index]
            if owner is None:
                owner, address = nowhere, nowhere.address
            parts.append(pack_address(owner.composite, address - owner.address))
        if self._tail.size:
            sizes = binding.sizes
            numbers = [scalars[i] if given else sizes[i] for given, i in self._numbers]
            parts.append(self._tail.pack(*numbers))
        return b"".join(parts)


# %% [markdown]
# Two views of one storage, and a whole tensor that is spread over the card's domains. Packed, and
# then read with the card's own eyes (`read_slot` is what the fetch unit uses):

# %%
from torch_spyre_ref.jobs.arguments import Arguments
from torch_spyre_ref.spyrecode import read_artifact

base = torch.arange(3.0 * COUNT).spyre()
with torch.spyre.placement("interleave"):
    spread = torch.zeros(COUNT * 8, device="spyre")[:COUNT]
args = [base[:COUNT], base[5 : COUNT + 5], spread]

spec = read_artifact(directory).spec
arguments = Arguments(spec, card=0)
binding, located = arguments.bind(args, ())
assert arguments.bind(args, ())[0] is binding, "the verdict on these descriptions is remembered"
slot = Packer(spec).pack((), binding, located, nowhere=_bridge.allocation(base))
for place in read_slot(sum_program(2), slot)[0]:
    print(f"starts at byte {place.start:2} of {place.address}")
print(len(slot), "bytes")
assert read_slot(sum_program(2), slot)[0] == [whereabouts(tensor) for tensor in args]
assert len(slot) == 3 * 256
del base, spread, args

# %% [markdown]
# An address here is not a number: it is a list of chunks, with a start. That is what makes
# [placement](../docs/glossary.md#placement) nobody's business but the allocator's. The same binary
# adds tensors that lie in one piece and tensors in four.
#
# `Arguments` made sure beforehand that the tensors are what the spec says. It compares every
# description (device, dtype, layout, shape, strides) and remembers the verdict for descriptions that
# it has seen, so that a loop pays for it once. One call into the bridge, `_bridge.signature`, gives
# it both: the descriptions as one string of bytes, which is what the verdicts are kept by, and where
# the tensors lie. It stands in
# [`jobs/arguments.py`](../torch_spyre_ref/jobs/arguments.py).
#
# ### The three steps of a launch
#
# An artifact's execution plan has three commands: fill the slot on the host, bring it over, run.
# Each becomes an operation of the queue, and most of that work can be done before the first launch.
# The transfer is the same every time: same staging buffer, same slot. The callback is the same but for
# the bytes that it writes. These steps, with their staging buffers, are a **lane**, which is written
# by hand. (`of_job` notes that a patch touches what is its job's own, and nothing else: with several
# streams, [chapter 4](04_streams.ipynb) need not look at it.)
#
# ```python title="torch_spyre_ref/jobs/lanes.py"
# --8<-- "torch_spyre_ref/jobs/lanes.py:step"
# ```
#
# And the callback. The bytes of a slot are worked out when the launch is *called*, and only written
# when the callback's turn comes; what happens to the tensors in between changes nothing. (You will
# see it as soon as there are launches.)
#
# ```python title="torch_spyre_ref/jobs/lanes.py"
# --8<-- "torch_spyre_ref/jobs/lanes.py:patch"
# ```
#
# ### A program on the card
#
# A **job** is a program on one card. It has one allocation:
#
# | offset | what |
# | --- | --- |
# | 0 | correction slots, the last one first |
# | behind them | the program binary, to the byte as it is on disk |
# | behind it | memory of the job's own: whatever the program keeps between its stages |
#
# Why more than one slot? On one queue one would do, since a transfer waits for the run before it.
# The second is for [chapter 4](04_streams.ipynb), where patches come by another queue, and can travel
# while the launch before them runs, if they have somewhere to go. So launches take turns at the
# slots, and with two of them a transfer overwrites what the launch *before the last* was patched
# from. On one queue that launch is over by then. If another queue used the slot, the launch waits for
# it; that is what the submission does with `Slot`, in
# [`submission.py`](../torch_spyre_ref/submission.py).
#
# Loading is what "once" costs: zeros where no launch has patched yet (for zero is no address), and then
# the binary.

# %% Load a program tags=["export"]
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_spyre_ref.jobs.memory import JobMemory
from torch_spyre_ref.runtime import H2D, Fill
from torch_spyre_ref.submission import transfer


def load(job: "Job", memory: JobMemory) -> int:
    """Write a job's binary to its memory; the ticket of the transfer, which is over."""
    binary, queue = job.artifact.binary, job.backend.queue(job.device)
    first = binary.dev_ptr + job.shift
    if first:  # what no launch has patched is zero, and no address
        transfer(queue, Fill(memory.at(0, first), b"\0"), "unpatched")
    staged = job.backend.runtime.pinned.allocate(binary.size).array
    staged[:] = np.frombuffer(job.artifact.program, np.uint8)
    ticket = transfer(queue, H2D(staged, memory.at(first, binary.size)), "load program")
    queue.wait(ticket)
    return ticket


# %% [markdown]
# The job itself takes turns. A launch gets the next slot, a lane that is free for its queues, and binds;
# then it is handed to the submission, which knows queues and no programs. When the card's memory runs
# short, a job can be evicted, and the next launch loads it again. Launches that are under way keep what
# they need: each `Execute` holds the memory that it runs in.

# %% Keep a program on the card tags=["export"]
from torch_spyre_ref.jobs.lanes import Lane
from torch_spyre_ref.runtime import Queue
from torch_spyre_ref.spyrecode import Artifact
from torch_spyre_ref.submission import BoundLaunch, Slot

if TYPE_CHECKING:
    from torch_spyre_ref.jobs.programs import Programs


class Job:
    """A program on one card, with its correction slots; on the card only when it is needed."""

    def __init__(self, programs: "Programs", artifact: Artifact, slots: int) -> None:
        self.programs, self.artifact, self.slots = programs, artifact, slots
        self.backend, self.device = programs.backend, programs.device
        self.shift = (slots - 1) * artifact.binary.dev_ptr
        self.memory: JobMemory | None = None
        self._lanes: list[list[Lane]] = []
        self._slots: list[Slot] = []
        self._next = self._loaded_at = 0

    def loaded(self) -> JobMemory:
        """The job's memory, with the binary in it. Raises ``torch.OutOfMemoryError``."""
        if self.memory is None:
            nbytes = self.artifact.allocation.size + self.shift
            memory = JobMemory(self.backend, self.device, nbytes)
            self._loaded_at = load(self, memory)
            self._lanes = [[] for _ in range(self.slots)]
            self._slots = [Slot(number) for number in range(self.slots)]
            self.memory = memory
        return self.memory

    @property
    def last_used(self) -> int:
        """The ticket of its last launch, or else of its loading."""
        return max(self._loaded_at, *(slot.ticket for slot in self._slots))

    def evict(self) -> None:
        """Take the program off the card; launches that are enqueued keep what they need."""
        self.memory, self._lanes, self._slots = None, [], []

    def launch(
        self,
        queue: Queue,
        patch: bytes,
        args: Sequence[torch.Tensor],
        scalars: Sequence[int | float],
        how: dict[str, Any],
    ) -> int:
        """Launch through the next slot; the ticket of the last operation."""
        memory, number = self.loaded(), self._next
        self._next = (number + 1) % self.slots
        submission, slot = self.backend.submission, self._slots[number]
        first = submission.prepares_on(queue)
        lane = self._lane(memory, number, (queue, first))
        preparation, compute = lane.bind(patch, how)
        bound = BoundLaunch(self, slot, patch, args, scalars, first, preparation, compute)
        return lane.launch(submission, queue, bound)

    def _lane(self, memory: JobMemory, number: int, queues: tuple[Queue, Queue]) -> Lane:
        lanes = self._lanes[number]
        for lane in lanes:
            if lane.is_free(queues):
                return lane
        lanes.append(Lane(self, memory, number, queues))
        return lanes[-1]


# %% [markdown]
# ### A plan
#
# A **job plan** is what a user holds: the job, and what launches of it are checked by and packed
# with. Two plans of equal artifacts, with as many slots, share one job, because a program is known by
# its content.
#
# `Arguments` looked at each tensor by itself. Whether they may lie *together* as they do is looked at
# next. A program stores one tile while it loads the next, so an output that overlaps an input is
# refused, unless it lies on exactly the same elements, as in `x += y`, and every element of this
# program is loaded before it is stored to. A transposing copy is no such program: in place it would
# read what it has written. [`jobs/in_place.py`](../torch_spyre_ref/jobs/in_place.py) reads that off
# the program, and [`jobs/aliasing.py`](../torch_spyre_ref/jobs/aliasing.py) compares the tensors.
#
# Only then is the program loaded, if it is not there.

# %% Plan the launches of a program tags=["export"]
from functools import partial

from torch_spyre_ref.jobs.aliasing import Overlaps
from torch_spyre_ref.jobs.arguments import Arguments
from torch_spyre_ref.runtime.lowering import Touched


class JobPlan:
    """A program on one card, to be launched on any arguments that its launch spec allows."""

    def __init__(self, job: Job) -> None:
        self.job, self.spec, self.device = job, job.artifact.spec, job.device
        self.arguments, self.packer = Arguments(self.spec, self.device), Packer(self.spec)
        self.overlaps = Overlaps(job.artifact)

    def patch(self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]) -> bytes:
        """The correction slot of a launch. Raises :class:`LaunchMismatchError`."""
        return self.bind(args, scalars)[0]

    def bind(
        self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]
    ) -> tuple[bytes, Touched]:
        """The correction slot, and whom to ask what the launch touches. Raises as ``patch``."""
        binding, located = self.arguments.bind(args, scalars)
        self.overlaps.refuse(args, binding, located)
        nowhere = self.job.loaded().allocation
        patch = self.packer.pack(scalars, binding, located, nowhere)
        return patch, partial(binding.places.touched, patch)

    def __repr__(self) -> str:
        return f"JobPlan({self.job.artifact.name!r} on spyre:{self.device}: {self.spec})"


# %% [markdown]
# ### Prepare once
#
# Reading the artifact is checked to the last byte, since files come from anywhere. Then the card's
# `Programs` either have that content already, or compare what the spec says with what the program
# does, and load it. They compare number, order, kind and format of the symbols; whether an input is
# stored to, an output never is, or is read before; whether the program stays in tensors whose size is
# fixed; whether it has the memory that it keeps things in. That is
# [`jobs/check.py`](../torch_spyre_ref/jobs/check.py), and you will run into it below. What it cannot
# see is what a size or a number *means*: that is the program's own, and a spec of the wrong meaning
# comes out as a wrong result.

# %% Prepare a program tags=["export"]
import os
from typing import Final

from torch_spyre_ref import backend
from torch_spyre_ref.device import index_of
from torch_spyre_ref.spyrecode import read_artifact

SLOTS: Final = 2


def prepare_kernel(
    directory: str | os.PathLike[str],
    device: torch.device | int | str | None = None,
    *,
    slots: int = SLOTS,
) -> JobPlan:
    """Read, check and load the artifact in ``directory``: all that can be done before a launch.

    Args:
        directory: what :func:`torch_spyre_ref.spyrecode.write_artifact` wrote.
        device: the card; by default the current one.
        slots: correction slots: so many launches can be under way with patches of their own.

    Raises:
        ArtifactError: the directory is no artifact that this card can run.
        torch.OutOfMemoryError: the card has no room for it.
    """
    index = index_of(device)
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise ValueError(f"{slots!r} correction slots asked for; expected a whole number from 1 on")
    programs = backend.current().programs(index)
    return JobPlan(programs.job(read_artifact(directory), slots))


# %% [markdown]
# ### Launch often
#
# And this is a launch: check and pack, bind, hand over. Whatever is wrong with the queue or the
# arguments is refused in the first two lines under the lock: before anything is enqueued, and before a
# program that is off the card is loaded for it. (Which memory the launch `touched` can be read back from its slot. While one
# queue has all the work, nobody asks.)


# %% Launch a program tags=["export"]
from torch_spyre_ref.jobs.refusal import require_good


def launch_jobplan(
    plan: JobPlan,
    args: Sequence[torch.Tensor],
    scalars: Sequence[int | float] = (),
    *,
    queue: Queue | None = None,
    barrier: bool = True,
) -> int:
    """Enqueue one launch of ``plan``; the ticket of its last operation.

    Args:
        args: tensors on the plan's card, in the order of the launch spec.
        scalars: its numbers, in order.
        queue: where to; by default the queue that this thread's work goes to.
        barrier: whether the card holds the fetch back until the program's turn; off is for drills.

    Raises :class:`LaunchMismatchError`, or ``QueueError`` for a queue that is poisoned or closed,
    before anything is enqueued.
    """
    if not isinstance(plan, JobPlan):
        given = type(plan).__name__
        raise TypeError(f"{given} was given; expected a JobPlan, which prepare_kernel makes")
    queue = plan.job.backend.queue(plan.device) if queue is None else queue
    with plan.job.programs.lock:
        require_good(queue, plan.device)
        patch, touched = plan.bind(args, scalars)
        how = {"touched": touched, "barrier": barrier}
        return plan.job.launch(queue, patch, args, scalars, how)


# %% [markdown]
# PyTorch's tensors, your code, the card:

# %%
import torch_spyre_ref.launch as shipped

OURS = {"fetch_unit": FetchUnit, "job": Job}
install(**OURS)

plan = prepare_kernel(directory)
print(plan)
x, y, z = numbers(1, 2, 0)
_, first = observe(launch_jobplan, plan, [x, y, z])
report("first launch", first)
assert z.tolist() == [3] * COUNT
assert type(plan.job) is Job is not shipped.Job

again = prepare_kernel(sum_artifact(2))
assert again.job is plan.job, "the same content, the same job"

# %% [markdown]
# What baked addresses could not survive is now nothing special. Once more `z` goes, a bystander gets
# its block, and the program runs, on a tensor that lies somewhere else:

# %%
del z
bystander = torch.full((COUNT,), 7.0, device="spyre")
w = torch.zeros(COUNT, device="spyre")
launch_jobplan(plan, [x, y, w])
print("bystander", bystander.unique().tolist(), "- result", w.unique().tolist())
assert bystander.tolist() == [7] * COUNT
assert w.tolist() == [3] * COUNT

# %% [markdown]
# The place is the one at the call. This launch stands behind a busy card when its tensor gets another
# storage: the old one has the result, and the new one is left alone.

# %%
old, new = w[:], torch.full((COUNT,), 9.0, device="spyre")
old.zero_()
backend.current().queue(0).submit(Compute(10_000, lambda memory: None))
launch_jobplan(plan, [x, y, w])
w.set_(new)
print("old storage", old.unique().tolist(), "- new storage", w.unique().tolist())
assert old.tolist() == [3] * COUNT
assert w.tolist() == [9] * COUNT

# %% [markdown]
# What does not fit is refused, by name, before anything is enqueued:


# %%
from textwrap import fill


def refusal(plan, tensors):
    """Why a launch is refused."""
    try:
        launch_jobplan(plan, tensors)
    except ValueError as error:
        return str(error)


torch.spyre.synchronize()
print(fill(refusal(plan, [x, y.to(torch.float16), w]), 88), end="\n\n")
both = torch.zeros(2 * COUNT, device="spyre")
wrongs = ([x, y], [x, y[:7], w], [x, y.cpu(), w], [x, both[:COUNT], both[1 : COUNT + 1]])
torch.spyre.synchronize()
for wrong in wrongs:
    short = refusal(plan, wrong).split(". The launch takes")[0].split(", in this order")[0]
    print(fill(short, 88))
assert not backend.current().queue(0).pending()

# %% [markdown]
# And memory that is short takes programs off the card, those first that were used longest ago. They
# come back when they are needed. (`evict` is what the allocator calls before it gives up.)


# %%
def evict_all():
    """Take every program off the card, as when memory is short."""
    torch.spyre.synchronize()
    while backend.current().programs(0).evict():
        pass


evict_all()
assert plan.job.memory is None
_, records = observe(launch_jobplan, plan, [x, y, w])
print(", ".join(record.kind for record in records))
assert w.tolist() == [3] * COUNT

w.zero_()
launch_jobplan(plan, [x, y, w])
plan.job.evict()  # behind a launch that is under way, and keeps what it needs
assert w.tolist() == [3] * COUNT

other = prepare_kernel(sum_artifact(1))
launch_jobplan(other, [x, w])
launch_jobplan(plan, [x, y, w])
torch.spyre.synchronize()
backend.current().programs(0).evict()
assert other.job.memory is None, "it was used longest ago"
assert plan.job.memory is not None
del wrong, wrongs, both, x, y, w, old, new, bystander, plan, again, other

# %% [markdown]
# ## What it costs
#
# Twice the same program: once prepared, then launched a hundred times without waiting in between.


# %%
def hundred(plan, tensors):
    """Enqueue a hundred launches."""
    for _ in range(100):
        launch_jobplan(plan, tensors)


plan, preparing = observe(prepare_kernel, directory)
_, hundred_launches = observe(hundred, plan, numbers(1, 2, 0))
report("prepare once", preparing)
report("launch a hundred times", hundred_launches)
assert len(hundred_launches) == 300
assert {record.nbytes for record in hundred_launches if record.kind == "H2D"} == {768}

# %% [markdown]
# (A program that has been let go of is prepared anew, so `prepare_kernel` did all of its work here.)
# The binary crosses the link once. A launch sends nothing but its slot. And what sets the pace of these
# small launches is not even the card: three submissions cost the host three microseconds.

# %%
submissions = 300 * backend.current().runtime.spec.submit_time
print(f"of {hundred_launches[-1].end:,} ns, the host submits for {submissions:,}")
assert hundred_launches[-1].end - submissions < 1000

# %% [markdown]
# Beside one another, the three ways and the one that was wrong, all for the same sum of two tensors
# that lie on the card:

# %%
from IPython.display import Markdown

_, patched = observe(launch_jobplan, plan, numbers(1, 2, 0))
ways = {
    "addresses baked in": (baked_in, "wrong after the first `del`"),
    "the job owns the buffers": (owning, "right; every operand is copied"),
    "windows": (windowed, "right; at most seven tensors"),
    "patched at launch": (patched, "right"),
}
rows = [
    "| way | operations | bytes of tensors copied | the outcome |",
    "| --- | ---: | ---: | --- |",
]
for way, (records, outcome) in ways.items():
    copied = sum(record.nbytes for record in records if record.pipeline == "move")
    rows.append(f"| {way} | {len(records)} | {copied:,} | {outcome} |")
del plan
Markdown("\n".join(rows))

# %% [markdown]
# ## What queue order orders
#
# A hundred launches were enqueued at once, through two slots and one staging buffer for each. Nothing
# was waited for. Why did no callback overwrite a buffer that a transfer was still reading? Because
# all of them went through *one queue*, and there an operation starts when the one before it is
# complete:

# %%
from itertools import pairwise

assert all(before.end <= after.start for before, after in pairwise(hundred_launches))
assert [record.kind for record in hundred_launches] == ["HostCallback", "H2D", "Execute"] * 100
print("starts before its predecessor has ended: none of", len(hundred_launches))

for slots in (1, 4):
    _, through = observe(hundred, prepare_kernel(directory, slots=slots), numbers(1, 2, 0))
    assert through[-1].end == hundred_launches[-1].end, "and more slots make nothing faster"

# %% [markdown]
# So order in a queue is enough for the buffer (written, then read), for the slot (transferred, then
# used), and for the tensors. It is a promise about operations: when they start, and when they are
# complete.
#
# It promises nothing about hardware that is at work *before* an operation starts. There is one such
# unit, and you have built it.

# %% [markdown]
# ## Watch it run: one launch, moment by moment
#
# The timeline knows operations, and a fetch is none. So here is a fetch unit whose dispatches write
# their fetch into the timeline, and remember where the result of that run will go.

# %%
from torch_spyre_ref.emulator.timeline import Record


class WatchedDispatch(Dispatch):
    """Writes its fetch into the timeline, and remembers where the result will be stored."""

    def _fetch(self):
        super()._fetch()
        runtime = backend.current().runtime
        now = runtime.clock.now
        runtime.timeline.append(
            Record(0, 0, "", "control", "fetch", "fetch", now, now, now, 0, 0, False)
        )
        if self.patched is not None:
            self.unit.stored = self.patched.footprint.writes[0].address


class WatchedUnit(FetchUnit):
    """Its dispatches are watched."""

    def dispatch(self, source, barrier):
        return WatchedDispatch(self, source, barrier)


# %% [markdown]
# Two launches through a single slot: 1 + 2 into `first`, then 10 + 20 into `second`. When the first is
# over its result is cleared. Then a copy of 160 KiB is enqueued, as something always is, and behind it
# the second launch:


# %%
def second_launch(barrier):
    """Print a launch that follows another through the same slot; its trace, and the results."""
    plan = prepare_kernel(directory, slots=1)
    x, y, first, u, v, second = numbers(1, 2, 0, 10, 20, 0)
    launch_jobplan(plan, [x, y, first])
    torch.spyre.synchronize()
    first.zero_()
    host = torch.ones(40 << 10).pin_memory()

    def copy_and_launch():
        host.to("spyre", non_blocking=True)
        launch_jobplan(plan, [u, v, second], barrier=barrier)

    _, records = observe(copy_and_launch)
    records.sort(key=lambda record: record.end)
    stored = backend.current().runtime.cards[0].card.fetch.stored
    target = "first" if stored == whereabouts(first).address else "second"
    for one in records:
        note = f", and the result will go to {target!r}" if one.kind == "fetch" else ""
        print(f"{one.start:5} to {one.end:5} ns  {one.kind}{note}")
    return records, {"first": first[0].item(), "second": second[0].item()}


install(**{**OURS, "fetch_unit": WatchedUnit})
story, results = second_launch(barrier=True)
print(results)
assert results == {"first": 0, "second": 30}

# %%
gantt(story, "With the barrier: copy, callback, transfer, then fetch and run")

# %% [markdown]
# The callback packs, its transfer lands, and at that very moment, not before, the program is
# fetched and starts. That is the fetch barrier at work. It is the test in `Dispatch.run_ahead`,
# *below* the queue; the operation only asks for it.

# %% [markdown]
# ## Break it
#
# ### Take the barrier away
#
# One argument less, everything else as it was:

# %%
story, results = second_launch(barrier=False)
print(results)
assert results == {"first": 3, "second": 0}

# %%
gantt(story, "Without the barrier: the fetch comes long before the patch")

# %% [markdown]
# The instruction buffer was free, so the unit fetched as soon as the run was submitted, when the
# callback had not even begun. The slot held the places of the launch before: all of them. Callback,
# transfer and run did their work in the right order, and what ran was **the previous call once more**,
# its inputs and its output. `first` got 1 + 2 again, and `second` nothing. It was nobody's fault that
# could be seen in the queue.
#
# The first launch of all has no predecessor. It finds what `load` put into the slots, and zero is no
# address:

# %%
install(**OURS)


def first_launch():
    """The first launch of a program, without the barrier."""
    plan = prepare_kernel(directory)
    launch_jobplan(plan, numbers(1, 2, 0), barrier=False)


first_launch()

# %% tags=["raises-exception"]
torch.spyre.synchronize()

# %%
backend.current().queue(0).reset()

# %% [markdown]
# ### More slots only move the fault
#
# Two slots take turns. A program that is fetched too early then finds not the last launch's places,
# but those of the launch before it. Seven launches, each with inputs of its own:


# %%
def landed(slots, barrier):
    """Seven launches, the last with or without the barrier: whose tensor it stores to, and what."""
    plan = prepare_kernel(sum_artifact(2), slots=slots)
    ten, *inputs = numbers(10, *range(1, 8))
    results = numbers(*[0] * 7)
    for x, result in zip(inputs[:-1], results, strict=False):
        launch_jobplan(plan, [ten, x, result])
        torch.spyre.synchronize()
    for result in results:
        result.zero_()
    launch_jobplan(plan, [ten, inputs[-1], results[-1]], barrier=barrier)
    values = [result[0].item() for result in results]
    (value,) = filter(None, values)
    return values.index(value) + 1, value


for slots in (1, 2):
    where, value = landed(slots, barrier=False)
    print(f"slots: {slots}, no barrier: run 7 stores {value:g} to the tensor of launch {where}")
    assert (where, value) == (7 - slots, 10 + 7 - slots)
    assert landed(slots, barrier=True) == (7, 17)

# %% [markdown]
# With K slots a stale launch N is launch N−K once more. That makes the fault harder to notice, and no
# less frequent. A slot is a place for a patch. It does not say when a program may be read.
#
# ### Events alone are not enough
#
# Perhaps one queue is the trouble? Let a second queue bring the patch, and have the run wait for an
# event, as anybody would who knows streams. Both guarantees, each taken away in turn:


# %%
def two_queues(event, barrier):
    """A patch from one queue and a run in another: which tensor gets a result."""
    card, program = backend.current().runtime.cards[0], sum_program(2)
    x, y, first, u, v, second = numbers(1, 2, 0, 10, 20, 0)
    kernel = BakedKernel(program, [whereabouts(tensor) for tensor in (x, y, first)])
    torch.spyre.synchronize()

    torch.ones(1 << 16).pin_memory().to("spyre", non_blocking=True)  # the link has other work
    patch = pack_slot([whereabouts(tensor) for tensor in (u, v, second)])
    staging = backend.current().runtime.pinned.allocate(len(patch)).array
    staging[:] = np.frombuffer(patch, np.uint8)
    preparation, signal = card.new_queue(), EventSignal()
    preparation.submit(H2D(staging, kernel.execute.slot), "patch")
    preparation.submit(signal)
    if event:
        card.default_queue.submit(EventWait(signal))
    card.default_queue.submit(dataclasses.replace(kernel.execute, barrier=barrier), "run")
    torch.spyre.synchronize()
    return {(0, 30): "second", (3, 0): "first"}[first[0].item(), second[0].item()]


rows = ["| event | barrier | the result is in |", "| --- | --- | --- |"]
outcomes = {}
for event in (True, False):
    for barrier in (True, False):
        outcomes[event, barrier] = two_queues(event, barrier)
        rows.append(f"| {event} | {barrier} | {outcomes[event, barrier]} |")
assert [key for key, tensor in outcomes.items() if tensor == "second"] == [(True, True)]
Markdown("\n".join(rows))

# %% [markdown]
# Each of the two is needed, and neither replaces the other. The event says when the *operation* may
# start. The barrier says that the *fetch* waits until then. An event that orders the run perfectly
# still runs stale bytes.
#
# ### Have the race named
#
# All of these wrong results came without an error. The [sanitizer](../docs/glossary.md#sanitizer)
# looks at who writes a slot and who is patched from it, and asks whether anything orders the two.
# `expect` is for drills like this one: it fails if the fault does *not* come.

# %%
with torch.spyre.sanitizer.expect("race") as reports:
    two_queues(event=True, barrier=False)
for line in str(reports[0]).splitlines():
    print(fill(line, 88))
assert [report.kind for report in reports] == ["race"]

# %%
with torch.spyre.sanitizer.expect("race") as reports:
    two_queues(event=False, barrier=True)
print(f"{len(reports)} {reports[0].kind}, between two queues this time")

with torch.spyre.sanitizer() as reports:
    assert two_queues(event=True, barrier=True) == "second"
print("with both: nothing to report")

# %% [markdown]
# ## Dimensions are symbols, too
#
# So far a program was made for 1024 numbers. But a size is patched as easily as a place: it is one
# more number in the slot. (Here we go beyond the post on [PyTorch's
# blog](https://pytorch.org/blog/), which announces this for later; in torch-spyre's public sources a
# dimension symbol raises "not yet implemented".) In the assembler a
# size may be a symbol, and so may a stride:


# %%
def add_program():
    """c = a + b over rows and columns of any number, each tensor with strides of its own."""
    asm = Assembler("add")
    rows, columns = (asm.size_symbol() for _ in range(2))
    strides = [(asm.size_symbol(), asm.size_symbol()) for _ in range(3)]
    r, c = asm.dimension("rows", rows, likely=64), asm.dimension("columns", columns, likely=64)
    a, b, out = (asm.argument(name, "float32") for name in ("a", "b", "out"))
    steps = [{r: along_r, c: along_c} for along_r, along_c in strides]
    asm.store(out, steps[2], asm.load(a, steps[0]) + asm.load(b, steps[1]))
    return asm.assemble()


print(disassemble(add_program()).split("  scratchpad")[0])

# %% [markdown]
# The launch spec says what each symbol may be, and where a launch can read it off: `rows` from the
# first shape that has it, `a_rows` from the stride of `a`. All other shapes must then agree.

# %%
from torch_spyre_ref.spyrecode import Dimension


def add_artifact():
    """Save ``add_program()`` for up to 4096 rows and columns."""
    names = ("a", "b", "out")
    arguments = [
        Argument(
            name,
            "output" if name == "out" else "input",
            "float32",
            ("rows", "columns"),
            (f"{name}_rows", f"{name}_columns"),
        )
        for name in names
    ]
    dimensions = [Dimension(axis, min=0, max=4096) for axis in ("rows", "columns")]
    for name in names:
        steps = (f"{name}_rows", f"{name}_columns")
        dimensions += [Dimension(step, min=0, max=1 << 24) for step in steps]
    directory = FOLDER / "add"
    write_artifact(directory, add_program(), LaunchSpec.of(arguments, dimensions), name="add")
    return directory


add_plan = prepare_kernel(add_artifact())
for shape in ((1, 1), (3, 5), (200, 300), (4096, 64), (7, 0)):
    a, b = torch.rand(shape), torch.rand(shape)
    sums = torch.empty(shape, device="spyre")
    _, records = observe(launch_jobplan, add_plan, [a.spyre(), b.spyre(), sums])
    run = records[-1]
    print(f"{shape!s:<12} {len(records)} operations, the run takes {run.end - run.start:6,} ns")
    assert sums.cpu().equal(a + b)

base = torch.rand(64, 64)
card = base.spyre()
launch_jobplan(
    add_plan, [card.t(), card[5:6].expand(64, 64), sums := torch.empty(64, 64, device="spyre")]
)
assert sums.cpu().equal(base.t() + base[5])
print("a transposed, and b one row for all: right")

# %% [markdown]
# Names are for people. What binds a symbol of the program to one of the spec is its place in the row:
# the first `size_symbol()` is the first entry of `dimensions`, and so on; scalars come after them, and
# the first `argument()` is the first of `arguments`. Two integers that have changed places nobody
# notices.
#
# One artifact, one copy on the card, every size in its range and every view of it. What lies outside
# is refused:

# %%
too_many = [torch.empty(5000, 1, device="spyre")] * 3
print(refusal(add_plan, too_many).split(". The launch takes")[0])
del too_many

# %% [markdown]
# The price: tiles are fixed in the program, for a size that the compiler thinks *likely*. A program
# made for one size can have tiles that fit it. A loop that grows by a token at a time, on the other
# hand, would compile a thousand programs, and with this needs one.

# %% [markdown]
# ## No choice at launch
#
# Three ways, and one of them kept. Does the runtime look at its arguments and pick? It does not. Any
# tensor that PyTorch can make goes the same way:

# %%
del card, sums
with torch.spyre.placement("interleave"):
    spread = torch.rand(64, 64).spyre()
whole = torch.rand(64, 64).spyre()
out = torch.empty(64, 64, device="spyre")
ordinary = {
    "in one piece": (whole, whole),
    "over four domains": (spread, whole),
    "a view": (whole[1:, 3:10], spread[1:, 3:10]),
    "nothing at all": (whole[:0], spread[:0]),
    "itself": (whole, out),
}
for words, (a, b) in ordinary.items():
    _, records = observe(launch_jobplan, add_plan, [a, b, out[: a.shape[0], : a.shape[1]]])
    kinds = [record.kind for record in records]
    print(f"{words:<18} {', '.join(kinds)}")
    assert kinds == ["HostCallback", "H2D", "Execute"]
del a, b, whole, spread, out, add_plan
ordinary.clear()

# %% [markdown]
# The other two keep a use. Memory that the **job owns** is right for whatever no caller ever sees:
# what a program keeps between its stages. There the compiler fixes the place, and the program's text
# says so. This one subtracts the mean; the total waits in the job's memory:


# %%
def centre_program():
    """out = x - mean(x), in two stages."""
    asm = Assembler("centre")
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    total = asm.job_memory("total", "float32", offset=0)
    n = asm.dimension("n", COUNT)
    with asm.stream(n):
        amount = asm.reduce("sum", asm.load(x, {n: 1}))
    asm.store(total, {}, amount)
    asm.stage()
    m = asm.dimension("m", COUNT)
    asm.store(out, {m: 1}, asm.load(x, {m: 1}) - asm.load(total, {}) / float(COUNT))
    return asm.assemble()


print(*disassemble(centre_program()).splitlines()[:4], sep="\n")
roles = {"x": "input", "out": "output"}
spec = LaunchSpec.of(
    [Argument(name, role, "float32", (COUNT,), (1,)) for name, role in roles.items()]
)
write_artifact(FOLDER / "centre", centre_program(), spec, name="centre")

# %% [markdown]
# One thing is forgotten, and `prepare_kernel` says which:

# %% tags=["raises-exception"]
prepare_kernel(FOLDER / "centre")

# %%
write_artifact(FOLDER / "centre", centre_program(), spec, name="centre", memory=4)


def centred(values):
    """Launch it once, on the card."""
    out = torch.empty(COUNT, device="spyre")
    launch_jobplan(prepare_kernel(FOLDER / "centre"), [values.spyre(), out])
    return out.cpu()


values = torch.arange(float(COUNT))
assert centred(values).equal(values - values.mean())
print("from", centred(values)[0].item(), "to", centred(values)[-1].item())

# %% [markdown]
# **Windows** would suit a few tensors that stay for the life of a process and are used by every
# program: bound once, they cost a launch nothing. Spyre's developers leave that door open for special
# cases; this package has no translation table, and so no second way to get an address wrong.

# %% [markdown]
# ## Assembled
#
# All of this is [`launch.py`](../torch_spyre_ref/launch.py) on
# [`emulator/fetch.py`](../torch_spyre_ref/emulator/fetch.py). Install the shipped classes and do it
# all once more: launches through both slots, of a view, after an eviction, and without the barrier.
# On cards that have just started, the traces must agree to the nanosecond with those of your own
# code, and so must the results.

# %%
from types import SimpleNamespace

ours = SimpleNamespace(prepare_kernel=prepare_kernel, launch_jobplan=launch_jobplan)


def everything(module):
    """Prepare and launch with a module's two functions; results, and the trace."""
    sums, adds = module.prepare_kernel(directory), module.prepare_kernel(FOLDER / "add")
    x, y, *outs = numbers(1, 2, 0, 0, 0, 0)
    for out in outs[:3]:
        module.launch_jobplan(sums, [x, y, out])
    pairs = [tensor.view(32, 32) for tensor in (x, y, outs[3])]
    module.launch_jobplan(adds, [pair[3:9, ::2] for pair in pairs])
    evict_all()
    module.launch_jobplan(sums, [x, y, outs[0]])
    torch.spyre.synchronize()
    module.launch_jobplan(sums, [outs[0], y, outs[2]])
    torch.spyre.synchronize()
    module.launch_jobplan(sums, [outs[2], y, outs[1]], barrier=False)
    return [out.tolist() for out in outs]


install()
install(**OURS)  # cards that have just started
yours, your_records = observe(everything, ours)
install()
theirs, their_records = observe(everything, shipped)
assert type(backend.current().runtime.cards[0].card.fetch) is not FetchUnit
assert yours == theirs
assert your_records == their_records
print(f"{len(their_records)} operations, {their_records[-1].end:,} ns, and the same results")

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/03_launch.py`, and are tested.
#
# ### 1. Predict
#
# Six launches, each waited for, then a seventh that is not like them. Into which launch's tensor does
# the seventh run store? Write a number from 1 to 7, or `"none"` where the launch fails.

# %%
from torch_spyre_ref.emulator.program import ProgramError

prediction = {
    "4 slots, no barrier": None,
    "1 slot, no barrier, behind a run of another program that has not started": None,
    "2 slots, no barrier, after the program was evicted": None,
    "2 slots, with the barrier, after the program was evicted": None,
}


def seventh(slots, barrier=False, before=lambda: None):
    """Launch seven times, with something before the last; whose tensor that one stores to."""
    plan = prepare_kernel(sum_artifact(2), slots=slots)
    ten, *inputs = numbers(10, *range(1, 8))
    results = numbers(*[0] * 7)
    for x, result in zip(inputs[:-1], results, strict=False):
        launch_jobplan(plan, [ten, x, result])
        torch.spyre.synchronize()
    for result in results:
        result.zero_()
    before()
    launch_jobplan(plan, [ten, inputs[-1], results[-1]], barrier=barrier)
    try:
        torch.spyre.synchronize()
    except ProgramError:
        backend.current().queue(0).reset()
        return "none"
    (number,) = (at for at, result in enumerate(results, 1) if result[0].item() != 0)
    return number


def check_prediction(prediction):
    """Compare with a run."""
    if None in prediction.values():
        return "no prediction yet"
    other = prepare_kernel(sum_artifact(6))
    actual = (
        seventh(4),
        seventh(1, before=lambda: launch_jobplan(other, numbers(*[1] * 6, 0))),
        seventh(2, before=evict_all),
        seventh(2, barrier=True, before=evict_all),
    )
    pairs = zip(prediction.items(), actual, strict=True)
    wrong = [words for (words, guess), seen in pairs if guess != seen]
    return f"wrong: {'; '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: a program of your own
#
# Write the artifact of `y = alpha * x + y`, for float32 `x` and `y` of any length up to 4096, each
# with a stride of its own, and for any float `alpha`. One artifact for all of them: `alpha` is a
# symbol too (`asm.float_symbol()`, and a `Scalar` in the spec). `y` has the role `"input_output"`.
# About 15 lines.

# %%
from torch_spyre_ref.spyrecode import Scalar

ALPHA = Scalar("alpha", "float")  # for the third list of the spec, after arguments and dimensions


def axpy_artifact(directory):
    """Write the artifact of ``y = alpha * x + y`` to ``directory``."""


AXPY_CASES = ((1000, 1, 1, 2.0), (7, 3, 1, -0.5), (64, 1, 5, 3.0), (0, 1, 1, 1.0))


def check_axpy(answer):
    """Launch it for several lengths, strides and factors, and compare with PyTorch."""
    with TemporaryDirectory() as folder:
        answer(Path(folder) / "axpy")
        if not (Path(folder) / "axpy").exists():
            return "no answer yet"
        try:
            plan = prepare_kernel(Path(folder) / "axpy")
        except ValueError as error:
            return str(error)
    if [argument.role for argument in plan.spec.arguments] != ["input", "input_output"]:
        return f"x is an input and y an input_output, and the spec says {plan.spec}"
    for length, along_x, along_y, alpha in AXPY_CASES:
        x, y = torch.arange(float(length * along_x)), torch.arange(float(length * along_y), 0, -1)
        on_card = x.spyre(), y.spyre()
        y[::along_y] += alpha * x[::along_x]
        words = f"for {length} elements, strides {along_x} and {along_y}, alpha {alpha}"
        try:
            launch_jobplan(plan, [on_card[0][::along_x], on_card[1][::along_y]], [alpha])
        except ValueError as error:
            return f"{words}: {error}"
        if not on_card[1].cpu().equal(y):
            return f"{words}: wrong result"
    return "right"


check_axpy(axpy_artifact)

# %% [markdown]
# ### 3. Open
#
# A loop often launches a program on the very tensors of the time before. Then the slot on the card
# already holds what the callback and the transfer are about to bring. Write a submission (a class
# with `transfer` and `launch`, as in [`submission.py`](../torch_spyre_ref/submission.py)) that leaves
# them out when the bytes are the same. `with submission.use(Mine()):` has everything in the block go
# through it. How many operations does a launch have then? (Launches take turns at two slots, so the
# third on the same tensors is the first short one.) Afterwards argue: what can make your memory of a
# slot wrong (think of a poisoned queue, and of eviction)? And does such a launch still need the
# barrier?

# %%
from torch_spyre_ref import submission


class Mine(OneQueue):
    """Leaves preparation out where the slot holds these very bytes."""


def launch_through(mine):
    """Launch through it, on tensors that change now and then: what is wrong, or "right"."""
    plan = prepare_kernel(sum_artifact(2))
    x, y, u, first, second = numbers(1, 2, 10, 0, 0)
    same, changed = (x, y, first), (x, u, second)
    with submission.use(mine):
        for number, (args, most) in enumerate(
            [(same, 3), (same, 3), (same, 1), (same, 1), (changed, 3), (same, 1), (changed, 1)], 1
        ):
            args[-1].zero_()
            _, records = observe(launch_jobplan, plan, args)
            if len(records) > most:
                has = f"launch {number} has {len(records)} operations"
                return f"{has}; {most} would do" if number > 3 else "no answer yet"
            if args[-1][0].item() != args[0][0].item() + args[1][0].item():
                return f"launch {number}: wrong result"
        evict_all()
        launch_jobplan(plan, same)
        torch.spyre.synchronize()
    return "right"


def check_submission(mine):
    """Count operations and compare results; a launch that finds no patch fails."""
    try:
        return launch_through(mine)
    except ProgramError as error:
        backend.current().queue(0).reset()
        return f"a launch failed: {error}"


check_submission(Mine())

# %% [markdown]
# The checker knows nothing of poisoned queues; the tested answer does.

# %% [markdown]
# ## Summary
#
# - A compiler does not know where tensors will lie, and an allocator does not know programs. What
#   knows both stands above the queue, and what goes into the queue is typed operations.
# - Fixed addresses are right for memory that the job owns, at the price of copies for everything
#   else. Windows spare the copies and run out. Patching at launch does neither: a host callback, a
#   transfer, a run, for any tensors, and any sizes in a range.
# - Whatever can be done once is done by `prepare_kernel`; `launch_jobplan` checks, binds, and hands
#   over three operations.
# - Order in a queue says when operations start and end. It does not reach the unit that fetches
#   programs ahead of their turn: a barrier below the queue does. Events do not replace it, and more
#   correction slots only move the fault.
# - The right program with the wrong slot is another call once more: it writes somebody else's tensor,
#   without a word. The sanitizer names the race.
#
# New words: [program](../docs/glossary.md#program), [unit](../docs/glossary.md#unit),
# [artifact](../docs/glossary.md#artifact), [launch spec](../docs/glossary.md#launch-spec),
# [symbol](../docs/glossary.md#symbol), [job](../docs/glossary.md#job),
# [job plan](../docs/glossary.md#job-plan), [prepare](../docs/glossary.md#prepare),
# [launch](../docs/glossary.md#launch), [correction slot](../docs/glossary.md#correction-slot),
# [lane](../docs/glossary.md#lane), [dispatch](../docs/glossary.md#dispatch),
# [fetch barrier](../docs/glossary.md#fetch-barrier).
#
# Before: what [chapter 2](02_allocator.ipynb) calls a composite address is what a launch now patches
# in. Next: on one queue every launch waits for its own callback and transfer, though the card could
# have been computing. Two queues for one launch, joined by events that the runtime finds by itself,
# are [chapter 4](04_streams.ipynb).
