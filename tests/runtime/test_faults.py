"""Any operation of a scenario may fail: nothing hangs, and everything recovers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.runtime.test_hazards import Deriving
from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    Compute,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
    QueueError,
)
from torch_spyre_ref.runtime.faults import Fault, InjectedError

OPERATIONS = 14


def scenario(bench: Deriving) -> None:
    """Three queues, explicit events and derived edges between them."""
    first, second, third = bench.queues
    back, ready = bench.pinned(0), EventSignal()
    operations: list[tuple[Any, Any]] = [
        (first, bench.h2d(1)),
        (first, Fill(bench.at(128), b"\2")),
        (first, ready),
        (second, HostCallback(lambda: None)),
        (second, EventWait(ready)),
        (second, D2D(bench.at(0), bench.at(256))),
        (third, D2D(bench.at(128), bench.at(0))),
        (first, Compute(50, lambda memory: None, (bench.at(256),), (bench.at(384),))),
        (second, bench.h2d(3, 384)),
        (third, Fill(bench.at(256), b"\4", free=True)),
        (first, D2H(bench.at(384), back.array)),
        (third, HostCallback(lambda: None, 30)),
        (second, D2D(bench.at(256), bench.at(512))),
        (first, D2H(bench.at(512), back.array)),
    ]
    assert len(operations) == OPERATIONS
    for queue, operation in operations:
        with suppress(QueueError, ValueError):  # its queue, or that of its signal, is poisoned
            queue.submit(operation)


def test_without_a_fault_all_is_done() -> None:
    bench = Deriving()
    scenario(bench)
    bench.runtime.synchronize(0)
    assert bench.hazards.count > 3
    assert len(list(bench.runtime.timeline)) == OPERATIONS
    assert bench.bytes[[0, 128, 256, 384, 512]].tolist() == [2, 2, 4, 3, 4]


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("nth", range(OPERATIONS))
def test_whichever_operation_fails_everything_recovers(nth: int, point: Any) -> None:
    bench = Deriving()
    with bench.runtime.faults.planted_in(Fault(nth, point=point)) as fault:
        scenario(bench)
        bench.card.settle()
    assert fault.hit is not None
    failed = [queue for queue in bench.queues if queue.error is not None]
    assert sum(isinstance(queue.error, InjectedError) for queue in failed) == 1
    for queue in failed:
        with pytest.raises((InjectedError, QueueError)) as caught:
            queue.synchronize()
        root: BaseException | None = caught.value
        while root is not None and not isinstance(root, InjectedError):
            root = root.__cause__
        assert root is not None, "the cause is chained"
        queue.synchronize()
        queue.reset()
    assert not any(queue.is_busy for queue in bench.queues)
    scenario(bench)
    bench.runtime.synchronize(0)
    assert bench.bytes[[0, 128, 256, 384, 512]].tolist() == [2, 2, 4, 3, 4]


def test_a_fault_is_for_a_queue_and_a_kind() -> None:
    bench = Deriving()
    with bench.runtime.faults.planted_in(Fault(1, bench.queues[1], "D2D")) as fault:
        scenario(bench)
        bench.card.settle()
    assert fault.hit == "D2D on queue 0.1"
    assert isinstance(bench.queues[1].error, InjectedError)
