"""The graph of a program, made once from its artifact, and the small one around a transfer."""

from __future__ import annotations

from benchmarks.runtime_graph.graph import Graph
from torch_spyre_ref.emulator.program.slot import ADDRESS_BYTES
from torch_spyre_ref.runtime import H2D
from torch_spyre_ref.spyrecode import (
    Artifact,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    LaunchSpec,
)
from torch_spyre_ref.spyrecode.spec import EXTENTS, NUMBER_BYTES


def of_program(artifact: Artifact) -> Graph:
    """The steps of a launch, and placeholders for what it is given."""
    graph = Graph(artifact.name, artifact.binary.sha256)
    _placeholders(graph, artifact.spec)
    _Steps(graph, artifact).add_all()
    return graph


def of_transfer(operation: H2D, card: int, label: str) -> Graph:
    """Host bytes, their conversion to what the card stores, the transfer, and what is written."""
    graph, size = Graph(label or "transfer"), operation.target.nbytes
    bytes_of = {"dtype": "uint8", "shape": [size], "strides": [1], "bytes": size}
    host = graph.add("host", "Tensor", card=None, **bytes_of)
    convert = graph.add("convert", "Convert", bytes=size)
    send = graph.add("send", "DataTransfer", step=0, direction="H2D", handle=0, bytes=size)
    stored = graph.add("stored", "Stored", card=card, bytes=size)
    graph.join(host, convert, "content", size)
    graph.join(convert, send, "content", size)
    graph.join(send, stored, "content", size)
    return graph


def _placeholders(graph: Graph, spec: LaunchSpec) -> None:
    for a in spec.arguments:
        described = {"dtype": a.dtype, "shape": a.shape, "strides": a.strides}
        graph.add(f"argument:{a.name}", "Argument", role=a.role, **described)
    for dimension in spec.dimensions:
        read = [
            (f"argument:{a.name}", what, axis)
            for what in EXTENTS
            for a in spec.arguments
            for axis, extent in enumerate(getattr(a, what))
            if extent == dimension.name
        ]
        size = graph.add(
            f"size:{dimension.name}", "Size", low=dimension.min, high=dimension.max, read=read
        )
        for argument in dict.fromkeys(argument for argument, _, _ in read):
            graph.join(argument, size, "shape")
    for scalar in spec.scalars:
        graph.add(f"scalar:{scalar.name}", "Scalar", type=scalar.type)


class _Steps:
    """Adds the steps of an artifact's execution plan one by one, joined by what they hand on."""

    def __init__(self, graph: Graph, artifact: Artifact) -> None:
        self._graph, self._artifact, self._spec = graph, artifact, artifact.spec
        self._filled: dict[int, str] = {}  # host buffers, and who filled them last
        self._sent: list[tuple[str, int]] = []
        self._last = ""

    def add_all(self) -> None:
        for number, step in enumerate(self._artifact.execution):
            name, first = f"step:{number}", len(self._graph.edges)
            match step:
                case ComputeOnHost(handle, size):
                    self._graph.add(name, "ComputeOnHost", step=number, handle=handle, bytes=size)
                    self._pack(name)
                    self._filled[handle] = name
                case DataTransfer():
                    self._transfer(name, number, step)
                case ComputeOnDevice():
                    self._compute(name, number)
            joined = {edge.source for edge in self._graph.edges[first:]}
            if self._last and self._last not in joined:
                self._graph.join(self._last, name, "order")
            self._last = name

    def _pack(self, name: str) -> None:
        spec = self._spec
        names = {
            "address": [f"argument:{a.name}" for a in spec.arguments],
            "dimension": [f"size:{d.name}" for d in spec.dimensions],
            "scalar": [f"scalar:{s.name}" for s in spec.scalars],
        }
        for symbol in spec.symbols:
            nbytes = ADDRESS_BYTES if symbol.kind == "address" else NUMBER_BYTES
            self._graph.join(names[symbol.kind][symbol.index], name, symbol.kind, nbytes)

    def _transfer(self, name: str, number: int, step: DataTransfer) -> None:
        self._graph.add(
            name,
            "DataTransfer",
            step=number,
            direction=step.dirn,
            handle=step.host_handle,
            bytes=step.size,
        )
        if step.dirn == "H2D":
            self._graph.join(self._filled[step.host_handle], name, "buffer", step.size)
            self._sent.append((name, step.size))
        else:
            self._filled[step.host_handle] = name

    def _compute(self, name: str, number: int) -> None:
        graph = self._graph
        graph.add(name, "ComputeOnDevice", step=number, bytes=self._artifact.binary.size)
        for source, size in self._sent:
            graph.join(source, name, "patch", size)
        for a in self._spec.arguments:
            if a.role != "output":
                graph.join(f"argument:{a.name}", name, "content")
            if a.role != "input":
                graph.join(name, graph.add(f"result:{a.name}", "Result"), "content")
