"""Any operation of work on streams may fail: no hang, and memory is as it was afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from tests.test_launch import add_program, add_spec, all_done
from torch_spyre_ref import backend
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime.faults import Fault
from torch_spyre_ref.spyrecode import write_artifact

__all__ = ["all_done"]


def work(plan: JobPlan, host: torch.Tensor) -> list[float]:
    """Copies, fills, launches and events on two streams, which derived edges join."""
    first, second = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    ready = torch.Event("spyre:0")
    with first:
        a = torch.empty(4, 6, device="spyre:0").copy_(host, non_blocking=True)
        b = torch.full((4, 6), 2.0, device="spyre:0")
        ready.record()
    with second:
        out = torch.zeros(4, 6, device="spyre:0")
        launch_jobplan(plan, [a, b, out])
        ready.wait()
        a.copy_(out)
    with first:
        launch_jobplan(plan, [out, a, b])
        result: list[float] = b.unique().tolist()
    torch.accelerator.synchronize(0)  # an error of the other stream must be seen, too
    return result


def recover() -> None:
    runtime = backend.current().runtime
    for card in runtime.cards:
        card.settle()
        for queue in card.queues:
            queue.reset()
    gc.collect()


@pytest.mark.parametrize("point", ["before", "after"])
def test_whichever_operation_fails_streams_and_memory_recover(tmp_path: Path, point: str) -> None:
    write_artifact(tmp_path / "add", add_program(), add_spec(), name="addition")
    plan = prepare_kernel(tmp_path / "add", 0)
    host = torch.full((4, 6), 1.0).pin_memory()
    assert work(plan, host) == [6.0]
    gc.collect()
    torch.accelerator.synchronize(0)
    held = torch.accelerator.memory_allocated(0)
    faults = backend.current().runtime.faults
    for nth in range(100):
        fault = Fault(nth, point=point)  # type: ignore[arg-type]
        with faults.planted_in(fault):
            try:
                result = work(plan, host)
            except RuntimeError:
                result = []
            recover()
        if fault.hit is None:
            break
        assert result in ([], [6.0]), fault.hit
        assert torch.accelerator.memory_allocated(0) == held, fault.hit
        assert work(plan, host) == [6.0], f"after {fault.hit}"
        torch.accelerator.synchronize(0)
    assert 10 < nth < 100
