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
# # Many tensors live in a few regions
#
# A card gives out memory in large regions, behind a small budget of handles. The allocator cuts
# regions into aligned blocks, describes each block as a composite address, and hands it to PyTorch
# under a logical address, with a way to take it back when the last reference has gone.
#
# ## You will build
#
# - **The modules** `torch_spyre_ref/emulator/regions.py`, the card's table of handles, and
#   `torch_spyre_ref/allocator.py`, everything from a free byte to PyTorch's storage.
# - **What it enables**: tensors that *stay* on the card, ten thousand of them in two regions;
#   statistics that are exact; an out-of-memory error that shows what lies where.
# - **Not built here**: the arithmetic of addresses, the counters, the memory map, and the copies.
#   They are written by hand and quoted. Programs come later, so a computation is still a duration
#   and a NumPy function.
# - **Time**: about an hour and a half.
# - **You need**: tensors and their views, `with` blocks, and a little C, so that a quoted C++
#   function says something to you. [Chapter 1](01_device.ipynb) made the device that this chapter
#   gives memory to.
#
# If you can tell what this prints before you look, you are ready:

# %%
import torch

base = torch.arange(12.0).reshape(3, 4)
row = base[1]
row[0] = -1
print(base[1, 0].item(), row.storage_offset(), row.untyped_storage().nbytes())

# %% [markdown]
# `row` owns nothing. It looks at the storage of `base`, from its fifth number on, and keeps that
# storage alive. Whoever gives memory to tensors gives it to storages.

# %% [markdown]
# ## The constraint: the ninth handle is refused
#
# A GPU's driver has `malloc`: ask for bytes as often as you like, and get a pointer each time. This
# card gives out **regions**, and a region costs a **handle**. Here are two cards, one that is ours
# alone (PF mode) and one that is shared (VF mode), each asked for four regions of 128 bytes.
# (`domain` is one of the four equal parts of a card's memory; a region lies in one of them. All
# cards of this chapter have 512 MiB, so that we can fill them.)

# %%
from torch_spyre_ref.runtime import Runtime

MEMORY = 512 << 20

cards = {mode: Runtime(devices=1, mode=mode, memory=MEMORY).cards[0].card for mode in ("pf", "vf")}
for mode, card in cards.items():
    ids = [card.regions.acquire(128, domain).id for domain in (0, 0, 1, 3)]
    print(f"{mode}: {card.regions.budget:3} handles, region ids {ids}")

# %% [markdown]
# The ids have nothing in common. In PF mode an id is where the region begins in physical memory; in
# VF mode it is a row of a small table, and what stands in that row is not our business. The table
# has eight rows:

# %% tags=["raises-exception"]
while True:
    cards["vf"].regions.acquire(128, domain=2)

# %%
shared = cards["vf"].regions.live()
print(f"{len(shared)} regions hold {sum(region.size for region in shared)} of {MEMORY} bytes")
assert len(shared) == cards["vf"].regions.budget == 8

# %% [markdown]
# So handles run out long before bytes do. One thing makes up for it: whoever *uses* a region need
# not know which kind of id it has. This function runs on both cards as it stands, and nothing above
# the emulator will ever ask for the mode.

# %%
import numpy as np

from torch_spyre_ref.runtime import Chunk, CompositeAddress, DeviceRange


def there_and_back(card):
    """Write five bytes into the newest region of a card, and read them."""
    chunk = Chunk(card.regions.live()[-1].id, 0, 128)
    where = DeviceRange.contiguous(CompositeAddress((chunk,)), 0, 5)
    card.memory.write(where, np.arange(5, dtype=np.uint8))
    return card.memory.read(where).tolist()


assert there_and_back(cards["pf"]) == there_and_back(cards["vf"]) == [0, 1, 2, 3, 4]

# %% [markdown]
# ## The contract: what PyTorch asks of an allocator
#
# PyTorch holds memory in a `c10::DataPtr`: a pointer to the *data*, a pointer to a *context*, and a
# *deleter*, a function that is called with the context when the `DataPtr` goes. A storage has one
# `DataPtr`, tensors share the storage by reference count, and when the count is zero the memory goes
# back. In PyTorch 2.13 an allocator for a device is asked this:
#
# | when this happens | PyTorch calls | from its file |
# | --- | --- | --- |
# | `torch.empty(…, device="spyre")` | `DataPtr allocate(size_t n)` | `EmptyTensor.cpp` |
# | the last tensor of a storage goes | the deleter, `void (*)(void* context)` | `StorageImpl.h` |
# | `x.data_ptr()`, and every view of `x` | nothing: it reads the data pointer, and adds to it | `TensorImpl.h` |
# | `x.record_stream(s)` | `void recordStream(const DataPtr&, Stream)` | our kernel of that name |
# | `torch.accelerator.empty_cache()` | `void emptyCache(MempoolId_t)` | `DeviceAccelerator.h` |
# | `torch.accelerator.memory_stats()` | `DeviceStats getDeviceStats(DeviceIndex)` | `DeviceAccelerator.h` |
# | `…reset_peak_memory_stats()` | `void resetPeakStats(DeviceIndex)` | `DeviceAccelerator.h` |
# | `…get_memory_info()` | `pair<size_t, size_t> getMemoryInfo(DeviceIndex)` | `DeviceAccelerator.h` |
#
# The first belongs to `c10::Allocator`, the last five to `c10::DeviceAllocator`, which extends it.
# What is *not* there is the point: nobody asks what the data pointer points to. It is an opaque
# token. So the bridge puts a number in it, and our Python object into the context:
#
# ```cpp title="csrc/allocator.cpp"
# --8<-- "csrc/allocator.cpp:allocator"
# ```
#
# `Method::allocate` and `Method::free` are two methods of the [driver](../docs/glossary.md#driver).
# Here is an allocator with no memory at all, in their place. It gives out numbers and says what it
# is asked. (`register(parts=…)` swaps one class of the backend for another; from now on this
# notebook does it often. It can only be done while no tensor lives on a card, since the parts that
# made a tensor must free it, so the notebook drops its own before. Look at yours with `print`, and
# `del` them: what a cell shows as its result is kept by the notebook, and only a restart of the
# kernel frees it for certain.)

# %%
import dataclasses
import os
from types import SimpleNamespace

import torch_spyre_ref
from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.parts import Parts

os.environ["TORCH_SPYRE_REF_MEMORY"] = f"{MEMORY >> 20}M"
os.environ["TORCH_SPYRE_REF_EAGER"] = "fallback"  # operators compute on the CPU until chapter 5


def install(**parts):
    """Have PyTorch use these classes, and the shipped ones for every other part."""
    torch_spyre_ref.register(parts=dataclasses.replace(Parts(), **parts))


class Clerk:
    """An allocator without memory: it gives out numbers, and says what it is asked."""

    def __init__(self, open_card):
        self.next = 1 << 56

    def allocate(self, nbytes, device, stream=0):
        print(f"    the bridge asks: allocate({nbytes} bytes, card {device})")
        self.next += 1 << 20
        return SimpleNamespace(address=self.next, nbytes=nbytes)

    def free(self, block):
        print(f"    the bridge says: free({block.nbytes} bytes)")


install(allocator=Clerk)
torch.spyre.set_fallback_policy("silent")

# %%
print("x = torch.empty(4)")
x = torch.empty(4, device="spyre")
print("y = x[1:]")
y = x[1:]
print("z = torch.empty(0)")
z = torch.empty(0, device="spyre")

assert y.data_ptr() - x.data_ptr() == 4, "one number further on"
assert _bridge.allocation(y) is _bridge.allocation(x), "one storage, one context"
assert z.data_ptr() == 0, "no bytes, no question"
print("del x")
del x
print("del y")
del y

# %% [markdown]
# A view asks nothing. `del x` frees nothing, because `y` lives. `del y` calls the deleter, at once,
# with no operator in sight. PyTorch counts references; we only have to answer two questions.

# %%
assert not torch.spyre.is_initialized(), "no card has even started"

# %% [markdown]
# ## In the field
#
# CUDA's and openreg's columns are from PyTorch's own sources, torch-spyre's from its public sources
# and its RFC 0643; the runtime below its allocator is closed.
#
# | PyTorch concept | CUDA caching allocator | torch-spyre | openreg | here |
# | --- | --- | --- | --- | --- |
# | the data pointer | a device pointer | the context's own address; never followed | a pointer into protected pages, where the host faults | a logical address; never followed, never used twice |
# | the context | the data pointer again | `SharedOwnerCtx`, with a `CompositeAddress` | the data pointer again | the `Allocation`, with a `CompositeAddress` |
# | large pieces | segments from `cudaMalloc`: of 2 MiB for blocks up to 1 MiB, of 20 MiB for those below 10 MiB, else one of its own, in steps of 2 MiB | up to 8 regions, tried at 12, 8 and 4 GB; never given back | none: each tensor has pages of its own | up to 8 regions in VF mode, each an eighth of the memory; given back by `empty_cache` |
# | smallest block | 512 bytes | 128 bytes | one page | 128 bytes |
# | finding a block | the smallest cached one that fits, in the pool of its stream | first fit, in the version that shipped | not needed; a caching version is proposed | exact size from a cache, then size classes |
# | splitting and joining | both, inside a segment | both, inside a region | no | both, inside a region |
# | free | into the pool, under a mutex | into the region, under a mutex | back to the simulated driver, under a mutex | left for the next allocation to take back |
# | a tensor used on a second stream | `record_stream`: not reused before that stream is done with it | `recordStream` does nothing | `recordStream` does nothing | accepted; the runtime sees what each operation touches |
# | out of memory | free cached blocks, retry, `OutOfMemoryError` | collect Python's garbage, retry once | an error with both totals | cached blocks, garbage, empty regions; retry once; `OutOfMemoryError` with a map |
# | statistics | all of `DeviceStats` | bytes and blocks in use, rounded | bytes; reserved equals allocated | bytes asked for, held and reserved; blocks; exact |
# | placement | none | `AllocationDirective`: bind, or interleave over domains | none | `torch.spyre.placement` |

# %% [markdown]
# ## A picture: memory in the middle of a run
#
# This is where we are going. The shipped allocator, a small model in the middle of its training
# step, when everything that the backward pass needs is still alive, and one large tensor that is
# spread over the card's four domains:

# %%
install()
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)
).spyre()
with torch.spyre.placement("interleave"):
    spread = torch.zeros(24, 1024, 1024, device="spyre")
loss = model(torch.ones(1024, 512, device="spyre")).square().mean()

picture = torch.spyre.memory_map()
tensors = torch.spyre.memory_stats(0)["allocation.all.current"]
in_use = torch.spyre.memory_allocated()
del model, spread, loss
picture

# %% [markdown]
# Each bar is a region. What tensors hold is *live*; what they held a moment ago is *cached*, ready
# for the next tensor of that very size; the rest is free. Weights and activations share a region
# with each other, with leftovers, and with a quarter of the large tensor.

# %%
print(f"{tensors} tensors in {len(picture.regions)} regions")
assert tensors > len(picture.regions)
assert sum(one.total("live") for one in picture.regions) == in_use

# %% [markdown]
# ## Naive first
#
# ### Copy in, compute, copy out
#
# Why should tensors stay on the card at all? The earliest way to use such a card was to let every
# operation own fixed places in its memory: operands are copied in, the result is copied out. It
# needs no allocator. Here it is, with a short chain of the kind that a language model runs for each
# token: weights that stay the same, and a small value that goes through them.

# %%
from torch_spyre_ref.runtime import D2H, H2D, Compute


def on_the_card(function, operands, result):
    """A computation of 2 µs that applies a NumPy function to float32 places in card memory."""

    def effect(memory):
        values = [memory.read(one).view(np.float32) for one in operands]
        memory.write(result, function(*values).view(np.uint8))

    return Compute(2000, effect, tuple(operands), (result,))


class CopyingCard:
    """Every operation copies its operands in, computes, and copies its result out."""

    def __init__(self):
        self.runtime = Runtime(devices=1, memory=MEMORY)
        card, self.queue = self.runtime.cards[0].card, self.runtime.cards[0].default_queue
        region = card.regions.acquire(card.spec.region, domain=0)
        self.address = CompositeAddress((Chunk(region.id, 0, region.size),))

    def run(self, function, *operands):
        places, start = [], 0
        for operand in operands:
            places.append(DeviceRange.contiguous(self.address, start, operand.nbytes))
            pinned = self.runtime.pinned.allocate(operand.nbytes).array
            pinned[:] = operand.view(np.uint8)
            self.queue.submit(H2D(pinned, places[-1]))
            start += operand.nbytes
        result = self.runtime.pinned.allocate(operands[-1].nbytes).array
        place = DeviceRange.contiguous(self.address, start, result.size)
        self.queue.submit(on_the_card(function, places, place))
        self.queue.wait(self.queue.submit(D2H(place, result)))
        return result.view(np.float32)


# %%
WIDTH, LAYERS, TOKENS = 512, 2, 10


def times(weights, x):
    return weights.reshape(WIDTH, WIDTH) @ x


def relu(x):
    return np.maximum(x, np.float32(0))


def decode(run, layers, x):
    """Ten tokens, each through all layers."""
    for _ in range(TOKENS):
        for weights in layers:
            x = run(relu, run(times, weights, x))
    return x


def link_bytes(runtime):
    """Bytes that crossed the link, both ways."""
    return sum(one.nbytes for one in runtime.timeline if one.pipeline in ("h2d", "d2h"))


shift = np.roll(np.eye(WIDTH, dtype=np.float32), 1, axis=0).ravel()  # moves each number by one
start = np.arange(WIDTH, dtype=np.float32)
copying = CopyingCard()
copied = decode(copying.run, [shift] * LAYERS, start)

copied_bytes = link_bytes(copying.runtime)
print(f"{copied_bytes:,} bytes over the link, {copying.runtime.clock.now:,} ns")
assert copied.tolist() == np.roll(start, TOKENS * LAYERS).tolist()

# %% [markdown]
# That is ten thousand times the value itself, and nearly all of it weights that had not changed. When
# tensors can stay, we will run the same `decode` again.

# %%
weights_bytes = TOKENS * LAYERS * shift.nbytes
print(f"{weights_bytes / copied_bytes:.0%} weights")
assert copied_bytes > 10_000 * start.nbytes
copying.runtime.shutdown()

# %% [markdown]
# ### A region for each tensor
#
# So tensors must stay, and each needs memory of its own. The obvious allocator takes a region for
# each of them. It is a few lines, it inherits the rest, and it works. PyTorch runs on it:

# %%
import torch_spyre_ref.allocator as shipped


class OneRegionEach(shipped.Allocator):
    """A region, and so a handle, for every tensor."""

    def __init__(self, open_card):
        super().__init__(open_card)
        self.free = self.give_back
        self.made = 0

    def allocate(self, nbytes, device, stream=0):
        table = backend.current().runtime.cards[device].card.regions
        region = table.acquire(-(-nbytes // 128) * 128, domain=self.made % 4)
        self.made += 1
        composite = CompositeAddress((Chunk(region.id, 0, region.size),))
        return SimpleNamespace(address=self.made << 40, composite=composite, table=table)

    def give_back(self, block):
        block.table.release(block.composite.chunks[0].region)


install(allocator=OneRegionEach)
few = [torch.full((32,), float(number), device="spyre") for number in range(8)]
print([int(tensor[0]) for tensor in few])

# %% [markdown]
# Eight tensors, eight handles. Now the ninth:

# %% tags=["raises-exception"]
ninth = torch.empty(32, device="spyre")

# %%
print(f"refused with {sum(tensor.nbytes for tensor in few)} of {MEMORY} bytes in use")
few.clear()

# %% [markdown]
# A model has thousands of tensors. So regions must be large, and shared: that is what an allocator
# is *for* on this card.

# %% [markdown]
# ## Build
#
# ### Regions, and their handles
#
# At the bottom stands the card's own table. It is the only place in all layers that acts on the
# mode, and it does so twice: in how large the budget is, and in what number a region goes by.

# %% Name a region tags=["export"] file="emulator/regions.py"
"""Regions: the large blocks that a card's memory is handed out in, and their few handles.

A region is one contiguous block of one memory domain. It goes by a number that only the card can
resolve; what the number means depends on how the card is shared.
"""

from typing import Literal, NamedTuple

Mode = Literal["pf", "vf"]


class Region(NamedTuple):
    """One contiguous block of card memory: ``size`` bytes of ``domain`` behind ``handle``."""

    id: int
    size: int
    domain: int
    handle: int


# %% Hand out regions behind handles tags=["export"] file="emulator/regions.py"
from collections.abc import Callable

from torch_spyre_ref.emulator.domains import lowest_base
from torch_spyre_ref.emulator.errors import HandleBudgetExhausted, RegionError
from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.spec import CardSpec


class RegionTable:
    """The handles of one card. One caller at a time: the allocator's lock sees to that.

    In VF mode the card is shared, handles are few, and a region's id is its index in the table. In
    PF mode the card is all ours, handles are many, and a region's id is its physical base. Who
    uses an id need not know which.
    """

    def __init__(self, memory: Memory, spec: CardSpec, mode: Mode) -> None:
        self.budget = spec.vf_handles if mode == "vf" else spec.pf_handles
        self.before_release: Callable[[Region], None] | None = None
        self._memory, self._spec, self._mode = memory, spec, mode
        self._live: dict[int, tuple[Region, int]] = {}

    def acquire(self, size: int, domain: int) -> Region:
        """A region of ``size`` bytes in ``domain``; what its bytes are is undefined.

        Raises ``ValueError`` for a request that never makes sense, ``HandleBudgetExhausted``
        and ``CardMemoryExhausted`` for one that does not fit now.
        """
        free = set(range(self.budget)) - {region.handle for region in self.live()}
        if not free:
            raise HandleBudgetExhausted(
                f"all {self.budget} region handles of the card are in use ({self._mode} mode); "
                "give a region back, or place several allocations in one region"
            )
        taken = [(base, region.size) for region, base in self._live.values()]
        base, handle = lowest_base(taken, self._spec, size, domain), min(free)
        region = Region(base if self._mode == "pf" else handle, size, domain, handle)
        self._memory.attach(region.id, size)
        self._live[region.id] = region, base
        return region

    def release(self, region_id: int) -> None:
        """Give a region and its handle back. Raises ``RegionError`` when it is not live."""
        if region_id not in self._live:
            raise RegionError(
                f"region {region_id} given back, but live regions are {sorted(self._live)}; "
                "give each one back once"
            )
        if self.before_release is not None:
            self.before_release(self._live[region_id][0])
        del self._live[region_id]
        self._memory.detach(region_id)

    def live(self) -> list[Region]:
        """The regions handed out, by handle."""
        return sorted((region for region, _ in self._live.values()), key=lambda r: r.handle)


# %%
spec = CardSpec(memory=MEMORY)
for mode in ("pf", "vf"):
    table = RegionTable(Memory(), spec, mode)
    first, second, third = (table.acquire(spec.region, domain) for domain in (0, 0, 3))
    table.release(second.id)
    again = table.acquire(spec.region, domain=1)
    print(f"{mode}: {first}\n    {third}\n    {again}")
    assert again.handle == second.handle, "a handle given back is used again"

# %% [markdown]
# A region of this card is an eighth of its memory, so that eight handles are enough for all of it.
# (`before_release` is for the sanitizer, which wants to look before a region goes.)

# %%
table = RegionTable(Memory(), spec, "vf")
for number in range(8):
    table.acquire(spec.region, domain=number // 2)
assert sum(region.size for region in table.live()) == MEMORY

# %% [markdown]
# ### Addresses
#
# Inside regions, a place needs three numbers: region, offset, length. A tensor may be larger than
# one region, or spread over several on purpose, so an address is a short *list* of such **chunks**.
# It has room for eight, and with that a fixed size: the card's load and store units walk it.
#
# ```python title="torch_spyre_ref/emulator/addresses.py"
# --8<-- "torch_spyre_ref/emulator/addresses.py:address"
# ```
#
# With a **grain**, the chunks take turns. How much each of them gets is one division. It stands in one
# place, for everybody who cuts memory for such an address:
#
# ```python title="torch_spyre_ref/emulator/addresses.py"
# --8<-- "torch_spyre_ref/emulator/addresses.py:dealt"
# ```

# %%
from torch_spyre_ref.emulator.addresses import dealt

GRAIN = spec.interleave_grain
lengths = dealt(10_000, 3, GRAIN)
turns = CompositeAddress(tuple(Chunk(n, 0, size) for n, size in enumerate(lengths)), GRAIN)
print(f"10000 bytes over 3 chunks, {GRAIN} at a time: {lengths}")
for piece in turns.pieces(4000, 5000):
    print("bytes 4000 to 9000 lie at", piece)
assert turns.length == 10_000

# %% [markdown]
# Nobody can say *where* such a tensor is with one number: a view that begins in its second grain
# begins in its second chunk. Read it as if memory were flat, and the wrong byte comes back without a
# word:

# %%
memory = Memory()
for number in range(3):
    memory.attach(number, 1 << 16)
memory.write(
    DeviceRange.contiguous(turns, 0, 10_000), (np.arange(10_000) // GRAIN).astype(np.uint8)
)

flat = CompositeAddress((Chunk(0, 0, 1 << 16),))  # the first chunk, and then straight on
right = memory.read(DeviceRange.contiguous(turns, 5000, 1))
wrong = memory.read(DeviceRange.contiguous(flat, 5000, 1))
print("byte 5000 belongs to grain", right[0], "- read as if memory were flat:", wrong[0])
assert right[0] == 5000 // GRAIN != wrong[0]

# %% [markdown]
# So the address must travel with the allocation, whole, to everybody who touches the bytes. That is
# what the `DataPtr`'s context is for.
#
# ### Sizes fall into classes
#
# Now the allocator itself, from the inside out. A region has holes, and a request wants one that is
# large enough, fast, however many there are. Sorting them by size would do, and costs more with
# every hole. Instead a hole belongs to a **size class**: the power of two below its size, cut into
# eighths. A few hundred classes cover every size there can be, so one Python integer holds a set of
# them, a bit for each, and the lowest bit above a place is two operations away.
#
# The holes of one class differ a little in size. So there are two questions: which class a hole
# *belongs* to, and from which class on *every* hole is large enough for a request.

# %% Put sizes into classes tags=["export"]
ALIGNMENT = 128


def size_class(size: int) -> int:
    """The class of the largest power-of-two eighth that is not above ``size``."""
    sticks = size // ALIGNMENT
    shift = max(sticks.bit_length() - 4, 0)
    return (shift << 3) + (sticks >> shift)


def ceiling_class(size: int) -> int:
    """The lowest class whose every block holds ``size`` bytes."""
    sticks = size // ALIGNMENT
    shift = max(sticks.bit_length() - 4, 0)
    return size_class((sticks + (1 << shift) - 1) * ALIGNMENT)


# %%
for sticks in (1, 8, 15, 16, 17, 18, 1000, 1024, 1087, 1088):
    size = sticks * ALIGNMENT
    print(f"{size:7} bytes: in class {size_class(size):2}, all of {ceiling_class(size):2} hold it")

classes = [size_class(sticks * ALIGNMENT) for sticks in range(1, 5000)]
assert classes == sorted(classes)
print("classes up to 128 GiB:", size_class(128 << 30))
for sticks in range(1, 5000):
    holds_all = ceiling_class(sticks * ALIGNMENT)
    smallest = next(s for s in range(1, 6000) if size_class(s * ALIGNMENT) == holds_all)
    assert smallest >= sticks

# %% [markdown]
# Everything is counted in **sticks** of 128 bytes, the portion in which bytes travel. A tensor that
# began inside a stick would share it with a neighbour, and pay for the neighbour's bytes.
#
# ### Split, and join again
#
# The free blocks of one region. To *take*, find a class that is surely large enough, take a block
# of it, and put back what is left over. To *give*, join the block with the free blocks that touch
# it, left and right. Both are a few look-ups, whatever the number of holes; a free block is found
# by its start, by its end, and by its class. (Only when no class is surely large enough are the
# holes of the request's own class looked through, one by one: one of them may do.)

# %% Keep the free blocks of a region tags=["export"]
from collections import defaultdict


class RegionSpace:
    """The free blocks of one region: by size class to find one, by both ends to join them."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.free_bytes = 0
        self._length_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._classes: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._occupied = 0
        self.give(0, region.size)

    def take(self, size: int) -> int | None:
        """Cut ``size`` bytes from the smallest class that has a block; its offset, or None."""
        wanted = ceiling_class(size)
        above = self._occupied >> wanted
        if above:
            smallest = wanted + (above & -above).bit_length() - 1
            start = next(reversed(self._classes[smallest]))
        else:
            near = self._classes[size_class(size)]
            start = next((s for s in near if self._length_at[s] >= size), -1)
            if start < 0:
                return None
        length = self._remove(start)
        if length > size:
            self._insert(start + size, length - size)
        return start

    def give(self, start: int, length: int) -> None:
        """Free a block, joined with the free blocks that touch it."""
        if start + length in self._length_at:
            length += self._remove(start + length)
        if start in self._start_before:
            start = self._start_before[start]
            length += self._remove(start)
        self._insert(start, length)

    def holes(self) -> list[tuple[int, int]]:
        """Every free block as (offset, length), by offset."""
        return sorted(self._length_at.items())

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        self._classes[size_class(length)][start] = None
        self._occupied |= 1 << size_class(length)
        self.free_bytes += length

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        index = size_class(length)
        del self._classes[index][start]
        if not self._classes[index]:
            self._occupied &= ~(1 << index)
        self.free_bytes -= length
        return length


# %%
space = RegionSpace(Region(id=0, size=4096, domain=0, handle=0))
offsets = [space.take(size) for size in (512, 1024, 256)]
print("three blocks at", offsets, "- holes:", space.holes())
space.give(512, 1024)
print("the middle one freed       - holes:", space.holes())
space.give(0, 512)
print("and the first              - holes:", space.holes())
space.give(1536, 256)
print("and the last               - holes:", space.holes())
assert space.holes() == [(0, 4096)]

# %% [markdown]
# Four lines of output are not evidence. This checker lives through a few thousand random requests,
# and keeps its own slow books, a list with one entry for each stick. It will also judge the answer
# to an exercise.

# %%
import random


def check_space(make, size=1 << 16, requests=3000):
    """Try a class that keeps the free blocks of a region; says what is wrong with it."""
    space, owners = make(Region(0, size, 0, 0)), [None] * (size // ALIGNMENT)
    live, chance = {}, random.Random(0)
    for number in range(requests):
        if live and chance.random() < 0.45:
            victim = chance.choice(list(live))
            start, length = live.pop(victim)
            space.give(start, length)
            owners[start // ALIGNMENT : (start + length) // ALIGNMENT] = [None] * (
                length // ALIGNMENT
            )
            continue
        length = ALIGNMENT * chance.choice((1, 2, 3, 5, 8, 30))
        start = space.take(length)
        sticks = length // ALIGNMENT
        if start is None:
            gaps = "".join("." if owner is None else "x" for owner in owners).split("x")
            if max(map(len, gaps)) >= sticks:
                return f"request {number}: {length} bytes refused, though a gap has room"
            continue
        if start % ALIGNMENT:
            return f"request {number}: offset {start} is not aligned"
        place = slice(start // ALIGNMENT, start // ALIGNMENT + sticks)
        if len(owners[place]) < sticks or any(owner is not None for owner in owners[place]):
            return f"request {number}: bytes from {start} are not free"
        owners[place] = [number] * sticks
        live[number] = start, length
    for start, length in live.values():
        space.give(start, length)
    return "right" if space.holes() == [(0, size)] else "free blocks that touch are not joined"


print(check_space(RegionSpace))
assert check_space(RegionSpace) == "right"

# %% [markdown]
# ### All regions of a card
#
# One request now becomes chunks, by its **placement**. *Bound* tensors get one chunk, or several
# when they are larger than a region, and may say in which domain: near the cores that use them, for
# instance. *Interleaved* ones get a chunk in every domain, a grain at a time, so that all of the
# card's memory works when they are read. How a size is cut:
#
# ```python title="torch_spyre_ref/memory/placement.py"
# --8<-- "torch_spyre_ref/memory/placement.py:cut"
# ```
#
# Regions are filled in the order in which they were opened, and a new one is opened only when the
# caller says so (`grow`), in the domain that has fewest. Either all chunks are found or none is
# kept.

# %% Get chunks from all regions of a card tags=["export"]
from collections import Counter as Counts
from collections.abc import Iterable
from contextlib import suppress

from torch_spyre_ref.emulator.addresses import Chunk, CompositeAddress
from torch_spyre_ref.emulator.errors import CardMemoryExhausted, HandleBudgetExhausted
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.memory.placement import Placement
from torch_spyre_ref.memory.statistics import Counter


class NoRoomError(Exception):
    """No region can hold the request as things are."""


class Space:
    """All regions of one card, and the one way to get chunks from them."""

    region_space = RegionSpace

    def __init__(self, table: RegionTable, spec: CardSpec) -> None:
        self.table, self.spec = table, spec
        self.regions: dict[int, RegionSpace] = {}
        self.segments, self.reserved = Counter(), Counter()

    def take(self, size: int, where: Placement, grow: bool) -> CompositeAddress:
        """Cut ``size`` bytes by ``where``, from new regions too if ``grow``; else NoRoomError."""
        if size > self.spec.memory:
            raise NoRoomError
        chunks: list[Chunk] = []
        try:
            for length, domain in where.cut(size, self.spec):
                chunks.append(self._chunk(length, domain, grow))
        except NoRoomError:
            self.give(chunks)
            raise
        return CompositeAddress(tuple(chunks), where.grain(self.spec))

    def give(self, chunks: Iterable[Chunk]) -> None:
        """Return chunks to their regions."""
        for region, offset, length in chunks:
            self.regions[region].give(offset, length)

    def release_empty(self) -> None:
        """Give wholly free regions back to the card."""
        for space in list(self.regions.values()):
            if space.free_bytes == space.region.size:
                self.table.release(space.region.id)
                del self.regions[space.region.id]
                self.segments.free(1)
                self.reserved.free(space.region.size)

    def _chunk(self, size: int, domain: int | None, grow: bool) -> Chunk:
        for space in self.regions.values():
            if domain in (None, space.region.domain) and (offset := space.take(size)) is not None:
                return Chunk(space.region.id, offset, size)
        if not grow:
            raise NoRoomError
        self._open_region(range(self.spec.domains) if domain is None else [domain])
        return self._chunk(size, domain, grow)

    def _open_region(self, domains: Iterable[int]) -> None:
        crowd = Counts(space.region.domain for space in self.regions.values())
        for domain in sorted(domains, key=lambda domain: crowd[domain]):
            with suppress(HandleBudgetExhausted, CardMemoryExhausted):
                region = self.table.acquire(self.spec.region, domain)
                self.regions[region.id] = self.region_space(region)
                self.segments.allocated += 1
                self.reserved.allocated += region.size
                return
        raise NoRoomError


# %%
WISHES = {
    "anywhere": (10_000 // 128 * 128, Placement()),
    "in domain 3": (1280, Placement("bind", 3)),
    "interleaved": (40_960, Placement("interleave")),
    "interleaved, small": (5120, Placement("interleave")),
    "larger than a region": (spec.region + 128, Placement()),
}


def space_of(mode):
    return Space(RegionTable(Memory(), spec, mode), spec)


one = space_of("vf")
for words, (size, where) in WISHES.items():
    address = one.take(size, where, grow=True)
    print(f"{words:<21} {str(address).removeprefix('CompositeAddress')}")

# %% [markdown]
# Read the third line: four chunks, one in each domain, of which two are a grain longer than the
# others. (`r1` comes last because it was opened for the second wish, in domain 3.) And now the
# claim about modes. The same wishes on a PF card: the same domains, offsets and lengths, and only
# the ids differ.


# %%
def places(mode):
    """The addresses of all wishes, with domains in the place of region ids."""
    space = space_of(mode)
    addresses = [space.take(size, where, grow=True) for size, where in WISHES.values()]
    domain_of = {index: one.region.domain for index, one in space.regions.items()}
    return [[(domain_of[c.region], *c[1:]) for c in a.chunks] for a in addresses], set(domain_of)


(vf_places, vf_ids), (pf_places, pf_ids) = places("vf"), places("pf")
print("VF ids", sorted(vf_ids))
print("PF ids", sorted(pf_ids))
assert vf_places == pf_places
assert vf_ids != pf_ids

# %% [markdown]
# Refusals keep nothing. Here the last domain is full. An interleaved tensor needs a chunk there too;
# it finds three chunks and then no fourth, and all holes are as before:

# %%
full = space_of("vf")
for domain in (0, 1, 2):
    full.take(128, Placement("bind", domain), grow=True)
full.take(2 * spec.region, Placement("bind", 3), grow=True)


def holes():
    return {index: one.holes() for index, one in full.regions.items()}


before, refused = holes(), False
try:
    full.take(40_960, Placement("interleave"), grow=True)
except NoRoomError:
    refused = True
assert refused
assert holes() == before

# %% [markdown]
# ### What a storage owns
#
# An **allocation** is what goes into the `DataPtr`'s context: the composite address, how many bytes
# were asked for and how many there are, how they are spread, and how a tensor is laid out in them.
# The last two travel along from the first day, because a compiled program will have to know them.
# `address` is the **logical address**, for the data pointer; a moment's patience.

# %% Describe what a storage owns tags=["export"]
from dataclasses import dataclass


@dataclass(slots=True, eq=False, repr=False)
class Allocation:
    """What a storage owns: where its bytes lie, under a logical address that is never reused."""

    card: "CardMemory"
    composite: CompositeAddress
    size: int
    placement: Placement
    layout: str = "row-major"
    address: int = 0
    nbytes: int = 0

    @property
    def device(self) -> int:
        """The index of the card that it lies on."""
        return self.card.device

    def __repr__(self) -> str:
        return (
            f"Allocation(card {self.device}, {self.nbytes} of {self.size} bytes, "
            f"{self.placement.policy}, {self.composite})"
        )


# %% [markdown]
# ### A cache in front, and addresses that nobody has had
#
# A training loop asks for the same sizes again and again, and `Space` splits and joins for nothing.
# So freed blocks first go to a **cache**, a list for each exact size, and are cut anew only on a
# miss. The cache is bounded. When free space has run out it gives back everything, and forgets the
# sizes that nobody asks for any more (`carve`, `flush`).
#
# Logical addresses only grow. A block that is handed out again gets a new one, with a gap behind
# it, so that a number left over from a dead tensor can never mean a living one.

# %% Keep what is live and what is cached tags=["export"]
from collections.abc import Callable

from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.memory.placement import ANYWHERE
from torch_spyre_ref.memory.statistics import Statistics

ADDRESS_BITS = 56
GUARD = 4096
CACHE_BLOCKS = 4096


class CardMemory:
    """What is kept for one card: live blocks by logical address, cached ones by size."""

    on_hand_out: Callable[[Allocation], object] | None = None
    on_take_back: Callable[[Allocation], object] | None = None

    def __init__(self, device: int, space: Space, synchronize: Callable[[], None]) -> None:
        self.device, self.space, self.synchronize = device, space, synchronize
        self.statistics = Statistics(space.segments, space.reserved)
        self.live: dict[int, Allocation] = {}
        self.cache: dict[int, list[Allocation]] = {}
        self.carved, self.next_address = 0, (device + 1) << ADDRESS_BITS

    def hand_out(self, block: Allocation, nbytes: int) -> None:
        """Make a block live, under an address that nobody has had."""
        self.statistics.took(block.size, nbytes)
        block.nbytes, block.address = nbytes, self.next_address
        self.next_address += block.size + GUARD
        self.live[block.address] = block

    def take_back(self, block: Allocation) -> None:
        """Cache a block that was live, or return it to its regions."""
        size, cache, spare = block.size, self.cache, self.carved - len(self.live)
        if spare < CACHE_BLOCKS and block.placement is ANYWHERE and size in cache:
            self.statistics.gave(size, block.nbytes)
            del self.live[block.address]
            cache[size].append(block)
        else:
            with UNDISTURBED:
                self.statistics.gave(size, block.nbytes)
                del self.live[block.address]
                self._give(block)

    def carve(self, size: int, where: Placement) -> Allocation | None:
        """A new block from free space, then after a flush, then from a new region; else None.

        The caller is undisturbed.
        """
        for grow in (False, False, True):
            with suppress(NoRoomError):
                composite = self.space.take(size, where, grow)
                self.carved += 1
                self.cache.setdefault(size, [])
                return Allocation(self, composite, size, where)
            self.flush()
        return None

    def _give(self, block: Allocation) -> None:
        self.carved -= 1
        self.space.give(block.composite.chunks)

    def flush(self) -> None:
        """Return every cached block. The caller is undisturbed."""
        while self.cache:
            _, blocks = self.cache.popitem()
            while blocks:
                self._give(blocks.pop())

    def release(self) -> None:
        """Give wholly free regions back to the card, once no work is in flight."""
        with UNDISTURBED:
            self.flush()
        self.synchronize()
        with UNDISTURBED:
            self.space.release_empty()


# %%
card = CardMemory(0, space_of("vf"), lambda: None)
first = card.carve(1024, ANYWHERE)
card.hand_out(first, 1000)
print(first)
then = first.address

card.take_back(first)
again = card.cache[1024].pop()
card.hand_out(again, 900)
print(again)
print("the same block:", again is first, "- logical address moved by", again.address - then)
assert again.address >= then + 1024

# %% [markdown]
# (`on_hand_out` and `on_take_back` are for whoever wants to know: poison and memcheck, further down.)
#
# Python stops between two steps for others: for a finaliser, somebody's `__del__`, when the garbage
# collector runs, and for a signal handler when you press Ctrl-C. Both are anybody's code. The one
# might come back in through the front door, the other leaves by an exception. While a region is half
# changed, `UNDISTURBED` keeps both out, and delivers Ctrl-C at the end
# ([`emulator/undisturbed.py`](../torch_spyre_ref/emulator/undisturbed.py)). That would make up a
# quarter of an allocation that finds its block in the cache. Such a one does without, and minds the
# order of its steps: Python heeds a signal only where a call begins or has returned, so no call
# stands where a block would get lost.
#
# A view's data pointer is the storage's plus an offset, PyTorch does that by itself; so the data
# pointer minus the allocation's address is the byte at which a view starts, however many chunks
# there are. That is all that a logical address is good for, and all that it has to be.
#
# ### Freeing is one append
#
# The last piece is what the bridge calls. The hard part is `free`. A deleter runs when it likes: on
# an autograd thread, at exit, in the middle of a garbage collection, and so, perhaps, in the middle
# of `allocate` on this very thread. If it took a lock it could deadlock, and if it cut blocks it
# would find them half cut. So it does one thing that cannot be interrupted, it appends to a queue,
# and the next allocation or report takes the blocks back.

# %% Answer the bridge tags=["export"]
import gc
import threading
from collections import deque

import torch

from torch_spyre_ref.memory.map import out_of_memory_message
from torch_spyre_ref.memory.placement import asked_for, current_placement


class Allocator:
    """The allocator that the bridge calls, for every card of the process.

    ``free`` is what a storage's deleter calls: it only appends, so that it may run on any thread
    and in the middle of a garbage collection. The next allocation or report takes the blocks back.
    """

    def __init__(self, open_card: Callable[[int], CardMemory]) -> None:
        self.open_card, self.lock = open_card, threading.RLock()
        self.cards: dict[int, CardMemory] = {}
        self.pending: deque[Allocation] = deque()
        self.free = self.pending.append

    def card(self, device: int) -> CardMemory:
        """What is kept for a card; asking for one that has not started starts it."""
        return self.cards.get(device) or self.cards.setdefault(device, self.open_card(device))

    def allocate(self, nbytes: int, device: int, stream: int = 0) -> Allocation:
        """A block of at least ``nbytes`` > 0 bytes on a card, or ``torch.OutOfMemoryError``."""
        card = self.cards.get(device) or self.card(device)
        where = current_placement.get() if asked_for else ANYWHERE
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT
        lock, block = self.lock, None
        try:
            try:
                lock.acquire()  # `with` takes twice as long; inside, since Ctrl-C may come at once
                if self.pending:
                    self.take_back()
                if where is ANYWHERE and (bucket := card.cache.get(size)):
                    block = bucket[-1]
                    del bucket[-1]  # pop() is a call, and at its end Ctrl-C might drop the block
                    card.hand_out(block, nbytes)
            finally:
                lock.release()
            if block is None:
                block = self._carve(card, size, where, nbytes)
            if card.on_hand_out is not None:
                card.on_hand_out(block)
            return block
        except BaseException:
            self._let_go(card, block, nbytes)
            raise

    def take_back(self) -> None:
        """Take back what deleters have freed. The caller holds the lock."""
        pending = self.pending
        while pending:
            if (tell := pending[0].card.on_take_back) is not None:
                with UNDISTURBED:
                    tell(block := pending.popleft())
                    block.card.take_back(block)
                continue
            block = pending[0]
            del pending[0]
            try:
                block.card.take_back(block)
            except BaseException:
                if block.card.live.get(block.address) is block:
                    pending.append(block)
                raise

    def _carve(
        self, card: CardMemory, size: int, where: Placement, nbytes: int, last: bool = False
    ) -> Allocation:
        """A block that the cache does not have. Makes room for it if need be."""
        block = None
        try:
            with UNDISTURBED, self.lock:
                self.take_back()
                block = card.carve(size, where)
                if block is not None:
                    card.hand_out(block, nbytes)
        except BaseException:
            self._let_go(card, block, nbytes)
            raise
        if block is None:
            self._relieve(card, nbytes, where, last)
            return self._carve(card, size, where, nbytes, last=True)
        return block

    def _let_go(self, card: CardMemory, block: Allocation | None, nbytes: int) -> None:
        """Free a block that nobody will get."""
        if block is not None:
            with UNDISTURBED, self.lock:
                if card.live.get(block.address) is not block:
                    card.hand_out(block, nbytes)
                self.free(block)

    def _relieve(self, card: CardMemory, nbytes: int, where: Placement, last: bool) -> None:
        if not last:
            gc.collect()  # not under the lock: a finaliser is anybody's code
        with self.lock:
            self.take_back()
            card.release()
            if not last:
                card.statistics.retries += 1
                return
        with UNDISTURBED, self.lock:
            card.statistics.ooms += 1
            message = out_of_memory_message(card, nbytes, where)
        raise torch.OutOfMemoryError(message)


# %% [markdown]
# What usually runs is short: round up, take back, pop, hand out. On a miss, `carve` looks in free
# space, then gives up the cache and looks again, then opens a region. `_relieve` comes when all that
# was not enough. It gives up Python's garbage, the cache that this has filled, and regions that have
# become empty. Then the request is tried once more. And whatever comes in between, a block that
# nobody will get is freed (`_let_go`).
#
# PyTorch gets all of it at once: the table of handles, the space, the card's memory, the allocator.

# %%
OURS = {
    "region_table": RegionTable,
    "space": Space,
    "card_memory": CardMemory,
    "allocator": Allocator,
}
install(**OURS)

x = torch.arange(6.0).spyre()
y = x[2:]
allocation = _bridge.allocation(y)
print(allocation)
print("the view starts at byte", y.data_ptr() - allocation.address)
print("and reads", y.tolist())

assert type(allocation) is Allocation is not shipped.Allocation
assert type(backend.current().runtime.cards[0].card.regions) is RegionTable
assert y.data_ptr() - allocation.address == 8
del x, y, allocation

# %% [markdown]
# A deleter waits for nobody. Here one runs on another thread while this one holds the lock; it
# leaves its block and is done. The block stays live until somebody takes it back.

# %%
allocator = backend.current().memory.allocator
torch.spyre.memory_stats(0)  # takes back what was left
given_away = [torch.empty(100, device="spyre")]
with allocator.lock:
    thread = threading.Thread(target=given_away.clear)
    thread.start()
    thread.join()
    left = len(allocator.pending), len(allocator.card(0).live)
print("left behind:", left[0], "- still live:", left[1])
torch.spyre.memory_stats(0)
print("left behind:", len(allocator.pending), "- still live:", len(allocator.card(0).live))
assert left == (1, 1)
assert not allocator.pending
assert not allocator.card(0).live

# %% [markdown]
# ### Ten thousand tensors
#
# Nothing new from here on; only use. Ten thousand tensors of mixed sizes, a third of them freed
# again in random order, beside the plainest possible books:


# %%
def crowd(count=10_000):
    """Live tensors of mixed sizes, after a third of them have been freed."""
    chance = random.Random(2)
    tensors = [torch.empty(chance.randrange(1, 6000), device="spyre") for _ in range(count)]
    chance.shuffle(tensors)
    return tensors[count // 3 :]


def books(tensors):
    """What must be in use, from the tensors alone."""
    asked = [tensor.nbytes for tensor in tensors]
    return len(asked), sum(asked), sum(-(-n // ALIGNMENT) * ALIGNMENT for n in asked)


many = []  # or a second run of this cell would hold two crowds for a moment
many = crowd()
stats = torch.spyre.memory_stats(0)
names = ("allocation", "requested_bytes", "allocated_bytes")
reported = tuple(stats[f"{name}.all.current"] for name in names)
print(f"{reported[0]} tensors, {reported[1]:,} bytes asked for, {reported[2]:,} held")
print("regions:", stats["segment.all.current"])
assert reported == books(many)
assert stats["segment.all.current"] == 2

# %%
torch.spyre.memory_map()

# %% [markdown]
# The map merges what is too small to see: the higher a column is filled, the more of its bytes are
# in use. One table shows the rest, and `torch.accelerator` has the same figures for code that does
# not care which device it runs on.

# %%
print(torch.spyre.memory_summary())
assert torch.accelerator.memory_allocated() == reported[2]

# %% [markdown]
# Exact also means: at any moment, from any thread. The counters change under the lock; a *peak* is
# looked at before anything is freed, since in between the figures only grow
# ([`memory/statistics.py`](../torch_spyre_ref/memory/statistics.py)). Four threads, each with its
# own comings and goings:


# %%
def come_and_go(seed, kept):
    """Allocate and free a thousand times; leave ten tensors in ``kept``."""
    chance, live = random.Random(seed), []
    for _ in range(1000):
        if len(live) > 50:
            del live[chance.randrange(len(live))]
        live.append(torch.empty(chance.randrange(1, 3000), device="spyre"))
    kept += live[:10]


many.clear()
kept = []
threads = [threading.Thread(target=come_and_go, args=(seed, kept)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

stats = torch.spyre.memory_stats(0)
assert tuple(stats[f"{name}.all.current"] for name in names) == books(kept)
print(len(kept), "tensors left, and the counters agree")
del kept

# %% [markdown]
# ### The chain again, with tensors that stay
#
# The chain of the naive card, unchanged: the same `decode`, the same two functions. Only `run`
# differs. Its operands are tensors that are on the card already, and its result stays there.

# %%
from torch_spyre_ref.aten.copies import device_range, queue_of


def run_resident(function, *operands):
    """Compute on tensors where they are; the result stays there, too."""
    result = torch.empty_like(operands[-1])
    operation = on_the_card(function, [device_range(one) for one in operands], device_range(result))
    queue_of(result).submit(operation)
    return result


def decode_resident():
    """The value after ten tokens, on the host, with what crossed the link and how long it took."""
    runtime = backend.current().runtime
    torch.spyre.synchronize()
    runtime.timeline.clear()
    begun = runtime.clock.now
    layers = [torch.from_numpy(shift).spyre() for _ in range(LAYERS)]
    value = decode(run_resident, layers, torch.from_numpy(start).spyre()).cpu()
    return value, link_bytes(runtime), runtime.clock.now - begun


torch.spyre.reset_peak_memory_stats()
resident, resident_bytes, resident_time = decode_resident()
beside = torch.spyre.max_memory_allocated() - LAYERS * shift.nbytes
print(f"copied:   {copied_bytes:>12,} bytes {copying.runtime.clock.now:>10,} ns")
print(f"resident: {resident_bytes:>12,} bytes {resident_time:>10,} ns")
assert resident.tolist() == copied.tolist()
assert resident_bytes == LAYERS * shift.nbytes + 2 * start.nbytes

# %% [markdown]
# The weights cross once, the value once in and once out. In between, forty results were born and
# died on the card, and PyTorch's reference counts say when: beside the weights there were never
# more than a few of them at once.

# %%
print("beside the weights, at most", beside // start.nbytes, "values at a time")
assert beside <= 4 * start.nbytes
assert torch.spyre.memory_allocated() == 0

# %% [markdown]
# ### One door for bytes
#
# Tensors have bytes at last, so bytes must get in and out. Every copy that PyTorch makes, between
# whatever devices, dtypes and views, arrives at one operator, `aten::_copy_from`. It decides by
# where the two sides are:
#
# ```python title="torch_spyre_ref/aten/copies.py"
# --8<-- "torch_spyre_ref/aten/copies.py:door"
# ```
#
# And the card's side of it is described in one way, from what you have built: the allocation's
# address, the byte at which the view starts, and the loop nest of its shape and strides.
#
# ```python title="torch_spyre_ref/aten/copies.py"
# --8<-- "torch_spyre_ref/aten/copies.py:device-range"
# ```
#
# The card's transfer engine walks that nest. So a column of a matrix is one transfer, of nothing
# but its elements:

# %%
matrix = torch.arange(12.0).reshape(3, 4)
on_card = matrix.spyre()
torch.spyre.synchronize()
runtime = backend.current().runtime
runtime.timeline.clear()
on_card[:, 1].copy_(torch.tensor([-1.0, -2.0, -3.0]))
torch.spyre.synchronize()

for one in runtime.timeline:
    print(f"{one.kind}: {one.nbytes} bytes in {one.sticks} runs, each paid as a stick")
print("loops:", device_range(on_card[:, 1]).loops, "- three steps of 16 bytes")
print(on_card.cpu().tolist())
matrix[:, 1] = torch.tensor([-1.0, -2.0, -3.0])
assert on_card.cpu().equal(matrix)
del on_card

# %% [markdown]
# Views are where backends break: every one of them passes on its tests of whole tensors. So here
# are the awkward ones, read and written, on memory that is bound and on memory that is spread. A
# write must reach the view's elements and *nothing else*, so all of the base is compared.

# %%
VIEWS = {
    "a slice of a slice": lambda t: t[3:60][:, 5:40],
    "every third, transposed": lambda t: t[::3, 1::2].t(),
    "a diagonal": lambda t: t.diagonal(2),
    "windows that overlap": lambda t: t.view(-1).unfold(0, 16, 4),
    "one row, repeated": lambda t: t[7:8].expand(5, -1),
    "a part, as other numbers": lambda t: t[10:20].view(torch.int16)[:, 3:9],
}
writable = ("a slice of a slice", "every third, transposed", "a diagonal")
for policy in ("bind", "interleave"):
    host = torch.arange(64.0 * 1024).reshape(64, 1024)
    with torch.spyre.placement(policy):
        device = host.spyre()
    chunks = len(_bridge.allocation(device).composite.chunks)
    for words, view in VIEWS.items():
        assert view(device).cpu().equal(view(host)), words
    for number, words in enumerate(writable):
        news = torch.full_like(VIEWS[words](host), -float(number))
        VIEWS[words](host).copy_(news)
        VIEWS[words](device).copy_(news)
        assert device.cpu().equal(host), words
    print(f"{policy}: {len(VIEWS)} views read, {len(writable)} written, in {chunks} chunks")
del device

# %% [markdown]
# Bytes between two cards go through the host: out of one card, an event, into the other. And the
# host's side of a transfer must be [pinned](../docs/glossary.md#pinned-memory); a tensor that is
# not goes through a staging buffer, in pieces.


# %%
def operations(action, *arguments):
    """What the cards did for an action, and what it gave."""
    for index in (0, 1):
        torch.spyre.synchronize(index)
    runtime.timeline.clear()
    result = action(*arguments)
    for index in (0, 1):
        torch.spyre.synchronize(index)
    return [f"card {one.card} {one.kind}" for one in runtime.timeline], result


crossing, there = operations(matrix.spyre().to, "spyre:1")
print(", ".join(crossing))
assert there.cpu().equal(matrix)
assert _bridge.allocation(there).device == 1

pageable = torch.zeros(3 << 20, dtype=torch.int8)
for words, host in {"pageable": pageable, "pinned": pageable.pin_memory()}.items():
    transfers, there = operations(host.spyre)
    print(f"{words}: {host.nbytes} bytes, {len(transfers)} x {transfers[0]}")
del there

# %% [markdown]
# ### Out of memory
#
# Seven of eight regions are full, and a tensor needs two. What should the error say? What was
# asked, what there is, and where it went:

# %%
sevenths = []  # or a second run of this cell would need fourteen
sevenths = [torch.empty(spec.region, dtype=torch.int8, device="spyre") for _ in range(7)]

# %% tags=["raises-exception"]
torch.empty(2 * spec.region, dtype=torch.int8, device="spyre")

# %% [markdown]
# A refusal is not a crash. It changed nothing, and after a `del` there is room again:

# %%
assert torch.spyre.memory_allocated() == 7 * spec.region
del sevenths[:2]
assert torch.empty(2 * spec.region, dtype=torch.int8, device="spyre").numel() == 2 * spec.region
sevenths.clear()

# %% [markdown]
# Even that is not always needed. Python's cyclic garbage holds tensors that nobody can reach, and
# the collector does not know how large they are. So the allocator asks it to look, once, before it
# gives up.

# %%
stats = torch.spyre.memory_stats(0)
retries, refusals = stats["num_alloc_retries"], stats["num_ooms"]

gc.collect()
gc.disable()  # so that the collector does not come by itself, before it is asked
cycle = [torch.empty(6 * spec.region, dtype=torch.int8, device="spyre")]
cycle.append(cycle)
del cycle  # unreachable, and 384 MiB
room = torch.empty(4 * spec.region, dtype=torch.int8, device="spyre")
gc.enable()

stats = torch.spyre.memory_stats(0)
print("retries:", stats["num_alloc_retries"] - retries, "refusals:", stats["num_ooms"] - refusals)
assert stats["num_alloc_retries"] - retries == 1
assert stats["num_ooms"] == refusals
del room

# %% [markdown]
# ## Watch it run: the life of a tensor
#
# Now slowly. `Watched` is the allocator that you have built, and writes down when a block is handed
# out, when a deleter leaves it, and when it is taken back. Each line of the program stands above
# what it caused.

# %%
from contextlib import contextmanager
from typing import NamedTuple


class Entry(NamedTuple):
    """Something that happened to a block: ``offset`` in its region, and its logical address."""

    event: str
    offset: int
    address: int
    nbytes: int


class Watched(Allocator):
    """Writes down what happens to each block."""

    def __init__(self, open_card):
        super().__init__(open_card)
        self.log = []
        self.free = self.leave

    def note(self, event, block):
        place = block.composite.chunks[0].offset
        self.log.append(Entry(event, place, block.address - (1 << ADDRESS_BITS), block.nbytes))

    def allocate(self, *arguments, **named):
        block = super().allocate(*arguments, **named)
        self.note("handed out", block)
        return block

    def leave(self, block):
        self.note("left", block)
        self.pending.append(block)

    def take_back(self):
        for block in list(self.pending):
            self.note("taken back", block)
        super().take_back()


def watch():
    """Install a new allocator that is watched; its log."""
    install(**{**OURS, "allocator": type("Watched", (Watched,), {})})  # another class each time
    log = backend.current().memory.allocator.log
    log.clear()
    return log


@contextmanager
def line(words):
    """Print a line of the program, and what it caused."""
    before = len(log)
    yield
    print(words)
    for entry in log[before:]:
        print(f"    {entry.event:<11} {entry.nbytes} bytes, block at {entry.offset}, ", end="")
        print(f"logical address {entry.address}")


# %% [markdown]
# `Watched` is another class than before, and `register` refuses to change classes while tensors
# live: whoever made them must free them. None lives now, so it goes through.

# %%
log = watch()
with line("x = torch.empty(1000)"):
    x = torch.empty(1000, device="spyre")
with line("y = x.view(10, 100)[2:]"):
    y = x.view(10, 100)[2:]
with line("del x"):
    del x
with line("del y"):
    del y
with line("z = torch.empty(1010)"):
    z = torch.empty(1010, device="spyre")
with line("w = torch.empty(1000)"):
    w = torch.empty(1000, device="spyre")

events = [entry.event for entry in log]
assert events == ["handed out", "left", "taken back", "handed out", "handed out"]
assert log[3].offset == log[0].offset
assert log[3].address >= log[0].address + 4096
assert log[4].offset != log[0].offset
del z, w

# %% [markdown]
# Read it from the top. A thousand numbers need 4000 bytes, and get a block of 4096. The view asks
# nothing. `del x` frees nothing. `del y` drops the last reference, and the deleter *leaves* the
# block, no more. The next allocation takes it back, and since 4040 bytes round up to 4096 too, `z`
# gets that very block: the same place, and another logical address. The last line finds no block of
# that size in the cache, and has a new one cut.

# %% [markdown]
# The same log as a picture: a small model that is fed its own output, ten times. Each row is a
# block, time runs to the right, and a box is the life of one storage in it.

# %%
from torch_spyre_ref.emulator.figures import Drawing


def lifetimes(log):
    """(offset, first moment, last moment, bytes) of each storage in a log."""
    died = {entry.address: moment for moment, entry in enumerate(log) if entry.event == "left"}
    return [
        (entry.offset, moment, died.get(entry.address, len(log)), entry.nbytes)
        for moment, entry in enumerate(log)
        if entry.event == "handed out"
    ]


def lives(log):
    """A row for each block, a box for each storage that lived in it."""
    found = lifetimes(log)
    rows = sorted({offset for offset, *_ in found})
    title = f"The lives of {len(found)} storages in {len(rows)} blocks, over time"
    drawing, step = Drawing(16 * len(rows) + 30, title), 480 / len(log)
    for offset, born, died, nbytes in found:
        y = 16 * rows.index(offset) + 6
        kind = "used" if died < len(log) else "move"
        drawing.box(112 + born * step, y, (died - born) * step - 1, 12, kind, f"{nbytes} bytes")
    for number, offset in enumerate(rows):
        drawing.text(104, 16 * number + 16, f"block at {offset}", "end", small=True)
    drawing.text(112, 16 * len(rows) + 22, "one step to the right for each event", small=True)
    return drawing


log = watch()
small = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
small.spyre()
value = torch.ones(1, 64, device="spyre")
with torch.no_grad():
    for _ in range(10):
        value = small(value).softmax(-1) + value
story = list(log)
del small, value
lives(story)

# %%
storages = lifetimes(story)
blocks = {offset for offset, *_ in storages}
cut_early = {offset for offset, born, *_ in storages if born < len(story) / 4}
print(f"{len(storages)} storages lived in {len(blocks)} blocks")
assert len(storages) >= 4 * len(blocks)
assert cut_early == blocks

# %% [markdown]
# What lives to the end has a colour of its own. After the first round no new block is cut: this is
# how a loop settles down, on this card as on a GPU.
#
# On CUDA each row would belong to one stream. If a tensor is used on a second stream, its row must
# not be given away before that stream is done, and somebody has to say so: `record_stream`. Here
# the runtime sees which bytes each operation touches, and orders its queues by that ([chapter
# 4](04_streams.ipynb)). So the call is accepted, and there is nothing to do.

# %%
x = torch.ones(3, device="spyre")
x.record_stream(torch.accelerator.current_stream())
assert x.tolist() == [1, 1, 1]
del x

# %% [markdown]
# ## Break it
#
# ### Free without joining
#
# Take one guarantee away: blocks that touch stay apart. `Space.region_space` says which class keeps
# a region's free blocks, so a few lines are enough, and PyTorch runs on them. Fill all regions with
# tensors of one mebibyte, keep one in each region, free the others, and ask for two mebibytes:


# %%
class Scattered(RegionSpace):
    """Frees a block and leaves it as it is."""

    def give(self, start, length):
        self._insert(start, length)


class ScatteredSpace(Space):
    region_space = Scattered


def small_then_large(space):
    """Whether there is room for a larger tensor where many smaller ones have been."""
    install(**{**OURS, "space": space})
    small = [torch.empty(1 << 20, dtype=torch.int8, device="spyre") for _ in range(512)]
    small = small[::64]
    try:
        torch.empty(2 << 20, dtype=torch.int8, device="spyre")
        verdict = "there is room"
    except torch.OutOfMemoryError as error:
        verdict = str(error).split(",")[0]
    regions = backend.current().memory.allocator.cards[0].space.regions.values()
    largest = max(length for one in regions for _, length in one.holes())
    return verdict, sum(one.free_bytes for one in regions), largest


for space_class in (ScatteredSpace, Space):
    verdict, free_bytes, largest_hole = small_then_large(space_class)
    print(f"{space_class.__name__}: {verdict}")
    print(f"    {free_bytes >> 20} MiB free, largest hole {largest_hole >> 20} MiB")

# %% [markdown]
# 504 MiB are free and two are refused. Each hole remembers a tensor that nobody needs any more, and
# no flush, no garbage collection and no empty region helps. Joined, the same holes are large, and two
# of the 504 go to the new tensor.

# %%
assert "out of memory: asked for 2.00 MiB" in small_then_large(ScatteredSpace)[0]
assert small_then_large(Space)[0] == "there is room"

# %% [markdown]
# ### Read what nobody wrote
#
# `torch.empty` promises nothing about its bytes. In practice that is a trap: the block has belonged
# to somebody, and what is left in it looks like data.


# %%
def fresh():
    """Four numbers that nobody wrote, in a block that had an owner."""
    former = torch.full((4,), 42.0, device="spyre")
    del former
    return torch.empty(4, device="spyre").tolist()


print("fresh memory:", fresh())

# %% [markdown]
# A program with this fault works, now and then, on whoever's leftovers. **Poison** makes it fail
# every time: a block is filled with a pattern when it is handed out. It is an ordinary operation in
# the card's queue, so it cannot overtake what still reads the former owner's bytes, and it takes no
# time, so that it changes no schedule.
#
# ```python title="torch_spyre_ref/memory/driver.py"
# --8<-- "torch_spyre_ref/memory/driver.py:poison"
# ```

# %%
from torch_spyre_ref.memory.driver import poison

memory_of_card = backend.current().memory.allocator.card(0)
memory_of_card.on_hand_out = lambda block: poison(backend.current().queue(0), block)
poisoned = fresh()
print("fresh memory:", poisoned)
memory_of_card.on_hand_out = None
assert all(value != value for value in poisoned), "NaN is the only number that is not itself"

# %% [markdown]
# `TORCH_SPYRE_REF_POISON=1` does this from the start, and the test-suite runs with it.
#
# ### Use after free
#
# Through PyTorch you cannot get at a freed tensor: whoever can name it holds a reference. Below
# PyTorch there is no such protection. A transfer that is enqueued with yesterday's address would
# read or write whoever lives there now. **Memcheck** knows what is handed out, because the
# allocator tells it, and looks at every operation's footprint before it is enqueued.

# %%
checked = Runtime(devices=1, memory=MEMORY, sanitize=True)
checked_queue = checked.cards[0].default_queue
checked_region = checked.cards[0].card.regions.acquire(spec.region, domain=0)
owned = CompositeAddress((Chunk(checked_region.id, 0, 4096),))
fetch = D2H(DeviceRange.contiguous(owned, 0, 4096), checked.pinned.allocate(4096).array)

checked.memcheck.handed_out(0, owned)
checked_queue.wait(checked_queue.submit(fetch))
print("while somebody owns the bytes: fine")
checked.memcheck.given_back(0, owned)

# %% tags=["raises-exception"]
checked_queue.submit(fetch)

# %% [markdown]
# The report names the operation, the bytes, and two lines of the program: who used them, and who
# gave them back. Nothing was enqueued, so nothing was harmed:

# %%
assert checked_queue.pending() == []
assert [report.kind for report in checked.memcheck.reports] == ["use after free"]
checked.shutdown()

# %% [markdown]
# `TORCH_SPYRE_REF_SANITIZE=1` puts memcheck under everything that PyTorch does.

# %% [markdown]
# ## Assembled
#
# All of this is [`allocator.py`](../torch_spyre_ref/allocator.py) on
# [`emulator/regions.py`](../torch_spyre_ref/emulator/regions.py). Install the shipped classes, do
# once more what this chapter began with, and compare with your own, byte for byte.

# %%
maps = []
for parts in (OURS, {}):
    install(**parts)
    torch.spyre.empty_cache()
    many = crowd()
    maps.append(str(torch.spyre.memory_map()))
    many.clear()
assert type(backend.current().memory.allocator) is shipped.Allocator
assert maps[0] == maps[1]
print(maps[1])

# %%
value, value_bytes, _ = decode_resident()
print(f"the chain: {value_bytes:,} bytes over the link")
assert value.equal(resident)
assert value_bytes == resident_bytes

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/02_allocator.py`, and are tested.
#
# ### 1. Predict
#
# How many bytes does `torch.spyre.memory_allocated()` report after each of these lines? It counts
# from what was there before.

# %%
prediction = {
    "x = torch.empty(100)": None,
    "y = x[50:]": None,
    "z = y.clone()": None,
    "del x": None,
    "del y": None,
}


def check_prediction(prediction):
    """Compare with a run."""
    before = torch.spyre.memory_allocated()
    held, seen = {}, []
    for action in (
        lambda: held.update(x=torch.empty(100, device="spyre")),
        lambda: held.update(y=held["x"][50:]),
        lambda: held.update(z=held["y"].clone()),
        lambda: held.pop("x"),
        lambda: held.pop("y"),
    ):
        action()
        seen.append(torch.spyre.memory_allocated() - before)
    if None in prediction.values():
        return "no prediction yet"
    pairs = zip(prediction.items(), seen, strict=True)
    wrong = [line for (line, guess), actual in pairs if guess != actual]
    return f"wrong: {', '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: first fit
#
# Size classes are one way to find a hole. Write the oldest one: keep the holes in a list, by
# offset, and take the *first* that is large enough. The checker lives through random requests, and
# then looks whether it really was the first. About 15 lines. (Then give PyTorch your class, as the
# drill above did with `Scattered`, and draw the map of `crowd()`.)


# %%
class FirstFit:
    """The free blocks of one region, in a list."""

    def __init__(self, region):
        self.region = region
        self.free = [(0, region.size)]

    @property
    def free_bytes(self):
        return sum(length for _, length in self.free)

    def holes(self):
        return list(self.free)

    def take(self, size):
        return None

    def give(self, start, length):
        pass


def check_first_fit(answer):
    """Random requests, then a region with a large hole, a smaller one, and the rest."""
    space = answer(Region(0, 8192, 0, 0))
    if space.take(128) is None:
        return "no answer yet"
    verdict = check_space(answer)
    if verdict != "right":
        return verdict
    space = answer(Region(0, 8192, 0, 0))
    offsets = [space.take(size) for size in (512, 128, 256, 128)]
    if offsets != [0, 512, 640, 896]:
        return f"blocks should follow one another from 0 on, not lie at {offsets}"
    space.give(0, 512)
    space.give(640, 256)
    for size, first in ((256, 0), (384, 1024), (256, 256)):
        found = space.take(size)
        if found != first:
            return f"the first hole for {size} bytes is at {first}, not at {found}"
    return "right"


check_first_fit(FirstFit)

# %% [markdown]
# ### 3. Open
#
# A logical address does not say where the bytes lie. So they could be moved *while the tensor
# lives*: push the live blocks of each region together, and all holes become one. Write
# `compact(memory, queue)` for a card's `CardMemory` and its queue. Then argue: what must be true of
# operations already enqueued, and what will a program that is launched with a tensor's address have
# to promise, so that this stays right?

# %% [markdown]
# ## Summary
#
# - A card gives out few large regions. Copying in and out of them costs the link; a region for each
#   tensor costs a handle, and the ninth is refused.
# - So regions are cut into blocks, found by size class, split, joined when they touch, and cached by
#   exact size for the next tensor. Ten thousand tensors live in two of eight regions.
# - An address is a list of chunks. It lies in the `DataPtr`'s context; the data pointer holds a
#   logical address, which PyTorch can add to and nobody can follow or meet twice.
# - PyTorch's reference counts say when memory goes. The deleter only leaves word, and the next
#   allocation takes the block back.
# - Statistics are exact, fresh memory can be poisoned, stale addresses are caught, and a refusal
#   comes after a garbage collection, with a map.
#
# New words: [region](../docs/glossary.md#region), [handle](../docs/glossary.md#handle),
# [chunk](../docs/glossary.md#chunk), [composite address](../docs/glossary.md#composite-address),
# [grain](../docs/glossary.md#grain), [block](../docs/glossary.md#block),
# [size class](../docs/glossary.md#size-class), [allocation](../docs/glossary.md#allocation),
# [logical address](../docs/glossary.md#logical-address),
# [placement](../docs/glossary.md#placement), [poison](../docs/glossary.md#poison).
#
# Next: a tensor's address reaches the card in a copy. A *program* is compiled before any tensor
# exists, and has to be told its addresses when it is launched. That is the third mapping, in
# [chapter 3](03_launch.ipynb).
