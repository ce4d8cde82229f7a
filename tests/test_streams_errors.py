"""An error on one stream: who fails with it, who goes on, where it is raised, what recovers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.streaming import LONG, busy, fail, pinned, queue_of, settle
from torch_spyre_ref import backend
from torch_spyre_ref.queueing.pool import STREAMS
from torch_spyre_ref.runtime import QueueError


class UnitFailedError(Exception):
    """What goes wrong in these tests."""


@pytest.fixture(autouse=True)
def good_again(no_derivation: None) -> Iterator[None]:
    torch.empty(1, device="spyre")  # until there is a tensor, torch.accelerator.synchronize is idle
    settle()
    yield
    settle()
    for card in (0, 1):
        torch.spyre.reset(card)


def good_streams(count: int, device: str = "spyre:0") -> list[torch.Stream]:
    return [torch.Stream(device) for _ in range(count)]


def test_an_error_is_raised_once_by_the_streams_own_synchronize() -> None:
    stream, other = good_streams(2)
    fail(stream, UnitFailedError("unit 7"))
    busy(other)
    other.synchronize()
    with pytest.raises(UnitFailedError, match="unit 7"):
        stream.synchronize()
    stream.synchronize()
    assert stream.query()


def test_an_error_is_raised_once_by_the_cards_synchronize() -> None:
    stream, other = good_streams(2)
    fail(stream, UnitFailedError("first"))
    busy(other, 1_000_000)
    torch.spyre.synchronize(1)
    with pytest.raises(UnitFailedError, match="first"):
        torch.accelerator.synchronize(0)
    assert other.query()
    torch.accelerator.synchronize(0)


def test_query_raises_an_error_as_synchronize_does() -> None:
    (stream,) = good_streams(1)
    fail(stream, UnitFailedError("asked"))
    with pytest.raises(UnitFailedError, match="asked"):
        while not stream.query():
            pass


def test_the_first_error_wins() -> None:
    (stream,) = good_streams(1)
    fail(stream, UnitFailedError("first"))
    fail(stream, UnitFailedError("second"))
    with pytest.raises(UnitFailedError, match="first"):
        stream.synchronize()
    stream.synchronize()


def test_other_streams_of_the_card_go_on() -> None:
    stream, other = good_streams(2)
    fail(stream, UnitFailedError("alone"))
    with other:
        card = torch.ones(LONG, device="spyre").add_(1)
        assert card.eq(2).all()
    other.synchronize()
    assert torch.ones(2, device="spyre").tolist() == [1, 1]
    with pytest.raises(UnitFailedError):
        stream.synchronize()


def test_what_is_asked_of_a_poisoned_stream_is_refused_and_says_why() -> None:
    (stream,) = good_streams(1)
    tensor = torch.ones(3, device="spyre")
    fail(stream, UnitFailedError("unit 7"))
    with pytest.raises(UnitFailedError):
        stream.synchronize()
    with (
        stream,
        pytest.raises(RuntimeError, match=r"poisoned .*UnitFailedError\('unit 7'\)") as caught,
    ):
        tensor.add_(1)
    assert isinstance(caught.value.__cause__, UnitFailedError)
    with pytest.raises(QueueError, match="poisoned"):
        stream.record_event()


def test_streams_that_wait_for_a_failed_one_fail_at_once_and_say_why() -> None:
    first, second, third = *good_streams(2), torch.Stream("spyre:1")
    fail(first, UnitFailedError("the cause"))
    second.wait_stream(first)
    third.wait_stream(second)
    busy(third, 10_000_000)
    with pytest.raises(QueueError, match="ended before it fired") as caught:
        third.synchronize()
    assert isinstance(caught.value.__cause__, QueueError)
    assert isinstance(caught.value.__cause__.__cause__, UnitFailedError)
    with pytest.raises(UnitFailedError):
        first.synchronize()


def test_an_event_that_its_stream_never_reached_is_not_done_and_raises() -> None:
    (stream,) = good_streams(1)
    reached = stream.record_event()
    fail(stream, UnitFailedError("too early"))
    owed = stream.record_event()
    with pytest.raises(UnitFailedError, match="too early"):
        owed.synchronize()
    for ask in (owed.synchronize, owed.query):
        with pytest.raises(QueueError, match="was not done"):
            ask()
    assert reached.query()
    reached.synchronize()
    with pytest.raises(QueueError, match="cannot wait"):
        torch.Stream("spyre").wait_event(owed)


@pytest.mark.parametrize("end", ["reset", "close"])
def test_streams_that_wait_for_one_that_is_ended_fail_at_once(end: str) -> None:
    first = torch.spyre.default_stream(1)
    second = torch.Stream("spyre:0")
    queue = backend.current().runtime.cards[1].new_queue() if end == "close" else queue_of(first)
    from torch_spyre_ref.runtime import EventSignal, EventWait, HostCallback

    signal = EventSignal()
    for operation in (HostCallback(int, 50_000), HostCallback(int, 50_000), signal):
        queue.submit(operation)
    queue_of(second).submit(EventWait(signal))
    getattr(queue, end)()
    with pytest.raises(QueueError, match="ended before it fired"):
        second.synchronize()


def test_a_new_stream_recovers() -> None:
    poisoned = [torch.Stream("spyre", priority=-1) for _ in range(3)]
    for stream in poisoned:
        fail(stream, UnitFailedError("one of three"))
    settle()
    for _ in range(2 * STREAMS):
        stream = torch.Stream("spyre", priority=-1)
        assert stream not in poisoned
        with stream:
            torch.zeros(1, device="spyre")
        stream.synchronize()


def test_reset_recovers_every_stream_of_the_card_and_no_other_card() -> None:
    here, there = torch.Stream("spyre:0"), torch.Stream("spyre:1")
    fail(here, UnitFailedError("here"))
    fail(there, UnitFailedError("there"))
    settle()
    torch.spyre.reset(0)
    here.synchronize()
    with here:
        assert torch.ones(3, device="spyre:0").sum().item() == 3
    with pytest.raises(UnitFailedError, match="there"):
        there.synchronize()


def test_when_all_streams_are_poisoned_a_new_one_is_refused_until_reset() -> None:
    streams = {torch.Stream("spyre:1", priority=-1) for _ in range(STREAMS)}
    for stream in streams:
        fail(stream, UnitFailedError("everywhere"))
    settle()
    with pytest.raises(RuntimeError, match=r"poisoned all 32 .* torch.spyre.reset\(\)"):
        torch.Stream("spyre:1", priority=-1)
    torch.spyre.reset(1)
    assert torch.Stream("spyre:1", priority=-1) in streams


def test_reset_drops_what_waits_and_lets_what_runs_end() -> None:
    stream, dropped = *good_streams(1), pinned(LONG, 0)
    host, card = pinned(LONG, 0), torch.ones(LONG, device="spyre")
    torch.spyre.synchronize()
    with stream:
        host.copy_(card, non_blocking=True)
        dropped.copy_(card, non_blocking=True)
    torch.spyre.reset(0)
    stream.synchronize()
    assert host.eq(1).all() and dropped.eq(0).all()


def test_a_full_queue_makes_the_host_wait() -> None:
    (stream,) = good_streams(1)
    depth, clock = 1024, backend.current().runtime.clock
    busy(stream, 100_000_000)
    start = clock.now
    for _ in range(depth - 1):
        stream.record_event()
    assert clock.now - start < 10_000_000
    stream.record_event()
    assert clock.now - start > 90_000_000
