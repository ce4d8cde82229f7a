"""Adding one launch's tensors and numbers to the graph of its program, as nodes and edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.runtime_graph.graph import Graph, GraphError
from torch_spyre_ref.aten.copies import device_range


def stitch(
    graph: Graph, args: Sequence[torch.Tensor], scalars: Sequence[int | float], card: int
) -> None:
    """Join each argument to its placeholder, and each result to the tensor that it goes to."""
    arguments, numbers = graph.find("Argument"), graph.find("Scalar")
    if len(args) != len(arguments) or len(scalars) != len(numbers):
        raise GraphError(
            f"graph {graph.name!r} was given {len(args)} tensors and {len(scalars)} scalars; it "
            f"has places for {len(arguments)} and {len(numbers)}"
        )
    for placeholder, tensor in zip(arguments, args, strict=True):
        name = placeholder.name.partition(":")[2]
        nbytes = device_range(tensor).nbytes if tensor.numel() else 0
        given = graph.add(
            f"tensor:{name}",
            "Tensor",
            card=tensor.device.index,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            strides=tensor.stride(),
            bytes=nbytes,
        )
        graph.join(given, placeholder.name, "binding", nbytes)
        if placeholder.attributes["role"] != "input":
            result = f"result:{name}"
            if result not in graph.nodes:
                raise GraphError(f"graph {graph.name!r} has no {result!r}, but argument {name!r}")
            stored = graph.add(f"stored:{name}", "Stored", card=card, bytes=nbytes)
            graph.join(result, stored, "content", nbytes)
    for scalar, value in zip(numbers, scalars, strict=True):
        number = graph.add(f"number:{scalar.name.partition(':')[2]}", "Number", value=value)
        graph.join(number, scalar.name, "binding", 8)
