"""Ctrl-C and threads: whatever happens when, nothing is lost and nothing done twice."""

from __future__ import annotations

import _thread
import gc
import os
import random
import signal
import threading
import time

import pytest

from tests.runtime.bench import Bench, idle
from torch_spyre_ref.runtime import D2H, H2D, EventSignal, EventWait, HostCallback


def test_an_interrupt_ends_a_wait_and_leaves_the_queue_good() -> None:
    bench = Bench()
    done: list[int] = []
    bench.queue.submit(HostCallback(lambda: done.append(1), 100))
    bench.queue.submit(HostCallback(lambda: signal.raise_signal(signal.SIGINT)))
    last = bench.queue.submit(HostCallback(lambda: done.append(3)), label="after")
    with pytest.raises(KeyboardInterrupt):
        bench.queue.wait(last)
    assert done == [1], "the wait ended at the operation during which Ctrl-C came"
    bench.queue.wait(last)
    assert done == [1, 3]


def test_a_wait_goes_on_when_the_programs_own_handler_does_not_raise() -> None:
    bench = Bench()
    calls: list[int] = []
    done: list[int] = []
    old = signal.signal(signal.SIGINT, lambda number, frame: calls.append(len(done)))
    try:
        bench.queue.submit(idle(100))
        bench.queue.submit(HostCallback(lambda: signal.raise_signal(signal.SIGINT)))
        last = bench.queue.submit(HostCallback(lambda: done.append(1)))
        bench.queue.wait(last)
    finally:
        signal.signal(signal.SIGINT, old)
    assert calls == [0], "it was called between two operations"
    assert done == [1]


def test_interrupts_at_any_moment_neither_lose_nor_repeat_an_operation() -> None:
    """A second thread fires Ctrl-C at random while the main one submits, polls and waits."""
    bench = Bench(queue_depth=8)
    other = bench.card.new_queue()
    done: list[int] = []
    armed = finished = False
    interrupts = 0

    def interrupt(number: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def fire() -> None:
        pause = random.Random(0)
        while not finished:
            time.sleep(pause.uniform(0, 2e-4))
            os.kill(os.getpid(), signal.SIGINT)

    def work(number: int) -> None:
        event = EventSignal()
        bench.queue.submit(HostCallback(lambda: done.append(number)))
        bench.queue.submit(event)
        other.submit(EventWait(event))
        other.submit(idle(3))
        bench.queue.query()
        if number % 7 == 0:
            other.synchronize()

    # An interrupt in a finaliser or a collector's hook would only be printed, and blamed on us.
    hooks = gc.callbacks[:]
    gc.callbacks.clear()
    gc.freeze()
    old = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=fire)
    thread.start()
    for number in range(4000):
        try:
            armed = True
            work(number)
        except KeyboardInterrupt:
            interrupts += 1
        armed = False
    finished = True
    thread.join()
    bench.runtime.synchronize(0)
    gc.unfreeze()
    gc.callbacks[:] = hooks
    assert signal.signal(signal.SIGINT, old) is interrupt
    assert interrupts > 0, "the test provoked nothing"
    assert done == sorted(set(done)), "each once, in order"
    tickets = [record.ticket for record in bench.runtime.timeline]
    assert sorted(tickets) == list(range(1, len(tickets) + 1))
    assert not any(record.failed for record in bench.runtime.timeline)


def test_an_interrupt_for_the_main_thread_is_not_taken_by_another() -> None:
    bench = Bench()
    finished = threading.Event()

    def simulate() -> None:
        for _ in range(2000):
            bench.queue.wait(bench.queue.submit(idle(1)))
        finished.set()

    thread = threading.Thread(target=simulate)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        _thread.interrupt_main()
        while True:
            bench.queue.query()
    thread.join()
    assert finished.is_set()


def test_threads_submit_to_queues_of_their_own_at_once() -> None:
    bench = Bench()
    failures: list[object] = []

    def work(number: int) -> None:
        queue = bench.card.new_queue()
        source, target = bench.pinned(number, 256), bench.pinned(0, 256)
        where = bench.at(number * 256, 256)
        for turn in range(200):
            source.array[:] = (number + turn) % 256
            queue.submit(H2D(source.array, where))
            queue.wait(queue.submit(D2H(where, target.array)))
            if (target.array != source.array).any():
                failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(bench.runtime.timeline) == 6 * 200 * 2


def test_threads_submit_to_one_queue_at_once_and_it_stays_in_order() -> None:
    bench = Bench(queue_depth=16)
    order: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for turn in range(300):
            entry = number, turn
            bench.queue.submit(HostCallback(lambda entry=entry: order.append(entry)))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.queue.synchronize()
    assert len(order) == 1200
    for number in range(4):
        assert [turn for who, turn in order if who == number] == list(range(300))
    tickets = [record.ticket for record in bench.runtime.timeline]
    assert tickets == sorted(tickets)
