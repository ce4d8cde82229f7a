"""The staging pool: a buffer comes back only when nothing reads or writes it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.runtime.bench import SPEC, Bench, broken, idle
from torch_spyre_ref.runtime import D2H, H2D, STAGING_BYTES


def stage_in(bench: Bench, data: np.ndarray) -> None:
    """Copy pageable bytes to the card, in pieces of 512 bytes."""
    for start in range(0, data.size, 512):
        part = data[start : start + 512]
        buffer = bench.runtime.staging.acquire(part.size)
        buffer.array[: part.size] = part
        host = buffer.array[: part.size]
        ticket = bench.queue.submit(H2D(host, bench.at(start, part.size)))
        bench.runtime.staging.release_after(buffer, bench.queue, ticket)


def test_pageable_bytes_go_through_whole() -> None:
    bench = Bench()
    data = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
    stage_in(bench, data)
    bench.queue.synchronize()
    assert (bench.bytes[:10_000] == data).all()


def test_a_buffer_in_flight_is_not_handed_out_before_its_operation_is_over() -> None:
    bench = Bench(staging_buffers=2)
    bench.queue.submit(idle(1000))
    stage_in(bench, np.ones(1024, np.uint8))
    assert bench.clock.now < 1000
    third = bench.runtime.staging.acquire(1)
    assert bench.clock.now >= 1000 + 9
    assert bench.bytes[:512].all(), "the oldest was waited for"
    assert not bench.bytes[512:1024].any(), "and only the oldest"
    third.array[:] = 0
    bench.queue.synchronize()
    assert bench.bytes[:1024].all()


def test_few_buffers_serve_any_number_of_transfers() -> None:
    bench = Bench(staging_buffers=2)
    addresses = set()
    for _ in range(20):
        buffer = bench.runtime.staging.acquire(STAGING_BYTES)
        addresses.add(buffer.address)
        assert buffer.array.size == STAGING_BYTES
        assert bench.runtime.pinned.is_pinned(buffer.address)
        ticket = bench.queue.submit(H2D(buffer.array[:128], bench.at(0)))
        bench.runtime.staging.release_after(buffer, bench.queue, ticket)
    assert len(addresses) == 2


def test_callers_that_hold_every_buffer_get_one_more_instead_of_a_deadlock() -> None:
    pool = Bench(staging_buffers=2).runtime.staging
    held = [pool.acquire(1) for _ in range(3)]
    assert len({buffer.address for buffer in held}) == 3


def test_a_buffer_given_back_at_once_is_had_again() -> None:
    bench = Bench()
    buffer = bench.runtime.staging.acquire(1)
    bench.runtime.staging.release(buffer)
    assert bench.runtime.staging.acquire(1) is buffer


def test_waiting_for_a_buffer_does_not_swallow_the_queues_error() -> None:
    bench = Bench(staging_buffers=1)
    buffer = bench.runtime.staging.acquire(1)
    bench.queue.submit(broken(500))
    ticket = bench.queue.submit(D2H(bench.at(0), buffer.array[:128]))
    bench.runtime.staging.release_after(buffer, bench.queue, ticket)
    assert bench.runtime.staging.acquire(1) is buffer
    assert bench.clock.now == SPEC.submit_time + 500
    with pytest.raises(Exception, match="a fuse blew"):
        bench.queue.synchronize()


@pytest.mark.parametrize("nbytes", [0, -1, STAGING_BYTES + 1])
def test_a_request_that_no_buffer_serves_is_refused(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"for {nbytes} bytes"):
        Bench().runtime.staging.acquire(nbytes)


def test_threads_never_share_a_buffer() -> None:
    bench = Bench(staging_buffers=2)
    wrong: list[int] = []

    def work(number: int) -> None:
        where = bench.at(number * 128)
        queue = bench.card.new_queue()
        back = bench.pinned(0)
        for _ in range(200):
            buffer = bench.runtime.staging.acquire(128)
            buffer.array[:128] = number
            ticket = queue.submit(H2D(buffer.array[:128], where))
            bench.runtime.staging.release_after(buffer, queue, ticket)
            queue.wait(queue.submit(D2H(where, back.array)))
            if (back.array != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
