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
# # A whole model stays on the card, and a token is a few launches
#
# All five mappings under one language model, before and after: what crosses the link for a token when
# tensors stay on the card and when they do not, and what a launch costs on four ways to the card's
# queues. This chapter makes no module. It counts.
#
# ## You will measure
#
# - **A decoder** in the style of Granite, plain `nn.Module`, that reads text and goes on writing: the
#   same text on the CPU and on the card, op by op and compiled.
# - **Residency**: bytes over the link for one token, when tensors stay where they are and when they
#   do not.
# - **The ladder**: graphs around copies and launches, no graph around copies, no graph at all,
#   preparation on a stream of its own. One switch from each rung to the next.
# - **One token**, from the Python call to the last store.
# - **Not here**: figures by the wall clock. Those depend on your machine, and stand on the page
#   [Benchmarks](../docs/benchmarks.md), which `python -m benchmarks decode` measures again.
# - **Time**: about an hour.
# - **You need**: launches and their slots from [chapter 3](03_launch.ipynb), the second queue from
#   [chapter 4](04_streams.ipynb), and what is compiled from [chapter 5](05_eager.ipynb).
#
# If you can tell what this prints before you look, you are ready:

# %%
weights, bytes_a_number, bytes_a_nanosecond = 8_000_000_000, 2, 200
print(weights * bytes_a_number // bytes_a_nanosecond // 1_000_000, "ms")

# %% [markdown]
# A model of 8 billion weights, two bytes each, on a card whose memory delivers 200 bytes in a
# nanosecond: each new token needs every weight once, so no token takes less than 80 ms, whatever
# happens on the host. This is the **compute bound** of the token, and a backend is judged by how near
# it comes to that. The model of this chapter has a quarter of a million weights.

# %% [markdown]
# ## The constraint: a token is little work, and it comes again
#
# The model is `examples/decoder.py`, and its weights are a file beside it, trained on the card. It reads
# characters, and it has read one book: the language reference that ships with Python.

# %%
import gc
import inspect
import os
import sys
from functools import partial
from tempfile import TemporaryDirectory

import torch

scratch = TemporaryDirectory()
os.environ["TORCH_SPYRE_REF_MEMORY"] = "1G"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch.name
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
sys.path.append("..")  # `benchmarks` and `examples` lie beside `chapters`

import torch_spyre_ref

torch_spyre_ref.register()
torch.spyre.set_fallback_policy("error")

from benchmarks.decoding import Decoding, trained, wide
from examples.decoder import ALPHABET, PROMPT, Cache, encode, generate, step

on_host, on_card = trained("cpu"), trained("spyre")
config = on_card.config
parameters = sum(weight.numel() for weight in on_card.parameters())
print(f"{parameters:,} weights in {config.layers} layers of width {config.width}")

compiled_step = torch.compile(step, dynamic=False)
ways = {
    "CPU, op by op": (on_host, step),
    "card, op by op": (on_card, step),
    "card, compiled": (on_card, compiled_step),
}
texts = {}
for name, (decoder, way) in ways.items():
    texts[name] = "".join(generate(decoder, PROMPT, 120, step=way))
    print(f"{name:<15}{PROMPT}{texts[name][:45]}".replace("\n", " "))
assert len(set(texts.values())) == 1

# %% [markdown]
# Three times the same characters. (Sums are taken in another order on the card, and a logit may differ
# in its last digits. A test makes sure that nowhere in this text two characters are so near to each
# other that it matters.) No op may fall back in this chapter: the policy is `error`.
#
# All that a user would call a model is in this one function:

# %%
print(inspect.getsource(step))

# %% [markdown]
# Reading the prompt is called **prefill**: all of its tokens at once. After that each call has one token,
# which is called **decode**. It is the same function, once with long and once with short tensors. A token in
# decode is hardly any work, and it comes again, and again. What has to be done for each launch besides
# computing is done for every kernel of every token.

# %% [markdown]
# ### Compiled twice, for good
#
# How often was the step compiled? Prefill and decode have tensors of different sizes, so it was two
# graphs, neither of them broken in two where Dynamo could not follow. And that is all, however long the
# decoder goes on: it sees the last tokens, as many as its window holds, its cache is a ring that never
# changes its shape, and how many tokens it has seen is a number on the card. So nothing of Python
# changes from token to token, and no memory is added. `dynamic=False` makes this strict. With it a
# Python number is compiled for each of its values; without it Dynamo would make a symbol of such a
# number as soon as it changes.

# %%
from torch._dynamo.utils import counters


def counted():
    """Graphs compiled, graph breaks, and bytes allocated on the card."""
    gc.collect()
    breaks = sum(counters["graph_break"].values())
    return counters["stats"]["unique_graphs"], breaks, torch.accelerator.memory_allocated()


small = Decoding(on_card, compiled_step)
small.talk(1)
early = counted()
small.talk(config.window)
late = counted()
print(f"{early[0]} graphs, {early[1]} breaks; {config.window} tokens later {late[0]} graphs")
assert early == late and late[:2] == (2, 0)

# %% [markdown]
# ## The contract: what a token asks of the five mappings
#
# Nothing below is new. A token needs all of it, and here is where:
#
# | what Python does | PyTorch calls | which is | so many times a token |
# | --- | --- | --- | --- |
# | `tokens.to("spyre")` | `aten::_copy_from`, allocation by `c10::Allocator::allocate(size_t n)` | [chapter 2](02_allocator.ipynb) | once |
# | `compiled_step(decoder, tokens, cache, 0.0)` | guards of Dynamo, then the `call(args)` that Inductor generated | [chapter 5](05_eager.ipynb) | once |
# | … `empty_strided(…, device='spyre:0')` | `c10::Allocator::allocate(size_t n)` | [chapter 2](02_allocator.ipynb) | once for each buffer that is not reused |
# | … `spyre_…_12(buf18, arg12_1, buf19)` | `launch_jobplan(plan, args, scalars)` | [chapter 3](03_launch.ipynb) | once for each kernel |
# | … in it | `Submission.launch(queue, bound)` | [chapter 4](04_streams.ipynb) | the same |
# | `int(tokens)` | `aten::_local_scalar_dense`, which waits | [chapter 2](02_allocator.ipynb) | once, by who wants to read it |
#
# ## In the field
#
# CUDA's and openreg's columns are from PyTorch's own sources, torch-spyre's from its public sources and
# documents, its figures from "Building Spyre as a Native PyTorch Device" on
# [PyTorch's blog](https://pytorch.org/blog/).
#
# | concept | CUDA | torch-spyre | openreg | here |
# | --- | --- | --- | --- | --- |
# | where weights and caches lie | in the device's memory | the same | in memory that the host may not read | in the card's memory |
# | a compiled step | kernels launched by generated Python, or recorded in a CUDA graph and replayed | job plans, launched by generated Python | Inductor's CPU kernels on memory made readable (open pull request) | job plans, launched by generated Python |
# | what a launch brings | pointers and numbers, as arguments | a patch into a correction buffer | pointers | a patch into a correction slot |
# | a graph on the launch path | none; a CUDA graph is *for* skipping launches | one, at first; then typed operations in queues | none | none; `benchmarks/` has one, to compare |
# | preparation beside computing | the driver's affair | on a stream for host work beside the device's | none: all runs at once on the caller's thread | on a queue of its own |
# | sizes of a decode step | arguments | fixed in the program | as on the CPU | symbols, where sizes change; in this model none does |
# | an op without a kernel | an error | runs on the CPU, with a warning | runs on the CPU | runs on the CPU, counted, with its reason |
# | reported gain of leaving graphs behind | | Granite 3.3 8B, batch 1, sequence 1024: prefill 1.7×, decode 2.4× | | see below, and [Benchmarks](../docs/benchmarks.md) |

# %% [markdown]
# ## Naive first: the card as a calculator
#
# The first thing that a new device can do is to compute one op. So the first integrations keep all
# tensors on the host: copy the operands in, compute, copy the result out. `Around` does that to any
# model. It is a mode of PyTorch's dispatcher, and here is its heart:
#
# ```python title="benchmarks/residency.py"
# --8<-- "benchmarks/residency.py:around"
# ```
#
# Its results are right. What does a token cost on the link? `observed` runs something on an idle card
# until the card is idle again, and returns what the card did:

# %%
from benchmarks.ladder import observed
from benchmarks.residency import copied_around, resident

kept = {
    "nothing": copied_around(trained, weights_stay=False),
    "the weights": copied_around(trained, weights_stay=True),
    "everything": resident(trained, step),
    "everything, compiled": resident(trained, compiled_step),
}
print(f"{'stays on the card':<22}{'launches':>9}{'to it':>12}{'from it':>10}{'patches':>9}")
for name, run in kept.items():
    patches, sent, fetched = run.link_bytes.values()
    print(f"{name:<22}{run.launches:>9}{sent:>12,}{fetched:>10,}{patches:>9,}")
weight_bytes = sum(weight.nbytes for weight in on_card.parameters())
print(f"the weights themselves: {weight_bytes:,} bytes")
nothing, only_weights, everything, compiled = kept.values()
assert nothing.link_bytes["to the card"] > weight_bytes
assert everything.link_bytes["to the card"] == compiled.link_bytes["to the card"] == 8

# %% [markdown]
# In the first row every weight travels, for every token. **Residency** of the weights takes most of that
# away. What is left in the second row are the intermediates and the cache of keys and values, in and
# out, which nobody looks at. With everything resident a token comes in and a token goes out, 8 bytes
# each.
#
# Nothing special was done for weights, or for the cache. They are tensors with `device="spyre"`,
# and a tensor is where it is until somebody moves it: that is what a device *is*, in chapter 1. The
# last column are the correction slots, 256 bytes for an address. They do not grow with the model,
# only with the number of its launches. In time:

# %%
for name, run in kept.items():
    print(f"{name:<22}{run.makespan / 1000:>8.1f} µs, computing {run.busy('compute') / 1000:.1f}")
share = compiled.link_total / nothing.link_total
print(f"{share:.2%} of the bytes, patches included")
assert share < 0.02

# %% [markdown]
# ## Climb
#
# ### What is counted
#
# `Decoding` is a decoder that has read its prompt and is now *fed*: its host sends one character after
# another, whatever the decoder would have said, and waits for none. So every way of launching gets the
# same work. `RUNGS` are the four ways, and `on` takes one of them, with a submission such as chapter 4's:

# %%
from itertools import pairwise

from benchmarks.ladder import COSTS, RUNGS, on
from torch_spyre_ref.emulator.spec import CardSpec

for number, rung in enumerate(RUNGS, 1):
    switches = [name for name, value in rung._asdict().items() if value is True]
    print(f"{number} {rung.name:<34}{', '.join(switches)}".rstrip())
for before, after in pairwise(RUNGS):
    assert sum(a != b for a, b in zip(before[1:], after[1:], strict=True)) == 1
spec = CardSpec()
print(f"a submission {spec.submit_time} ns, a callback {spec.callback_time} ns; {COSTS} ns")

# %% [markdown]
# The clock of this card knows what the host's *calls* cost: so much for a submission, so much for a
# callback. Python costs nothing on it. So a graph would cost nothing, and the lower rungs would look
# like the upper ones. `COSTS` is the assumption that makes up for that: so much for a file that is
# read, so much for a node or an edge. Keep in mind which numbers below depend on it: times do. Counts
# do not.

# %%
TOKENS = 4


def climb(decoding):
    """What the card did, and what graphs took, for some tokens on each rung."""
    found = {}
    for rung in RUNGS:
        with on(rung) as counts:
            decoding.decode(1)
            before = vars(counts).copy()
            run = observed(partial(decoding.decode, TOKENS))
        found[rung.name] = run, {name: vars(counts)[name] - before[name] for name in before}
    return found


ladder = climb(small)
print(f"{'a token':<34}{'graphs':>7}{'bytes read':>12}{'nodes':>7}{'edges':>7}{'operations':>12}")
for name, (run, counts) in ladder.items():
    graphs = counts["graphs_read"] + counts["copies"]
    numbers = graphs, counts["bytes_read"], counts["nodes"], counts["edges"], len(run.records)
    cells = [f"{number // TOKENS:,}" for number in numbers]
    print("{:<34}{:>7}{:>12}{:>7}{:>7}{:>12}".format(name, *cells))
print(f"launches of a token: {run.launches // TOKENS}")
_, taken = ladder[RUNGS[1].name]
items = taken["nodes"] + taken["edges"]
by_graph = 2 * taken["graphs_read"] * COSTS.file + items * COSTS.item
prepared = len(run.records) * spec.submit_time
print(f"with graphs a launch takes {1 + by_graph / prepared:.0f} times as much of the host")

# %% [markdown]
# **Rung 1.** For every launch of every token a graph is read from its file and taken apart, and its
# binary with it: from the disk at first, out of the operating system's cache after that. Hundreds of
# nodes and edges are joined to the call's tensors and put in order; and for the one copy of a token,
# one more, small graph is made. The last line follows from `COSTS`; a stopwatch says no less
# ([Benchmarks](../docs/benchmarks.md)). **Rung 2** leaves the small graph out. With one copy beside so
# many launches it is not much. **Rung 3** leaves out the others: what is left is what chapter 3 built.
# **Rung 4** enqueues the same once more, on two queues.
#
# On all of them, the card is asked to do the same:

# %%
runs = [run for run, _ in ladder.values()]
asked = [
    sorted((one.kind, one.label, one.nbytes, one.end - one.start) for one in run.records)
    for run in runs
]
assert asked[0] == asked[1] == asked[2] == asked[3]
print(f"{len(asked[0])} operations, the same on {len(asked)} rungs")

# %% [markdown]
# The same operations, down to the bytes that each one moves and the time that it takes. So whatever
# differs between rungs is on the host.
#
# ### In virtual time, and who decides it


# %%
def told(ladder):
    """A line for each rung: time of a token, idle time of the cores, and tokens in a second."""
    for number, (name, (run, _)) in enumerate(ladder.items(), 1):
        time = run.makespan / TOKENS / 1000
        print(f"{number} {name:<34}{time:>9,.1f} µs{run.idle:>7.0%} idle", end="")
        print(f"{1e6 / time:>9,.0f} a second")


told(ladder)
submitted = len(runs[-1].records) // TOKENS
print(f"computing {runs[-1].busy('compute') / TOKENS / 1000:.1f} µs, {submitted} submissions")
assert runs[2].makespan < runs[1].makespan / 3
assert runs[3].makespan > 0.99 * runs[2].makespan

# %% [markdown]
# Many times faster without graphs; and nothing at all from the fourth rung. Look at the last line. A
# token of this little decoder computes for some microseconds, and the host submits an operation every
# microsecond. The card is done before the host has said what comes next, so there is nothing to
# overlap preparation with. A token is *host bound*. Nobody buys a card for such a model.
#
# The same code in a size that is still small but has something to compute: 1024 wide, with weights that
# are drawn at random, because here nobody will read what it says.

# %%
large = Decoding(wide(), compiled_step)
wide_ladder = climb(large)
told(wide_ladder)
wide_runs = [run for run, _ in wide_ladder.values()]
last, computing = wide_runs[-1], wide_runs[-1].busy("compute")
print(f"rung 4: {last.makespan:,} ns, of which {computing:,} ns computing")
assert last.makespan <= 1.01 * computing
assert wide_runs[0].makespan > 2 * wide_runs[2].makespan

# %% [markdown]
# Now all four differ. Without graphs a token is more than twice as fast. Then preparation, callback and
# transfer, is left to be seen between one program and the next, while the cores are idle. On a stream
# of its own it is out of the way, and what remains is the compute bound, to less than one percent. One
# token on each rung:

# %%
from benchmarks.ladder_figure import figure


def one_token(decoding):
    """What the card does for one token, on each rung."""
    found = {}
    for rung in RUNGS:
        with on(rung):
            decoding.decode(1)
            found[rung.name] = observed(partial(decoding.decode, 1))
    return found


tokens = one_token(large)
figure(tokens, "One token of a wide decoder on each rung of the ladder, on one scale")

# %% [markdown]
# Above, the host is the one that works, and the card waits for it; each gap is a graph. Below, the card
# computes, and the link is busy underneath.
#
# ### The same steps, as IBM reports them
#
# For Granite 3.3 8B on real cards, with batch 1 and sequence 1024, the post on PyTorch's blog reports:
# leaving graphs out of transfers, +9.9 % for prefill and +13.6 % for decode; leaving them out of
# compute, too, 1.7× and 2.4× in all, about three quarters of it from the compute path. Beside that,
# ours:

# %%
prompts = {}
for rung in RUNGS:
    with on(rung):
        prompts[rung.name] = observed(large.prefill).makespan
for words, times in (
    ("prefill", list(prompts.values())),
    ("decode", [run.makespan for run in wide_runs]),
):
    print(f"{words:<8}", *(f"rung {n}: {times[0] / times[n - 1]:.2f}×" for n in (2, 3, 4)))

# %% [markdown]
# What can be compared: on both sides the same work is taken off the path in the same order, a read of a
# file, a deserialisation, a stitching of arguments and a parse for every launch; and on both sides most
# of the gain comes from the compute path. What cannot: the numbers. Theirs are inferences on cards. Ours
# are times of a clock on which host costs are assumed, for a decoder that is hundreds of times smaller;
# where one of them resembles theirs, that is an accident of the assumption. The gain of the second rung
# is much smaller here, since our token makes one copy and many launches; how many copies theirs makes,
# the post does not say.

# %% [markdown]
# ### Fewer launches
#
# No rung helped the little decoder after the third: it is host bound, and each of its launches is as
# cheap as it gets. What is left is to launch less. Kernels follow one another in a token, always the
# same ones, so they can be stages of *one* program. Inductor has an option for those who want to fuse
# whatever can be fused, `aggressive_fusion`, and this backend takes it at its word. `examples/decoder.py`
# compiles its step so:

# %%
from examples import decoder as example

print(inspect.getsource(example.compiled_step))
joined = resident(trained, example.compiled_step())
for name, run in (("a launch for each kernel", compiled), ("one launch", joined)):
    print(f"{name:<26}{run.launches:>3} launches{run.link_total:>8,} bytes over the link", end="")
    print(f"{run.makespan / 1000:>8.1f} µs, computing {run.busy('compute') / 1000:.1f}")
print(f"{joined.link_total / nothing.link_total:.2%} of the bytes, patches included")
assert joined.launches == 1 and joined.link_total < 0.01 * nothing.link_total
assert joined.makespan < compiled.makespan / 3

# %% [markdown]
# An address that many kernels need is patched once. The price: what one stage leaves for the next lies
# in the job's own memory, at an offset of its own, so a program of many stages needs more of that; and
# no launch of another stream comes between two stages. That is why it is asked for, and not the rule.

# %% [markdown]
# ## Watch it run: one token, from the call to the store
#
# The little decoder again, as it is shipped: rung 4. First the Python. Dynamo has checked its guards, and
# calls what Inductor generated. Here is the end of it:

# %%
from torch._inductor.codecache import PyCodeCache


def generated(name):
    """The lines of the generated `call` that launches a kernel of that name."""
    for module in reversed(PyCodeCache.modules):
        body = inspect.getsource(module).partition("def call(")[2].partition("return (")[0]
        lines = [line.strip() for line in body.split("\n")[1:-1]]
        if any(line.startswith(f"{name}(") for line in lines):
            return lines
    return []


run = observed(lambda: small.talk(1))
labels = [one.label for one in run.records if one.kind == "Execute"]
first, choice = labels[0], next(label for label in labels if "argmax" in label)
code = generated(choice)
place = next(n for n, line in enumerate(code) if line.startswith(f"{choice}("))
launches = [line for line in code if line.split("(")[0] in labels]
print(f"{len(code)} lines, of which {len(launches)} launch. One of them, and the line before it:")
print(*code[place - 1 : place + 1], sep="\n")
assert len(launches) == len(labels)

# %% [markdown]
# A kernel's name lists what was fused into it. This one finds the greatest logit. `empty_strided` is
# chapter 2: one block from a free list. What is called then is a `CompiledKernel`, and that is
# `launch_jobplan` of chapter 3. Its artifact knows two arguments:

# %%
from torch_spyre_ref.inductor.launcher import CompiledKernel

kernels = {
    name: value
    for module in PyCodeCache.modules
    for name, value in vars(module).items()
    if isinstance(value, CompiledKernel)
}
plan = kernels[choice].plan
for argument in plan.spec.arguments:
    print(argument.role, argument.dtype, argument.shape)
print("correction slot:", plan.spec.correction_size, "bytes")
assert plan.spec.correction_size == 256 * len(plan.spec.arguments)

# %% [markdown]
# Where these two lie is packed into the slot by a host callback, the slot goes over the link, and the
# card fetches program and slot. This is all that it did for the token, without the kernels between the
# first and this one:

# %%
shown = [one for one in run.records if one.label in ("", first, choice)]
for one in shown:
    words = f"{one.kind:<13}{one.nbytes or '':>5}  {one.label}".rstrip()
    print(f"{one.submitted:>6}  {one.start:>6} to {one.end:>6} ns  {one.pipeline:<8} {words}")
print(f"left out: {len(labels) - 2} kernels")
assert [one.kind for one in shown] == ["H2D", *["HostCallback", "H2D", "Execute"] * 2, "D2H"]

# %% [markdown]
# Line by line, with the moment of submission in front.
#
# 1. The host's token, 8 bytes, goes to the card. Nobody waits for it.
# 2. While it travels, the first kernel's patch is packed, on the preparation queue, because the stream
#    is busy.
# 3. Its slot is sent. The program waits for that, and for nothing else.
# 4. The program runs, for a fraction of a microsecond.
# 5. Many kernels later, the patch of the one that chooses is packed.
# 6. It is sent, and the program waits for its slot once more.
# 7. It runs, and the next token is in the card's memory.
# 8. `int(…)` asks for it. Only now does the host wait. It polls (that costs 0.1 µs), 8 bytes come back,
#    and Python has a number.
#
# What that program did, instruction by instruction, up to the store that the token ends with:

# %%
from torch_spyre_ref.emulator.disassembly import disassemble
from torch_spyre_ref.emulator.program import parse

listing = disassemble(parse(plan.job.artifact.program))
print(listing[listing.index("stage 0") : listing.index("  scratchpad")].rstrip())
assert "store" in listing

# %% [markdown]
# The logits stream past a unit that keeps the place of the greatest. When the pass is over, the place is
# stored: the alphabet's character of that number is what comes next.

# %% [markdown]
# ## Break it
#
# ### Let the fetch unit run
#
# A whole model is where small faults hide. Take away the barrier of chapter 3, and a program is fetched
# before its patch has come; it finds the patch of an earlier launch in its slot. Mostly, nothing
# happens! In the loop of one decoder the earlier launch had the same addresses. But let two
# conversations take turns, two tokens each:

# %%
from torch_spyre_ref.inductor import launcher
from torch_spyre_ref.launch import launch_jobplan


def two_conversations(turns=6):
    """Two caches, one decoder: how many tokens each has counted at the end, and what it said."""
    caches = [Cache(config, device="spyre") for _ in range(2)]
    said = ["", ""]
    with torch.no_grad():
        last = [compiled_step(on_card, encode(PROMPT).spyre(), cache, 0.0) for cache in caches]
        for who in [0, 0, 1, 1] * turns:
            last[who] = compiled_step(on_card, last[who], caches[who], 0.0)
            said[who] += ALPHABET[int(last[who])]
    return [int(cache.length) for cache in caches], said


in_order = two_conversations()
launcher.launch_jobplan = partial(launch_jobplan, barrier=False)
mixed = two_conversations()
launcher.launch_jobplan = launch_jobplan
for words, (counts, said) in (("with the barrier", in_order), ("without it", mixed)):
    print(f"{words:<17} tokens counted: {counts}, said: {said}")
assert in_order == two_conversations() and mixed[0] != in_order[0]
assert in_order[0] == [len(PROMPT) + 12] * 2

# %% [markdown]
# The counts are no longer those of the tokens. Programs were patched with the addresses of an earlier
# launch: the other conversation's, or those of a block that has become something else since. They read
# there, and they wrote there. No error, no warning, and each program did what it was told. Put back,
# both say the same, as they should: they were asked the same.
#
# ### Let one op fall back
#
# A user prefers to sort the logits. The card has no program for `sort`, so under another policy than
# `error` it runs on the CPU, once for each token:


# %%
def sorted_step(decoder, tokens, cache, temperature):
    """The same choice, by way of an op that has no program."""
    logits = decoder(tokens, cache)[:, -1]
    return torch.sort(logits, descending=True).indices[:, :1]


torch.spyre.reset_fallback_report()
with torch.spyre.fallback_policy("silent"):
    falling = Decoding(large.decoder, torch.compile(sorted_step, fullgraph=True, dynamic=False))
    fell = observed(partial(falling.decode, TOKENS))
whole = observed(partial(large.decode, TOKENS))
print(torch.spyre.fallback_report())
for words, one in (("no fallback", whole), ("one op", fell)):
    _, sent, fetched = (moved // TOKENS for moved in one.link_bytes.values())
    print(f"{words:<12}{sent:>7} bytes to the card, {fetched:>4} from it, {one.idle:.1%} idle")
assert fell.makespan > whole.makespan and fell.idle > whole.idle

# %% [markdown]
# Still `fullgraph=True`, still no graph break: nobody sees it in the code. But the host must have the
# logits before it can sort them, so it waits in the middle of every token, and behind that wait nothing
# is prepared. In virtual time the CPU's sorting is free; what is left is the price of stopping. That is
# why a fallback warns by default, and why this chapter has the policy `error`.

# %% [markdown]
# ## Assembled: before and after
#
# There is no module to compare with the package's; all of this *was* the package. Everything at once,
# then. Before: an op at a time, tensors on the host, and graphs around copies and launches. After: what
# `torch.compile(model)` gives to whoever installs it.

# %%
with on(RUNGS[0]):
    worst = copied_around(wide, weights_stay=False)
best = observed(lambda: large.talk(1))
for words, one in (("before", worst), ("after", best)):
    print(f"{words:<8}{one.launches:>4} launches {one.link_total:>12,} bytes over the link", end="")
    print(f"{one.makespan / 1000:>10,.0f} µs")
assert best.link_total < 0.001 * worst.link_total
assert best.makespan < 0.1 * worst.makespan

# %% [markdown]
# Fusion made fewer launches of many, residency took the weights off the link, the prepared launch made
# each launch cheap, and the second queue hid what was left of it. Each of the four needed the ones
# before it: there is no point in hiding preparation behind computing as long as weights travel.
#
# ## What remains between this and a product
#
# What was shown holds for this card, which is emulated. To somebody who has a real one:
#
# - **The card.** Rates, latencies and host costs are partly assumed
#   ([what is simulated](../docs/simulated.md)). The *order* of a timeline carries over, its numbers do
#   not.
# - **The host's speed.** Policy in Python is affordable, and can be read; it is also what makes a small
#   model host bound. The hot path, from a hit in the cache to the enqueued operations, is a few hundred
#   lines, and one would write those in C++.
# - **Layouts.** Tensors are row-major here. A dataflow card wants its sticks along the right dimension,
#   and a compiler that plans that across a whole model.
# - **Scratchpad across kernels.** What a kernel makes goes through the card's memory before the next one
#   has it. torch-spyre plans scratchpad over several.
# - **Precision.** Weights are float32 here. A product has half of that and less, and checks what a model
#   loses by it.
# - **Many conversations.** A server batches requests that begin and end at different times, and pages
#   its caches. Nothing here forbids that; nothing does it.
# - **Several cards.** There are streams and copies between cards, and no collectives.
# - **Coverage.** What has a program and what falls back is counted on the page
#   [Operators](../docs/operators/index.md).
#
# In which order to replace what, if you have a card, is the page [Port it](../docs/port_it.md).

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/06_a_whole_model.py`, and are tested.
#
# ### 1. Predict
#
# What does each change do to a token in decode: to the number of its launches, and to the bytes of
# *tensors* that cross the link? Say `"same"` or `"more"` for each of the two.

# %%
from dataclasses import replace

from examples.decoder import Config, Decoder

BASE = Config(window=16, layers=1, width=64, heads=4, groups=2, hidden=96)
CHANGES = {
    "twice as wide": {"width": 128},
    "twice as many layers": {"layers": 2},
    "a window twice as long": {"window": 32},
    "twice as many heads share a key": {"groups": 1},
    "two conversations in one batch": {"batch": 2},
}
prediction = dict.fromkeys(CHANGES)


def launches_and_bytes(batch=1, **sizes):
    """Launches of a token, and bytes of tensors over the link, on a decoder of some sizes."""
    torch._dynamo.reset()
    decoder = Decoder(replace(BASE, **sizes)).spyre()
    cache, way = Cache(decoder.config, batch, "spyre"), torch.compile(step, dynamic=False)
    token = torch.zeros(batch, 1, dtype=torch.int64).pin_memory()
    with torch.no_grad():
        for _ in range(2):
            run = observed(lambda: way(decoder, token.spyre(), cache, 0.0).tolist())
    return run.launches, run.link_total - run.link_bytes["patches"]


def check_prediction(prediction):
    """Compare with a run."""
    if None in prediction.values():
        return "no prediction yet"
    base, wrong = launches_and_bytes(), []
    for words, change in CHANGES.items():
        found = launches_and_bytes(**change)
        pairs = zip(base, found, strict=True)
        said = ["more" if after > before else "same" for before, after in pairs]
        if said != list(prediction[words]):
            wrong.append(words)
    return f"wrong: {'; '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: wait once
#
# `generate` reads every token as soon as it is there, and waits for it. Nothing but the reader needs
# that: the next step takes the token from where it lies, on the card. Write `talk_at_once`, which
# decodes `length` tokens after a prompt and brings them to the host in *one* copy. The checker compares
# the tokens, and counts the copies. About 8 lines.


# %%
def talk_at_once(decoder, way, prompt, length):
    """A list of `length` token numbers that follow a prompt."""


def check_talk(talk, decoder, way, length=12):
    """Compare with one token at a time, and count what comes from the card."""
    cache = Cache(decoder.config, device="spyre")
    last, wanted = encode(PROMPT).spyre(), []
    with torch.no_grad():
        for _ in range(length):
            last = way(decoder, last, cache, 0.0)
            wanted.append(int(last))
    answer = talk(decoder, way, PROMPT, length)
    if answer is None:
        return "no answer yet"
    if answer != wanted:
        return f"wrong tokens: {answer}"
    run = observed(lambda: talk(decoder, way, PROMPT, length))
    copies = sum(one.kind == "D2H" for one in run.records)
    return "right" if copies == 1 else f"{copies} copies from the card"


check_talk(talk_at_once, on_card, compiled_step)

# %% [markdown]
# ### 3. Open
#
# The little decoder is host bound, the wide one compute bound. There are two ways from the one to the
# other: make it wider, or have it decode for several conversations at once (`Cache(config, batch)`, and
# tokens of shape `(batch, 1)`). Measure both: virtual time of a step on the last rung, time of computing,
# and tokens in a second, for a few widths and a few batches. Where does the host stop to decide? Which
# of the two ways costs a *user* nothing, and until when? What would have to change in the launch path
# for the little decoder to become compute bound, too?

# %% [markdown]
# ## Summary
#
# - A tensor is where it is until somebody moves it. With that alone, a token of a whole model moves 8
#   bytes in and 8 bytes out, and its launches' patches.
# - What a launch costs the host is paid for every kernel of every token. Without a graph on its way a
#   launch is a patch and a few operations; on a queue of its own the patch is ready before the program
#   needs it.
# - That makes a decoder compute bound whose kernels last longer than the host needs to submit them.
#   A smaller one is host bound, on any rung.
# - The step is compiled twice, for the prompt and for a token, and then never again, if nothing in it
#   changes its shape and no number of the loop is a Python number.
# - The faults of a whole model are silent: a patch too late is another launch's, and a fallback is a
#   wait that nobody wrote.
#
# New words: [prefill and decode](../docs/glossary.md#prefill-and-decode),
# [residency](../docs/glossary.md#residency), [compute bound](../docs/glossary.md#compute-bound),
# [host bound](../docs/glossary.md#host-bound), [rung](../docs/glossary.md#rung).
#
# Before: programs for every op, in [chapter 5](05_eager.ipynb). This is the last chapter. From here:
# [use it](../docs/use.md), [look something up](../docs/where_to_find.md), or
# [port it](../docs/port_it.md).
