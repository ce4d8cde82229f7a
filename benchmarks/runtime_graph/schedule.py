"""Parsing a stitched graph: its order, its sizes, and how long each host buffer is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from benchmarks.runtime_graph.graph import Graph, GraphError, Node


def scheduled(graph: Graph, card: int) -> list[Node]:
    """The steps in the order in which they are to be enqueued on ``card``.

    Raises ``GraphError`` for a cycle, for tensors that do not fit, and for host buffers that are
    never used or overwritten while they are needed.
    """
    order = _sorted(graph)
    _check_arguments(graph, _sizes(graph), card)
    _check_transfers(graph)
    _check_buffers(graph, {node.name: at for at, node in enumerate(order)})
    return [node for node in order if "step" in node.attributes]


def _sorted(graph: Graph) -> list[Node]:
    """Every node behind all that it depends on."""
    waiting = dict.fromkeys(graph.nodes, 0)
    followers: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in graph.edges:
        waiting[edge.target] += 1
        followers[edge.source].append(edge.target)
    ready = [name for name, count in waiting.items() if not count]
    for name in ready:
        for follower in followers[name]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    if len(ready) < len(waiting):
        stuck = next(name for name, count in waiting.items() if count)
        raise GraphError(f"graph {graph.name!r} has a cycle through {stuck!r}")
    return [graph.nodes[name] for name in ready]


def _tensors(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """What was stitched to each argument, by the argument's name."""
    given: dict[str, Mapping[str, Any]] = {}
    for edge in graph.edges:
        if edge.kind == "binding" and graph.nodes[edge.target].op == "Argument":
            given[edge.target] = graph.nodes[edge.source].attributes
    return given


def _sizes(graph: Graph) -> dict[str, int]:
    """Each size, from the first extent that tells it; the least that it can be when none does."""
    tensors, sizes = _tensors(graph), {}
    for node in graph.find("Size"):
        low, high = node.attributes["low"], node.attributes["high"]
        size = low
        for argument, what, axis in node.attributes["read"]:
            shape = tensors[argument]["shape"]
            if what == "shape" or (shape[axis] > 1 and 0 not in shape):
                size = tensors[argument][what][axis]
                break
        if not low <= size <= high:
            raise GraphError(f"{node.name} is {size}; it may be {low} to {high}")
        sizes[node.name.partition(":")[2]] = size
    return sizes


def _check_arguments(graph: Graph, sizes: Mapping[str, int], card: int) -> None:
    tensors = _tensors(graph)
    for node in graph.find("Argument"):
        wanted, tensor = node.attributes, tensors[node.name]
        shape, strides = (_values(wanted[key], sizes) for key in ("shape", "strides"))
        got = tensor["shape"]
        stepped = [n > 1 and 0 not in got for n in got]
        fits = (
            tensor["dtype"] == wanted["dtype"]
            and tensor["card"] == card
            and tuple(got) == shape
            and not any(
                step and have != want
                for step, have, want in zip(stepped, tensor["strides"], strides, strict=True)
            )
        )
        if not fits:
            given = ", ".join(f"{key} {value}" for key, value in tensor.items())
            raise GraphError(
                f"{node.name} is {wanted['dtype']} of shape {shape} and strides {strides} on card "
                f"{card}; it was given {given}"
            )


def _values(extents: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Extents as numbers: a symbol, or a product such as ``64*n*m``, by the sizes."""
    return tuple(
        extent
        if isinstance(extent, int)
        else prod(int(part) if part.isdecimal() else sizes[part] for part in extent.split("*"))
        for extent in extents
    )


def _check_transfers(graph: Graph) -> None:
    """What arrives at a node is as long as the node is."""
    for edge in graph.edges:
        target = graph.nodes[edge.target]
        if edge.kind in ("buffer", "content") and "bytes" in target.attributes:
            size = target.attributes["bytes"]
            if target.op != "ComputeOnDevice" and size != edge.nbytes:
                raise GraphError(
                    f"{edge.target} takes {size} bytes; {edge.source} gives it {edge.nbytes}"
                )


def _check_buffers(graph: Graph, position: Mapping[str, int]) -> None:
    """A host buffer is filled, read, and only then filled again."""
    last_read: dict[str, int] = {}
    for edge in graph.edges:
        last_read[edge.source] = max(position[edge.target], last_read.get(edge.source, 0))
    spans: dict[int, int] = {}
    for node in sorted(graph.find("ComputeOnHost"), key=lambda node: position[node.name]):
        handle, start = node.attributes["handle"], position[node.name]
        if node.name not in last_read:
            raise GraphError(f"{node.name} fills a host buffer that nobody reads")
        if spans.get(handle, -1) > start:
            raise GraphError(f"{node.name} fills host buffer {handle} while it is needed")
        spans[handle] = last_read[node.name]
