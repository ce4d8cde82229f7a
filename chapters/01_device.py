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
# # PyTorch can know a card by name, without a fork
#
# PyTorch keeps one device type free for hardware outside its tree. Here it gets the name `spyre`,
# every question that PyTorch asks about devices gets an answer, and `torch.spyre` gathers what
# users call.
#
# ## You will build
#
# - **The module** `torch_spyre_ref/device.py`: the name, the object that answers PyTorch's questions
#   about devices, and `torch.spyre`.
# - **What it enables**: `torch.device("spyre")` and `tensor.to("spyre")`; autograd, optimizers,
#   printing, files and seeds that treat the card as a place of its own.
# - **Not built here**: where a tensor's bytes lie, which is [chapter 2](02_allocator.ipynb); more
#   than one stream a card; and computing. Until programs arrive, most operators run on the CPU, and
#   say so.
# - **Time**: about an hour.
# - **You need**: Python's classes and `with` blocks, `nn.Module`, and a little C, so that a quoted
#   C++ method says something to you; what matters in it is also said in words.
#   [Chapter 0](00_the_card.ipynb) explains the operations that the card is asked for below; it
#   helps, but you can begin here.
#
# If you can tell what this prints before you look, you are ready. (The second line keeps PyTorch
# from loading the finished backend by itself, or there would be nothing left to build.)

# %%
import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

with torch.no_grad():
    ready = 3 * torch.ones(2, requires_grad=True)
print(ready.device, ready.requires_grad, torch.is_grad_enabled())

# %% [markdown]
# ## The constraint: PyTorch has never heard of the card
#
# The card is there. Its runtime starts, gives memory, and moves bytes into it. Notice what an
# address on the card is: a region and an offset, nothing that a CPU could follow.

# %%
import numpy as np

from torch_spyre_ref.emulator.addresses import Chunk, CompositeAddress
from torch_spyre_ref.runtime import D2H, H2D, Compute, DeviceRange, Runtime

runtime = Runtime(devices=1, memory=512 << 20)
card, queue = runtime.cards[0].card, runtime.cards[0].default_queue
region = card.regions.acquire(card.spec.region, domain=0)
six_floats = DeviceRange.contiguous(CompositeAddress((Chunk(region.id, 0, 24),)), 0, 24)

pinned = runtime.pinned.allocate(24).array
pinned.view(np.float32)[:] = range(6)
queue.wait(queue.submit(H2D(pinned, six_floats)))
print("on the card at", six_floats)

# %% [markdown]
# PyTorch, asked for such a place, has no word for it. The list in its answer is closed: adding a
# name to it means changing PyTorch. (If the cell answers instead, `torch` was imported before the
# first cell ran: restart the kernel.)

# %% tags=["raises-exception"]
torch.device("spyre")

# %% [markdown]
# ## Naive first: a shadow device
#
# What can be done without a word for the card? Keep every tensor on the CPU, as far as PyTorch is
# concerned, and give it a twin on the card behind PyTorch's back. Early versions of the Spyre stack
# lived like this: the runtime moved values to the card, while PyTorch took every tensor for a CPU
# tensor. Here is that life as one class. `run` computes on twins, with the card's compute pipeline
# (we let each operation take 3 µs); the function it is given works on the bytes in card memory.


# %%
class ShadowCard:
    """A card beside PyTorch: tensors get twins on it, of which PyTorch knows nothing."""

    def __init__(self) -> None:
        self.runtime = Runtime(devices=1, memory=512 << 20)
        self.card, self.queue = self.runtime.cards[0].card, self.runtime.cards[0].default_queue
        self.region = self.card.regions.acquire(self.card.spec.region, domain=0)
        self.used = self.sent = self.fetched = 0
        self.twins: dict[int, tuple[torch.Tensor, DeviceRange]] = {}

    def place(self, nbytes: int) -> DeviceRange:
        chunk = Chunk(self.region.id, self.used, nbytes)
        self.used += -(-nbytes // 128) * 128
        return DeviceRange.contiguous(CompositeAddress((chunk,)), 0, nbytes)

    def twin(self, tensor: torch.Tensor) -> DeviceRange:
        """Where the tensor's twin lies; the first time, its bytes are sent there."""
        if id(tensor) not in self.twins:
            where, pinned = self.place(tensor.nbytes), self.runtime.pinned.allocate(tensor.nbytes)
            pinned.array[:] = tensor.detach().numpy().ravel().view(np.uint8)
            self.queue.submit(H2D(pinned.array, where), label="to the card")
            self.sent += tensor.nbytes
            self.twins[id(tensor)] = (tensor, where)
        return self.twins[id(tensor)][1]

    def run(self, function, tensor: torch.Tensor) -> torch.Tensor:
        """Apply a NumPy function to a twin on the card, and fetch the result."""
        source, result = self.twin(tensor), self.place(tensor.nbytes)

        def effect(memory):
            memory.write(result, function(memory.read(source).view(np.float32)).view(np.uint8))

        self.queue.submit(Compute(3000, effect, (source,), (result,)), label="compute")
        pinned = self.runtime.pinned.allocate(tensor.nbytes)
        self.queue.wait(self.queue.submit(D2H(result, pinned.array), label="to the host"))
        self.fetched += tensor.nbytes
        answer = torch.frombuffer(pinned.array, dtype=torch.float32).reshape(tensor.shape)
        self.twins[id(answer)] = (answer, result)
        return answer


def doubled(values):
    return 2 * values


shadow = ShadowCard()
x = torch.ones(3)
y = shadow.run(doubled, x)
print("computed on the card:", y)
print("and PyTorch says it is on", y.device)

# %% [markdown]
# The value is right. But whoever reads `y` must know that it has a twin; PyTorch does not. Train
# one weight and see: the update is PyTorch's, so it changes the tensor that PyTorch knows.

# %%
weight = torch.ones(3)
shadow.run(doubled, weight)
with torch.no_grad():
    weight.sub_(1.0)

stale = shadow.run(doubled, weight)
print("the card computes 2 *", weight.tolist(), "=", stale.tolist())
assert (2 * weight).tolist() == [0, 0, 0]
assert stale.tolist() == [2, 2, 2]

# %% [markdown]
# Twice zero is not two. The twin is stale, and nobody could have told the card: in-place updates
# go through no function of ours. So the careful shadow keeps no twins, and sends every input every
# time.

# %%
careful = ShadowCard()
value = torch.ones(256, 256)
for _ in range(3):
    careful.twins.clear()
    value = careful.run(doubled, value)

print(f"{value.nbytes} bytes of value, {careful.sent} sent, {careful.fetched} fetched")
assert careful.sent == careful.fetched == 3 * value.nbytes

# %% [markdown]
# ## Picture: three operations of a careful shadow
#
# This is the card's own timeline of those three operations. Each result goes to the host, only to
# come back as the next input, and the compute pipeline waits.

# %%
from torch_spyre_ref.emulator.figures import gantt

gantt(careful.runtime.timeline, "Three operations: each is sent, computed and fetched")

# %%
records = list(careful.runtime.timeline)
span = records[-1].end - records[0].start
busy = sum(record.end - record.start for record in records if record.pipeline == "compute")
print(f"{span} ns from first to last, of which {busy} ns computing")
assert busy < span / 3

# %% [markdown]
# ## Seven questions
#
# Traffic is only half of the complaint. Here are seven things that any user of PyTorch takes for
# granted. `Side` says how to put a tensor on the card and double it there; each question is a small
# function, and an exception means no.

# %%
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Side:
    """One way to live with a card."""

    put: Callable[[torch.Tensor], torch.Tensor]
    double: Callable[[torch.Tensor], torch.Tensor]
    bytes_in_use: Callable[[], int]


def refuses_mixing(side: Side) -> bool:
    try:
        side.put(torch.ones(3)) + torch.ones(3)
    except RuntimeError:
        return True
    return False


def has_gradient(side: Side) -> bool:
    leaf = side.put(torch.ones(3)).requires_grad_()
    side.double(leaf).sum().backward()
    return leaf.grad.tolist() == [2, 2, 2]


def sees_step(side: Side) -> bool:
    leaf = side.put(torch.ones(3)).requires_grad_()
    side.double(leaf)
    leaf.grad = torch.ones_like(leaf)
    torch.optim.SGD([leaf], lr=1.0).step()
    return side.double(leaf).tolist() == [0, 0, 0]


def frees(side: Side) -> bool:
    before = side.bytes_in_use()
    side.put(torch.ones(3))
    return side.bytes_in_use() == before


QUESTIONS: dict[str, Callable[[Side], bool]] = {
    "the tensor says that it is on the card": lambda side: not side.put(torch.ones(3)).is_cpu,
    "what PyTorch makes of it stays there": lambda side: not (side.put(torch.ones(3)) + 1).is_cpu,
    "printing it says where it is": lambda side: "device=" in repr(side.put(torch.ones(3))),
    "mixing it with a CPU tensor is refused": refuses_mixing,
    "a gradient reaches it": has_gradient,
    "the card sees an optimizer's step": sees_step,
    "dropping it frees its card memory": frees,
}


# %%
def answers(side: Side) -> list[bool]:
    """The answer to each question; an exception is a no."""
    given = []
    for question in QUESTIONS.values():
        try:
            given.append(question(side))
        except RuntimeError:
            given.append(False)
    return given


def put_in_shadow(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor its twin."""
    shadow.twin(tensor)
    return tensor


SHADOW = Side(put_in_shadow, lambda tensor: shadow.run(doubled, tensor), lambda: shadow.used)
shadow_answers = answers(SHADOW)
for words, answer in zip(QUESTIONS, shadow_answers, strict=True):
    print(f"{words:<42}{'yes' if answer else 'no'}")

# %%
assert not any(shadow_answers)
for one in (runtime, shadow.runtime, careful.runtime):
    one.shutdown()

# %% [markdown]
# Seven times no. A cleverer wrapper wins back one or another, by guessing: a weak reference could
# free the twin when the tensor dies, and would be wrong where a view of the tensor lives on. The
# questions are put to PyTorch, and PyTorch believes that the tensor is on the CPU. What is missing
# is an identity.

# %% [markdown]
# ## The contract: what PyTorch asks of a device
#
# One entry in PyTorch's list of device types is free, for a device outside its tree. It is called
# `PrivateUse1`. Whatever PyTorch needs to know about that device, it asks at a handful of places:
# two C++ classes of virtual methods, an allocator, the operator table, and one Python module. These
# are the questions behind this chapter, with their signatures in PyTorch 2.13.
#
# | when this happens | PyTorch asks | from its file | answered in |
# | --- | --- | --- | --- |
# | `x.to("spyre")`: which card? | guard: `Device getDevice() const` | `TensorConversions.cpp` | `guard.cpp` |
# | `with torch.accelerator.device_index(1):` | guard: `Device exchangeDevice(Device) const` | `DeviceAccelerator.cpp` | `guard.cpp` |
# | autograd starts a thread for a card | guard: `void setDevice(Device) const` | `engine.cpp` | `guard.cpp` |
# | `torch.accelerator.synchronize()` | guard: `void synchronizeDevice(const DeviceIndex) const` | `DeviceAccelerator.cpp` | the driver |
# | a tensor is made | allocator: `DataPtr allocate(size_t)` | `EmptyTensor.cpp` | the driver |
# | `torch.Generator("spyre:1")` | hooks: `Generator getNewGenerator(DeviceIndex) const` | `Generator.cpp` | `generator.cpp` |
# | `x.pin_memory()` | pinned allocator: `DataPtr allocate(size_t)` | `Memory.cpp` | the driver |
# | an operator meets a card tensor | a kernel under the dispatch key `PrivateUse1` | the dispatcher | `minimal.cpp`, `aten/` |
# | `torch.accelerator.device_count()` | `torch.spyre.device_count()` | `accelerator/__init__.py` | this chapter |
# | `torch.manual_seed(0)` | `torch.spyre.manual_seed_all(0)`, if `_is_in_bad_fork()` says no | `random.py` | `generator.py` |
#
# *Guard* is `c10::impl::DeviceGuardImplInterface`, *hooks* is `at::PrivateUse1HooksInterface`. A
# *kernel* is a function that does an operator's work for one kind of device, or at one stage on the
# way there, such as autograd. The operator table has a row for each operator and a column for each
# such device and stage; a column is called a *dispatch key*, and who looks up the kernel is the
# *dispatcher*.
#
# The C++ side of this backend is called the [bridge](../docs/glossary.md#bridge). It is thin on
# purpose: it answers by itself only what must be fast, and hands every decision to one Python
# object, the [driver](../docs/glossary.md#driver).

# %% [markdown]
# ## In the field
#
# | PyTorch concept | CUDA | torch-spyre | openreg | here |
# | --- | --- | --- | --- | --- |
# | device type | `CUDA`, in PyTorch's tree | `rename_privateuse1_backend("spyre")` | the same call, with `"openreg"` | the same, in `claim_name` |
# | device module | `torch.cuda`, in the tree | `_register_device_module("spyre", make_spyre_module())` | the same call | the same, in `publish` |
# | guard | in the tree: devices, streams, events | `SpyreGuardImpl`: devices and streams; no event methods in the version read | `OpenRegGuard`: devices, streams, events | all methods of the interface; devices in C++, the rest asks the driver |
# | current device | a property of the thread | `thread_local`, first set from `LOCAL_RANK`; one card a process | a property of the thread | a property of the thread |
# | hooks | in the tree | primary context, availability, generators | also devices, pinned memory, device of a pointer; no storage resize | also storage resize |
# | start | lazy: `torch.cuda._lazy_init` | lazy: `_lazy_init` under a lock, `start_runtime` once | the simulator has no start; `init` is empty | at the first use that needs a card |
# | forked child | refused with a clear error | `_mark_after_fork` sets `_in_bad_fork` | a fork handler, in newer versions | refused with a clear error |
# | random numbers | Philox, on the device | `normal_`, `uniform_`, `random_` by way of the CPU | a CPU generator with the device's key; drawing consumes the CPU's own | Philox; the CPU's generator is left alone |
# | loading | part of PyTorch | entry point `torch.backends` | entry point `torch.backends` | entry point `torch.backends` |
# | operator without a kernel | an error | registered CPU fallbacks, each with a warning | one CPU fallback for all | one CPU fallback for all, counted, with a policy |

# %% [markdown]
# ## Build
#
# ### A name
#
# `PrivateUse1` has a working name, `privateuseone`, and may be renamed once. One name serves one
# backend a process: if another package has taken it, a user should read that, and not a puzzle
# three calls later.

# %% Claim PyTorch's one free name tags=["export"]
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

NAME = "spyre"


def claim_name() -> None:
    """Give PyTorch's free device type, PrivateUse1, our name.

    Raises:
        RuntimeError: another backend of this process has named it.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in (NAME, "privateuseone"):
        raise RuntimeError(
            f"cannot register {NAME}: PyTorch's one free device type already belongs to {taken}. "
            "Uninstall that backend, or keep it from loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        )
    if taken != NAME:
        rename_privateuse1_backend(NAME)


# %%
import textwrap


def attempt(action: Callable[..., object], *arguments: object) -> str:
    """What an action gives, or the first sentence of its error."""
    try:
        words = str(action(*arguments))
    except Exception as error:
        words = f"{type(error).__name__}: {str(error).split('. ')[0]}"
    return textwrap.fill(textwrap.shorten(words, 150), 88, subsequent_indent="    ")


print(attempt(torch.device, "spyre:1"))
claim_name()
print(attempt(torch.device, "spyre:1"))
print(attempt(lambda: torch.empty(3, device="spyre")))

# %% [markdown]
# PyTorch can spell the name, and goes one step further before it fails: before it makes the first
# tensor there, it wants a module that is called like the device.

# %%
claim_name()
assert torch.device("spyre:1").index == 1
assert torch._C._get_privateuse1_backend_name() == "spyre"

# %% [markdown]
# ### A module
#
# `torch.cuda` is a package in PyTorch's tree. Ours is made at run time, and filled with plain
# functions: first with none, to see what is asked for, then with each as it gets written.

# %% Open torch.spyre tags=["export"]
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any


def publish(functions: Iterable[Callable[..., Any]]) -> ModuleType:
    """Put functions and classes into ``torch.spyre``, and return it; the first call makes it."""
    module = getattr(torch, NAME, None)
    if not isinstance(module, ModuleType):
        module = ModuleType(f"torch.{NAME}", f"The {NAME} device: what torch.accelerator lacks.")
        torch._register_device_module(NAME, module)
    for function in functions:
        setattr(module, function.__name__, function)
    return module


# %%
publish([])
print(torch.accelerator.current_accelerator())
print(attempt(torch.accelerator.is_available))
print(attempt(lambda: torch.empty(3, device="spyre")))

# %% [markdown]
# Two things are worth seeing. `torch.accelerator`, the interface for code that does not care which
# accelerator it runs on, has found a device, and asks *our module* whether it is available. And
# `empty` now fails for want of a kernel, not of a name: the operator table has a column for us.

# %%
assert torch.spyre.__name__ == "torch.spyre"
assert torch.accelerator.current_accelerator() == torch.device("spyre")

# %% [markdown]
# ### Count the cards
#
# Loading the bridge fills that column and registers guard and hooks. It knows no cards: that is the
# driver's to say. So these functions ask the bridge, and the bridge asks the driver.

# %% Count cards without starting one tags=["export"]
from torch_spyre_ref import _bridge, backend


def device_count() -> int:
    """How many cards there are (``TORCH_SPYRE_REF_DEVICES``). Starts none."""
    return _bridge.device_count()


def is_available() -> bool:
    """Whether there is a card. Starts none."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the cards have started: the first tensor, copy or query of memory starts them."""
    return backend.current().started


# %%
publish([device_count, is_available, is_initialized])
print(attempt(torch.accelerator.device_count))


class Toy:
    """A driver that can say one thing."""

    def device_count(self) -> int:
        print("   the bridge asks: device_count()")
        return 3


_bridge.install(Toy())
print(attempt(torch.accelerator.device_count))
print(attempt(torch.accelerator.device_count))
print(attempt(lambda: torch.empty(0, device="spyre:2").device))
print(attempt(lambda: torch.empty(0, device="spyre:3")))
print(attempt(lambda: torch.empty(3, device="spyre:2")))

# %% [markdown]
# A driver is any Python object. The bridge looks its methods up once, by these names, asks for the
# number of cards once, and misses a method only when it needs it. (Before it asks for memory, it
# looks whether there is a way to give it back: hence `free` in the last line, and not `allocate`.)
# A tensor of no elements needs nothing but a number, so it can live on a card that exists in no
# other way.
#
# ```cpp title="csrc/driver.h"
# --8<-- "csrc/driver.h:driver-methods"
# ```

# %%
assert torch.accelerator.device_count() == 3
assert torch.empty(0, device="spyre:2").device == torch.device("spyre:2")

# %% [markdown]
# ### Answer for devices
#
# The rows about devices and pinned memory are this chapter's: our part of the driver. `Backend`
# holds settings and cards of the process; its `runtime` starts the cards when it is first touched.
# So the law of this class is: touch it only when there is no other way. Nobody who imports a
# package, counts devices or waits for an idle machine should wake a card.


# %% Answer what guard and hooks ask about cards tags=["export"]
class DeviceDriver:
    """What PyTorch's device guard and hooks ask about cards."""

    def __init__(self, backend: backend.Backend) -> None:
        self._backend = backend

    def device_count(self) -> int:
        """How many cards there are. Starts none."""
        return self._backend.settings.devices

    def is_initialized(self) -> bool:
        """Whether the cards have started: PyTorch's "primary context"."""
        return self._backend.started

    def synchronize_device(self, device: int) -> None:
        """Wait for everything that was enqueued on a card, and raise its first error."""
        if self._backend.started:
            self._backend.runtime.synchronize(device)

    def pin(self, nbytes: int) -> Any:
        """A block of host memory that the card's DMA can see."""
        return self._backend.runtime.pinned.allocate(nbytes)

    def is_pinned(self, address: int) -> bool:
        """Whether a host pointer lies in such a block."""
        return self._backend.started and self._backend.runtime.pinned.is_pinned(address)


# %% [markdown]
# `register` puts a driver together from parts, and tells PyTorch the rest: the methods
# `tensor.spyre()` and `module.spyre()`, and the kernels. `Parts` names the class for each part, so
# the class that you have just run can take the place of the shipped one.
#
# ```python title="torch_spyre_ref/registration.py"
# --8<-- "torch_spyre_ref/registration.py:install"
# ```

# %%
import dataclasses

import torch_spyre_ref
from torch_spyre_ref.parts import Parts


def install(**parts):
    """Have PyTorch use these classes, the shipped ones for other parts, and no compiled operator.

    Most operators are compiled programs in the finished backend; chapter 5 is about them.
    """
    chosen = {"eager_kernels": no_kernels, **parts}
    torch_spyre_ref.register(parts=dataclasses.replace(Parts(), **chosen))


def no_kernels(aside):
    """The kernels of compiled operators, before there are any."""
    return {}


install(device_driver=DeviceDriver)
# register() has published the shipped functions, too. Ours go over them, here and below.
publish([device_count, is_available, is_initialized])
torch.spyre.set_fallback_policy("silent")

print("cards:", torch.accelerator.device_count(), "started:", torch.spyre.is_initialized())

# %%
assert backend.current().driver.device_count.__func__ is DeviceDriver.device_count
assert torch.spyre.device_count is device_count

before = torch.spyre.is_initialized()
torch.accelerator.synchronize()
torch.empty(0, device="spyre:1")
assert torch.accelerator.is_available()
print("started before:", before, "| by questions and no bytes:", torch.spyre.is_initialized())
assert torch.spyre.is_initialized() == before

torch.empty(1, device="spyre:1")
print("by the first byte:", torch.spyre.is_initialized())
assert torch.spyre.is_initialized()

# %% [markdown]
# ### Say which card a name means
#
# Users write `1`, `"spyre:1"`, `torch.device("spyre", 1)`, `"spyre"`, or nothing. One function
# reads them all, and a wrong one is answered by what was asked, what there is, and what to do.


# %% Say which card a name means tags=["export"]
def current_device() -> int:
    """The index of this thread's current card."""
    return _bridge.current_device()


def set_device(device: torch.device | int | str | None) -> None:
    """Make a card this thread's current one."""
    _bridge.set_device(index_of(device))


def index_of(device: torch.device | int | str | None) -> int:
    """The index that ``device`` means; the current card where it names none.

    Raises:
        ValueError: another kind of device, or a card that does not exist.
    """
    if device is None:
        return current_device()
    if not isinstance(device, int):
        named = torch.device(device)
        if named.type != NAME:
            raise ValueError(f"expected a {NAME} device, got {named}: use '{NAME}' or '{NAME}:0'")
        device = current_device() if named.index is None else named.index
    if not 0 <= device < device_count():
        cards = ", ".join(f"{NAME}:{index}" for index in range(device_count()))
        raise ValueError(
            f"{NAME}:{device} does not exist: this process has {cards or 'no cards'}. "
            f"Use one of them, or set TORCH_SPYRE_REF_DEVICES."
        )
    return device


# %%
publish([current_device, set_device])
for named in (1, "spyre:1", torch.device("spyre", 1), "spyre", None):
    print(f"{named!r:<40} card {index_of(named)}")

# %% tags=["raises-exception"]
torch.spyre.set_device(7)

# %%
assert index_of("spyre") == current_device() == 0
assert attempt(index_of, "cuda:0").startswith("ValueError: expected a spyre device")

# %% [markdown]
# ### Make a card current for a block
#
# Code that runs on "the" card runs on the current one, and which one that is belongs to the thread.
# PyTorch asks the guard for it wherever a device comes without an index. These methods answer in
# C++, since every allocation, every fallback and all of autograd comes by. All that they ever ask
# the driver is how many cards there are, once.
#
# ```cpp title="csrc/guard.cpp"
# --8<-- "csrc/guard.cpp:guard-devices"
# ```
#
# What users want is a block: make card 1 current, and whatever happens inside, put the former one
# back. The name is in small letters because `torch.cuda.device` is.


# %% Make a card current for a block tags=["export"]
class device:  # noqa: N801 (torch's own name for it)
    """``with torch.spyre.device(1):`` makes a card current in the block; None changes nothing."""

    def __init__(self, device: torch.device | int | str | None) -> None:
        self.index = -1 if device is None else index_of(device)
        self._previous = -1

    def __enter__(self) -> None:
        if self.index >= 0:
            self._previous = _bridge.exchange_device(self.index)

    def __exit__(self, *error: object) -> None:
        if self.index >= 0:
            _bridge.exchange_device(self._previous)


class device_of(device):  # noqa: N801
    """``with torch.spyre.device_of(tensor):`` makes the tensor's card current."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == NAME else None)


# %%
import threading

publish([device, device_of])


def ask_elsewhere() -> None:
    """Ask another thread."""
    thread = threading.Thread(
        target=lambda: print("   another thread:", torch.spyre.current_device())
    )
    thread.start()
    thread.join()


with torch.spyre.device(1):
    print("inside:", torch.spyre.current_device())
    ask_elsewhere()
    print("   made here:", torch.empty(1, device="spyre").device)
    print("   moved here:", torch.ones(1).to("spyre").device)
print("after:", torch.spyre.current_device())

# %%
try:
    with torch.spyre.device(1):
        raise LookupError("something inside the block went wrong")
except LookupError:
    assert torch.spyre.current_device() == 0

with torch.accelerator.device_index(1), torch.spyre.device(None):
    assert torch.spyre.current_device() == torch.accelerator.current_device_index() == 1
with torch.spyre.device_of(torch.empty(1, device="spyre:1")):
    assert torch.spyre.current_device() == 1

# %% [markdown]
# ### Describe a card, and wait for it
#
# The remaining functions pass on what others know: the data sheet what the card is made of, the
# guard which dtypes a tensor may have, the driver when work is done. `synchronize` goes through
# `torch.accelerator`, so that both spellings end at the same driver method.

# %% Describe a card tags=["export"]
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What there is to know of a card. Sizes are bytes."""

    name: str
    index: int
    mode: str
    total_memory: int
    domains: int
    multi_processor_count: int
    scratchpad_bytes: int
    stick_bytes: int


def get_device_name(device: torch.device | int | str | None = None) -> str:
    """The card's name."""
    index_of(device)
    return "Emulated Spyre"


def get_device_properties(device: torch.device | int | str | None = None) -> DeviceProperties:
    """The properties of a card. Starts it."""
    index = index_of(device)
    runtime = backend.current().runtime
    spec = runtime.cards[index].card.spec
    return DeviceProperties(
        name=get_device_name(index),
        index=index,
        mode=backend.current().settings.mode,
        total_memory=spec.memory,
        domains=spec.domains,
        multi_processor_count=spec.cores,
        scratchpad_bytes=spec.scratchpad,
        stick_bytes=spec.stick,
    )


# %% Say what a card can do, and wait for it tags=["export"]
def get_device_capability(device: torch.device | int | str | None = None) -> dict[str, Any]:
    """What torch.accelerator reports: the dtypes that a tensor may have on the card."""
    return torch.accelerator.get_device_capability(index_of(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("spyre")`` may compute in."""
    return [torch.float16, torch.bfloat16]


def synchronize(device: torch.device | int | str | None = None) -> None:
    """Wait until a card has done all that was enqueued on it, and raise its first error."""
    torch.accelerator.synchronize(index_of(device))


# %%
publish([get_device_name, get_device_properties, get_device_capability, synchronize])
properties = torch.spyre.get_device_properties(1)
print(f"{properties.name} {properties.index}: {properties.multi_processor_count} cores,")
print(f"{properties.scratchpad_bytes >> 20} MiB of scratchpad each,")
print(f"memory moves in sticks of {properties.stick_bytes} bytes")
assert torch.bfloat16 in torch.spyre.get_device_capability()["supported_dtypes"]

# %% [markdown]
# ### Gather them
#
# One list says what users get. `_is_in_bad_fork` starts with an underscore, and yet PyTorch calls
# it by that name: before it seeds a device, it asks whether this process is a child that was forked
# from one whose cards had started. Such a child shares no card with its parent.


# %% Gather what users call tags=["export"]
def _is_in_bad_fork() -> bool:
    """Whether this is a child that was forked after the cards had started."""
    return backend.current().in_bad_fork


EXPORTS: tuple[Callable[..., Any], ...] = (
    is_available,
    is_initialized,
    device_count,
    current_device,
    set_device,
    device,
    device_of,
    get_device_properties,
    get_device_name,
    get_device_capability,
    synchronize,
    get_amp_supported_dtype,
    _is_in_bad_fork,
)


# %% [markdown]
# Which of them does PyTorch itself call? Wrap every function of the module for a moment, and look.

# %%
import io
from types import FunctionType


def asked_of_module(action: Callable[[], object]) -> list[str]:
    """The functions of torch.spyre that an action of PyTorch calls, in order."""
    asked: list[str] = []
    everything = vars(torch.spyre).items()
    functions = {n: f for n, f in everything if isinstance(f, FunctionType) and n[:2] != "__"}

    def watched(name: str, function: FunctionType) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            asked.append(name)
            return function(*arguments, **named)

        return call

    vars(torch.spyre).update({n: watched(n, f) for n, f in functions.items()})
    try:
        action()
    finally:
        vars(torch.spyre).update(functions)
    return list(dict.fromkeys(asked))


def fork_random_state() -> None:
    with torch.random.fork_rng(devices=[0, 1]):
        pass


publish(EXPORTS)
saved = io.BytesIO()
torch.save(torch.ones(2, device="spyre:1"), saved)
saved.seek(0)

ACTIONS: dict[str, Callable[[], object]] = {
    "torch.accelerator.is_available()": torch.accelerator.is_available,
    "torch.manual_seed(0)": lambda: torch.manual_seed(0),
    "torch.random.fork_rng(devices=[0, 1])": fork_random_state,
    'torch.autocast("spyre")': lambda: torch.autocast("spyre"),
    "torch.load(...)": lambda: torch.load(saved),
}
for words, action in ACTIONS.items():
    print(f"{words:<40}{', '.join(asked_of_module(action))}")

# %%
assert all(getattr(torch.spyre, function.__name__) is function for function in EXPORTS)

# %% [markdown]
# ## Watch it run: the journey of a tensor
#
# Everything is in place to follow one small tensor from the first call to its end. A recorder takes
# the driver's place: it passes every question on, and writes down question and answer. PyTorch's
# own dispatch mode reports the operators, and after each of them we let the cards finish and read
# their timelines. What you see is real traffic; no arrow is drawn by hand. (Only the guard cannot be
# overheard, since it answers in C++: its lane says which card it held for current when an operator
# came.)

# %%
from typing import NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

from torch_spyre_ref.emulator.figures import Drawing

LANES = ("operator", "guard", "driver", "card")


class Stop(NamedTuple):
    """One stop of a journey: where, what, and in which colour."""

    lane: str
    words: str
    colour: str


class Recorder:
    """Stands between the bridge and a driver, and writes down what is asked."""

    def __init__(self, driver: object, journey: "Journey") -> None:
        for name, method in vars(driver).items():
            if callable(method):
                setattr(self, name, self._watched(name, method, journey))

    @staticmethod
    def _watched(name: str, method: Callable[..., object], journey: "Journey"):
        def ask(*arguments):
            answer = method(*arguments)
            about = {"allocate": answer, "free": arguments[0] if arguments else None}.get(name)
            words = f"{about.nbytes} bytes, card {about.device}" if about else ""
            result = f" = {answer}" if isinstance(answer, (bool, int)) else ""
            journey.stops.append(Stop("driver", f"{name}({words}){result}", "host"))
            return answer

        return ask


# %%
class Journey(TorchDispatchMode):
    """Inside ``with Journey():`` operators, the bridge's questions and the cards are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[Stop] = []

    def __enter__(self) -> "Journey":
        self.read_timeline()
        self.stops.clear()
        _bridge.install(Recorder(backend.current().driver, self))
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        _bridge.install(backend.current().driver)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        current = f"card {_bridge.current_device()} is current"
        self.stops.append(Stop("operator", str(func).removesuffix(".default"), "control"))
        self.stops.append(Stop("guard", current, "control"))
        result = func(*args, **(kwargs or {}))
        self.read_timeline()
        return result

    def read_timeline(self) -> None:
        """Let the cards finish, and note what they did."""
        runtime = backend.current().runtime
        for index in range(len(runtime.cards)):
            runtime.synchronize(index)
        for one in runtime.timeline:
            size = f", {one.nbytes} bytes" if one.nbytes else ""
            self.stops.append(Stop("card", f"card {one.card}: {one.kind}{size}", one.pipeline))
        runtime.timeline.clear()

    def figure(self) -> Drawing:
        """The stops from top to bottom, in four lanes."""
        drawing = Drawing(34 + 26 * len(self.stops), "The journey of a tensor, from top to bottom")
        middles = {lane: 75 + 150 * number for number, lane in enumerate(LANES)}
        for lane, x in middles.items():
            drawing.text(x, 14, lane, "middle")
        for number, stop in enumerate(self.stops):
            x, y = middles[stop.lane], 24 + 26 * number
            if number:
                before = middles[self.stops[number - 1].lane]
                drawing.line(before, y - 8, before, y - 4)
                drawing.line(before, y - 4, x, y - 4)
                drawing.line(x, y - 4, x, y)
            drawing.box(x - 72, y, 144, 18, stop.colour, f"{stop.lane}: {stop.words}")
            drawing.text(x, y + 13, stop.words, "middle", small=True)
        return drawing


# %%
host = torch.tensor([1.0, 2.0, 3.0, 4.0])
with Journey() as journey, torch.spyre.device(1):
    traveller = torch.empty(4, device="spyre")
    traveller.copy_(host)
    returned = traveller.cpu()
    del traveller

journey.figure()

# %% [markdown]
# Read it from the top. Entering the block asks how many cards there are: may card 1 be current?
# `empty` names no card, so the guard's answer decides. The driver hands out 16 bytes on card 1, and
# the card itself does nothing: its memory is given away, not touched. `copy_` makes the card work,
# by a transfer from the host; `cpu` is a transfer back. And when the last reference goes,
# PyTorch's own reference count calls `free`, with no operator in sight.

# %%
asked = [stop.words for stop in journey.stops if stop.lane == "driver"]
assert returned.tolist() == host.tolist()
assert asked.count("allocate(16 bytes, card 1)") == asked.count("free(16 bytes, card 1)") == 1
assert [s.words for s in journey.stops if s.lane == "card"] == [
    "card 1: H2D, 16 bytes",
    "card 1: D2H, 16 bytes",
]

# %% [markdown]
# Where do `empty` and `copy_` come from? The bridge registers, in C++, the operators that only make
# or rearrange a tensor's description. A view must share its base's memory, so it can never be
# computed elsewhere and copied back.
#
# ```cpp title="csrc/minimal.cpp"
# --8<-- "csrc/minimal.cpp:minimal"
# ```
#
# Bytes move through one door, `aten::_copy_from`, which stands among
# [the copies](../torch_spyre_ref/aten/copies.py); [the next chapter](02_allocator.ipynb) opens it.

# %% [markdown]
# ## What the identity brings
#
# ### PyTorch's own first example
#
# OpenReg, the simulated device in PyTorch's tree, publishes a first example. With `spyre` for
# `openreg` it is this. It sits in a function, so that its names stay its own.


# %%
def first_example() -> None:
    if not torch.spyre.is_available():
        print("there is no card")
        return
    device = torch.device("spyre")
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    y = x + 2
    print("y:", y, "on", y.device)
    z = y.cpu()
    print("z:", z, "on", z.device)


first_example()

# %% [markdown]
# ### To the card, between cards, and back
#
# Two cards are two places. PyTorch moves a tensor between them when asked, and refuses to mix them
# when not: nobody wants a transfer that no line of the program asks for.

# %%
first, second = torch.ones(3).spyre(), torch.ones(3, device="spyre:1")
moved = first.to("spyre:1")
print(first.device, second.device, moved.device, first.is_spyre)
print("sum on card 1:", (moved + second).tolist())
print(attempt(torch.add, first, second))
print(attempt(torch.add, first, torch.ones(3)))

assert attempt(torch.add, first, second).startswith("RuntimeError: Expected all tensors to be")
assert (first + torch.tensor(2.0)).tolist() == [3, 3, 3]  # a lone CPU number may join
assert torch.nn.Linear(2, 2).spyre(1).weight.device == torch.device("spyre:1")
del first, second, moved

# %% [markdown]
# ### Pinned memory and other hooks
#
# Some questions are not about one tensor. Where does pinned memory come from, on which card does an
# address lie, how does a storage grow? Those are hooks, and most of their answers are one line.
#
# ```cpp title="csrc/hooks.cpp"
# --8<-- "csrc/hooks.cpp:hooks"
# ```

# %%
with Journey() as journey:
    pinned_tensor = torch.ones(4).pin_memory()
    print("pinned:", pinned_tensor.is_pinned())
print([stop.words for stop in journey.stops if stop.lane == "driver"])
assert not torch.ones(4).is_pinned()

# %% [markdown]
# ### An operator without a kernel
#
# `x + 2` gave a right answer, and yet nobody wrote an addition. Ask the operator table what stands
# in three columns: for our device, for autograd on it, and for mixed precision on it.


# %%
def stands_in(operator: str, column: str) -> str:
    """What PyTorch's operator table holds for an operator under a dispatch key."""
    for line in torch._C._dispatch_dump_table(operator).splitlines():
        key, _, entry = line.partition(": ")
        if key == column:
            found = "fallthrough " if entry.startswith("fallthrough ") else ""
            return found + entry[entry.rindex("[") + 1 : -1]
    return "nothing"


COLUMNS = ("PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1")
for operator in ("aten::empty.memory_format", "aten::add.Tensor", "aten::add.out"):
    print(operator)
    for column in COLUMNS:
        print(f"    {column:<22}{stands_in(operator, column)}")

# %% [markdown]
# `empty` has a kernel of ours. `add.Tensor` has one of PyTorch's, good for every device: it makes
# the result with `empty` and calls `add.out`. And `add.out` has neither, so the *fallback* of our
# column stands in: one function for all operators. It copies the card's arguments to the CPU, runs
# the CPU's kernel, and copies what that wrote back to the card. Before it starts, it tells the
# driver.
#
# ```cpp title="csrc/fallback.cpp"
# --8<-- "csrc/fallback.cpp:fallback"
# ```
#
# A fallback that nobody notices is a performance bug that nobody finds. So the driver counts, and
# warns once an operator unless told otherwise (these pages say `silent`, and read the report).

# %%
torch.spyre.reset_fallback_report()
with torch.no_grad():
    hidden = torch.nn.Linear(8, 4).spyre()(torch.ones(2, 8, device="spyre"))
    torch.relu(hidden).sum().item()
del hidden
torch.spyre.fallback_report()

# %%
with torch.spyre.fallback_policy("error"):
    refusal = attempt(lambda: torch.ones(3, device="spyre") + 2)
print(refusal)
assert refusal.startswith("FallbackError: aten::add.out")

# %% [markdown]
# One column of the operator table is still unexplained, `AutocastPrivateUse1`. It says
# *fallthrough* for all three operators: a mark for "nothing to do at this stage, go on to the
# next". Mixed precision has rules for some operators, such as the product of matrices; these are
# PyTorch's own lists, registered in `csrc/autocast.cpp`. All others must pass that stage, and
# without the mark each of them would stop there.

# %%
with torch.autocast("spyre", dtype=torch.bfloat16):
    square = torch.ones(2, 2, device="spyre")
    added, multiplied = square + 1, square @ square
print("sum:", added.dtype, "| product:", multiplied.dtype)
assert stands_in("aten::mm", "AutocastPrivateUse1") == "kernel"
assert (added.dtype, multiplied.dtype) == (torch.float32, torch.bfloat16)
del square, added, multiplied

# %% [markdown]
# ### A gradient, for free
#
# The autograd column is filled, too, with PyTorch's own derivatives. They are written in terms of
# operators and not of devices, so a device that has the operators has their gradients. Autograd
# even runs the backward pass on a thread of its own for each card; before the first formula it asks
# the guard to make that card current there.


# %%
class Witness(torch.autograd.Function):
    """The identity; on the way back it tells on which thread and card it runs."""

    @staticmethod
    def forward(ctx, value):
        return value * 1

    @staticmethod
    def backward(ctx, gradient):
        here = threading.current_thread() is threading.main_thread()
        print("backward on the main thread:", here, "| current card:", _bridge.current_device())
        return gradient


leaf = torch.tensor([1.0, 2.0, 3.0], device="spyre:1", requires_grad=True)
(Witness.apply(leaf) ** 2).sum().backward()
print("gradient:", leaf.grad.tolist(), "on", leaf.grad.device)
print("current card here:", _bridge.current_device())

assert leaf.grad.tolist() == [2, 4, 6]
assert leaf.grad.device == leaf.device
del leaf

# %% [markdown]
# ### Give one operator a kernel
#
# To take an operator away from the fallback, register a kernel for it in our column. This one uses
# the card: it makes a result, and enqueues a `Compute` whose effect works on card memory.
# (PyTorch's C++ kernels for many operators share one body through a *stub*, and OpenReg overrides
# `abs` at that level; registering the operator itself does the same job from Python.)

# %%
from torch_spyre_ref.aten.copies import device_range, queue_of


def on_card(function: Callable[..., np.ndarray]) -> Callable[..., torch.Tensor]:
    """A kernel that applies a NumPy function to float32 tensors in the card's memory."""

    def kernel(*tensors: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(tensors[0])
        inputs, output = tuple(map(device_range, tensors)), device_range(result)

        def effect(memory):
            values = [memory.read(one).view(np.float32) for one in inputs]
            memory.write(output, function(*values).view(np.uint8))

        queue_of(result).submit(Compute(3000, effect, inputs, (output,)))
        return result

    return kernel


def card_work(action: Callable[..., object], *arguments: torch.Tensor) -> list[str]:
    """The operations that the cards carry out for an action."""
    with Journey() as journey:
        action(*arguments)
        journey.read_timeline()
    return [stop.words for stop in journey.stops if stop.lane == "card"]


numbers = torch.tensor([-1.0, 2.0, -3.0], device="spyre")
print("fallback:", card_work(torch.abs, numbers))
with torch.library._scoped_library("aten", "IMPL") as library:
    library.impl("abs", on_card(np.abs), "PrivateUse1")
    print("kernel:  ", card_work(torch.abs, numbers))
    result = torch.abs(numbers).tolist()
    gradient_from = torch.abs(numbers.clone().requires_grad_()).grad_fn.name()
    print(result, "and its gradient comes from", gradient_from)
del numbers

# %%
assert result == [1, 2, 3]
assert stands_in("aten::abs", "PrivateUse1") != "kernel"  # the block is over: put back

# %% [markdown]
# ### An operator of your own, and its gradient
#
# PyTorch cannot know the derivative of an operator that it has never seen. Define one, give it a
# kernel on the card, and try three things at the autograd stage: nothing, a fallthrough, a formula.

# %%
import warnings


def gradient_through(operator: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """What comes back through an operator."""
    weights = torch.tensor([-1.0, 2.0, -3.0], device="spyre", requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = operator(weights)
        if result.grad_fn is None:
            return "no gradient, and no word of it"
        result.sum().backward()
    found = "no gradient" if weights.grad is None else f"{weights.grad.tolist()}"
    return found + ", and a warning" * bool(caught)


with torch.library._scoped_library("chapter", "FRAGMENT") as library:
    library.define("cube(Tensor x) -> Tensor")
    library.impl("cube", on_card(lambda values: values**3), "PrivateUse1")
    without_rule = gradient_through(torch.ops.chapter.cube)
    library.impl("cube", torch.library.fallthrough_kernel, "AutogradPrivateUse1")
    with_fallthrough = gradient_through(torch.ops.chapter.cube)


@torch.library.custom_op("chapter_autograd::cube", mutates_args=(), device_types="spyre")
def cube(x: torch.Tensor) -> torch.Tensor:
    """x * x * x, on the card."""
    return on_card(lambda values: values**3)(x)


def keep_input(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0])


def cube_backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * 3 * x * x


cube.register_autograd(cube_backward, setup_context=keep_input)
print("nothing:    ", without_rule)
print("fallthrough:", with_fallthrough)
print("formula:    ", gradient_through(cube))

# %% [markdown]
# With nothing registered, PyTorch puts a node there that warns when a gradient passes through it,
# and passes on none. A fallthrough cuts the gradient without a word: it is right for operators that
# have no derivative, and a trap for all others. The formula is what you want, and it is ordinary
# PyTorch: its multiplications run wherever the gradient is.

# %%
assert gradient_through(cube) == "[3.0, 12.0, 27.0]"
print("on the card:", card_work(cube, torch.ones(3, device="spyre")))
print("on the CPU: ", attempt(cube, torch.ones(3)))

# %% [markdown]
# ### Random numbers of the card's own
#
# A card has a generator, and its state is two numbers: a seed, and how far it has been used. That
# is all that Philox needs. It is a counter-based generator: its numbers are a function of seed and
# position, so any unit can compute any stretch of them.
#
# ```cpp title="csrc/generator.cpp"
# --8<-- "csrc/generator.cpp:generator"
# ```

# %%
torch.manual_seed(7)
cpu_state = torch.get_rng_state()
draws = [torch.rand(3, device=f"spyre:{index}").tolist() for index in (0, 1)]
for index, draw in enumerate(draws):
    print(f"card {index}:", [round(value, 4) for value in draw])
print("the CPU's generator was used:", not torch.equal(torch.get_rng_state(), cpu_state))

# %%
assert draws[0] == draws[1]
state = torch.spyre.get_rng_state(1)
ahead = torch.randn(5, device="spyre:1").tolist()
torch.spyre.set_rng_state(state, 1)
assert torch.randn(5, device="spyre:1").tolist() == ahead
assert torch.rand(3, device="spyre:0").tolist() != draws[0]

with torch.random.fork_rng(devices=[0]):
    inside = torch.rand(3, device="spyre:0").tolist()
assert torch.rand(3, device="spyre:0").tolist() == inside

own = torch.Generator("spyre:1").manual_seed(7)
assert torch.rand(3, device="spyre:1", generator=own).tolist() == draws[1]

# %% [markdown]
# ### Loading by itself
#
# Who calls `register`? At the end of `import torch`, PyTorch reads the entry points named
# `torch.backends` of all installed packages, and calls each. So the user imports nothing else. (The
# first cell of this chapter told it not to, or you could not have built the device step by step.)

# %%
from importlib.metadata import entry_points

(ours,) = entry_points(group="torch.backends", name="torch_spyre_ref")
print(ours.name, "->", ours.value)

# %%
import subprocess
import sys


def run_elsewhere(program: str, **variables: str) -> str:
    """What a program prints in a process of its own, with these environment variables."""
    kept = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "TORCH_SPYRE_REF_FALLBACK": "silent", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout.strip()


PROGRAM = """
import os, torch

print("available:", torch.spyre.is_available(), "| started:", torch.spyre.is_initialized())
torch.ones(1, device="spyre")
print("after a tensor, started:", torch.spyre.is_initialized(), flush=True)
if os.fork():
    os.wait()
else:
    try:
        torch.ones(1, device="spyre")
    except RuntimeError as error:
        print("a forked child:", str(error).split(":")[0], flush=True)
    os._exit(0)
"""
print(run_elsewhere(PROGRAM))

# %% [markdown]
# `import torch` found the device and started nothing; the first tensor did; and a child that was
# forked afterwards is told what happened, instead of writing to its parent's card.

# %% [markdown]
# ## Break it
#
# ### No cards
#
# Say that this machine has none, as a login node of a cluster might: same software, no hardware.
# Nothing may crash, and every answer must follow from that one number.
#
# (`register` takes other parts only while no tensor lives on a card, since the parts that made a
# tensor must free it. This chapter drops its own. Look at yours with `print`, and `del` them: what a
# cell shows as its result is kept by the notebook, and only a restart of the kernel frees it for
# certain.)


# %%
class NoCards(DeviceDriver):
    """A driver for a machine without cards."""

    def device_count(self) -> int:
        return 0


install(device_driver=NoCards)
print("available:", torch.accelerator.is_available())
saved.seek(0)
for action in (
    lambda: torch.empty(1, device="spyre"),
    lambda: torch.spyre.set_device(0),
    lambda: torch.load(saved),
):
    print(attempt(action))

# %% [markdown]
# Three different places refuse, and each says why in its first sentence. Put the cards back:

# %%
install(device_driver=DeviceDriver)
assert torch.accelerator.is_available()
assert torch.ones(1, device="spyre").item() == 1

# %% [markdown]
# ### A module that forgets to seed
#
# Take `manual_seed_all` out of `torch.spyre`. PyTorch notices, and only warns: the CPU is seeded,
# the cards are not, and an experiment that everybody believes to be reproducible is not.


# %%
def two_runs() -> bool:
    """Whether the same seed gives the same numbers on the card."""
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(torch.rand(4, device="spyre").tolist())
    return runs[0] == runs[1]


kept = torch.spyre.manual_seed_all
del torch.spyre.manual_seed_all
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print("same seed, same numbers:", two_runs())
print(caught[0].category.__name__, "-", str(caught[0].message).split(",")[0])

torch.spyre.manual_seed_all = kept
print("same seed, same numbers:", two_runs())

# %%
assert len(caught) == 2
assert two_runs()

# %% [markdown]
# ### A device that comes too late
#
# The autograd engine starts its threads at the first backward pass of a process: one for each
# device that it finds at that moment. Here is a process that trains on the CPU first and registers
# the card afterwards. What follows looks like a bug of PyTorch's, and says nothing of the cause.

# %%
PROGRAM = """
import os, torch, torch_spyre_ref

torch.ones(1, requires_grad=True).sum().backward()
torch_spyre_ref.register()
try:
    torch.ones(1, device="spyre", requires_grad=True).sum().backward()
except RuntimeError as error:
    print(str(error).partition(" at ")[0], flush=True)
os._exit(0)
"""
verdict = run_elsewhere(PROGRAM, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
print(textwrap.fill(verdict, 88))
assert verdict.endswith("INTERNAL ASSERT FAILED")

# %% [markdown]
# So a backend must be there before anybody's first gradient. Loading at the end of `import torch`
# is more than a convenience.

# %% [markdown]
# ### A block that does not put back
#
# The second half of `torch.spyre.device` is its `__exit__`. Without it, the error shows far from
# its cause: the next tensor without an index lands on the wrong card, and only when it meets
# another one does anything fail.


# %%
class Forgetful(device):
    """Makes a card current and leaves it so."""

    def __exit__(self, *error: object) -> None:
        pass


here = torch.ones(2, device="spyre")
with Forgetful(1):
    pass
there = torch.ones(2, device="spyre")
print(attempt(torch.add, here, there))

torch.spyre.set_device(0)
there = torch.ones(2, device="spyre")
print((here + there).tolist())
del here, there

# %% [markdown]
# ## Assembled
#
# All of this is [one module](../torch_spyre_ref/device.py). Install the shipped parts, publish the
# shipped functions over ours, and ask again what the shadow device had no answer to.

# %%
import torch_spyre_ref.device as shipped

install()
shipped.publish(shipped.EXPORTS)
assert backend.current().driver.device_count.__func__ is shipped.DeviceDriver.device_count
assert torch.spyre.device is shipped.device

first_example()

# %%
SPYRE = Side(lambda tensor: tensor.spyre(), lambda tensor: tensor * 2, torch.spyre.memory_allocated)
spyre_answers = answers(SPYRE)
print(f"{'':<42}shadow  spyre")
for words, before, after in zip(QUESTIONS, shadow_answers, spyre_answers, strict=True):
    print(f"{words:<42}{'yes' if before else 'no':<8}{'yes' if after else 'no'}")
assert all(spyre_answers)

# %% [markdown]
# Seven times yes. One thing has not changed: an operator without a kernel still carries its bytes
# to the host and back, as the careful shadow did. But PyTorch now knows where they belong, so that
# they can stay as soon as a kernel leaves them there. The kernel for `abs` did.

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/01_device.py`, and are tested.
#
# ### 1. Predict
#
# Three tensors are made without saying on which card. On which are they? Fill in an index for each.

# %%
prediction = {"in another thread": None, "in the block": None, "after the block": None}


def check_prediction(prediction: dict[str, int | None]) -> str:
    """Compare with a run."""
    places = {}

    def make(name: str) -> None:
        places[name] = torch.ones(1, device="spyre").device.index

    with torch.spyre.device(1):
        thread = threading.Thread(target=make, args=["in another thread"])
        thread.start()
        thread.join()
        make("in the block")
    make("after the block")
    if None in prediction.values():
        return "no prediction yet"
    wrong = sorted(name for name in places if prediction[name] != places[name])
    return f"wrong: {', '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: the card with the most room
#
# Write `roomiest`: a context manager that makes the card with the most free memory current in its
# block (the first of them where several have the same), and gives `as` its index. You have
# `torch.spyre.mem_get_info(card)`, which gives two numbers of bytes, (free, total), and
# `torch.spyre.device`. About 4 lines.

# %%
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def roomiest() -> Iterator[int | None]:
    """Make the card with the most free memory current, and give its index."""
    yield None


def check_roomiest(answer: Callable[[], Any]) -> str:
    """Try an answer with empty cards, with a tensor on one, and with an error in the block."""
    with answer() as index:
        if index is None:
            return "no answer yet"
        if torch.spyre.mem_get_info(0) != torch.spyre.mem_get_info(1):
            return "a tensor of your own lives on a card: delete it, and check again"
        if (index, torch.spyre.current_device()) != (0, 0):
            return "both cards are empty: card 0 should be current"
    ballast = torch.empty(1 << 20, device="spyre:0")
    with answer() as index:
        if (index, torch.spyre.current_device()) != (1, 1):
            return f"card 0 holds {ballast.nbytes} bytes: card 1 should be current"
    try:
        with answer():
            raise LookupError
    except LookupError:
        pass
    if torch.spyre.current_device() != 0:
        return "after the block the former card should be current, also after an error"
    return "right"


check_roomiest(roomiest)

# %% [markdown]
# ### 3. Open
#
# The bridge asks Python for every decision. Which questions come so often that you would answer
# them in C++ if the card were real? Write `questions(action)`, which counts by name what the bridge
# asks while an action runs (`Recorder` shows how). Try it with one training step of a small model,
# and argue from the counts. (`is_pinned` is so frequent because this notebook has pinned memory:
# from the first time on, PyTorch asks it of every host tensor that is copied.)

# %% [markdown]
# ## Summary
#
# - A wrapper can compute on a card, but the words of PyTorch for *where* belong to PyTorch: without
#   a device type of its own, a card's tensors are CPU tensors to everybody else.
# - `PrivateUse1` is that type. It takes a name, a module (`torch.spyre`), a guard, hooks, an
#   allocator and kernels; PyTorch's autograd, optimizers, printing, seeds and files follow.
# - The bridge is thin and asks one Python object, the driver; so you can watch every question, and
#   replace every answer.
# - Counting cards starts none. The first tensor does, and a forked child is told so.
# - What has no kernel runs on the CPU, is counted, and may be refused.
#
# New words: [shadow device](../docs/glossary.md#shadow-device),
# [PrivateUse1](../docs/glossary.md#privateuse1), [bridge](../docs/glossary.md#bridge), [driver](../docs/glossary.md#driver),
# [guard](../docs/glossary.md#guard), [hooks](../docs/glossary.md#hooks),
# [device module](../docs/glossary.md#device-module),
# [dispatch key](../docs/glossary.md#dispatch-key), [fallback](../docs/glossary.md#fallback),
# [fallthrough](../docs/glossary.md#fallthrough),
# [random state](../docs/glossary.md#random-state), [autoload](../docs/glossary.md#autoload).
#
# Next: [the allocator](02_allocator.ipynb). The driver handed out 16 bytes on card 1. From where?
