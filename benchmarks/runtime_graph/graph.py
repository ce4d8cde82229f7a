"""Nodes and edges, and how they lie in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

VERSION: Final = 1

ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    # What a launch is made of
    "ComputeOnHost": ("step", "handle", "bytes"),
    "DataTransfer": ("step", "direction", "handle", "bytes"),
    "ComputeOnDevice": ("step", "bytes"),
    "Convert": ("bytes",),
    # What a launch is to be given
    "Argument": ("role", "dtype", "shape", "strides"),
    "Size": ("low", "high", "read"),
    "Scalar": ("type",),
    "Result": (),
    # What it is given: stitched in
    "Tensor": ("card", "dtype", "shape", "strides", "bytes"),
    "Number": ("value",),
    "Stored": ("card", "bytes"),
}
"""Each kind of node, and what it says."""


class GraphError(RuntimeError):
    """A runtime graph is damaged, or does not fit what it is launched with."""


class Node(NamedTuple):
    """One thing to be done or given; ``attributes`` are those that ``ATTRIBUTES`` lists for it."""

    name: str
    op: str
    attributes: Mapping[str, Any]


class Edge(NamedTuple):
    """``nbytes`` bytes of what ``kind`` says go from one node to another."""

    source: str
    target: str
    kind: str
    nbytes: int


@dataclass(slots=True)
class Graph:
    """One program's launch, or one transfer. ``program`` is the SHA-256 of the binary it runs."""

    name: str
    program: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def add(self, name: str, op: str, **attributes: Any) -> str:
        """One more node; its name."""
        self.nodes[name] = Node(name, op, attributes)
        return name

    def join(self, source: str, target: str, kind: str, nbytes: int = 0) -> None:
        """One more edge."""
        self.edges.append(Edge(source, target, kind, nbytes))

    def find(self, op: str) -> list[Node]:
        """The nodes of one kind, in order."""
        return [node for node in self.nodes.values() if node.op == op]


def serialised(graph: Graph) -> bytes:
    """The graph as a file's content; the same graph gives the same bytes."""
    document = {
        "format": "runtime graph",
        "version": VERSION,
        "name": graph.name,
        "program": graph.program,
        "nodes": list(graph.nodes.values()),
        "edges": graph.edges,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def deserialised(content: bytes, file: str) -> Graph:
    """The graph in a file's content. Raises ``GraphError``, which names ``file``."""
    try:
        document = json.loads(content)
        kind = document["format"], document["version"]
        graph = Graph(document["name"], document["program"])
        for name, op, attributes in document["nodes"]:
            graph.add(name, op, **attributes)
        graph.edges += [Edge(*edge) for edge in document["edges"]]
    except (ValueError, KeyError, TypeError) as error:
        raise GraphError(f"{file} is no runtime graph: {error!r}") from None
    if kind != ("runtime graph", VERSION):
        raise GraphError(f"{file} is a {kind[0]} of version {kind[1]}, not {VERSION}")
    _check(graph, file)
    return graph


def _check(graph: Graph, file: str) -> None:
    for name, op, attributes in graph.nodes.values():
        if tuple(attributes) != ATTRIBUTES.get(op):
            raise GraphError(f"{file}: node {name!r}, {op}, says {', '.join(attributes)}")
    for source, target, kind, _ in graph.edges:
        if source not in graph.nodes or target not in graph.nodes:
            raise GraphError(f"{file}: an edge, {kind}, goes from {source!r} to {target!r}")
    steps = [node.attributes["step"] for node in graph.nodes.values() if "step" in node.attributes]
    if steps != list(range(len(steps))):
        raise GraphError(f"{file}: the steps are numbered {steps}")
