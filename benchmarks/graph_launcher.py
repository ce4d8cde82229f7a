"""A graph-mediated launcher: how launches and copies went before programs were prepared.

The runtime takes a graph, and a launch is whatever the graph says. So each launch reads its
program's runtime graph and binary from disk, deserialises the one and parses the other, stitches
the call's arguments in, schedules the result, and enqueues the steps in that order; and each copy
to the card has a small graph made around it. The operations, and all that they do, are those of the
prepared path: what differs is the work to get to them. ::

    with graph_mediated() as launcher:
        launch_jobplan(plan, args)
    print(launcher.counts)
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.runtime_graph import (
    Graph,
    GraphError,
    Node,
    deserialised,
    of_program,
    of_transfer,
    scheduled,
    serialised,
    stitch,
)
from torch_spyre_ref import backend, submission
from torch_spyre_ref.emulator.program import parse, slot_bytes
from torch_spyre_ref.runtime import D2H, H2D, HostCallback, Operation, Prepared, Queue
from torch_spyre_ref.spyrecode import Artifact
from torch_spyre_ref.submission import BoundLaunch, Submission

GRAPH = "runtime_graph.json"
BINARY = "program.bin"


class HostCosts(NamedTuple):
    """What graphs cost the host: virtual ns for a file that is read, and for a node or an edge."""

    file: int = 0
    item: int = 0


FREE = HostCosts()
_KINDS = {"ComputeOnHost": "HostCallback", "ComputeOnDevice": "Execute"}


@dataclass
class Counts:
    """The work of a graph-mediated launcher. ``nodes`` and ``edges`` are those that it built."""

    launches: int = 0
    copies: int = 0
    graphs_read: int = 0
    bytes_read: int = 0
    nodes: int = 0
    edges: int = 0


class GraphStore:
    """The programs' graphs and binaries on disk, one folder a program."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._written: set[str] = set()

    def folder(self, artifact: Artifact) -> Path:
        """Where an artifact's graph lies; written when it is asked for the first time."""
        folder = self._root / artifact.digest
        with self._lock:
            if artifact.digest not in self._written:
                folder.mkdir()
                (folder / BINARY).write_bytes(artifact.program)
                (folder / GRAPH).write_bytes(serialised(of_program(artifact)))
                self._written.add(artifact.digest)
        return folder


class GraphLauncher:
    """A submission that goes through a graph first, and then to the one ``below`` it."""

    def __init__(
        self,
        below: Submission,
        store: GraphStore,
        launches: bool,
        copies: bool,
        costs: HostCosts = FREE,
    ) -> None:
        self.counts, self.store = Counts(), store
        self._below, self._costs = below, costs
        self._launches, self._copies = launches, copies
        self._lock = threading.Lock()

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        """See :class:`Submission`."""
        if self._copies and isinstance(operation, H2D):
            graph = of_transfer(operation, queue.device, label)
            (step,) = scheduled(graph, queue.device)
            _check(step, operation)
            self._count(graph, copies=1)
            self._spend(graph, files=0)
        return self._below.transfer(queue, operation, label)

    def prepares_on(self, queue: Queue) -> Queue:
        """See :class:`Submission`."""
        return self._below.prepares_on(queue)

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        """See :class:`Submission`. Raises ``GraphError`` before anything is enqueued."""
        if self._launches:
            graph, bytes_read = self._read(self.store.folder(bound.job.artifact))
            stitch(graph, bound.args, bound.scalars, queue.device)
            steps = scheduled(graph, queue.device)
            self._count(graph, launches=1, graphs_read=1, bytes_read=bytes_read)
            self._spend(graph, files=2)
            bound = _emitted(steps, bound, queue)
        return self._below.launch(queue, bound)

    def _read(self, folder: Path) -> tuple[Graph, int]:
        """A program's graph, which must fit the binary beside it, and the bytes that were read."""
        file = folder / GRAPH
        try:
            content, binary = file.read_bytes(), (folder / BINARY).read_bytes()
        except OSError as error:
            raise GraphError(
                f"{error.filename}: {error.strerror}; a launch in this block reads its program's "
                "graph from there, so leave the files alone until the block ends"
            ) from None
        graph = deserialised(content, str(file))
        if hashlib.sha256(binary).hexdigest() != graph.program:
            raise GraphError(f"{folder / BINARY} is not the program that {file} is for")
        program = parse(binary)
        slot = slot_bytes(program.addresses, program.symbols)
        if any(edge.kind == "patch" and edge.nbytes != slot for edge in graph.edges):
            raise GraphError(
                f"{file} does not send the {slot} bytes that the program is patched by"
            )
        return graph, len(content) + len(binary)

    def _count(self, graph: Graph, **counts: int) -> None:
        counts |= {"nodes": len(graph.nodes), "edges": len(graph.edges)}
        with self._lock:
            for name, count in counts.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)

    def _spend(self, graph: Graph, files: int) -> None:
        """Let the host be busy with a graph for as long as that costs."""
        time = files * self._costs.file
        time += (len(graph.nodes) + len(graph.edges)) * self._costs.item
        if time:
            clock = backend.current().runtime.clock
            with clock:
                clock.advance(clock.now + time)


@contextmanager
def graph_mediated(
    *, launches: bool = True, copies: bool = True, costs: HostCosts = FREE
) -> Iterator[GraphLauncher]:
    """Have launches, and copies to the card, go through runtime graphs within the block.

    The graphs lie in a directory that goes at the end. Blocks nest as ``submission.use`` does.
    """
    with TemporaryDirectory(prefix="runtime-graphs-") as root:
        below = backend.current().submission
        launcher = GraphLauncher(below, GraphStore(Path(root)), launches, copies, costs)
        with submission.use(launcher):
            yield launcher


def _emitted(steps: Sequence[Node], bound: BoundLaunch, queue: Queue) -> BoundLaunch:
    """The launch with its operations in the order of the schedule, each made from its step."""
    operations = [*bound.preparation, *bound.compute]
    if len(steps) != len(operations):
        raise GraphError(f"{len(steps)} steps in a graph for {len(operations)} operations")
    made = [_made(step, operations[step.attributes["step"]], queue) for step in steps]
    first = len(bound.preparation)
    return bound._replace(preparation=made[:first], compute=made[first:])


def _made(step: Node, prepared: Prepared, queue: Queue) -> Prepared:
    """A step as an operation: a graph has no templates, so it is made anew and lowered anew."""
    operation, work = prepared
    _check(step, operation)
    match operation:
        case HostCallback(_, duration, staging):
            assert work.effect is not None
            return queue.prepare(HostCallback(work.effect, duration, staging))
        case H2D(source, target):
            return queue.prepare(H2D(source, target))
        case D2H(source, target):
            return queue.prepare(D2H(source, target))
    return prepared  # a run of a program is made anew at every launch in any case


def _check(step: Node, operation: Operation) -> None:
    """A step must say what its operation is."""
    said = step.attributes
    kind = said["direction"] if step.op == "DataTransfer" else _KINDS[step.op]
    fits = type(operation).__name__ == kind
    if isinstance(operation, H2D):
        fits = fits and operation.target.nbytes == said["bytes"]
    if not fits:
        raise GraphError(f"{step.name}, {kind} of {said['bytes']} bytes, stands for {operation}")
