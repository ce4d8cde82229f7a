"""Streams and events: every entry point reaches the driver, through torch's own classes."""

from __future__ import annotations

import threading

import pytest
import torch
from fake_driver import FakeDriver

from torch_spyre_ref import _bridge


def test_current_and_default_stream(driver: FakeDriver) -> None:
    stream = torch.accelerator.current_stream(1)
    assert (stream.device, stream.stream_id) == (torch.device("spyre:1"), 0)
    assert _bridge.current_stream(1) == 0


def test_new_streams_carry_priority_and_become_current_for_a_thread(driver: FakeDriver) -> None:
    stream = torch.Stream(device="spyre:1", priority=-1)
    assert ("new_stream", 1, -1) in driver.calls
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_stream(1) == stream
        assert _bridge.current_stream(1) == stream.stream_id
        assert _bridge.current_stream(0) == 0
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(_bridge.current_stream(1)))
        thread.start()
        thread.join()
        assert seen == [0]
        driver.calls.clear()
        torch.empty(4, device="spyre:1")
        assert ("allocate", 16, 1, stream.stream_id) in driver.calls
    finally:
        assert _bridge.exchange_stream(1, 0) == stream.stream_id


def test_stream_context_manager(driver: FakeDriver) -> None:
    stream = torch.Stream(device="spyre:0")
    with stream:
        assert _bridge.current_stream(0) == stream.stream_id
    assert _bridge.current_stream(0) == 0


def test_query_synchronize_and_native_handle(driver: FakeDriver) -> None:
    stream = torch.Stream(device="spyre:1")
    driver.calls.clear()
    assert stream.query()
    stream.synchronize()
    assert driver.calls == [
        ("query_stream", 1, stream.stream_id),
        ("synchronize_stream", 1, stream.stream_id),
    ]
    assert stream.native_handle == 1000 + 10 + stream.stream_id


def test_synchronize_a_device(driver: FakeDriver) -> None:
    torch.accelerator.synchronize(1)
    torch.accelerator.set_device_index(1)
    torch.accelerator.synchronize()
    assert driver.calls == [("synchronize_device", 1)] * 2
    with pytest.raises(RuntimeError, match="spyre:4 does not exist"):
        torch.accelerator.synchronize(4)


def test_an_event_s_life(driver: FakeDriver) -> None:
    stream = torch.Stream(device="spyre:0")
    event = torch.Event(device="spyre:0")
    assert event.query()
    event.synchronize()
    event.wait(stream)
    driver.calls.clear()
    event.record(stream)
    assert driver.calls == [("record_event", 0, 0, stream.stream_id, False)]
    handle = event.event_id
    assert handle != 0
    event.record(stream)
    driver.fired = False
    assert not event.query()
    driver.fired = True
    event.synchronize()
    event.wait(stream)
    stream.wait_event(event)
    assert driver.calls[1:] == [
        ("record_event", handle, 0, stream.stream_id, False),
        ("query_event", handle),
        ("synchronize_event", handle),
        ("block_event", handle, 0, stream.stream_id),
        ("block_event", handle, 0, stream.stream_id),
    ]
    del event
    assert driver.calls[-1] == ("destroy_event", handle, 0)


def test_streams_wait_for_streams(driver: FakeDriver) -> None:
    first, second = torch.Stream(device="spyre:0"), torch.Stream(device="spyre:1")
    driver.calls.clear()
    second.wait_stream(first)
    names = [call[0] for call in driver.calls]
    assert names == ["record_event", "block_event", "destroy_event"]
    assert driver.calls[1][2:] == (1, second.stream_id)


def test_timing_events(driver: FakeDriver) -> None:
    start, end = (torch.Event(device="spyre:1", enable_timing=True) for _ in range(2))
    with pytest.raises((RuntimeError, ValueError), match=r"[Bb]oth events must be recorded"):
        start.elapsed_time(end)
    with torch.accelerator.device_index(1):
        start.record()
        end.record()
    assert driver.calls[0][4] is True
    assert start.elapsed_time(end) == 2.5


def test_an_event_stays_on_its_card(driver: FakeDriver) -> None:
    event = torch.Event(device="spyre:0")
    event.record(torch.Stream(device="spyre:0"))
    with pytest.raises(RuntimeError):
        event.record(torch.Stream(device="spyre:1"))


def test_an_error_in_destroy_event_harms_nobody(
    driver: FakeDriver, capfd: pytest.CaptureFixture[str]
) -> None:
    class Stubborn(FakeDriver):
        def destroy_event(self, handle: int, device: int) -> None:
            raise ValueError("not now")

    try:
        _bridge.install(Stubborn())
        event = torch.Event(device="spyre:0")
        event.record()
        del event
    finally:
        _bridge.install(driver)
    assert "not now" in capfd.readouterr().err


def test_errors_of_the_driver_arrive(driver: FakeDriver) -> None:
    class Failing(FakeDriver):
        def synchronize_stream(self, device: int, stream: int) -> None:
            raise ArithmeticError("a program failed")

        def new_stream(self, device: int, priority: int) -> int:
            raise BlockingIOError("no further stream")

    try:
        _bridge.install(Failing())
        with pytest.raises(ArithmeticError, match="a program failed"):
            torch.accelerator.current_stream(0).synchronize()
        with pytest.raises(BlockingIOError, match="no further stream"):
            torch.Stream(device="spyre")
    finally:
        _bridge.install(driver)
