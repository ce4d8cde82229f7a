"""The ladder of launch paths: four ways to the queues, one switch from each rung to the next.

What a rung does to a model is no more than how its operations get to the card's queues: what is
computed, and every byte of it, is the same on all of them. ::

    with on(RUNGS[0]) as counts:
        tokens = step(decoder, tokens, cache, 0.0)
    print(counts)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from benchmarks.graph_launcher import Counts, HostCosts, graph_mediated
from torch_spyre_ref import backend, submission
from torch_spyre_ref.emulator import Record
from torch_spyre_ref.streams import TwoQueues
from torch_spyre_ref.submission import OneQueue


class Rung(NamedTuple):
    """One way: what goes by way of graphs, and whether launches are prepared on a queue of their
    own."""

    name: str
    copies_by_graph: bool = False
    launches_by_graph: bool = False
    own_queue: bool = False


RUNGS = (
    Rung("graphs for transfers and compute", copies_by_graph=True, launches_by_graph=True),
    Rung("no graph for transfers", launches_by_graph=True),
    Rung("no graph for compute either"),
    Rung("preparation on its own stream", own_queue=True),
)

COSTS = HostCosts(file=10_000, item=500)
"""Assumed: what graphs take of the host in virtual time. With these a launch by way of a graph
costs the host some twelve times what a prepared one does; by the wall clock it is no less."""


@contextmanager
def on(rung: Rung, costs: HostCosts = COSTS) -> Iterator[Counts]:
    """Have the block's operations take the way of one rung; what its graphs took is counted."""
    with submission.use(TwoQueues() if rung.own_queue else OneQueue()):
        if not (rung.copies_by_graph or rung.launches_by_graph):
            yield Counts()
            return
        with graph_mediated(
            launches=rung.launches_by_graph, copies=rung.copies_by_graph, costs=costs
        ) as launcher:
            yield launcher.counts


class Run(NamedTuple):
    """What a card did in a block, in virtual ns from the block's beginning on."""

    records: list[Record]
    makespan: int

    @property
    def launches(self) -> int:
        """Programs that were run."""
        return sum(record.kind == "Execute" for record in self.records)

    def busy(self, pipeline: str) -> int:
        """How long one of the card's pipelines was at work."""
        return sum(r.end - r.start for r in self.records if r.pipeline == pipeline)

    @property
    def idle(self) -> float:
        """The share of the time in which nothing was computed."""
        return 1 - self.busy("compute") / self.makespan

    @property
    def link_bytes(self) -> dict[str, int]:
        """Bytes over the link: patches of launches, tensors to the card, tensors from it."""
        moved = {"patches": 0, "to the card": 0, "from the card": 0}
        for record in self.records:
            if record.kind == "H2D":
                moved["patches" if record.label else "to the card"] += record.nbytes
            elif record.kind == "D2H":
                moved["from the card"] += record.nbytes
        return moved

    @property
    def link_total(self) -> int:
        """Bytes over the link, patches included."""
        return sum(self.link_bytes.values())


def observed(work: Callable[[], object], card: int = 0) -> Run:
    """Do something from an idle card to an idle card, and say what the card did for it.

    It begins with the call: what the host does before it submits for the first time is in it.
    """
    with torch.spyre.profiler() as profiler:
        begun = backend.current().runtime.clock.now
        work()
    records = [record for record in profiler.operations if record.card == card]
    shifted = [
        r._replace(submitted=r.submitted - begun, start=r.start - begun, end=r.end - begun)
        for r in records
    ]
    return Run(shifted, max(record.end for record in shifted))
