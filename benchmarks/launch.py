"""What a launch costs the host: through a runtime graph, prepared, and beside many programs."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.graph_launcher import graph_mediated
from benchmarks.measure import Figure, in_turns, interleaved, ratio
from benchmarks.programs import ADD, ADD_OF_ANY_SIZE, add, add_of_any_size, prepared, run
from torch_spyre_ref import backend
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import SLOTS, JobPlan, launch_jobplan
from torch_spyre_ref.runtime import Compute
from torch_spyre_ref.spyrecode.writer import assembled

MICRO = 1e6
LAUNCHES = 200
PROGRAMS = 10_000
# In virtual time: longer than the host needs for all launches, so that none of them is due.
BUSY = 1 << 30


def figures() -> list[Figure]:
    """A launch of ``c = a + b``, three tensors of 64 elements."""
    fixed, flat = prepared(add(), ADD), _tensors(0)
    any_size = prepared(add_of_any_size(), ADD_OF_ANY_SIZE)
    square = [tensor.view(8, 8) for tensor in _tensors(0)]
    for plan, args in ((fixed, flat), (any_size, square)):
        run(plan, args)
        assert args[2].cpu().unique().tolist() == [3.0]
    return [
        _against_graphs("a program of one size", fixed, flat),
        _against_graphs("sizes as symbols", any_size, square),
        _to_completion(fixed, flat),
        _beside_many(),
    ]


def _tensors(card: int) -> list[torch.Tensor]:
    return [torch.full((64,), value).to(f"spyre:{card}") for value in (1.0, 2.0, 0.0)]


def _enqueue(plan: JobPlan, args: list[torch.Tensor]) -> float:
    """Host seconds a launch, up to its last operation enqueued: the card is busy meanwhile."""
    queue = plan.job.backend.queue(plan.device)
    queue.submit(Compute(BUSY, lambda memory: None))
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        launch_jobplan(plan, args)
    seconds = (time.perf_counter() - start) / LAUNCHES
    queue.synchronize()
    return seconds


def _against_graphs(which: str, plan: JobPlan, args: list[torch.Tensor]) -> Figure:
    def by_graph() -> float:
        with graph_mediated():
            launch_jobplan(plan, args)  # the program's graph is written once, not at each launch
            return _enqueue(plan, args)

    slow, fast = in_turns(by_graph, lambda: _enqueue(plan, args))
    what = f"host time per launch of {which}, graph-mediated / prepared"
    return Figure(what, slow * MICRO, fast * MICRO, "µs", slow / fast, 10, at_least=True)


def _to_completion(plan: JobPlan, args: list[torch.Tensor]) -> Figure:
    launch, empty = interleaved(
        lambda: run(plan, args), lambda: torch.empty(64, device="spyre:0"), calls=500
    )
    what = "prepared launch of 3 tensors, to completion / torch.empty(64) + free on the card"
    return ratio(what, launch * MICRO, empty * MICRO, "µs", 8)


def _beside_many() -> Figure:
    """Card 1 has one program; on card 0, which has the others, it is the one in the middle."""

    def launches(plan: JobPlan) -> Callable[[], object]:
        args = _tensors(plan.device)
        return lambda: run(plan, args)

    alone, plans = prepared(add("alone"), ADD, 1), _many()
    crowd, single = interleaved(launches(plans[PROGRAMS // 2]), launches(alone), calls=500)
    what = f"launch to completion beside {PROGRAMS:,} prepared programs / alone"
    return ratio(what, crowd * MICRO, single * MICRO, "µs", 1.3)


def _many() -> list[JobPlan]:
    """Programs without a detour by the disk, which would take most of the time."""
    programs, plans = backend.current().programs(0), []
    for index in range(PROGRAMS):
        name = f"add {index}"
        artifact = assembled(encode(add(name).assemble()), ADD, name=name, memory=0)
        plans.append(JobPlan(programs.job(artifact, SLOTS)))
    return plans
