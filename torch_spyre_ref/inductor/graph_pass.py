"""What is changed in a graph, after autograd and before it is lowered, for this device.

Products become an operation of ours, whose lowering is a reduction like any other; what the card
cannot compute is marked for Inductor's own fallback; and tensors of the host that take part in an
operation of the card are brought there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch._inductor.codegen.common import pointwise_overrides_data
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch.fx import Graph, GraphModule, Node

import torch_spyre_ref
from torch_spyre_ref.device import NAME
from torch_spyre_ref.emulator.program.formats import FORMATS
from torch_spyre_ref.inductor.values import INSTRUCTIONS

aten = torch.ops.aten


_MAKERS: Final = ("emulator", "inductor", "spyrecode")


@cache
def source_digest() -> str:
    """A digest of the source that programs and artifacts follow from.

    What another source has generated is not served from a cache.
    """
    digest = hashlib.sha256()
    root = Path(torch_spyre_ref.__file__).parent
    for path in sorted(file for folder in _MAKERS for file in (root / folder).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class SpyrePass(CustomGraphModulePass):
    """Runs on every graph that has a tensor on a card."""

    def __call__(self, gm: GraphModule) -> None:
        for node in list(gm.graph.nodes):
            if node.op == "call_function" and _on_card(node):
                _bring_host_tensors(gm.graph, node)
                if not _can_compute(node):
                    node.meta["should_fallback"] = True
                elif node.target in _REWRITTEN:
                    _REWRITTEN[node.target](gm.graph, node)
        gm.graph.eliminate_dead_code()
        gm.recompile()

    def uuid(self) -> str:
        return source_digest()


def _values(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that a node makes."""
    made = node.meta.get("val")
    for value in made if isinstance(made, tuple | list) else (made,):
        if isinstance(value, torch.Tensor):
            yield value


def _on_card(node: Node) -> bool:
    return any(value.device.type == NAME for value in _values(node))


_COPIES: Final = frozenset(
    {
        aten.copy.default,
        aten.copy_.default,
        aten._to_copy.default,
        torch.ops.prims.device_put.default,
    }
)


def _bring_host_tensors(graph: Graph, node: Node) -> None:
    """A number that lies on the host may meet tensors of a card: it is copied there first."""
    if node.target in _COPIES or not isinstance(node.target, torch._ops.OpOverload):
        return
    device = next(value.device for value in _values(node) if value.device.type == NAME)
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            with graph.inserting_before(node):
                copy = graph.call_function(torch.ops.prims.device_put.default, (source, device))
            copy.meta["val"] = value.to(device)
            node.replace_input_with(source, copy)


_SPECIAL: Final = frozenset(pointwise_overrides_data) - frozenset(INSTRUCTIONS)
_ABSENT: Final = frozenset({"lgamma", "erfinv", "frexp", "view_as_complex", "view_as_real"})


def _can_compute(node: Node) -> bool:
    """Whether the card has formats and instructions for what the node does."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    name = node.target._opname.removeprefix("special_")
    if name in _SPECIAL or name in _ABSENT or node.target is aten.view.dtype:
        return False
    sources = [value for source in node.all_input_nodes for value in _values(source)]
    if name.startswith("var") and any(0 in value.shape for value in sources):
        return False  # the mean of nothing, which Inductor says is 0
    return all(
        str(value.dtype).removeprefix("torch.") in FORMATS for value in (*_values(node), *sources)
    )


def _product(graph: Graph, node: Node) -> None:
    node.target = torch.ops.spyre.matmul.default


def _convolution(graph: Graph, node: Node) -> None:
    node.target = getattr(torch.ops.spyre, node.target._opname).default  # type: ignore[union-attr]


def _sum_with_product(graph: Graph, node: Node) -> None:
    """``beta * summand + alpha * (left @ right)``, in parts that fuse again."""
    summand, left, right = node.args[:3]
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    with graph.inserting_before(node):
        total: Any = graph.call_function(torch.ops.spyre.matmul.default, (left, right))
        total.meta = {**node.meta}
        if alpha != 1:
            total = _scaled(graph, total, alpha)
        if beta != 0:
            total = graph.call_function(
                aten.add.Tensor, (total, summand if beta == 1 else _scaled(graph, summand, beta))
            )
            total.meta = {**node.meta}
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _scaled(graph: Graph, value: Any, factor: Any) -> Node:
    scaled = graph.call_function(aten.mul.Tensor, (value, factor))
    scaled.meta = {**value.meta}
    return scaled


def _index_put(graph: Graph, node: Node) -> None:
    """Without the word that indices need no check: the card checks them.

    Inductor may store in place, so values that are a part of what is written are copied first.
    """
    arguments: Any = node.args[:4]
    node.target, node.args = aten.index_put.default, arguments
    written, indices, values, *rest = arguments
    storages = {v.untyped_storage()._cdata for each in (written, values) for v in _values(each)}
    if len(storages) == 1:
        with graph.inserting_before(node):
            copy = graph.call_function(aten.clone.default, (values,))
        copy.meta = {**values.meta, "val": values.meta["val"].clone()}
        node.args = (written, indices, copy, *rest)


_REWRITTEN: Final[dict[Any, Callable[[Graph, Node], None]]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _sum_with_product,
    aten.baddbmm.default: _sum_with_product,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution,
    aten.index_put.default: _index_put,
    aten._index_put_impl.default: _index_put,
}
