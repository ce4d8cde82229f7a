"""The card's operations in ``torch.profiler``: events, averages, traces, the ops behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from tests.conftest import Run
from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.runtime import Compute, EventSignal, HostCallback, Queue, Runtime

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
CARD = torch.autograd.DeviceType.PrivateUse1
QUIET = "99"
"""For ``KINETO_LOG_LEVEL``: Kineto says on stderr when it starts and stops."""


@pytest.fixture
def runtime() -> Runtime:
    return backend.current().runtime


@pytest.fixture
def queue(runtime: Runtime) -> Iterator[Queue]:
    """A queue of card 1 that no other test uses."""
    made = runtime.cards[1].new_queue()
    yield made
    made.close()
    runtime.cards[1].queues.remove(made)


def on_card(prof: profile) -> list[FunctionEvent]:
    """The events of the cards, in the order in which they began."""
    found = [event for event in prof.events() if event.device_type == CARD]
    return sorted(found, key=lambda event: event.time_range.start)


def op_behind(prof: profile, event: FunctionEvent) -> str | None:
    """The name of the op that an event of a card is linked with."""
    names = {e.id: e.name for e in prof.events() if e.device_type != CARD}
    return names.get(event.linked_correlation_id)


def spans(prof: profile, path: Path) -> list[dict[str, Any]]:
    """The complete events of an exported trace that are not the host's."""
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [e for e in events if e["ph"] == "X" and "pipeline" in e.get("args", {})]


def test_operations_are_events_of_the_card() -> None:
    with profile(activities=BOTH) as prof:
        x = torch.ones(8).to("spyre:1")
        x.cpu()
    events = on_card(prof)
    assert [(e.name, e.device_index) for e in events] == [
        ("Fill poison", 1),
        ("H2D", 1),
        ("D2H", 1),
    ]
    assert [e.activity_type for e in events] == ["gpu_memset", "gpu_memcpy", "gpu_memcpy"]


def test_an_operation_is_linked_with_the_op_that_enqueued_it() -> None:
    x = torch.ones(8).to("spyre")
    with profile(activities=BOTH) as prof:
        x.fill_(3)
        x.cpu()
    assert [(e.name, op_behind(prof, e)) for e in on_card(prof)] == [
        ("Fill", "aten::fill_"),
        ("D2H", "aten::_copy_from"),
    ]
    fill = next(e for e in prof.events() if e.name == "aten::fill_")
    assert [kernel.name for kernel in fill.kernels] == ["Fill"]


def test_an_operation_outside_any_op_is_linked_with_the_users_own_range(queue: Queue) -> None:
    with profile(activities=BOTH) as prof:
        with record_function("decode"):
            queue.submit(Compute(100, lambda memory: None), label="step")
        queue.submit(HostCallback(lambda: None))
    step, callback = on_card(prof)
    assert op_behind(prof, step) == "decode"
    assert op_behind(prof, callback) is None


def test_backward_is_linked_from_the_threads_of_autograd() -> None:
    w = torch.ones(4, device="spyre", requires_grad=True)
    loss = (w * 2).sum()
    with profile(activities=BOTH) as prof:
        loss.backward()
    behind = {op_behind(prof, event) for event in on_card(prof)}
    assert "aten::fill_" in behind
    assert any("CompiledFxGraph" in op for op in behind if op), "the gradient of the product"
    assert None not in behind


def test_averages_have_the_time_of_the_card() -> None:
    x = torch.ones(8).to("spyre")
    with profile(activities=BOTH) as prof:
        for _ in range(3):
            x.cpu()
    averages = {average.key: average for average in prof.key_averages()}
    assert averages["D2H"].count == 3
    took = averages["D2H"].self_device_time_total
    assert took > 0
    assert averages["aten::_copy_from"].self_device_time_total == pytest.approx(took)
    assert averages["aten::to"].device_time_total == pytest.approx(took)
    assert "Self SPYRE" in prof.key_averages().table()


def test_times_are_virtual_and_begin_with_the_session(queue: Queue, runtime: Runtime) -> None:
    queue.submit(Compute(5_000_000, lambda memory: None))
    with torch.spyre.profiler() as ours, profile(activities=BOTH) as prof:
        for _ in range(2):
            queue.submit(Compute(3_000_000, lambda memory: None))
    first, second = on_card(prof)
    for event, record in zip((first, second), ours.operations, strict=True):
        assert event.time_range.elapsed_us() == pytest.approx(3_000)
        assert record.end - record.start == 3_000_000
    between = second.time_range.start - first.time_range.start
    assert between == pytest.approx(
        (ours.operations[1].start - ours.operations[0].start) / 1e3, abs=0.01
    )
    assert 0 <= first.time_range.start < 1e6, "microseconds of the host since the session began"


def test_an_exported_trace_has_a_row_for_each_queue_in_a_process_of_each_card(
    tmp_path: Path, queue: Queue, runtime: Runtime
) -> None:
    with profile(activities=BOTH) as prof:
        queue.submit(Compute(100, lambda memory: None), label="mul")
        runtime.cards[0].default_queue.submit(EventSignal())
    path = tmp_path / "trace.json"
    events = sorted(spans(prof, path), key=lambda e: e["pid"])
    number = int(queue.name.partition(".")[2])
    assert [(e["name"], e["cat"], e["pid"], e["tid"]) for e in events] == [
        ("EventSignal", "cuda_sync", 0, 0),
        ("Compute mul", "kernel", 1, number),
    ]
    assert events[1]["args"]["pipeline"] == "compute"
    names = {
        (e["name"], e["pid"], e["tid"] if e["name"] == "thread_name" else 0): e["args"]
        for e in json.loads(path.read_text())["traceEvents"]
        if e["ph"] == "M"
    }
    for card in (0, 1):
        assert names["process_labels", card, 0] == {"labels": f"spyre:{card}, virtual time"}
    assert names["thread_name", 1, number] == {"name": f"queue {queue.name}"}


def test_any_label_makes_a_valid_trace(tmp_path: Path, queue: Queue) -> None:
    labels = [
        'a "quoted" one',
        "back\\slash",
        "<tag> & {brace}",
        "ünïcode",
        "two\nlines",
        "x" * 500,
    ]
    with profile(activities=BOTH) as prof:
        for label in labels:
            queue.submit(HostCallback(lambda: None), label=label)
    assert [e["name"] for e in spans(prof, tmp_path / "trace.json")] == [
        "HostCallback a 'quoted' one",
        "HostCallback back/slash",
        "HostCallback <tag> & {brace}",
        "HostCallback ?n?code",
        "HostCallback two lines",
        f"HostCallback {'x' * 500}",
    ]


def test_only_who_asks_for_the_card_gets_it() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        torch.ones(8).to("spyre")
        assert _bridge.correlation_id() == 0
    assert on_card(prof) == []
    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        torch.ones(8).to("spyre")
    assert {e.name for e in on_card(prof)} == {"Fill poison", "H2D"}
    assert len(on_card(prof)) == len(prof.events())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_a_schedule_records_the_active_steps_only(queue: Queue) -> None:
    seen: list[list[str]] = []
    plan = schedule(wait=1, warmup=1, active=2, repeat=2)

    def keep(prof: profile) -> None:
        seen.append([event.name for event in on_card(prof)])

    with profile(activities=BOTH, schedule=plan, on_trace_ready=keep) as prof:
        for number in range(8):
            queue.submit(Compute(100, lambda memory: None), label=str(number))
            prof.step()
    assert seen == [["Compute 2", "Compute 3"], ["Compute 6", "Compute 7"]]


def test_an_error_in_the_block_loses_nothing(queue: Queue) -> None:
    with pytest.raises(ZeroDivisionError), profile(activities=BOTH) as prof:
        queue.submit(Compute(100, lambda memory: None))
        1 / 0  # noqa: B018
    assert [e.name for e in on_card(prof)] == ["Compute"]


def test_what_failed_is_in_the_trace(tmp_path: Path, queue: Queue) -> None:
    def fail(memory: object) -> None:
        raise RuntimeError("a fuse blew")

    with profile(activities=BOTH) as prof:
        queue.submit(Compute(100, fail))
    (event,) = spans(prof, tmp_path / "trace.json")
    assert event["args"]["failed"] == 1
    with pytest.raises(RuntimeError, match="a fuse blew"):
        queue.synchronize()


def test_after_an_error_of_the_current_card_the_session_can_be_stopped(runtime: Runtime) -> None:
    def fail(memory: object) -> None:
        raise RuntimeError("a fuse blew")

    with pytest.raises(RuntimeError, match="a fuse blew"), profile(activities=BOTH) as prof:
        runtime.cards[0].default_queue.submit(Compute(100, fail))
    prof.stop()
    torch.spyre.reset(0)
    assert [e.name for e in on_card(prof)] == ["Compute"]
    with profile(activities=BOTH) as prof:
        torch.ones(8).to("spyre")
    assert [e.name for e in on_card(prof)] == ["Fill poison", "H2D"]


def test_when_no_session_records_nothing_is_in_the_way(runtime: Runtime) -> None:
    append, ticket = runtime.timeline.append, runtime.clock.ticket
    with profile(activities=BOTH):
        assert runtime.timeline.append != append
        assert runtime.clock.ticket != ticket
    assert runtime.timeline.append == append
    assert runtime.clock.ticket == ticket
    assert _bridge.correlation_id() == 0


def test_a_session_inside_an_op_of_an_earlier_one_is_not_confused() -> None:
    x = torch.ones(8).to("spyre")
    outer = record_function("never left")
    with profile(activities=BOTH):
        outer.__enter__()
    with profile(activities=BOTH) as prof:
        x.fill_(1)
    outer.__exit__(None, None, None)
    assert [op_behind(prof, e) for e in on_card(prof)] == ["aten::fill_"]


def test_no_card_is_started_and_one_that_starts_is_recorded(run_python: Run) -> None:
    out = run_python(
        """
        import torch
        from torch.profiler import ProfilerActivity, profile
        both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        with profile(activities=both) as prof:
            torch.ones(4) + 1
        print(torch.spyre.is_initialized(), {e.device_type.name for e in prof.events()})
        with profile(activities=both) as prof:
            torch.ones(4).to("spyre")
        print([e.name for e in prof.events() if e.device_type.name != "CPU"])
        """,
        KINETO_LOG_LEVEL=QUIET,
    )
    assert out.splitlines() == ["False {'CPU'}", "['Fill poison', 'H2D']"]


def test_a_backend_that_registers_after_the_first_session_is_seen(run_python: Run) -> None:
    out = run_python(
        """
        import torch
        from torch.profiler import ProfilerActivity, profile
        with profile():
            torch.ones(4) + 1
        import torch_spyre_ref
        torch_spyre_ref.register()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            torch.ones(4).to("spyre")
        print([e.name for e in prof.events() if e.device_type.name != "CPU"])
        """,
        KINETO_LOG_LEVEL=QUIET,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.splitlines() == ["['Fill poison', 'H2D']"]
