"""The default stream of each card and events on it, through PyTorch's own classes."""

from __future__ import annotations

import pytest
import torch

from torch_spyre_ref import backend


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
    for _ in range(100):
        torch.accelerator.current_stream(0).record_event()
    torch.accelerator.synchronize()
    kept = [torch.Event("spyre:1") for _ in range(3)]
    for event in kept:
        event.record(torch.accelerator.current_stream(1))
    assert len(known_events()) == 3
    del kept, event
    assert len(known_events()) == 0


def known_events() -> dict[int, object]:
    import gc

    from torch_spyre_ref.streams import StreamDriver

    (driver,) = [thing for thing in gc.get_objects() if type(thing) is StreamDriver]
    return driver._events


def test_an_event_belongs_to_one_card() -> None:
    event = torch.Event("spyre:0")
    event.record(torch.accelerator.current_stream(0))
    with pytest.raises(RuntimeError, match="make an event for each card"):
        event.record(torch.accelerator.current_stream(1))


def test_a_second_stream_is_refused_for_now() -> None:
    with pytest.raises(RuntimeError, match="has one stream"):
        torch.Stream("spyre")
