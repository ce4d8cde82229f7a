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
# # The only way to compute is to compile a program, and an op is the smallest one
#
# A kernel looks its call up among the programs that there are. A miss traces the op, has Inductor
# compile it as it would compile a model, and keeps what comes of it; a hit launches. What cannot be
# compiled runs on the CPU, and says why.
#
# ## You will build
#
# - **The modules** `torch_spyre_ref/inductor/loop_tracer.py`, which turns the body of a loop into a
#   dataflow program, and `torch_spyre_ref/eager.py`, which makes an op of PyTorch a compiled program and
#   keeps it.
# - **What it enables**: `torch.compile` with its own compiler, Inductor, and `x + y` at the prompt,
#   by one path. What is computed one way is computed the other way, too.
# - **Not built here**: the scheduling class, the wrapper, the graph pass, and the trace of
#   an op. They are written by hand and used; so are the assembler and the card below it.
# - **Time**: about two hours.
# - **You need**: programs, artifacts and launches of [chapter 3](03_launch.ipynb), and
#   `torch.compile` as a user knows it.
#
# If you can tell what this prints before you look, you are ready:

# %%
nothing = float("nan")
print({1: "one"}.get(True), {0.0: "zero"}.get(-0.0), {nothing: "nan"}.get(float("nan")))

# %% [markdown]
# A dictionary asks whether two keys are equal. A program computes with them, and for that `1` and
# `True`, `0.0` and `-0.0` are not the same, while one `nan` is as good as another. Half of this
# chapter is about a dictionary, and all the trouble with dictionaries is trouble with keys.

# %% [markdown]
# ## The constraint: nothing adds two numbers
#
# This is everything that may be asked of the card:

# %%
import dataclasses
import gc
import os
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

scratch = TemporaryDirectory()
FOLDER = Path(scratch.name)
os.environ["TORCH_SPYRE_REF_MEMORY"] = "512M"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(FOLDER / "inductor")
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import torch_spyre_ref
import torch_spyre_ref.runtime as runtime
from torch_spyre_ref import backend
from torch_spyre_ref.parts import Parts

asked = [one.__name__ for one in vars(runtime).values() if isinstance(one, type)]
operations = [name for name in asked if issubclass(getattr(runtime, name), runtime.Operation)]
print(", ".join(sorted(set(operations) - {"Operation"})))

# %% [markdown]
# (The variables keep what PyTorch compiles in a folder of this notebook's own, and have it compile
# everything anew. You will change the compiler, and want to see your change, not last week's code.)
#
# Bytes move, and programs run. There is no *add*. A GPU comes with libraries of kernels, and `x + y` is
# a call into one of them. Here is nothing to call. What a backend does at first, and chapters 1 and 2
# did, is to compute somewhere else: on the host. `observe` shows what the card had to do.


# %%
def is_on_card(value):
    """Whether a value is a tensor of a card."""
    return isinstance(value, torch.Tensor) and value.device.type == "spyre"


def install(**parts):
    """Have PyTorch use these classes and functions, and the shipped ones for every other part.

    The parts that made a tensor must free it, so this notebook drops its own.
    """
    for name in [name for name, value in globals().items() if is_on_card(value)]:
        del globals()[name]
    gc.collect()  # errors hold on to the calls that they came from
    torch_spyre_ref.register(parts=dataclasses.replace(Parts(), **parts))
    torch._dynamo.reset()


def wait_for_cards():
    """Until both have nothing left to do."""
    for card in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(card)


def observe(action, *arguments):
    """Run an action to its end: its result, and what the cards did, from 0 on their clock."""
    wait_for_cards()
    timeline, begun = backend.current().runtime.timeline, backend.current().runtime.clock.now
    timeline.clear()
    result = action(*arguments)
    wait_for_cards()
    return result, [
        one._replace(submitted=one.submitted - begun, start=one.start - begun, end=one.end - begun)
        for one in timeline
    ]


def told(records):
    """The operations in one line, each with the bytes that it moved."""
    return ", ".join(f"{one.kind} {one.nbytes}" if one.nbytes else one.kind for one in records)


install()
torch.spyre.set_fallback_policy("silent")
x, y = torch.arange(1024.0).spyre(), torch.ones(1024).spyre()

with torch.spyre.eager_mode("fallback"):
    by_host, records = observe(torch.add, x, y)
print(told(records))
print(torch.spyre.fallback_report())
torch.spyre.reset_fallback_report()
assert [one.kind for one in records] == ["D2H", "D2H", "H2D"]

# %% [markdown]
# Two tensors go to the host and one comes back, for one sum. Now what this chapter builds:

# %%
by_card, first = observe(torch.add, x, y)
by_card, later = observe(torch.add, x, y)
print("first:", told(first))
print("later:", told(later))
print(torch.spyre.eager_cache())
assert by_card.cpu().equal(by_host.cpu())
assert [one.kind for one in later] == ["HostCallback", "H2D", "Execute"]

# %% [markdown]
# The second call is a launch as in chapter 3: a callback, a slot, a run. No element of `x` or `y` crossed
# the link, only the patch that says where they are. In front of the first one came something that is not on the timeline, since it took place on the
# host: a program was *compiled* for this one sum. Before it could run, it was loaded. Where does a
# program for any op that a user may think of come from? From the compiler that PyTorch already has.

# %% [markdown]
# ## The contract: what Inductor asks of a device
#
# Inductor is the compiler behind `torch.compile`. It takes a graph of ops, makes loops of them, and
# decides which loops are fused. Then it needs somebody who knows the device. A device says who by
# registration, and Inductor calls. In PyTorch 2.13:
#
# | when this happens | PyTorch calls | from its file in `torch/_inductor/` |
# | --- | --- | --- |
# | the first graph for an unknown device | `getattr(torch.spyre, "Scheduling")`, in `init_backend_registration()` | `codegen/common.py` |
# | … and it answers | `register_backend_for_device(device, device_scheduling, device_wrapper_codegen, …, device_custom_pass=None, …)` | same |
# | … and | `register_device_op_overrides(device, device_op_overrides)` | same |
# | Dynamo asks for devices and their properties | `register_interface_for_device(device, device_interface)` | `../_dynamo/device_interface.py` |
# | the graph is past autograd | `CustomGraphModulePass.__call__(self, gm)` | `fx_passes/post_grad.py` |
# | … and may stand in a cache on disk | `CustomGraphModulePass.uuid(self)` | `codecache.py` |
# | loops are grouped | `BaseScheduling.group_fn(self, sizes)` | `scheduler.py` |
# | may these two be one kernel? | `can_fuse_vertical(self, node1, node2)`, `can_fuse_horizontal(self, node1, node2)` | same |
# | **write the code of a kernel** | `codegen_node(self, node)`, and at the end `flush(self)` | same |
# | memory for a result | `PythonWrapperCodegen.make_allocation(self, name, device, dtype, shape, stride, …)` | `codegen/wrapper.py` |
# | a loop's body runs | `load(self, name, index)`, `store(self, name, index, value, mode=None)`, `reduction(self, dtype, src_dtype, reduction_type, value)`, … | `loop_body.py` |
#
# The last row is where this chapter works: the *body of a loop* is a Python function that Inductor
# runs on a **handler**, an object of ours with a method for each operation. The rows above it are
# classes in `torch_spyre_ref/inductor/`. Nothing in PyTorch is replaced, no attribute of it is
# assigned; each row is an argument of a registration call, or the override of a method.
#
# Registering again is allowed, so we can listen. These two say what they are asked, and then do what
# the shipped ones do:

# %%
from torch._inductor.codegen.common import register_backend_for_device

from torch_spyre_ref.inductor import registration
from torch_spyre_ref.inductor.graph_pass import SpyrePass
from torch_spyre_ref.inductor.scheduling import SpyreScheduling
from torch_spyre_ref.inductor.wrapper import SpyreWrapper


def ops_of(gm):
    """The ops of a graph, in order."""
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    return ", ".join(str(node.target.overloadpacket).removeprefix("aten.") for node in nodes)


def names_of(node):
    """The loops in a node of the scheduler."""
    return "+".join(each.get_name() for each in node.get_nodes())


class TellingPass(SpyrePass):
    """Says what the graph was, and what it is."""

    def __call__(self, gm):
        print("graph pass: from", ops_of(gm))
        super().__call__(gm)
        print("            to  ", ops_of(gm))


class TellingScheduling(SpyreScheduling):
    """Says what it is asked."""

    def can_fuse_vertical(self, node1, node2):
        answer = super().can_fuse_vertical(node1, node2)
        print(f"can_fuse_vertical: {names_of(node1)} with {names_of(node2)}? {answer}")
        return answer

    def codegen_node(self, node):
        print("codegen_node:", names_of(node))
        super().codegen_node(node)


def layer(x, weight, bias):
    """A small layer."""
    return torch.softmax(torch.addmm(bias, x, weight), -1)


torch.manual_seed(0)
register_backend_for_device(
    "spyre", TellingScheduling, SpyreWrapper, device_custom_pass=TellingPass()
)
host = torch.randn(4, 8), torch.randn(8, 16), torch.randn(16)
probabilities = torch.compile(layer)(*(tensor.spyre() for tensor in host))
torch.testing.assert_close(probabilities.cpu(), layer(*host))
registration.register()

# %% [markdown]
# The graph pass rewrites one op: the product becomes an op of our own, for a reason that comes below.
# Softmax arrives as five ops, and none of them had to be known to us by name. Inductor makes loops of
# them, here `op0` to `op3`, and does not spend a loop on what can be computed on the way, as `sub` and
# `exp`. The product is `op0`. Softmax's three loops, with the addition in front, become one kernel,
# because `can_fuse_vertical` said so (it is asked again after each round). The product is another.

# %% [markdown]
# ## In the field
#
# CUDA's and openreg's columns are from PyTorch's own sources (openreg's Inductor backend from an open
# pull request), torch-spyre's is from its public sources and documents; the compiler below its
# front end is closed.
#
# | concept | CUDA | torch-spyre | openreg | here |
# | --- | --- | --- | --- | --- |
# | scheduling | `TritonScheduling` and others; Inductor fuses | `SuperDSCScheduling`; pairwise fusion is off, and passes of its own group nodes | `CppScheduling`, the CPU's | `SpyreScheduling`; Inductor fuses |
# | a loop body becomes | Triton source | an `OpSpec`, then SuperDSC JSON for the closed compiler | C++ source for the CPU | a dataflow program, and its artifact |
# | a product | ATen or Triton templates, chosen by timing | `Reduction` with a batch-matmul kind; `mm` becomes `bmm` | ATen on the CPU | a reduction `dot` that fuses like any other |
# | numbers in a kernel | arguments of the kernel | size-1 tensors: there are no immediates | as on the CPU | entries of a number table; symbols where a launch gives them |
# | sizes | arguments; `dynamic=True` | fixed; a dimension symbol raises "not yet implemented" | as on the CPU | dimension symbols |
# | how it gets in | part of PyTorch | registration, `compile_fx` wrapped once, other parts of PyTorch patched | registration | registration only |
# | an eager op | a kernel from a library | `torch.compile` of the op behind the dispatcher, kept by Dynamo | the CPU's kernel on memory made readable | a trace of our own, `compile_fx_inner`, a dictionary |
# | its cache | none | Dynamo's, shared by all ops, its limit raised from 8 to 1024 | none | 4 096 signatures, the latest used |
# | views as arguments | strides | an offset makes a clone; results that are laid out otherwise are tiled again, with a warning | as on the CPU | strides are in the program, an offset in the place that a launch patches |
# | in-place ops | kernels of their own | the functional op, then `copy_` | the CPU's kernels | the functional op and a store, in one program |
# | what has no kernel | an error | CPU, listed op by op, one warning each | CPU, any op | CPU, any op; counted, with the reason |

# %% [markdown]
# ## A picture: five ops, and the same as one program
#
# Softmax, written out, is five ops. Card 0 runs them as eager ops, and card 1 runs the same function,
# compiled. Both have done it before, so that nothing is compiled or loaded any more:


# %%
from torch_spyre_ref.emulator.figures import gantt


def five_ops(x):
    """Softmax over the last dimension, op by op."""
    shifted = x - x.amax(-1, keepdim=True)
    powers = shifted.exp()
    return powers / powers.sum(-1, keepdim=True)


def compared(host):
    """What both cards did for the softmax of a tensor, each run named by what it computes."""
    one_program, both = torch.compile(five_ops), []
    named = ("amax", "sub", "exp", "sum", "div"), ("softmax",)
    for card, (function, names) in enumerate(zip((five_ops, one_program), named, strict=True)):
        x = host.to(f"spyre:{card}")
        function(x)
        result, records = observe(function, x)
        torch.testing.assert_close(result.cpu(), host.softmax(-1))
        runs = [one for one in records if one.kind == "Execute"]
        both += [one for one in records if one.kind != "Execute"]
        both += [run._replace(label=name) for run, name in zip(runs, names, strict=True)]
    return both


picture = compared(torch.randn(256, 1024))
gantt(picture, "Softmax as five eager ops on card 0, and as one compiled program on card 1")

# %%
for card in (0, 1):
    runs = [one.end - one.start for one in picture if (one.card, one.kind) == (card, "Execute")]
    print(f"card {card}: programs run: {len(runs)}, for {sum(runs):,} ns")
    assert len(runs) == (5, 1)[card]

# %% [markdown]
# The preparation of five launches is hardly felt: the host prepares one while the one before it computes,
# as in [chapter 4](04_streams.ipynb). What is felt is that each of the five runs brings a tensor from the
# card's memory and takes one back. How many sticks that is, we will count.

# %% [markdown]
# ## Naive first
#
# ### A graph compiler of our own
#
# Spyre's first integration had a compiler of its own beside PyTorch's, called `sendnn`: it took the
# graph from `torch.compile`, and everything after that was its business. That is easily begun.
# `torch.compile` takes any function as a backend, gives it a graph, and calls what it returns. Here is
# one that makes one program of a whole graph, as far as it knows the ops:

# %%
import operator

from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, write_artifact

numbered = count()


def prepared(program, tensors):
    """A program, ready to be launched on tensors such as these, by name; it stores into `out`."""
    arguments = [
        Argument(
            name,
            "output" if name == "out" else "input",
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.stride(),
        )
        for name, tensor in tensors.items()
    ]
    directory = FOLDER / f"program{next(numbered)}"
    write_artifact(directory, encode(program), LaunchSpec.of(arguments), name=program.name)
    return prepare_kernel(directory)


KNOWN = {operator.add: "add", operator.mul: "multiply", torch.exp: "exp"}


def private_compiler(gm, inputs):
    """A backend of `torch.compile`: one program for a graph of ops that it knows."""
    asm = Assembler("private")
    n, values, tensors = asm.dimension("n", inputs[0].numel()), {}, {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            tensors[node.name] = inputs[len(tensors)]
            values[node] = asm.load(asm.argument(node.name, "float32"), {n: 1})
        elif node.op == "output":
            tensors["out"] = torch.empty_like(inputs[0])
            asm.store(asm.argument("out", "float32"), {n: 1}, values[node.args[0][0]])
        elif node.target not in KNOWN:
            name = getattr(node.target, "__name__", node.target)
            raise NotImplementedError(f"the private compiler does not know {name!r}")
        else:
            operands = [values.get(argument, argument) for argument in node.args]
            values[node] = asm.apply(KNOWN[node.target], *operands)
    plan = prepared(asm.assemble(), tensors)

    def run(*arguments):
        out = torch.empty_like(arguments[0])
        launch_jobplan(plan, [*arguments, out])
        return (out,)

    return run


first_model = torch.compile(lambda x, y: torch.exp(x * -1.0) * y + y, backend=private_compiler)
result, records = observe(first_model, x, y)
print(told(records[-3:]))
torch.testing.assert_close(result.cpu(), torch.exp(-x.cpu()) + 1)

# %% [markdown]
# A page of code, four ops in one program, and right. On the day of the demonstration, somebody brings a
# second model:

# %% tags=["raises-exception"]
second_model = torch.fx.symbolic_trace(lambda x, y: torch.softmax(x, -1) + y)
private_compiler(second_model, [torch.ones(1024), torch.ones(1024)])

# %% [markdown]
# And a third, and a fourth. Each of them is one line of Python.

# %%
MODELS = {
    "exp(-x) y + y": lambda x, y: torch.exp(x * -1.0) * y + y,
    "softmax(x)": lambda x, y: torch.softmax(x, -1),
    "x - y": lambda x, y: x - y,
    "x + 1 row of y": lambda x, y: x.view(4, 256) + y[:256],
    "x.sum()": lambda x, y: x.sum(),
    "a slice": lambda x, y: x[::2] * 2.0,
    "silu(x)": lambda x, y: torch.nn.functional.silu(x),
}


def works(model, compiler):
    """Whether a compiler makes of a model what it is."""
    torch._dynamo.reset()
    try:
        got = torch.compile(model, backend=compiler)(x, y)
    except torch._dynamo.exc.BackendCompilerFailed:
        return False
    return got.cpu().allclose(model(x.cpu(), y.cpu()))


private = [name for name, model in MODELS.items() if works(model, private_compiler)]
print("private: ", ", ".join(private))
ours = [name for name, model in MODELS.items() if works(model, "inductor")]
print("Inductor:", ", ".join(ours))
assert private == ["exp(-x) y + y"]
assert ours == list(MODELS)

# %% [markdown]
# Every line of that list can be repaired, and the next model brings the next list: more names of ops,
# methods and slices, broadcasting, strides, dtypes, mutation, sizes that change, gradients. All of it
# is done once already, by PyTorch, and done anew with each of its versions; a private compiler follows
# behind for ever. What it *cannot* take from PyTorch is little. After decomposition, lowering and
# scheduling, there are loops, and in their bodies loads, stores and not many kinds of operations. These
# are the ones that the card has an instruction for:

# %%
from torch_spyre_ref.inductor.values import INSTRUCTIONS, REDUCTIONS

print(len(INSTRUCTIONS), "elementwise:", ", ".join(list(INSTRUCTIONS)[:8]), "…")
print(len(REDUCTIONS), "reductions: ", ", ".join(REDUCTIONS))

# %% [markdown]
# That is a list that one can finish.
#
# ### An eager table of our own
#
# The second half of the naive backend is a table for eager mode: for each op that a user may call, a
# program written by hand. Three entries, each of them plausible:


# %%
def by_hand(write, host):
    """A hand-written program of one input, run once."""
    asm = Assembler("by hand")
    x, out = host.spyre(), torch.empty(host.shape, device="spyre")
    n = asm.dimension("n", host.numel())
    source, target = asm.argument("x", "float32"), asm.argument("out", "float32")
    asm.store(target, {n: 1}, write(asm, asm.load(source, {n: 1})))
    launch_jobplan(prepared(asm.assemble(), {"x": x, "out": out}), [x, out])
    return out.cpu()


def hand_relu(asm, x):
    """Zero, unless it is more than zero."""
    return asm.apply("select", asm.apply("greater", x, 0.0), x, 0.0)


def hand_remainder(asm, x):
    """What is left after division by 3."""
    return asm.apply("fmod", x, 3.0)


def hand_gelu(asm, x):
    """GELU, by the usual approximation."""
    inner = (x + x * x * x * 0.044715) * (2 / torch.pi) ** 0.5
    return x * 0.5 * (asm.apply("tanh", inner) + 1.0)


TABLE = {
    "relu": (hand_relu, torch.relu),
    "remainder": (hand_remainder, lambda x: torch.remainder(x, 3.0)),
    "gelu": (hand_gelu, torch.nn.functional.gelu),
}
samples = torch.tensor([float("nan"), -7.0, -1.5, 2.0])
for name, (write, op) in TABLE.items():
    compiled, exact = torch.compile(op)(samples.spyre()).cpu(), op(samples)
    print(f"{name:<10}by hand ", [f"{value:.4f}" for value in by_hand(write, samples).tolist()])
    print(f"{'':<10}compiled", [f"{value:.4f}" for value in compiled.tolist()])
    assert compiled.allclose(exact, equal_nan=True)
    assert not by_hand(write, samples).allclose(exact, equal_nan=True)

# %% [markdown]
# In `relu`, a number that is none becomes zero, and whoever looks for the cause of a broken training
# run will not find it. `remainder` has the other sign, and `gelu` is off in the fourth digit. None of
# them fails. And each differs from what the *same line* gives under `torch.compile`, so that a model
# changes its results when it is compiled, and a bug is there in one mode and gone in the other.
#
# Two implementations of one op drift apart. The cure is to have one.

# %% [markdown]
# ## Build the compiler's side
#
# ### What a body is
#
# Inductor lowers each op to a function of a loop's variables. Here is one in that form, for an op
# that takes every second element and trebles it. `ops` is whoever runs it. Inductor has handlers for
# many ends (one counts operations, one finds dtypes); this one writes text:

# %%
import sympy
from torch._inductor.ops_handler import MockHandler
from torch._inductor.utils import sympy_index_symbol

i = sympy_index_symbol("i")


def trebled(ops, i):
    """out[i] = 3 x[2 i + 1], as Inductor would write it."""
    product = ops.mul(ops.load("x", 2 * i + 1), ops.constant(3.0, torch.float32))
    ops.store("out", i, product)
    return product


print(trebled(MockHandler(), i))

# %% [markdown]
# Our handler answers with instructions of the card. Its first half, the arithmetic, is a table: `mul`
# is `multiply`, `relu` is a `maximum` with zero. It stands in
# [`arithmetic.py`](../torch_spyre_ref/inductor/arithmetic.py), and is quickly understood. What it is
# called with are *values*: what an instruction has made (a *wire*), or a constant, which needs none.
#
# The other half is memory. A kernel knows its buffers by Inductor's names, and some of them nobody
# outside of it will ever read. These need not be stored.

# %% Know what memory there is tags=["export"] file="inductor/loop_tracer.py"
"""From a loop body to a dataflow program.

Inductor runs the body of a loop once, on a handler that is told of every operation. This handler
answers each with instructions of the card: affine indices are strided loads, all other indices are
computed values, and a reduction is a value that is whole when its pass is over.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

import torch

from torch_spyre_ref.emulator.assembly import Tensor


@dataclass
class Buffers:
    """The memory of a kernel by Inductor's names. What is ``unstored`` nobody else reads."""

    operands: dict[str, Tensor]
    dtype: Callable[[str], torch.dtype]
    unstored: Container[str]


class OverwrittenError(Exception):
    """A body cannot run again: the program has overwritten what it loads."""


# %% [markdown]
# ### Places: strides where they will do
#
# An index arrives as a formula. The card's load units walk strides by themselves, so `2 i + 1` costs
# nothing: stride 2, from element 1 on. Not every formula is like that. `i % 3` (Inductor writes
# `ModularIndexing`) must be computed for each element, and an index that was itself loaded, as in
# `table[i]`, is a value already. For these the load unit takes an *index value*, checks it against a
# limit, and adds it to the place. `at` takes an index apart into the two kinds. (Two helpers come from
# outside: an `Emitter` writes instructions, each once for the same inputs; `Expressions` evaluate
# formulas, by the card's scalar unit where all elements have them in common.)

# %% Find elements, wherever they lie tags=["export"] file="inductor/loop_tracer.py"
from typing import Any, Final

import sympy
from torch._inductor.utils import sympy_index_symbol

from torch_spyre_ref.emulator.assembly import Amount, Axis, Wire
from torch_spyre_ref.inductor.arithmetic import Arithmetic
from torch_spyre_ref.inductor.emitter import Constant, Emitter, Value
from torch_spyre_ref.inductor.expressions import Expressions, take_apart
from torch_spyre_ref.inductor.values import computed


ANYWHERE: Final = 1 << 62
"""The limit of an index that is bounded by its operand's memory alone."""


class Places(Arithmetic):
    """Indices: affine ones are strides, all others are computed values."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter)
        self.places, self.axes, self.buffers = places, axes, buffers
        self._limits: dict[sympy.Symbol, Amount] = {}

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        term = self.places.term(sympy.sympify(expr))
        if isinstance(term, Wire):
            return self.emitter.wire(term, computed(dtype))
        return Constant(term, computed(dtype))

    value_expr = index_expr

    def indirect_indexing(
        self, index: Value, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        position = self.emitter.wire(index, "int64")
        limit = self.places.amount(sympy.sympify(size))
        if wrap_neg:
            below = self.emitter.apply("less", position, Constant(0, "int64"))
            wrapped = self.emitter.apply("add", position, Constant(limit, "int64"))
            position = self.emitter.select(below, wrapped, position)
        symbol = sympy_index_symbol(f"tmp{len(self._limits)}")
        self.places.values[symbol], self._limits[symbol] = position, limit
        return symbol

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """Nothing to do: the load and store units check every index."""

    def device_assert_async(self, cond: Value, msg: str) -> None:
        """Nothing to do, for the same reason: such assertions are about indices."""

    def at(self, index: sympy.Expr) -> dict[str, Any]:
        """The strides, offset and index values of a place."""
        place = take_apart(index, {**self.axes, **self._limits})
        amount, values = self.places.amount, self.places.values
        steps = [s for s in self._limits if s in place.strides]
        indices = [(values[s], amount(place.strides[s]), self._limits[s]) for s in steps]
        strides = {self.axes[s]: amount(n) for s, n in place.strides.items() if s in self.axes}
        offset, rest = amount(place.offset), place.rest
        if rest != 0:
            terms = sympy.Add.make_args(rest)
            # An index value below 0 is a fault, which a part may be where the whole place is not.
            if any(term.could_extract_minus_sign() for term in terms) and not indices:
                strides, offset, rest = {}, 0, index
            position = self.places.term(rest)
            assert isinstance(position, Wire)
            indices.append((position, 1, ANYWHERE))
        return {"strides": strides, "offset": offset, "indices": indices}


# %% [markdown]
# `handler` makes one for a loop of its own, without Inductor. Five indices:

# %%
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre_ref.emulator.disassembly import disassemble


def handler(kind, size, **dtypes):
    """A handler for a body of one loop, its variable, and the assembler that it writes with."""
    asm = Assembler("body")
    operands = {name: asm.argument(name, str(dtype)[6:]) for name, dtype in dtypes.items()}
    axes = {i: asm.dimension("i", size)}
    buffers = Buffers(operands, dtypes.__getitem__, unstored=())
    return kind(Emitter(asm), Expressions(asm, {}, axes), axes, buffers), asm


places, _ = handler(Places, 12, x=torch.float32)
cycle = ModularIndexing(i, 1, 3)  # i % 3
for index in (2 * i + 1, 11 - i, cycle, 4 * FloorDiv(i, 4) + 3, 11 - cycle):
    found = places.at(index)
    strides = list(found["strides"].values())
    print(f"{index!s:<31} strides {strides}, offset {found['offset']},", end=" ")
    print(len(found["indices"]), "computed")

# %% [markdown]
# A stride may be negative, as a flip has it. What is not affine is computed: the part that is not, or
# all of it where that part is subtracted, because an index value may not be negative.

# %% [markdown]
# ### Loads and stores
#
# Three things to see to. A node of a fused kernel stores what the next one loads: then the load is no
# load, the value is there (`known`). Inside `masked`, nothing may be touched where the mask is false;
# padding is made of that. And some stores *add*, which is what scatter needs.

# %% Load and store them tags=["export"] file="inductor/loop_tracer.py"
from torch_spyre_ref.emulator.assembly import Input
from torch_spyre_ref.inductor.emitter import Rounded
from torch_spyre_ref.inductor.values import stored


class Memory(Places):
    """Loads and stores; what a node has stored, the next one takes from where it was made."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter, places, axes, buffers)
        self.known: dict[str, Value] = {}
        self._stored: list[Tensor] = []
        self._mask: Wire | None = None
        self.is_silent = False

    def load(self, name: str, index: sympy.Expr) -> Value:
        if name in self.known:
            return self.known[name]
        operand, mask = self.buffers.operands[name], self._mask
        if self.is_silent and operand in self._stored:
            raise OverwrittenError(name)
        key = ("load", name, index, mask)
        made: Wire = self.emitter.once(
            key, lambda: self.asm.load(operand, mask=mask, **self.at(index))
        )
        return made

    def load_seed(self, name: str, offset: Any) -> Value:
        return self.load(name, sympy.sympify(offset))

    def store(self, name: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        if mode not in (None, "atomic_add"):
            raise NotImplementedError(f"the card has no store with {mode}")
        if mode is None:
            self.known[name] = value
        self.put(name, index, value, mode == "atomic_add")

    def put(self, name: str, index: sympy.Expr, value: Value, add: bool = False) -> None:
        """Store in the format of the buffer, unless nobody reads it."""
        if name in self.buffers.unstored or self.is_silent:
            return
        dtype, operand = self.buffers.dtype(name), self.buffers.operands[name]
        if isinstance(value, Rounded) and value.half == stored(dtype):
            value = value.value
        source: Input
        if isinstance(value, Constant) and not add:
            source = value.number
        else:
            source = self.emitter.wire(value, computed(dtype))
        self._stored.append(operand)
        self.asm.store(operand, value=source, add=add, **self.at(index))

    def masked(self, mask: Value, body: Callable[[], Value], other: Any) -> Value:
        before, inner = self._mask, self.emitter.wire(mask, "bool")
        self._mask = inner if before is None else self.emitter.apply("logical_and", before, inner)
        try:
            value = body()
        finally:
            self._mask = before
        outside = other if isinstance(other, Wire | Constant) else Constant(other, value.format)
        return self.emitter.select(inner, value, outside)


# %% [markdown]
# Two bodies at once. One takes rows of a table by a loaded index (negative ones count from the end);
# the other pads a tensor with zeros on both sides:


# %%
def gathered(ops, i):
    """out[i] = 2 x[index[i]]"""
    place = ops.indirect_indexing(ops.load("index", i), 8)
    ops.store("out", i, ops.mul(ops.load("x", place), ops.constant(2.0, torch.float32)))


def padded(ops, i):
    """out = two zeros, x, two zeros"""
    moved = ops.index_expr(i - 2, torch.int64)
    zero, end = (ops.constant(number, torch.int64) for number in (0, 8))
    inside = ops.logical_and(ops.ge(moved, zero), ops.lt(moved, end))
    ops.store("out", i, ops.masked(inside, lambda: ops.load("x", i - 2), 0.0))


def program_of(body, size, **tensors):
    """The program that the handler makes of a body."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    ops, asm = handler(Memory, size, **dtypes)
    body(ops, i)
    return asm.assemble()


def computed_by(body, **tensors):
    """Run a body for the elements of `out`, on the card; and the lines of its instructions."""
    program = program_of(body, tensors["out"].numel(), **tensors)
    cards = {name: tensor.spyre() for name, tensor in tensors.items()}
    launch_jobplan(prepared(program, cards), list(cards.values()))
    lines = disassemble(program).split("pass 0\n")[-1].split("  scratchpad")[0]
    return cards["out"].cpu(), lines.rstrip()


eight, out = torch.arange(8.0), torch.zeros(4)
positions = torch.tensor([7, 0, -1, 3])
picked, lines = computed_by(gathered, x=eight, index=positions, out=out)
print(lines)
print("gathered:", picked.tolist())
assert picked.equal(2 * eight[positions])

wide, lines = computed_by(padded, x=eight, out=torch.zeros(12))
print(lines)
print("padded:  ", wide.tolist())
assert wide.equal(torch.nn.functional.pad(eight, (2, 2)))

# %% [markdown]
# Read the first listing: compare, add, select make `-1` into `7`, and the load of `x` has an index
# value with its limit, `< 8`. The second has a load with a mask. Nothing was loaded that is not there.

# %% [markdown]
# ### Once more, in a later pass
#
# A reduction needs all of its elements before it has a result, so whatever uses the result comes in a
# later **pass** over the same elements. What the later pass needs of the first can be *held* in
# scratchpad, if it fits; or the bodies that made it run *again*, from memory. The second needs no more
# scratchpad however long the loop is. Whoever calls the handler decides which, by telling it to
# `forget`, and gives it what to do then: for each buffer, a way to run its body once more. That run
# is silent, since its stores were made the first time.

# %% Make again in a later pass what an earlier one has made tags=["export"] file="inductor/loop_tracer.py"
from collections.abc import Sequence


class Repeating(Memory):
    """``again`` has for each buffer how its node's body is run once more."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter, places, axes, buffers)
        self.again: dict[str, Callable[[], None]] = {}

    def forget(self, axes: Sequence[Axis]) -> None:
        """Make anew, where it is needed, what changes along ``axes``."""
        self.emitter.forget(axes)
        self.places.forget_values()
        changed = [name for name, v in self.known.items() if self.emitter.changes(v, axes)]
        for name in changed:
            del self.known[name]

    def load(self, name: str, index: sympy.Expr) -> Value:
        if name not in self.known and name in self.again:
            before = self._mask, self.is_silent
            self._mask, self.is_silent = None, True
            self.again[name]()
            self._mask, self.is_silent = before
        return super().load(name, index)


# %% [markdown]
# ### Reductions, and products among them
#
# What is left to build are reductions. A reduction's value is whole when its pass is over, and only
# then is it stored. One kind of sum is special. Inductor has an operation `dot`, the product of two
# factors *that is going to be summed*, so a product of matrices is a loop over three variables, of
# which one is folded. If both factors change along that one, the matrix array does it all. If not, it
# is a multiplication and a sum:

# %% Fold what a pass streams tags=["export"] file="inductor/loop_tracer.py"
from torch_spyre_ref.inductor.emitter import Product
from torch_spyre_ref.inductor.values import REDUCTIONS


class LoopTracer(Repeating):
    """The handler: what is left are reductions, whose results are stored when a pass is over."""

    def __init__(
        self, emitter: Emitter, places: Expressions, axes: dict[Any, Axis], buffers: Buffers
    ) -> None:
        super().__init__(emitter, places, axes, buffers)
        self._waiting: list[tuple[str, sympy.Expr, Value]] = []

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: Any, value: Any) -> Any:
        if kind == "dot":
            return self._summed(value, computed(dtype))
        if kind == "welford_reduce":
            return tuple(self._reduced("welford", self.emitter.wire(value, computed(dtype))))
        if kind not in REDUCTIONS or isinstance(value, tuple):
            raise NotImplementedError(f"the card has no reduction {kind}")
        folded = dtype if kind in ("sum", "prod") else src_dtype
        return self._reduced(REDUCTIONS[kind], self.emitter.wire(value, computed(folded)))[0]

    def _reduced(self, op: str, value: Wire) -> Any:
        return self.emitter.once(("reduce", op, value), lambda: self.asm.reduce_all(op, value))

    def _summed(self, value: Value, format: str) -> Any:
        """A sum of products: by the matrix array, where both factors change along it."""
        if isinstance(value, Product):
            left, right = (self.emitter.wire(side, format) for side in (value.left, value.right))
            if self.asm.can_matmul(left, right):
                key = ("matmul", left, right)
                return self.emitter.once(key, lambda: self.asm.matmul(left, right))
        return self._reduced("sum", self.emitter.wire(value, format))[0]

    def store_reduction(self, name: str, index: sympy.Expr, value: Value) -> None:
        self.known[name] = value
        self._waiting.append((name, index, value))

    def finish_pass(self) -> None:
        """Store what the pass has folded, now that it is whole."""
        for name, index, value in self._waiting:
            self.put(name, index, value)
        self._waiting.clear()


# %% [markdown]
# That is the whole handler. Here it runs one and the same function of two bodies, the sum of
# exponentials and the exponentials divided by it. First with the value held, then with it forgotten:


# %%
def shares(hold, size=1024):
    """out = exp(x) / sum(exp(x)), in two passes; the program."""
    ops, asm = handler(LoopTracer, size, x=torch.float32, out=torch.float32)
    axis = ops.axes[i]

    def powers():
        ops.known["powers"] = ops.exp(ops.load("x", i))

    ops.again["powers"] = powers
    with asm.stream(axis):
        powers()
        total = ops.reduction(torch.float32, torch.float32, "sum", ops.load("powers", i))
    if not hold:
        ops.forget([axis])
    with asm.stream(axis):
        ops.store("out", i, ops.truediv(ops.load("powers", i), total))
    return asm.assemble()


for hold in (True, False):
    text = disassemble(shares(hold))
    print("held" if hold else "made again")
    print(text[text.index("  pass 0") :].rstrip())

# %% [markdown]
# Held, `x` is loaded once, and a core keeps its share of 1024 exponentials. Made again, `x` is loaded
# twice, and no value has more than a tile. (In the last lines, `2 x 128` are two buffers of 128 bytes:
# one is loaded while the other is read.) As long as all elements are one tile, nothing is gained by
# that. For longer loops it is a matter of what fits:

# %%
from torch_spyre_ref.emulator.program import ScratchpadError


def scratchpad(hold, size):
    """The bytes of a core's scratchpad that a program needs."""
    try:
        text = disassemble(shares(hold, size))
    except ScratchpadError:
        return "more than there are"
    return f"{int(text.split('scratchpad, ')[1].split()[0]):,}"


for size in (1 << 10, 1 << 20, 1 << 22, 1 << 24):
    print(f"{size:10,} elements: held {scratchpad(True, size):>20}, ", end="")
    print(f"made again {scratchpad(False, size):>7}")
loads = [disassemble(shares(hold)).count("= x[") for hold in (True, False)]
print("loads of x:", loads)
assert loads == [1, 2]
assert scratchpad(False, 1 << 20) == scratchpad(False, 1 << 24)

# %% [markdown]
# Who decides? `SpyreKernel` in [`kernel.py`](../torch_spyre_ref/inductor/kernel.py) tries the first,
# and takes the second if the scratchpad is too small.

# %% [markdown]
# Install it, and Inductor's own bodies run on *your* handler. The list of models once more:

# %%
OURS = {"loop_tracer": LoopTracer}
install(**OURS)
x, y = torch.arange(1024.0).spyre(), torch.ones(1024, device="spyre")
assert all(works(model, "inductor") for model in MODELS.values())
print(len(MODELS), "models of", len(MODELS))

# %% [markdown]
# ## Watch it run: one small softmax
#
# Three texts of the same thing. The first is what Inductor gives us: three bodies, in one node.


# %%
from torch._inductor.ops_handler import KernelFormatterHandler


bodies = []


class ShowingScheduling(SpyreScheduling):
    """Keeps the bodies of the loops, as text."""

    def codegen_node(self, node):
        for each in node.get_nodes():
            kept, folded = (
                [sympy_index_symbol(f"{letter}{n}") for n in range(len(loops))]
                for letter, loops in zip("dr", each.get_ranges(), strict=True)
            )
            bodies.append(KernelFormatterHandler.ir_to_string(each._body, kept, folded))
        super().codegen_node(node)


register_backend_for_device(
    "spyre", ShowingScheduling, SpyreWrapper, device_custom_pass=SpyrePass()
)
small = torch.randn(4, 8)
softmax = torch.compile(lambda x: torch.softmax(x, -1))
softmax(small.spyre())
registration.register()
for number, body in enumerate(bodies):
    print(f"body {number}:", *body.splitlines()[1:], sep="\n")

# %% [markdown]
# The first finds the greatest number of a row, the second sums exponentials, the third divides. The
# second text is what our handler has made of them. `disassemble` reads it from the artifact that the
# generated code carries:

# %%
from torch_spyre_ref.emulator.program import parse


def text_of(plan):
    """What the program of a job plan says."""
    return disassemble(parse(plan.job.artifact.program))


def plans():
    """The job plans of all that is compiled at present, by name."""
    from torch._inductor.codecache import PyCodeCache

    from torch_spyre_ref.inductor.launcher import CompiledKernel

    found = [v for m in PyCodeCache.modules for v in vars(m).values()]
    return [kernel.plan for kernel in found if isinstance(kernel, CompiledKernel)]


program_text = text_of(plans()[-1])
print(program_text)

# %% [markdown]
# Three passes. `x` is loaded in the first one and held; exponentials are made in the second and held;
# the third divides and stores. Nothing else leaves the scratchpad: of three buffers that Inductor had
# planned, two are never stored, because nobody reads them. All cores run this text, each on its share of
# a tile. (The generated code has it as a comment above each kernel: `TORCH_LOGS=output_code` shows it.)
#
# The third text is the card's own:

# %%
result, records = observe(softmax, small.spyre())
torch.testing.assert_close(result.cpu(), small.softmax(-1))
for one in records:
    print(f"{one.start:6} to {one.end:6} ns  {one.pipeline:<8} {one.kind:<13} {one.label}")
assert [one.kind for one in records][-3:] == ["HostCallback", "H2D", "Execute"]

# %% [markdown]
# From here on it is chapter 3.
#
# ### A product is a reduction like any other
#
# Why did the graph pass replace `addmm` by an op of ours? Inductor has products of matrices in *templates*,
# whole kernels written by hand for Triton or C++, and for everybody else it calls a library. We have
# neither. `spyre::matmul` has a lowering like any op: a loop nest that sums `dot`. So it can have
# something before and something after, in the same kernel:


# %%
def product(x, weight):
    """A product with something before it and something after."""
    return torch.relu((x * 2) @ weight) + 1


host = torch.randn(64, 128), torch.randn(128, 96)
result = torch.compile(product)(*(tensor.spyre() for tensor in host))
torch.testing.assert_close(result.cpu(), product(*host), rtol=1e-4, atol=1e-4)
text = text_of(plans()[-1])
print(text[text.index("stage 0") : text.index("  scratchpad")].rstrip())
assert text.count("matmul") == 1 and text.count("stage") == 1

# %% [markdown]
# Doubling, product, `maximum` and sum are one program: the pass over the inner dimension feeds the
# matrix array, and what comes after works on what is whole. The array wants two streams, so both factors
# must change along that dimension. A row that was expanded to a matrix does not. The handler is asked for
# the same `dot`, and makes a multiplication and a sum of it:


# %%
def by_expanded_row(x, row):
    """A product with a matrix whose rows are all the same."""
    return x @ row.expand(x.shape[1], -1)


result = torch.compile(by_expanded_row)(host[0].spyre(), host[1][0].spyre())
torch.testing.assert_close(result.cpu(), by_expanded_row(host[0], host[1][0]), rtol=1e-4, atol=1e-4)
text = text_of(plans()[-1])
print(text[text.index("  pass 0") : text.index("  scratchpad")].rstrip())
assert "matmul" not in text

# %% [markdown]
# ### Fusion, counted in sticks
#
# What is fusion good for? The card computes faster than its memory delivers (a vector unit takes 64
# numbers in a nanosecond, and there are 32 of them; the memory delivers 200 bytes), so what counts is how
# often a tensor travels between memory and scratchpad. It travels in
# [sticks](../docs/glossary.md#stick), and `torch.spyre.explain` counts them, from the card's own cost
# model. At least, the inputs must come in and the result must go out. Softmax by five programs, and by
# one:

# %%
five = {
    "amax": lambda x, m, s: x.amax(-1, keepdim=True),
    "sub": lambda x, m, s: x - m,
    "exp": lambda x, m, s: x.exp(),
    "sum": lambda x, m, s: x.sum(-1, keepdim=True),
    "div": lambda x, m, s: x / s,
}


def sticks(function, *tensors):
    """The sticks that a call of a function moves between memory and scratchpads."""
    explained = torch.spyre.explain(torch.compile(function), *tensors)
    return sum(kernel.sticks for kernel in explained.kernels)


def sticks_of(*shapes):
    """The sticks in dense tensors of float16."""
    return sum(torch.Size(shape).numel() * 2 // 128 for shape in shapes)


half = torch.randn(256, 1024, dtype=torch.float16).spyre()
column = half[:, :1].contiguous()
spec = backend.current().runtime.spec
assert (spec.vector_rate, spec.cores, spec.memory_rate) == (64, 32, 200)
separate = {name: sticks(op, half, column, column) for name, op in five.items()}
together = sticks(five_ops, half)
least = 2 * sticks_of((256, 1024))
print(separate)
print("five programs:", sum(separate.values()))
print("one program:  ", together)
print("at least:     ", least)
assert together == least < sum(separate.values()) / 2

# %% [markdown]
# One program moves what must be moved. Two layers with GELU between them, as in every transformer,
# are two products, so one tensor in the middle must go to memory and back:


# %%
def two_layers(x, first, second):
    """Linear, GELU, linear."""
    middle = torch.nn.functional.gelu(torch.nn.functional.linear(x, first))
    return torch.nn.functional.linear(middle, second)


shapes = (128, 256), (512, 256), (256, 512)
layers = [(torch.randn(shape) / 16).half().spyre() for shape in shapes]
print(torch.spyre.explain(torch.compile(two_layers), *layers))
ideal = sticks_of(*shapes) + 2 * sticks_of((128, 512)) + sticks_of((128, 256))
moved = sticks(two_layers, *layers)
print("ideal:", ideal, "moved:", moved)
assert moved <= 1.1 * ideal
del layers

# %% [markdown]
# `sum`, `exp` and the rest were never told of one another. A loop nest that two nodes have in common is
# enough ([`loop_nest.py`](../torch_spyre_ref/inductor/loop_nest.py) finds it), and then the later one
# takes the earlier one's value from where it was made, in `Memory.load`.

# %% [markdown]
# ## Build eager
#
# Take the shipped eager ops away. No op has a kernel now, and every one of them runs on the CPU:


# %%
def no_kernels(aside):
    """None at all."""
    return {}


install(**OURS, eager_kernels=no_kernels)
torch.spyre.reset_fallback_report()
x, y = torch.arange(12.0).view(3, 4).spyre(), torch.ones(3, 4).spyre()
assert ((x + y) * 2).tolist() == [[2, 4, 6, 8], [10, 12, 14, 16], [18, 20, 22, 24]]
print(torch.spyre.fallback_report())

# %% [markdown]
# We build it up again. `torch.compile(torch.add)` behind every op would be the shortest way. It has
# Dynamo in front, which guards functions of a *user*: all ops would share one cache with one small
# limit. Beyond the limit Dynamo compiles no more and calls the op as it stands. The op's kernel is the
# one that has just asked Dynamo, and so on without end (torch-spyre met this: its pull request 4677).
# What an op needs is less. Its arguments are known, its graph is one call, and the rest of PyTorch's compiler can be
# entered behind Dynamo.
#
# ### A call, and what is part of its key
#
# [`Call`](../torch_spyre_ref/compiled/calls.py) takes the arguments of an op apart, as the dispatcher
# hands them over. *Tensors* and *numbers* are what a launch brings. The *key* is everything else that a
# program depends on:

# %%
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.ops import Op

plus = Op("aten::add.Tensor")
for arguments in ((x, y), (x, 1), (x, 2), (x, 2.5), (x, True)):
    call = Call(plus, arguments, {})
    _, _, _, left, right = call.key
    print(len(call.tensors), "tensors,", f"numbers {call.numbers!s:<6}", "key", right)
print("what stands in a key for x:", left)
del call, arguments

# %% [markdown]
# A tensor is there with dtype, sizes, strides and card, and never with its address or its values. `1`
# and `2` have the same key: the number itself is a symbol, which each launch gives, as chapter 3's
# `axpy` had one. Its type counts, for `x + 1` and `x + 2.5` may have different results. `True` is no
# number to a program. In front, left out here, stand the op, the default dtype, and whether
# deterministic algorithms are asked for.
#
# Not every op can leave a number open. A norm of order 2 is a root of squares, of order 1 a sum, of
# order infinity a maximum. Whoever traces it asks what the number *is*. The trace notices, and from
# then on this argument of this op is in the key by its value:

# %%
from torch_spyre_ref.compiled.build import compile_call

norm = Op("aten::linalg_vector_norm")
print("may be left open:", norm.patched)
compile_call(Call(norm, (x, 2), {}))
print("after one trace: ", norm.patched)
print("key:", Call(norm, (x, 2), {}).key[-1], Call(norm, (x, 1), {}).key[-1])
assert not norm.patched[1]

# %% [markdown]
# ### Keep what was compiled
#
# The cache is a dictionary, with an end: programs take card memory, and a program that nobody uses any
# more should go first.

# %% Keep what was compiled, the latest used longest tags=["export"]
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TYPE_CHECKING, TypeAlias

from torch_spyre_ref.compiled import outputs
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.refusal import Refusal
from torch_spyre_ref.compiled.report import CacheReport, CacheRow


if TYPE_CHECKING:
    from torch_spyre_ref.compiled.programs import Code, Launch

KEPT: Final = 4_096
Kernel: TypeAlias = Callable[..., Any]


class Entry:
    """What there is for one key: a program, or why there is none."""

    def __init__(self, call: Call, program: "Launch | Code | outputs.Room | Refusal") -> None:
        self.op, self.signature, self.hits = call.op.name, repr(call), 0
        self.program = program


class EagerCache:
    """Entries by key, at most ``limit`` of them; ``compiled`` counts programs ever built."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit, self.compiled = limit, 0
        self._entries: OrderedDict[Any, Entry] = OrderedDict()

    def find(self, key: Any) -> Entry | None:
        """The entry of a key, which is then the latest used one."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.hits += 1
            try:
                self._entries.move_to_end(key)
            except KeyError:  # another thread has just put one too many
                return entry
        return entry

    def put(self, key: Any, entry: Entry) -> None:
        """Keep an entry, and let go of the one that was not used for longest."""
        self._entries[key] = entry
        if len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.compiled = 0

    def report(self) -> CacheReport:
        """What is kept, to be looked at."""
        rows = [
            CacheRow(e.op, e.signature, e.hits, e.program) for e in list(self._entries.values())
        ]
        return CacheReport(tuple(rows), self.compiled, self.limit)


_cache = EagerCache()


# %%
little = EagerCache(limit=2)
by_kind = {kind: Call(plus, (x, kind(1)), {}) for kind in (int, float, bool)}
for call in by_kind.values():
    little.put(call.key, Entry(call, "a program"))
    assert little.find(by_kind[int].key), "used all the time"
print("kept:", [kind.__name__ for kind, call in by_kind.items() if little.find(call.key)])
assert little.find(by_kind[float].key) is None
del by_kind, call

# %% [markdown]
# ### Say why
#
# Some calls will have no program: a dtype that the card does not compute with, an op that nobody has
# made of others. They run on the CPU, by whatever served the op before us: PyTorch's own fallback, or a
# kernel of ours that does nothing but fetch, compute and send. `torch.library.get_kernel` finds it. And
# the reason must come with it, or the report would say only *that* something fell back.

# %% Find what serves an op on the CPU tags=["export"]
import torch


KEYS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)


def _present_kernel(name: str) -> Kernel:
    before = torch.library.get_kernel(f"aten::{name}", "PrivateUse1")

    def call(*args: Any, **kwargs: Any) -> Any:
        return before.call_boxed(KEYS, *args, **kwargs)

    return call


# %% Fall back, and say why tags=["export"]
from torch_spyre_ref.aten import fallback


def aside(call: Call, on_cpu: Kernel, reason: str) -> Any:
    """Compute a call on the CPU."""
    with fallback.because(reason):
        return on_cpu(*outputs.as_tensors(call), **call.kwargs)


# %%
torch.spyre.reset_fallback_report()
sums = aside(
    Call(Op("aten::cumsum"), (x, 0), {}),
    _present_kernel("cumsum"),
    "the card has no unit for running sums",
)
print(sums.tolist()[-1])
print(torch.spyre.fallback_report())
assert sums.device.type == "spyre"

# %% [markdown]
# Everything can be switched to that, too. When a model computes something wrong, the first question is
# whether it is the compiler's doing, and one `with` block answers it.

# %% Switch compilation off tags=["export"]
from collections.abc import Iterator
from contextlib import contextmanager

from torch_spyre_ref import backend


_mode: list[str | None] = [None]


def compiles() -> bool:
    """Whether ops are compiled, as the environment or ``eager_mode`` says."""
    return (_mode[-1] or backend.current().settings.eager) == "compile"


@contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """Inside a ``with`` block ops are compiled (``"compile"``), or all computed on the CPU
    (``"fallback"``), in every thread.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in ("compile", "fallback"):
        raise ValueError(f"eager mode {mode!r} does not exist; it is 'compile' or 'fallback'")
    _mode.append(mode)
    try:
        yield
    finally:
        _mode.pop()


# %%
with eager_mode("fallback"):
    assert not compiles()
assert compiles()

# %% [markdown]
# ### A miss compiles
#
# Now the middle of it. `program_for` in [`families.py`](../torch_spyre_ref/compiled/families.py) makes
# a graph of one call and hands it to `compile_fx_inner(gm, example_inputs, …)` of
# `torch/_inductor/compile_fx.py`, the very function to which `torch.compile` hands a model's graph. The
# graph comes from running the op on **fake** tensors, which have sizes and no data, while a mode of
# PyTorch's dispatcher writes down what is called. On the way, ops are taken apart by the table that
# `torch.compile` has. The graphs of three calls:

# %%
for op, arguments in (
    (plus, (x, 2)),
    (Op("aten::gelu"), (x,)),
    (Op("aten::add_.Tensor"), (x, y)),
):
    print(f"{op!s:<18}", ops_of(compile_call(Call(op, arguments, {})).traced.graph))
del arguments

# %% [markdown]
# `add_` writes into its first argument. It has no program of another kind: it is `add`, and a store
# into what was given. All in-place ops and all `out=` variants are derived like that, from the
# functional op of the same name.
#
# What may come of a miss is four things. A program. A refusal, which is kept, so that nobody tries
# again. A tensor given as `out=` that has to grow first. Or an error, in most cases because the
# arguments make no sense; then the CPU is asked, and says what is wrong in PyTorch's own words. One
# lock, Dynamo's own, is held meanwhile: two threads that meet the same op compile it once.

# %% Compile on a miss tags=["export"]
import warnings
from functools import cache
from types import ModuleType

from torch_spyre_ref.compiled.refusal import Refused


@cache
def compiler() -> ModuleType:
    """What compiles: loaded when the first program is needed, and with it Inductor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch has deprecated in itself
        from torch_spyre_ref.compiled import families
    return families


def build(call: Call, on_cpu: Kernel) -> Any:
    """Build a program for a call, keep it, and compute the call with it; one thread at a time."""
    try:
        compiled, is_new = compiler().program_for(call)
    except Refused as refusal:
        _cache.put(call.key, Entry(call, Refusal(str(refusal))))
        return aside(call, on_cpu, str(refusal))
    except outputs.NeedsRoom as needed:
        _cache.put(call.key, Entry(call, outputs.Room(needed.shapes)))
        return outputs.make_room(call, needed.shapes)
    except Exception as error:
        return outputs.judge(call, on_cpu, error)
    if compiled.function is None:  # a number is part of the key from now on
        return kernel(call.op, on_cpu)(*call.args, **call.kwargs)
    _cache.compiled += is_new
    program, results = compiler().first_run(compiled, call)
    _cache.put(call.key, Entry(call, program))
    return outputs.returned(call, results)


def miss(call: Call, on_cpu: Kernel) -> Any:
    """See to what needs no program; for the rest, have one thread build it, and call again."""
    moved = outputs.with_indices_on_card(call)
    if moved is not None:
        return kernel(call.op, on_cpu)(*moved, **call.kwargs)
    outputs.check_devices(call)
    if fallback.is_printing():  # a repr is no reason to compile
        return aside(call, on_cpu, fallback.NO_PROGRAM)
    with compiler().compile_lock:  # the one of Dynamo: torch.compile may be at work elsewhere
        entry = _cache.find(call.key)
        if entry is None:
            return build(call, on_cpu)
    return kernel(call.op, on_cpu)(*call.args, **call.kwargs)


# %% [markdown]
# ### A hit launches
#
# And the kernel: what PyTorch calls when an op meets a tensor of the card. It reads like its own
# description. (`overlaps` is a guard. A product that is stored into one of its own factors would read
# what it has just written. Then the result is made first, and copied.)

# %% Make a kernel of an op tags=["export"]
from torch_spyre_ref.compiled.ops import Op


def kernel(op: Op, on_cpu: Kernel) -> Kernel:
    """The card's kernel of ``op``; what has no program is computed by ``on_cpu``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        call = Call(op, args, kwargs)
        if not compiles():
            return aside(call, on_cpu, "eager compilation is off")
        if op.written and outputs.overlaps(call):
            return outputs.by_copy(call)
        entry = _cache.find(call.key)
        if entry is None:
            return miss(call, on_cpu)
        if isinstance(entry.program, Refusal):
            return aside(call, on_cpu, entry.program.reason)
        if isinstance(entry.program, outputs.Room):
            return outputs.make_room(call, entry.program.shapes)
        return outputs.returned(call, entry.program(call.tensors, call.numbers))

    return run


# %% [markdown]
# A kernel is a function, and can be called without any registration:


# %%
def counted(action, *arguments):
    """Run an action; its result, how many programs it compiled, and what the card did."""
    before = _cache.compiled
    result, records = observe(action, *arguments)
    return result, _cache.compiled - before, [one.kind for one in records]


add = kernel(plus, _present_kernel("add.Tensor"))
steps = {"x + y": (x, y), "x + x": (x, x), "x + 1": (x, 1), "x + 2": (x, 2), "y + 2.5": (y, 2.5)}
for words, arguments in {**steps, "x + y, again": (x, y)}.items():
    result, built, kinds = counted(add, *arguments)
    print(f"{words:<13}{built} compiled, {', '.join(kinds)}")
    left, right = (a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments)
    assert result.cpu().equal(left + right)
del steps, arguments

# %% [markdown]
# Three programs for six calls. The two more operations in front of a first run load the program, once.
#
# Is a hit a shortcut? `launch_jobplan` of chapter 3, called by hand on the program that the cache
# holds, against the kernel:

# %%
entry = _cache.find(Call(plus, (x, y), {}).key)
out = torch.empty(3, 4).spyre()
ticket, by_launch = observe(launch_jobplan, entry.program.plan, [x, y, out])
result, by_kernel = observe(add, x, y)
assert out.cpu().equal(x.cpu() + y.cpu())
print("launch:", told(by_launch))
print("kernel:", told(by_kernel))
assert [(one.kind, one.nbytes) for one in by_launch] == [(o.kind, o.nbytes) for o in by_kernel]

# %% [markdown]
# To the byte the same. An eager op has no way to the card that a compiled model has not.
#
# ### Sizes that grow
#
# A language model meets a tensor that is one longer with every token. If each length were compiled
# anew, the card would wait for the compiler for ever. The first program of an op is made for its sizes.
# When a call comes that differs in sizes only, the sizes that differ become symbols
# ([chapter 3](03_launch.ipynb#dimensions-are-symbols-too)), and that program serves the rest:

# %%
for length in range(2, 12):
    longer = torch.ones(length, 4).spyre()
    result, built, kinds = counted(add, longer, 1)
    print(f"{length:2} rows: {built} compiled, {len(kinds)} operations")
    assert result.cpu().eq(2).all()
text = text_of(_cache.find(Call(plus, (longer, 1), {}).key).program.plan)
print(text[text.index("stage 0") :].split("  scratchpad")[0].rstrip())

# %% [markdown]
# (The first program for a number was that of `x + 1` above. So the first length here makes the second
# one, with symbols, and that is the last.) The size of its dimension is a symbol, `s0`, and so is the
# number that is added, `s1`. Some ops
# take something about a size for granted (a size of 1 broadcasts, and 0 rows are no rows). The trace
# writes that down as guards, and a program serves the calls that meet its guards.
#
# ### Look inside, and take all of it back
#
# What is cached can be seen. And when the cards get other parts, as here with every `install`,
# programs that lie on the old cards are no good any more.

# %% Look inside, and forget tags=["export"]
import sys


def eager_cache() -> CacheReport:
    """What eager ops have compiled so far: op, signature, hits, and what it is."""
    return _cache.report()


def clear_eager_cache() -> None:
    """Forget all programs of eager ops, and start counting anew."""
    if "torch_spyre_ref.compiled.families" in sys.modules:
        compiler().clear()  # another cache may have filled it
    _cache.clear()


def forget_programs() -> None:
    """Let go of all that was prepared on the present cards."""
    clear_eager_cache()
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is not None:
        codecache.PyCodeCache.cache_clear()
    if backend.current().started:
        for card, programs in backend.current().prepared():
            torch.accelerator.synchronize(card)
            programs.evict_all()


# %%
for row in list(eager_cache())[:4]:
    print(f"{row.signature}  {row.hits} hits  {row.what}")
clear_eager_cache()
assert not len(eager_cache())

# %% [markdown]
# ### A kernel for every op
#
# One loop makes kernels for the whole table, the ops that
# [`table.py`](../torch_spyre_ref/compiled/table.py) names, each with all its overloads. Which ones
# belong in it? Those that carry their own derivative. `native_layer_norm` does. `layer_norm`, which users
# call, does not: PyTorch composes it of the other one, and if we took it whole, its gradient would be
# lost without a word.

# %% Register a kernel for every op of the table tags=["export"]
from collections.abc import Mapping

from torch_spyre_ref.compiled import special, table


def kernels(aside: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """The kernels of all ops that are compiled, by name.

    What serves an op until now computes it on the CPU: its kernel in ``aside``, or the one that
    PyTorch would take without a kernel of ours.
    """
    made = special.kernels(kernel)
    for name in table.names():
        on_cpu = aside.get(name) or _present_kernel(name)
        made[name] = kernel(Op(f"aten::{name}"), on_cpu)
    return made


EXPORTS: Final = (eager_cache, clear_eager_cache, eager_mode)


# %% [markdown]
# Install it. From here on PyTorch runs on *your* kernels, and compiles with *your* handler. (Beside the
# shipped cache, which `install` has cleared by itself, there is yours now: hence `forget_programs`.)

# %%
assert {"native_layer_norm", "layer_norm"} & set(table.names()) == {"native_layer_norm"}
OURS["eager_kernels"] = kernels
forget_programs()
install(**OURS)
torch.spyre.reset_fallback_report()
x = torch.arange(12.0).view(3, 4).spyre()
print((x @ x.t())[0].tolist(), (x**2)[1].tolist(), x.norm(1).item(), f"{x.norm(2).item():.3f}")
print(eager_cache())
torch.mm(square := torch.ones(3, 3).spyre(), square, out=square)
assert square.tolist() == [[3] * 3] * 3
assert not len(torch.spyre.fallback_report())

# %% [markdown]
# Views (`t`, `[1]`) are not in the list, since no byte moves. The norm has two programs: its number was
# asked for. And a product that is stored into its own factor is right, as promised.

# %% [markdown]
# ## First calls and later calls
#
# What does a program cost, in the long run? Here is decoding, in small: for every token a row is appended,
# and attention goes over all of them. And here is an optimiser, whose step size
# changes with every step. How many programs are compiled after which step?


# %%
def decode(tokens):
    """Attention over a cache that grows; the programs compiled after each token."""
    torch.manual_seed(0)
    query, keys = torch.randn(1, 2, 1, 8).spyre(), torch.zeros(1, 2, 0, 8).spyre()
    after = []
    for _ in range(tokens):
        keys = torch.cat([keys, torch.randn(1, 2, 1, 8).spyre()], 2)
        attended = torch.softmax(query @ keys.transpose(-1, -2) / 8**0.5, -1) @ keys
        after.append(eager_cache().compiled)
    host = keys.cpu()
    wanted = torch.softmax(query.cpu() @ host.transpose(-1, -2) / 8**0.5, -1) @ host
    torch.testing.assert_close(attended.cpu(), wanted)
    return after


def optimise(steps):
    """AdamW with a falling rate; the programs compiled after each step."""
    weight = torch.nn.Parameter(torch.ones(4, 3).spyre())
    optimiser = torch.optim.AdamW([weight], lr=0.1, foreach=False)
    schedule, after = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9), []
    for _ in range(steps):
        weight.grad = weight.detach() * 0.5
        optimiser.step()
        schedule.step()
        after.append(eager_cache().compiled)
    return after


for name, loop in (("decode", decode), ("optimise", optimise)):
    clear_eager_cache()
    after = loop(20)
    print(f"{name:<9}", *after)
    assert after[6:] == [after[6]] * 14
assert not len(torch.spyre.fallback_report())

# %% [markdown]
# Bounded, both of them. In `decode` the first tokens have sizes of their own (0 and 1 are special), and
# then there are symbols. In `optimise`, rates, betas and corrections are numbers that a launch brings.
#
# How long does a first call take? That depends on your machine, so this page cannot say. It can be said
# what a later call *does not do*: no trace, no compilation, no look at a file, no load. It is one look
# into a dictionary, one allocation for each result, one launch.
#
# ## What falls back, and how one sees it
#
# Complex numbers can be stored on the card, not computed with. A sort has no program. A running sum has
# none either, until you do exercise 2:

# %%
torch.spyre.reset_fallback_report()
values = torch.tensor([3.0, 1.0, 2.0]).spyre()
torch.sort(values)
torch.cumsum(values, 0)
angles = torch.tensor([1j, 1.0]).spyre()
for _ in range(3):
    angles * angles
print(torch.spyre.fallback_report())

# %% [markdown]
# Op, number of calls, reason. By default each op also warns once; these pages have the policy `silent`
# and print the report. Whoever must not lose the card says `error`:

# %%
from textwrap import wrap


def printed(error, words=""):
    """An error as text, in lines that a page has room for."""
    text = f"{words}{type(error).__name__}: {error}"
    print(*wrap(text, 88, subsequent_indent="    "), sep="\n")


with torch.spyre.fallback_policy("error"):
    try:
        angles * angles
    except NotImplementedError as error:
        printed(error)

# %% [markdown]
# Under `torch.compile` it is the same list. Inductor leaves a call in the generated code for an op that
# it has no loops for, that call meets our kernel, and the kernel counts it.

# %%
torch.spyre.reset_fallback_report()
mixed = torch.compile(lambda v: torch.sort(v * 2).values + 1)
print(mixed(values).tolist())
print(torch.spyre.fallback_report())

# %% [markdown]
# ## One path
#
# This was the point of it. An eager op and the same op compiled have *one program*, from one table, one
# compiler, one handler. Compare them as texts. (Where a number is an argument there is one difference: an
# eager op leaves it open, and in a model it is a constant.)

# %%
ops = {
    "softmax": lambda v: torch.softmax(v, -1),
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "var": lambda v: torch.var(v, -1),
    "flip": lambda v: torch.flip(v, (0,)),
}


def both_programs(op, v):
    """The text of the eager op's program, and of the compiled one's, without their names."""
    clear_eager_cache()
    op(v)
    eager_plan = plans()[-1]
    torch._dynamo.reset()
    torch.compile(op, dynamic=False)(v)
    compiled_plan = plans()[-1]
    assert compiled_plan is not eager_plan
    return [text_of(plan).split("\n", 1)[1] for plan in (eager_plan, compiled_plan)]


values = torch.randn(5, 7).spyre()
for name, op in ops.items():
    eager_text, compiled_text = both_programs(op, values)
    print(f"{name:<10}", "the same" if eager_text == compiled_text else "different")
    assert eager_text == compiled_text

# %% [markdown]
# That is also how one looks for a fault. Run a wrong model eagerly, op by op: the first op that is wrong
# there has the instructions that it has in the model.

# %% [markdown]
# ## Break it
#
# ### Forget the card
#
# Two cards, and a key that does not say which one. The rest of the kernel is left as it is (it finds
# `Call` by its name in this notebook, so another class of that name will do):


# %%
from torch_spyre_ref.compiled import calls


class Nearsighted(calls.Call):
    """A call whose key says of a tensor all but where it is."""

    def __init__(self, op, args, kwargs):
        super().__init__(op, args, kwargs)
        self.key = tuple(
            part[:3] if isinstance(part, tuple) and len(part) == 4 else part for part in self.key
        )


def on_both_cards():
    """Add on card 0, then on card 1, then across: where the sum is, or what went wrong."""
    clear_eager_cache()
    here, there = torch.ones(5, device="spyre:0"), torch.ones(5, device="spyre:1")
    outcomes = {}
    for words, pair in {"0": (here, here), "1": (there, there), "0 and 1": (here, there)}.items():
        try:
            outcomes[words] = str((pair[0] + pair[1]).device)
        except Exception as error:
            outcomes[words] = error
    return outcomes


def print_outcomes(outcomes):
    """A line or two for each."""
    for words, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            printed(outcome, f"cards {words}: ")
        else:
            print(f"cards {words}: {outcome}")


Call = Nearsighted
print_outcomes(on_both_cards())

# %%
Call = calls.Call
print_outcomes(on_both_cards())
assert on_both_cards()["1"] == "spyre:1"

# %% [markdown]
# Card 0's program was found for card 1, and the launch refused it, because it compares arguments with
# its spec. This is the last line of defence and a bad place for an error: the call was a good one. The
# third call deserved an error, and got one that talks of the launch instead of the tensors. With the
# whole key, all three are as on any device.
#
# ### Let one tensor stand for two
#
# This is a small eager cache as one would write it at first, with a sensible key. It remembers dtypes,
# sizes and cards; of numbers, as ours, only the type. Its graphs are made with PyTorch's own
# `from_tensor` and `make_fx`:

# %%
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

careless_cache = {}


def careless(op, *arguments):
    """An op as a compiled program; there are two mistakes in it."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    parts = [
        (a.dtype, a.shape, a.stride(), a.device) if isinstance(a, torch.Tensor) else type(a)
        for a in arguments
    ]
    key = op, *parts
    if key not in careless_cache:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fakes = [mode.from_tensor(tensor) for tensor in tensors]

        def called(*given):
            given = iter(given)
            return [op(*(next(given) if isinstance(a, torch.Tensor) else a for a in arguments))]

        with tracing(TracingContext(mode)):
            careless_cache[key] = compile_fx_inner(make_fx(called)(*fakes), fakes)
    return careless_cache[key](list(tensors))[0]


x, y = torch.full((4,), 10.0).spyre(), torch.full((4,), 1.0).spyre()
plus_op = torch.ops.aten.add.Tensor
print("careless: x + x =", careless(plus_op, x, x).tolist())
print("careless: x + y =", careless(plus_op, x, y).tolist())
_ = x + x
print("ours:     x + y =", (x + y).tolist())
assert careless(plus_op, x, y).tolist() != [11] * 4
assert (x + y).tolist() == [11] * 4

# %% [markdown]
# `from_tensor` remembers which fake it made for a tensor, so `x + x` was traced with *one* fake in two
# places. The graph has two inputs, and uses one of them twice. That is a right program for `x + x`. It
# is stored under a key that `x + y` has too. Two cures: say in the key which arguments are the same,
# and compile twice as often; or give each place a fake of its own, as ours does. Then the program adds
# two inputs, and whether they are one tensor is no business of its.
#
# The other mistake is the number. Its value is not in the key, and the trace has put it into the graph:

# %%
print("careless: x + 1 =", careless(plus_op, x, 1).tolist())
print("careless: x + 2 =", careless(plus_op, x, 2).tolist())
_ = x + 1
print("ours:     x + 2 =", (x + 2).tolist())
assert careless(plus_op, x, 2).tolist() == [11] * 4
assert (x + 2).tolist() == [12] * 4

# %% [markdown]
# What is not in the key must be in the launch, and what is not in the launch must be in the key.
#
# ### Take the mask away
#
# One more, on the other side. Suppose that the handler loads all there is and chooses afterwards. It
# sounds like the same thing, and for the numbers that are chosen it is. But padding by one on each side
# then loads one element before the beginning of the tensor, and one behind its end:


# %%
class Unmasked(LoopTracer):
    """Loads everything, and chooses afterwards."""

    def masked(self, mask, body, other):
        return self.emitter.select(mask, body(), Constant(other, "float32"))


def pad():
    """Four ones between two zeros."""
    padded = torch.nn.functional.pad(torch.ones(4).spyre(), (1, 1))
    return padded.tolist()


forget_programs()
install(**{**OURS, "loop_tracer": Unmasked})
try:
    pad()
except ValueError as error:
    printed(error)

# %%
forget_programs()
install(**OURS)
print(pad())
assert pad() == [0, 1, 1, 1, 1, 0]

# %% [markdown]
# Inductor compiled it without a doubt. But `prepare` reads what a program will touch and compares it with
# the shapes that the artifact promises, so this one never came near the card. (What depends on values, as
# an index does, is checked by the load unit.) With the mask put back, only what is there is touched.

# %% [markdown]
# ## Assembled
#
# All of this is [`loop_tracer.py`](../torch_spyre_ref/inductor/loop_tracer.py) and
# [`eager.py`](../torch_spyre_ref/eager.py). One model, with an optimiser, on your parts and on the
# shipped ones; a trace of everything that the card did; and the number of programs:


# %%
def everything():
    """Three steps of a small model, eager, and a compiled prediction; numbers, and the trace."""
    torch.manual_seed(0)
    parts = torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 3)
    model = torch.nn.Sequential(*parts).spyre()
    points, classes = torch.randn(8, 6).spyre(), torch.randint(3, (8,)).spyre()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False)

    def steps():
        for _ in range(3):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(points), classes)
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            return torch.compile(model)(points).cpu()

    predicted, records = observe(steps)
    return predicted, [(one.kind, one.label, one.nbytes, one.start, one.end) for one in records]


forget_programs()
install(**OURS)
torch.spyre.reset_fallback_report()
yours, your_trace = everything()
your_count = eager_cache().compiled
forget_programs()
install()
theirs, their_trace = everything()
their_count = torch.spyre.eager_cache().compiled
print(
    f"{len(their_trace)} operations; {their_count} eager programs;", torch.spyre.fallback_report()
)
assert your_count == their_count > 0
assert yours.equal(theirs)
assert your_trace == their_trace
assert not len(torch.spyre.fallback_report())

# %% [markdown]
# Forward, backward, optimiser, and a compiled prediction, with nothing on the CPU. And your notebook's
# parts and the package's do the same to the nanosecond.

# %% [markdown]
# ## Exercises
#
# Answers stand in `chapters/solutions/05_eager.py`, and are tested.
#
# ### 1. Predict
#
# How many programs does each of these compile? The cache is empty before each.

# %%
SERIES = {
    "x + y, y + x, x + x": lambda x, y: (x + y, y + x, x + x),
    "x + 1, x + 2, x + 2.5": lambda x, y: (x + 1, x + 2, x + 2.5),
    "x ** 2, x ** 3, x ** 4": lambda x, y: (x**2, x**3, x**4),
    "x + y, x.add_(y)": lambda x, y: (x + y, x.add_(y)),
    "x * 2, x.t() * 2": lambda x, y: (x * 2, x.t() * 2),
    "x[1:], x.t(), x.view(-1)": lambda x, y: (x[1:], x.t(), x.view(-1)),
    "x[:n] + 1 for n = 2, 3, 4, 5": lambda x, y: [x[:n] + 1 for n in range(2, 6)],
}
prediction = dict.fromkeys(SERIES)


def check_prediction(prediction):
    """Compare with a run."""
    if None in prediction.values():
        return "no prediction yet"
    wrong = []
    for words, series in SERIES.items():
        x, y = torch.ones(6, 8).spyre(), torch.ones(6, 8).spyre()
        torch.spyre.clear_eager_cache()
        series(x, y)
        if torch.spyre.eager_cache().compiled != prediction[words]:
            wrong.append(words)
    return f"wrong: {'; '.join(wrong)}" if wrong else "right"


check_prediction(prediction)

# %% [markdown]
# ### 2. Extend: an op that the card lacks
#
# A running sum falls back, because the card has no unit that hands a total on from element to element.
# But it has a matrix array, and a running sum is a product: with which matrix? Write `cumsum` as a
# function of other ops, for any dimension of a floating-point tensor, with a result that lies in memory
# as the CPU's does. `added` puts it into the two places where it belongs, and the *same* test checks it
# as an eager op and compiled. About 6 lines.

# %%
from contextlib import contextmanager

import torch_spyre_ref.eager as shipped
from torch_spyre_ref.inductor.decompositions import decompositions


def running_sum(x, dim, *, dtype=None):
    """`aten::cumsum`, made of ops that have programs."""


@contextmanager
def added(name, parts):
    """An op is made of `parts` here: under `torch.compile`, and as an eager op."""
    op = Op(f"aten::{name}")
    table = decompositions()
    before = table.get(op.overload)
    library = torch.library.Library("aten", "IMPL")
    try:
        table[op.overload] = parts
        library.impl(name, shipped.kernel(op, shipped._present_kernel(name)), "PrivateUse1")
        torch._dynamo.reset()
        yield
    finally:
        library._destroy()
        table.pop(op.overload)
        if before is not None:
            table[op.overload] = before
        torch.spyre.clear_eager_cache()
        torch._dynamo.reset()


def check_added(name, parts, calls, run=lambda op, *arguments: op(*arguments) * 2):
    """The same test for an op in both modes: no fallback, and the values of the CPU."""
    with added(name, parts):
        op = Op(f"aten::{name}").overload
        modes = {"eager": run, "compiled": torch.compile(run, dynamic=False)}
        for mode, runs in modes.items():
            for tensor, *rest in calls:
                words = f"{mode}, {tuple(tensor.shape)}, {rest}"
                torch.spyre.reset_fallback_report()
                with torch.spyre.fallback_policy("silent"):
                    got = runs(op, tensor.spyre(), *rest)
                if len(torch.spyre.fallback_report()):
                    return f"{words}: fell back"
                wanted = run(op, tensor, *rest)
                if got.stride() != wanted.stride():
                    return f"{words}: has other strides"
                if not got.cpu().allclose(wanted, atol=1e-5):
                    return f"{words}: wrong"
    return "right"


def check_running_sum(parts):
    """Running sums of tensors of several shapes."""
    if parts(torch.ones(2), 0) is None:
        return "no answer yet"
    shapes = ((5, 7), -1), ((5, 7), 0), ((2, 3, 4), 1), ((9,), 0), ((3, 1), 1)
    return check_added("cumsum", parts, [(torch.randn(shape), dim) for shape, dim in shapes])


check_running_sum(running_sum)

# %% [markdown]
# ### 3. Open
#
# The first program of an op is made for its sizes, the second has symbols. Why not begin with symbols,
# and have one program for everything? `compile_call(call, symbolic)` takes one `Sizes` for each tensor
# (`compiled/trace.py`), and `first_run` makes something of it that can be called, so you can have both
# kinds of program for one call. Compare how long they run on the card, in virtual time: for `exp` of
# 100 and of 10 000 numbers, and for a softmax of 512 rows of 512. Where is a difference, and which
# lines of the disassembly make it? Then say when you would begin with symbols.

# %% [markdown]
# ## Summary
#
# - A card that only runs programs needs a compiler even for `x + y`. A compiler of one's own breaks
#   with the next model, and a table of hand-written eager ops drifts from it. So there is one path, and
#   PyTorch's compiler is on it.
# - Inductor asks a device for few things, all of them by registration: what may be fused, the code of a
#   kernel, a wrapper, a graph pass. The kernel's code comes of a handler on which a loop's body is run:
#   strides where an index is affine, index values where not, reductions that are whole when a pass is
#   over. A product of matrices is one of these.
# - What fusion saves is travel between memory and scratchpad, and it can be counted in sticks.
# - An eager op is a dictionary and a launch. The key has everything that the program depends on and the
#   launch does not bring. Numbers and growing sizes are symbols, so a decoding loop or an optimiser
#   compiles for a few steps and then never again.
# - What has no program runs on the CPU, counted, with its reason.
#
# New words: [loop body](../docs/glossary.md#loop-body), [handler](../docs/glossary.md#handler),
# [pass](../docs/glossary.md#pass), [fusion](../docs/glossary.md#fusion),
# [decomposition](../docs/glossary.md#decomposition), [key](../docs/glossary.md#key),
# [fallback](../docs/glossary.md#fallback).
#
# Before: each hit is a launch of [chapter 3](03_launch.ipynb), patched with places, sizes and numbers.
# Next: [all five mappings under one whole model](06_a_whole_model.ipynb), before and after.
