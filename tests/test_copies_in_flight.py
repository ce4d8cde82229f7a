"""Invariant 5: what is freed, reused or changed while a copy is in flight, and what is promised.

Bytes move only inside calls that move the card's clock, so each of these tests sees the same
moment every time: a ``non_blocking`` copy has not happened yet when it returns.
"""

from __future__ import annotations

import pytest
import torch

from tests.support import random_bits, same_bits
from torch_spyre_ref import backend
from torch_spyre_ref.runtime import STAGING_BYTES

LONG = 1 << 18  # elements: the transfer takes far longer than a few calls do


def pinned(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).pin_memory()


def pending(device: int = 0) -> int:
    return len(backend.current().queue(device).pending())


def test_bytes_for_the_host_arrive_at_synchronize() -> None:
    card = torch.ones(LONG, device="spyre")
    host = pinned(LONG).copy_(card, non_blocking=True)
    assert host.count_nonzero() == 0
    torch.accelerator.synchronize()
    assert host.eq(1).all()


def test_bytes_for_the_host_arrive_with_a_query_that_says_true() -> None:
    stream = torch.accelerator.current_stream()
    card = torch.ones(LONG, device="spyre")
    host = pinned(LONG).copy_(card, non_blocking=True)
    answers = [stream.query()]
    while not answers[-1]:
        assert host[0] == host[-1] == 0
        answers.append(stream.query())
    assert len(answers) > 10
    assert host.eq(1).all()


def test_bytes_for_the_host_arrive_before_an_event_that_was_recorded_after() -> None:
    card = torch.ones(LONG, device="spyre")
    host = pinned(LONG).copy_(card, non_blocking=True)
    event = torch.Event("spyre")
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query() and host.eq(1).all()


@pytest.mark.finds("race")
def test_a_pinned_source_that_changes_before_the_copy_ends_is_seen_changed() -> None:
    host = pinned(LONG)
    card = torch.empty(LONG, device="spyre").copy_(host, non_blocking=True)
    host[-1] = 7
    assert card[-1].item() == 7
    host[-1] = 8
    assert card[-1].item() == 7


def test_pageable_memory_is_taken_or_delivered_before_the_call_returns() -> None:
    host = torch.ones(LONG)
    card = torch.empty(LONG, device="spyre").copy_(host, non_blocking=True)
    host.zero_()
    back = torch.zeros(LONG).copy_(card, non_blocking=True)
    assert back.eq(1).all()


def test_a_pinned_side_that_needs_a_conversion_is_staged() -> None:
    host = pinned(100)
    card = torch.empty(100, dtype=torch.float64, device="spyre").copy_(host, non_blocking=True)
    host.fill_(1)
    assert host.copy_(card, non_blocking=True).count_nonzero() == 0


def test_a_tensor_freed_while_it_is_read_was_read() -> None:
    readers = [pinned(LONG), *(torch.zeros(LONG, device=f"spyre:{card}") for card in (0, 1))]
    for reader in readers:
        card = torch.full((LONG,), 3.0, device="spyre")
        reader.copy_(card, non_blocking=True)
        del card
        others = [torch.empty(LONG, device="spyre") for _ in range(3)]  # poisoned as it is reused
        torch.accelerator.synchronize(0)
        assert reader.cpu().eq(3).all()
        del others


def test_a_tensor_freed_while_it_is_written_harms_nobody() -> None:
    card = torch.empty(LONG, device="spyre").copy_(pinned(LONG), non_blocking=True)
    assert pending() > 0
    del card
    reused = torch.ones(LONG, device="spyre")
    assert reused.cpu().eq(1).all()


def test_a_pinned_tensor_freed_in_flight_is_kept_until_the_end() -> None:
    host = random_bits((LONG,), torch.float32)
    source = host.pin_memory()
    card = torch.empty(LONG, device="spyre").copy_(source, non_blocking=True)
    del source
    others = [pinned(LONG) for _ in range(3)]
    assert same_bits(card, host)
    pinned(LONG).copy_(card, non_blocking=True)  # a target that nobody keeps
    torch.accelerator.synchronize()
    assert all(other.count_nonzero() == 0 for other in others)


def test_staging_buffers_are_used_again_only_when_their_copy_is_over() -> None:
    hosts = [random_bits((STAGING_BYTES,), torch.uint8, seed) for seed in range(12)]
    cards = [torch.empty_like(host, device="spyre").copy_(host) for host in hosts]
    assert pending() > 0
    assert all(same_bits(card, host) for card, host in zip(cards, hosts, strict=True))
    moved = [card.to("spyre:1") for card in cards]
    assert all(same_bits(card, host) for card, host in zip(moved, hosts, strict=True))


def test_a_copy_to_another_card_comes_after_what_that_card_had_to_do() -> None:
    target = torch.ones(LONG, device="spyre:1")
    target.copy_(torch.full((LONG,), 2.0, device="spyre:0"))
    target.add_(1)
    assert target.cpu().eq(3).all()


@pytest.mark.parametrize("shape", [(), (1,), (3, 5)])
def test_a_pinned_tensor_says_so(shape: tuple[int, ...]) -> None:
    host = torch.ones(shape)
    assert not host.is_pinned()
    kept = host.pin_memory()
    assert kept.is_pinned() and kept.view(-1)[:1].is_pinned() and kept.equal(host)
    assert kept.pin_memory() is kept
    assert torch.empty(0).pin_memory().shape == (0,)


def test_only_cpu_tensors_are_pinned() -> None:
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="spyre").pin_memory()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="spyre", pin_memory=True)
