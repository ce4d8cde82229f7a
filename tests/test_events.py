"""Events, through PyTorch's own class: what they mean, in the cases that CUDA's documents name."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.streaming import busy, settle
from torch_spyre_ref import backend
from torch_spyre_ref.streams import EventDriver

pytestmark = pytest.mark.usefixtures("no_derivation")


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    yield
    settle()


def copy_to_card(elements: int, device: str = "spyre:0") -> torch.Tensor:
    host = torch.ones(elements).pin_memory()
    return torch.empty(elements, device=device).copy_(host, non_blocking=True)


def test_the_default_stream_of_a_card() -> None:
    for index in (0, 1):
        stream = torch.accelerator.current_stream(index)
        assert stream.device == torch.device("spyre", index)
        assert stream == torch.accelerator.current_stream(f"spyre:{index}")
    assert torch.accelerator.current_stream(0) != torch.accelerator.current_stream(1)
    torch.accelerator.set_stream(torch.accelerator.current_stream(0))


def test_a_stream_is_busy_until_its_work_is_done() -> None:
    stream = torch.accelerator.current_stream(0)
    kept = copy_to_card(1 << 18)
    assert not stream.query()
    stream.synchronize()
    assert stream.query()
    del kept


def test_elapsed_time_is_virtual_and_the_same_every_time() -> None:
    def measure(elements: int) -> float:
        torch.accelerator.synchronize()
        start, end = (torch.Event("spyre", enable_timing=True) for _ in range(2))
        start.record()
        kept = copy_to_card(elements)
        end.record()
        end.synchronize()
        assert start.query() and end.query()
        del kept
        return start.elapsed_time(end)

    measured = {elements: measure(elements) for elements in (1 << 10, 1 << 18)}
    assert measured == {elements: measure(elements) for elements in measured}
    spec = backend.current().runtime.spec
    expected = ((1 << 18) * 4 - (1 << 10) * 4) / spec.link_rate / 1e6  # milliseconds
    assert measured[1 << 18] - measured[1 << 10] == pytest.approx(expected)


def test_events_without_timing_or_not_yet_fired_have_no_elapsed_time() -> None:
    plain, timed = torch.Event("spyre"), torch.Event("spyre", enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(timed)
    plain.record()
    kept = copy_to_card(1 << 18)
    timed.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(timed)
    with pytest.raises(RuntimeError, match="completed"):
        timed.elapsed_time(timed)
    timed.synchronize()
    assert timed.elapsed_time(timed) == 0.0
    del kept


def test_an_event_recorded_again_means_the_later_moment() -> None:
    event = torch.Event("spyre")
    assert event.query()  # never recorded: nothing to wait for
    event.synchronize()
    event.record()
    event.synchronize()
    kept = copy_to_card(1 << 18)
    event.record(torch.accelerator.current_stream(0))
    assert not event.query()
    event.synchronize()
    assert event.query()
    del kept


def test_one_cards_stream_waits_for_an_event_of_the_other() -> None:
    kept = copy_to_card(1 << 18, "spyre:1")
    event = torch.accelerator.current_stream(1).record_event()
    here = torch.accelerator.current_stream(0)
    here.wait_event(event)
    assert not here.query()
    here.synchronize()
    assert event.query()
    del kept


def test_a_stream_waits_for_another_stream() -> None:
    kept = copy_to_card(1 << 18, "spyre:1")
    torch.accelerator.current_stream(0).wait_stream(torch.accelerator.current_stream(1))
    torch.accelerator.current_stream(0).synchronize()
    assert torch.accelerator.current_stream(1).query()
    del kept


def test_events_are_forgotten_with_their_last_reference() -> None:
    gc.collect()
    before = len(known_events())
    for _ in range(100):
        torch.accelerator.current_stream(0).record_event()
    torch.accelerator.synchronize()
    kept = [torch.Event("spyre:1") for _ in range(3)]
    for event in kept:
        event.record(torch.accelerator.current_stream(1))
    assert len(known_events()) == before + 3
    del kept, event
    assert len(known_events()) == before


def known_events() -> dict[int, object]:
    (driver,) = [thing for thing in gc.get_objects() if type(thing) is EventDriver]
    return driver._signals  # type: ignore[return-value]


def test_an_event_belongs_to_one_card() -> None:
    event = torch.Event("spyre:0")
    event.record(torch.accelerator.current_stream(0))
    with pytest.raises(RuntimeError, match="make an event for each card"):
        event.record(torch.accelerator.current_stream(1))


def test_who_waits_waits_for_the_recording_that_was_the_latest_then() -> None:
    """CUDA: a later record moves the event, and nobody who waits already."""
    first, second, early, late = (torch.Stream("spyre") for _ in range(4))
    event = torch.Event("spyre")
    busy(first)
    event.record(first)
    early.wait_event(event)
    busy(second, 1_000_000)
    event.record(second)
    late.wait_event(event)
    early.synchronize()
    assert first.query() and not event.query() and not late.query()
    late.synchronize()
    assert event.query() and second.query()


def test_an_event_recorded_twice_on_one_stream_is_done_at_the_second() -> None:
    stream, event, between = torch.Stream("spyre"), torch.Event("spyre"), torch.Event("spyre")
    busy(stream)
    event.record(stream)
    between.record(stream)
    busy(stream)
    event.record(stream)
    between.synchronize()
    assert not event.query()
    event.synchronize()
    assert stream.query()


def test_an_event_that_was_never_recorded_holds_nobody() -> None:
    stream, event = torch.Stream("spyre"), torch.Event("spyre")
    busy(torch.spyre.default_stream())
    assert event.query() is True
    event.synchronize()
    event.wait(stream)
    stream.wait_event(event)
    assert stream.query() and not torch.spyre.default_stream().query()


def test_an_event_counts_the_operation_that_is_running() -> None:
    stream, event = torch.Stream("spyre"), torch.Event("spyre")
    busy(stream, 2_000)
    event.record(stream)
    answers = [event.query()]
    while not answers[-1]:
        answers.append(event.query())
    assert 2 < len(answers) < 30


def test_an_event_without_a_stream_is_recorded_on_the_current_one() -> None:
    stream, event = torch.Stream("spyre"), torch.Event("spyre")
    with stream:
        busy(stream)
        event.record()
        event.wait()
    assert torch.spyre.current_stream().query() and not event.query()
    assert stream.record_event(event) is event
    event.synchronize()


def test_streams_of_both_cards_wait_for_one_event() -> None:
    here, there, event = torch.Stream("spyre:0"), torch.Stream("spyre:1"), torch.Event("spyre:0")
    busy(here)
    event.record(here)
    there.wait_event(event)
    assert not there.query()
    there.synchronize()
    assert event.query()


def test_an_event_is_recorded_waited_for_and_asked_on_any_thread() -> None:
    stream, event, waiting = torch.Stream("spyre"), torch.Event("spyre"), torch.Stream("spyre")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(busy, stream).result(60)
        thread.submit(event.record, stream).result(60)
        waiting.wait_event(event)
        assert not event.query()
        thread.submit(waiting.synchronize).result(60)
        assert event.query() and thread.submit(event.query).result(60)


def test_a_wait_outlives_its_event() -> None:
    stream, waiting = torch.Stream("spyre"), torch.Stream("spyre")
    busy(stream)
    waiting.wait_event(stream.record_event())
    assert not waiting.query()
    waiting.synchronize()
    assert stream.query()


def test_elapsed_time_spans_streams_and_counts_what_lies_between() -> None:
    first, second = torch.Stream("spyre"), torch.Stream("spyre")
    start, end = (torch.Event("spyre", enable_timing=True) for _ in range(2))
    busy(first, 10_000)
    start.record(first)
    second.wait_event(start)
    busy(second, 3_000_000)
    end.record(second)
    end.synchronize()
    assert start.elapsed_time(end) == 3.0
    assert end.elapsed_time(start) == -3.0


def test_events_cannot_leave_the_process() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.Event("spyre").ipc_handle()
