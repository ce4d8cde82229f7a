"""Memory that changes hands between streams: derived edges order it, record_stream adds nothing.

CUDA's allocator must be told by ``record_stream`` that another stream uses a tensor, or it hands
the memory out too soon. Here the runtime sees what every operation touches. Each of these tests is
one that goes wrong on CUDA without ``record_stream`` or an event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming import LONG, busy, fail, pinned, settle
from torch_spyre_ref import _bridge
from torch_spyre_ref.runtime import QueueError


@pytest.fixture(autouse=True)
def derivation() -> Iterator[None]:
    """These tests need derived edges."""
    with torch.spyre.derive_edges():
        yield
        settle()


def address(tensor: torch.Tensor) -> object:
    """Where a tensor's memory lies on the card."""
    return _bridge.allocation(tensor).composite


@pytest.mark.parametrize("is_recorded", [False, True])
def test_memory_freed_while_another_stream_reads_it_was_read(is_recorded: bool) -> None:
    reader, host = torch.Stream("spyre"), pinned(LONG, 0)
    card = torch.full((LONG,), 3.0, device="spyre")
    place = address(card)
    torch.spyre.synchronize()
    with reader:
        busy(reader)
        host.copy_(card, non_blocking=True)
    if is_recorded:
        card.record_stream(reader)
    del card
    reused = torch.full((LONG,), 4.0, device="spyre")  # on the default stream, which is idle
    assert address(reused) == place
    reader.synchronize()
    assert host.eq(3).all()
    assert reused.cpu().eq(4).all()


def test_memory_freed_while_another_stream_writes_it_belongs_to_its_new_owner() -> None:
    writer, source = torch.Stream("spyre"), pinned(LONG, 5)
    card = torch.empty(LONG, device="spyre")
    place = address(card)
    torch.spyre.synchronize()
    with writer:
        busy(writer)
        card.copy_(source, non_blocking=True)
    del card
    reused = torch.full((LONG,), 6.0, device="spyre")
    assert address(reused) == place
    torch.spyre.synchronize()
    assert reused.cpu().eq(6).all()


def test_memory_goes_round_all_streams_while_each_is_still_busy() -> None:
    streams = [torch.Stream("spyre") for _ in range(4)]
    hosts = [pinned(LONG, 0) for _ in range(12)]
    places = set()
    torch.spyre.synchronize()
    for index, host in enumerate(hosts):
        with streams[index % 4]:
            busy(streams[index % 4], 30_000)
            card = torch.full((LONG,), float(index), device="spyre")
            places.add(address(card))
            host.copy_(card, non_blocking=True)
            del card
    torch.spyre.synchronize()
    assert len(places) == 1
    assert [host.unique().tolist() for host in hosts] == [[index] for index in range(12)]


def test_record_stream_changes_no_result_and_no_time() -> None:
    def run(is_recorded: bool) -> tuple[float, list[float]]:
        torch.spyre.synchronize()
        streams, hosts = [torch.Stream("spyre") for _ in range(3)], []
        start, end = (torch.Event("spyre", enable_timing=True) for _ in range(2))
        start.record()
        for index in range(9):
            card = torch.full((LONG,), float(index), device="spyre")
            with streams[index % 3]:
                hosts.append(pinned(LONG, 0).copy_(card, non_blocking=True))
            if is_recorded:
                card.record_stream(streams[index % 3])
            del card
        for stream in streams:
            stream.synchronize()
        end.record()
        end.synchronize()
        return start.elapsed_time(end), [host.sum().item() for host in hosts]

    assert run(True) == run(False)


def test_a_tensor_that_a_failed_stream_was_to_write_cannot_be_read_by_another() -> None:
    failed, card = torch.Stream("spyre"), torch.zeros(LONG, device="spyre")
    torch.spyre.synchronize()
    fail(failed, ArithmeticError("unit 7"))
    with failed:
        card.copy_(pinned(LONG, 5), non_blocking=True)
    settle()
    with pytest.raises(QueueError, match="did not write") as caught:
        card.cpu()
    assert isinstance(caught.value.__cause__, ArithmeticError)
    card[: LONG // 2] = 3
    assert card[: LONG // 2].eq(3).all()
    torch.spyre.reset()
    assert card.cpu().unique().tolist() == [0, 3]


def test_memory_that_a_failed_stream_was_to_write_has_new_owners() -> None:
    failed, card = torch.Stream("spyre"), torch.zeros(LONG, device="spyre")
    place = address(card)
    torch.spyre.synchronize()
    fail(failed, ArithmeticError("unit 7"))
    with failed:
        card.copy_(pinned(LONG, 5), non_blocking=True)
    settle()
    del card
    reused = torch.full((LONG,), 6.0, device="spyre")
    assert address(reused) == place and reused.cpu().eq(6).all()
    torch.spyre.reset()


STEP = st.tuples(
    st.integers(0, 3),  # the stream
    st.sampled_from(["new", "free", "fill", "copy", "in", "out", "busy"]),
    st.integers(0, 3),  # which tensor
    st.integers(0, 3),  # which other one
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_random_programs_over_streams_that_share_everything_run_as_if_in_turn(
    steps: list[Any],
) -> None:
    """No event, no wait: what is there is what would be if all had been done in order."""
    size = 1 << 12
    streams = [torch.Stream("spyre") for _ in range(4)]
    cards = [torch.zeros(size, device="spyre") for _ in range(4)]
    model, count, seen = [0.0] * 4, 0.0, []
    torch.spyre.synchronize()
    for number, kind, one, other in steps:
        count += 1
        with streams[number]:
            if kind == "busy":
                busy(streams[number], 20_000)
            elif kind in ("new", "fill"):
                if kind == "new":
                    cards[one] = torch.empty(size, device="spyre")
                cards[one].fill_(count)
                model[one] = count
            elif kind == "free":
                cards[one] = cards[other]
                model[one] = model[other]
            elif kind == "copy":
                cards[one].copy_(cards[other])
                model[one] = model[other]
            elif kind == "in":
                cards[one].copy_(pinned(size, count), non_blocking=True)
                model[one] = count
            else:
                seen.append((pinned(size, 0).copy_(cards[one], non_blocking=True), model[one]))
        for twin in range(4):  # "free" makes two names of one tensor
            if cards[twin] is cards[one]:
                model[twin] = model[one]
    torch.spyre.synchronize()
    assert all(host.eq(value).all() for host, value in seen)
    assert [card.cpu().unique().tolist() for card in cards] == [[value] for value in model]


def test_without_derived_edges_the_same_code_races_and_the_sanitizer_says_so() -> None:
    writer, source = torch.Stream("spyre"), pinned(LONG, 5)
    with torch.spyre.derive_edges(False), torch.spyre.sanitizer.expect("race"):
        card = torch.zeros(LONG, device="spyre")
        torch.spyre.synchronize()
        with writer:
            card.copy_(source, non_blocking=True)
        card.fill_(6.0)
        torch.spyre.synchronize()
