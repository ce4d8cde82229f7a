"""A compiled function works on the streams that it names, as the function itself does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.inductor.cases import real
from torch_spyre_ref import backend

Work = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def with_events(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    there = torch.Stream(device=x.device)
    ready, done = torch.Event(device=x.device), torch.Event(device=x.device)
    doubled = x * 2
    ready.record()
    with there:
        there.wait_event(ready)
        rows = (y + 1).softmax(-1)
    there.record_event(done)
    torch.accelerator.current_stream().wait_event(done)
    return doubled + rows


def with_waits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    here, there = torch.accelerator.current_stream(), torch.Stream(device=x.device)
    doubled = x * 2
    there.wait_stream(here)
    with there:
        rows = (doubled + y).softmax(-1)
    here.wait_stream(there)
    return rows * x


def queues(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, list[object]]:
    """What ``work`` gives, and the queues in which it runs programs, in order of first use."""
    torch.accelerator.synchronize()
    timeline = backend.current().runtime.timeline
    timeline.clear()
    result = work()
    torch.accelerator.synchronize()
    return result, list(dict.fromkeys(row.queue for row in timeline if row.kind == "Execute"))


@pytest.mark.parametrize("card", [0, 1])
@pytest.mark.parametrize("work", [with_events, with_waits])
def test_streams_and_events_are_those_of_the_function(work: Work, card: int) -> None:
    x, y = (real(8, 33).to(f"spyre:{card}") for _ in range(2))
    compiled = torch.compile(work, fullgraph=True)
    with torch.accelerator.device_index(card):
        compiled(x, y)
        expected, theirs = queues(lambda: work(x, y))
        for _ in range(2):
            found, mine = queues(lambda: compiled(x, y))
            assert len(mine) == len(theirs) == 2
            torch.testing.assert_close(found.cpu(), expected.cpu())


@pytest.mark.usefixtures("no_derivation")
def test_a_stream_that_waits_for_another_is_ordered_by_that_alone() -> None:
    x, y = (real(8, 33).to("spyre") for _ in range(2))
    there = torch.Stream(device="spyre")

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = x @ y.t() @ y
        there.wait_stream(torch.accelerator.current_stream())
        with there:
            rows = (doubled + y).softmax(-1)
        torch.accelerator.current_stream().wait_stream(there)
        return rows * x, doubled

    compiled = torch.compile(work, fullgraph=True)
    for _ in range(3):
        for found, expected in zip(compiled(x, y), work(x.cpu(), y.cpu()), strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
