"""From a function of tensors to a graph of core ops, on fake tensors.

PyTorch's own ``make_fx`` changes ``torch.fx`` while it runs, and so may only run in one thread.
What it stands on does not: a dispatch mode that writes a node for every op that it sees.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    decompose,
    get_proxy_slot,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torch_spyre_ref.inductor.decompositions import decompositions

Function: TypeAlias = Callable[..., Any]
"""From fake tensors and numbers to tensors, or None where there is none."""


class Sizes(NamedTuple):
    """Sizes and strides of one tensor, with True where they are symbols."""

    shape: tuple[bool, ...]
    stride: tuple[bool, ...]


class Traced(NamedTuple):
    """A graph, what it was traced with, and the symbols of its numbers."""

    graph: fx.GraphModule
    inputs: list[Any]
    numbers: list[sympy.Symbol]
    outputs: list[Any]
    mode: FakeTensorMode

    @property
    def guards(self) -> list[sympy.Expr]:
        """What the trace, or a compilation, took for granted of the symbols."""
        env = self.mode.shape_env
        assert env is not None
        return [
            *(guard.expr for guard in env.guards),
            *(sympy.Eq(symbol, value) for symbol, value in env.replacements.items()),
        ]

    def asked_for(self) -> list[int]:
        """The numbers, by position, whose values were needed."""
        asked = {symbol for guard in self.guards for symbol in guard.free_symbols}
        return [i for i, symbol in enumerate(self.numbers) if symbol in asked]


def trace(
    function: Function,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[int | float],
    symbolic: Sequence[Sizes] | None = None,
) -> Traced:
    """The graph of ``function``, called with fakes of ``tensors`` and symbols for ``numbers``.

    Each position has a fake of its own, also where the same tensor is given twice.
    """
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env)
    tracer = _tracer()
    with _alone():
        inputs: list[Any] = [
            _fake(mode, env, i, tensor, symbolic[i] if symbolic else None)
            for i, tensor in enumerate(tensors)
        ]
        numbered = [_symbol(env, f"n{i}", number) for i, number in enumerate(numbers)]
        symbols = [number.node.expr for number in numbered]  # later it may be a value it must have
        inputs += numbered
        proxies = [
            tracer.create_proxy("placeholder", f"arg{i}_1", (), {}) for i in range(len(inputs))
        ]
        with (
            enable_python_dispatcher(),  # core's own rules want numbers where there are symbols
            mode,
            ProxyTorchDispatchMode(tracer, "symbolic"),
            decompose(decompositions()),
        ):
            track_tensor_tree(inputs, proxies, constant=None, tracer=tracer)
            outputs = list(function(*inputs))
    nodes = [_node(tracer, output) for output in outputs]
    # What a user sees has the strides that torch gives it.
    visible = [i for i, output in enumerate(outputs) if output is not None]
    tracer.graph.output(tuple(nodes)).meta["user_visible_output_idxs"] = visible
    graph = fx.GraphModule(tracer.root, tracer.graph)
    return Traced(graph, inputs, symbols, outputs, mode)


def _tracer() -> PythonKeyTracer:
    tracer = PythonKeyTracer()
    tracer.root = torch.nn.Module()
    tracer.graph = fx.Graph(tracer_cls=PythonKeyTracer)
    tracer.tensor_attrs = {}
    return tracer


def _node(tracer: PythonKeyTracer, output: Any) -> fx.Node | None:
    if output is None:
        return None
    node: fx.Node = get_proxy_slot(output, tracer).proxy.node
    return node


@contextmanager
def _alone() -> Iterator[None]:
    """A thread's state as it is outside of every kernel, autocast, mode and default device."""
    keys = torch._C.DispatchKeySet
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
        stack.enter_context(
            torch._C._ForceDispatchKeyGuard(
                keys(torch._C.DispatchKey.BackendSelect)
                | keys(torch._C.DispatchKey.ADInplaceOrView),
                keys(torch._C.DispatchKey.Undefined),
            )
        )
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(_quiet())
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's log of what fails on fakes: the CPU says what is wrong with the arguments."""
    thread = threading.get_ident()
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


def _symbol(env: ShapeEnv, name: str, number: int | float) -> Any:
    source = ConstantSource(name)
    symbol = env.create_unspecified_symbol(number, source, DimDynamic.DYNAMIC)
    if isinstance(number, float):
        return env.create_symfloatnode(symbol, hint=number, source=source)
    return env.create_symintnode(symbol, hint=number, source=source)


def _fake(
    mode: FakeTensorMode, env: ShapeEnv, number: int, tensor: torch.Tensor, sizes: Sizes | None
) -> torch.Tensor:
    shape: Any = tensor.shape
    stride: Any = tensor.stride()
    if sizes is not None:
        shape, stride = _geometry(env, number, shape, stride, sizes)
    with mode:
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)


def _geometry(
    env: ShapeEnv, number: int, shape: Sequence[int], stride: Sequence[int], sizes: Sizes
) -> tuple[list[Any], list[Any]]:
    """Sizes and strides with symbols. A stride that is a product of sizes is that of symbols."""
    made = [
        _size(env, f"t{number}_{dim}", size) if sizes.shape[dim] else size
        for dim, size in enumerate(shape)
    ]
    steps: list[Any] = list(stride)
    dense, product = 1, 1
    for dim in sorted(range(len(shape)), key=lambda dim: (stride[dim], -dim)):
        if stride[dim] == dense:
            steps[dim] = product
        elif sizes.stride[dim]:
            steps[dim] = _size(env, f"t{number}_step{dim}", stride[dim])
        dense, product = stride[dim] * shape[dim], steps[dim] * made[dim]
    return made, steps


def _size(env: ShapeEnv, name: str, size: int) -> Any:
    source = ConstantSource(name)
    symbol = env.create_symbol(size, source, DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=size, source=source)
