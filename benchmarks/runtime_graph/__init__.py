"""A runtime graph: what a launch was, to a runtime that had to be told everything each time.

Nodes and edges describe one launch of one program: its host work, transfers and compute, and the
arguments, sizes and scalars that they need. The graph of a program is a file; a launch adds its
tensors to it and has it scheduled.
"""

from benchmarks.runtime_graph.graph import (
    Edge,
    Graph,
    GraphError,
    Node,
    deserialised,
    serialised,
)
from benchmarks.runtime_graph.make import of_program, of_transfer
from benchmarks.runtime_graph.schedule import scheduled
from benchmarks.runtime_graph.stitch import stitch

__all__ = [
    "Edge",
    "Graph",
    "GraphError",
    "Node",
    "deserialised",
    "of_program",
    "of_transfer",
    "scheduled",
    "serialised",
    "stitch",
]
