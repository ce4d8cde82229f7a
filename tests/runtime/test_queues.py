"""What a queue promises: order, laziness, waiting, and who is told of an error."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.bench import SPEC, Bench, BrokenError, broken, idle
from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    H2D,
    DeviceRange,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
    NotPinnedError,
    Queue,
    QueueError,
)


def test_nothing_moves_between_calls() -> None:
    bench = Bench()
    ticket = bench.queue.submit(bench.h2d(7))
    assert bench.bytes[0] == 0
    assert not bench.queue.completed(ticket)
    bench.queue.wait(ticket)
    assert bench.bytes[0] == 7


def test_a_transfer_reads_its_source_when_it_ends() -> None:
    bench = Bench()
    host = bench.pinned(1)
    ticket = bench.queue.submit(H2D(host.array, bench.at(0)))
    host.array[:] = 2
    bench.queue.wait(ticket)
    host.array[:] = 3
    assert bench.read() == [2]


def test_a_transfer_to_the_host_is_there_once_a_query_says_so() -> None:
    bench = Bench()
    bench.bytes[:128] = 9
    host = bench.pinned(0)
    bench.queue.submit(D2H(bench.at(0), host.array))
    polls = 0
    while not bench.queue.query():
        assert not host.array.any()
        polls += 1
    assert host.array.min() == 9
    assert polls == 2, "6 ns to go, 2 ns a query"


def test_calls_cost_what_the_data_sheet_says() -> None:
    bench = Bench()
    ticket = bench.queue.submit(idle(100))
    assert bench.clock.now == SPEC.submit_time
    bench.queue.query()
    assert bench.clock.now == SPEC.submit_time + SPEC.query_time
    bench.queue.wait(ticket)
    assert bench.clock.now == SPEC.submit_time + 100
    bench.queue.wait(ticket)
    assert bench.clock.now == SPEC.submit_time + 100 + SPEC.query_time


def test_waiting_for_one_operation_leaves_later_ones_pending() -> None:
    bench = Bench()
    first = bench.queue.submit(bench.h2d(1))
    later = bench.queue.submit(idle(1000))
    bench.queue.wait(first)
    assert [entry.ticket for entry in bench.queue.pending()] == [later]


def test_a_full_queue_makes_the_host_wait_until_there_is_room() -> None:
    bench = Bench(queue_depth=3)
    for _ in range(3):
        bench.queue.submit(idle(1000))
    assert bench.clock.now == 3 * SPEC.submit_time
    bench.queue.submit(idle(1000))
    assert bench.clock.now == SPEC.submit_time + 1000
    assert len(bench.queue.pending()) == 3
    bench.queue.synchronize()
    assert len(bench.runtime.timeline) == 4


def test_the_host_sees_all_that_happened_by_the_time_there_was_room() -> None:
    bench = Bench(queue_depth=1)
    seen: list[int] = []
    bench.queue.submit(idle(100))
    bench.card.new_queue().submit(HostCallback(lambda: seen.append(1), 100 - SPEC.submit_time))
    bench.queue.submit(idle(100))
    assert bench.clock.now == SPEC.submit_time + 100
    assert seen == [1], "the callback ended at that very moment"


def test_moving_and_computing_overlap_in_two_queues_and_not_in_one() -> None:
    ends = []
    for queues in (1, 2):
        bench = Bench()
        other = bench.card.new_queue() if queues == 2 else bench.queue
        for _ in range(4):
            bench.queue.submit(idle(500))
            other.submit(bench.h2d(1, nbytes=12_800))
        bench.runtime.synchronize(0)
        ends.append(bench.clock.now)
    one, two = ends
    assert two < 4 * 500 + 150 < 4 * (500 + 105) <= one


def test_computing_in_two_queues_takes_turns() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    bench.queue.submit(idle(500))
    other.submit(idle(500))
    bench.runtime.synchronize(0)
    assert bench.clock.now == SPEC.submit_time + 1000


def test_poison_takes_no_time_and_waits_its_turn() -> None:
    def run(poison: bool) -> tuple[int, list[int]]:
        bench = Bench()
        bench.bytes[:] = 5
        host = bench.pinned(0)
        bench.queue.submit(idle(300))
        bench.queue.submit(D2H(bench.at(0), host.array))
        if poison:
            before = bench.clock.now
            bench.queue.submit(Fill(bench.at(0), b"\xff", free=True))
            assert bench.clock.now == before
        bench.queue.submit(bench.h2d(1, offset=128))
        bench.queue.synchronize()
        assert bench.bytes[0] == (0xFF if poison else 5)
        return bench.clock.now, host.array.tolist()

    assert run(poison=True) == run(poison=False)
    assert run(poison=True)[1] == [5] * 128, "the read before the poison saw the old bytes"


def test_a_callback_runs_in_queue_order_and_takes_its_time() -> None:
    bench = Bench()
    host = bench.pinned(0)
    bench.queue.submit(HostCallback(lambda: host.array.fill(4)))
    bench.queue.submit(H2D(host.array, bench.at(0)))
    assert bench.read() == [4]
    callback = next(iter(bench.runtime.timeline))
    assert (callback.kind, callback.pipeline) == ("HostCallback", "host")
    assert callback.end - callback.start == SPEC.callback_time


def test_a_callback_may_not_call_the_runtime() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    bench.queue.submit(HostCallback(lambda: other.synchronize()))
    with pytest.raises(RuntimeError, match="host callback called the runtime"):
        bench.queue.synchronize()


def test_an_event_orders_two_queues() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    signal = EventSignal()
    bench.queue.submit(idle(1000))
    bench.queue.submit(bench.h2d(3))
    bench.queue.submit(signal)
    other.submit(EventWait(signal))
    assert bench.read(queue=other) == [3]
    assert signal.time == SPEC.submit_time + 1000 + 6


def test_without_the_event_the_other_queue_reads_too_early() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    bench.queue.submit(idle(1000))
    bench.queue.submit(bench.h2d(3))
    assert bench.read(queue=other) == [0]


def test_a_wait_for_an_event_that_has_fired_holds_nothing() -> None:
    bench = Bench()
    signal = EventSignal()
    bench.queue.submit(signal)
    bench.queue.synchronize()
    bench.queue.submit(EventWait(signal))
    bench.queue.synchronize()
    record = list(bench.runtime.timeline)[-1]
    assert record.start == record.end == record.submitted


def test_bytes_go_from_card_to_card_through_a_staging_buffer() -> None:
    bench = Bench()
    target = bench.runtime.cards[1]
    region = target.card.regions.acquire(SPEC.region, 0)
    bench.bytes[:128] = 6
    stage = bench.runtime.staging.acquire(128)
    arrived = EventSignal()
    bench.queue.submit(D2H(bench.at(0), stage.array[:128]))
    bench.queue.submit(arrived)
    target.default_queue.submit(EventWait(arrived))
    ticket = target.default_queue.submit(H2D(stage.array[:128], bench.at(0)))
    bench.runtime.staging.release_after(stage, target.default_queue, ticket)
    target.default_queue.wait(ticket)
    assert target.card.memory.region(region.id)[:128].tolist() == [6] * 128


# Errors.


def test_the_first_error_is_raised_once_and_poisons_its_queue() -> None:
    bench = Bench()
    bench.queue.submit(broken())
    bench.queue.submit(broken(message="too late"))
    with pytest.raises(BrokenError, match="a fuse blew"):
        bench.queue.synchronize()
    bench.queue.synchronize()
    assert bench.queue.query()
    with pytest.raises(QueueError, match="poisoned since operation 1") as refusal:
        bench.queue.submit(idle(1))
    assert isinstance(refusal.value.__cause__, BrokenError)


def test_what_follows_a_failed_operation_never_happens() -> None:
    bench = Bench()
    bench.queue.submit(bench.h2d(1))
    bench.queue.submit(broken())
    ticket = bench.queue.submit(bench.h2d(2))
    with pytest.raises(BrokenError):
        bench.queue.wait(ticket)
    assert bench.bytes[0] == 1
    assert [record.failed for record in bench.runtime.timeline] == [False, True]
    assert bench.queue.completed(ticket), "it is over, though it never began"


def test_waiting_for_what_was_not_done_never_says_that_it_was() -> None:
    bench = Bench()
    good = bench.queue.submit(idle(1))
    bad = bench.queue.submit(broken())
    dropped = bench.queue.submit(idle(1))
    with pytest.raises(BrokenError):
        bench.queue.synchronize()
    bench.queue.wait(good)
    for ticket in (bad, dropped, dropped):
        with pytest.raises(QueueError, match=f"operation {ticket} of queue 0.0 was not done"):
            bench.queue.wait(ticket)
    bench.queue.reset()
    with pytest.raises(QueueError, match=f"operation {dropped} of queue 0.0 was not done"):
        bench.queue.wait(dropped)
    bench.queue.wait(bench.queue.submit(idle(1)))


def test_an_error_is_not_thrown_by_the_call_that_happened_to_move_the_clock() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    bench.queue.submit(broken())
    other.submit(idle(100))
    other.synchronize()
    assert other.error is None
    assert isinstance(bench.queue.error, BrokenError)


@pytest.mark.parametrize("poll", [Queue.query, Queue.synchronize])
def test_polling_and_synchronizing_tell_of_an_error(poll: Callable[[Queue], Any]) -> None:
    bench = Bench()
    bench.queue.submit(broken())
    bench.queue.settle()
    with pytest.raises(BrokenError):
        poll(bench.queue)


def test_settling_waits_and_says_nothing() -> None:
    bench = Bench()
    bench.queue.submit(broken(500))
    bench.queue.settle()
    assert bench.clock.now == SPEC.submit_time + 500
    with pytest.raises(BrokenError):
        bench.queue.synchronize()


def test_even_an_error_that_would_end_the_program_goes_to_its_queue() -> None:
    bench = Bench()

    def leave() -> None:
        raise SystemExit(3)

    bench.queue.submit(HostCallback(leave))
    bench.card.new_queue().submit(idle(1000))
    with pytest.raises(SystemExit):
        bench.queue.synchronize()


def test_a_failed_queue_fails_those_that_wait_for_its_events_and_no_others() -> None:
    bench = Bench()
    first, second, third, fourth = (bench.card.new_queue() for _ in range(4))
    promise, chained = EventSignal(), EventSignal()
    first.submit(broken(100))
    first.submit(promise)
    second.submit(EventWait(promise))
    second.submit(chained)
    third.submit(EventWait(chained))
    fourth.submit(idle(300))
    with pytest.raises(QueueError, match=r"queue 0.3 waited .* but queue 0.2 ended") as failure:
        third.synchronize()
    assert bench.clock.now < 300, "at once: not when everything else is done"
    cause = failure.value.__cause__
    assert isinstance(cause, QueueError)
    assert isinstance(cause.__cause__, BrokenError)
    fourth.synchronize()
    assert fourth.error is None


def test_a_wait_reached_after_its_signal_was_lost_fails_there() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    promise = EventSignal()
    bench.queue.submit(broken(50))
    bench.queue.submit(promise)
    other.submit(bench.h2d(1, nbytes=128 * 100))
    other.submit(EventWait(promise))
    with pytest.raises(QueueError, match="ended before it fired"):
        other.synchronize()
    assert bench.bytes[0] == 1, "what came before the wait was done"


def test_waiting_for_a_signal_that_is_lost_already_is_refused() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    promise = EventSignal()
    bench.queue.submit(broken())
    bench.queue.submit(promise)
    bench.queue.settle()
    with pytest.raises(QueueError, match="cannot wait for"):
        other.submit(EventWait(promise))
    assert other.error is None


def test_a_card_raises_the_root_of_the_trouble_first() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    promise = EventSignal()
    other.submit(broken(50))
    other.submit(promise)
    bench.queue.submit(EventWait(promise))
    with pytest.raises(BrokenError):
        bench.runtime.synchronize(0)
    with pytest.raises(QueueError):
        bench.runtime.synchronize(0)
    bench.runtime.synchronize(0)


def test_reset_lets_the_running_operation_end_drops_the_rest_and_makes_the_queue_good() -> None:
    bench = Bench()
    bench.queue.submit(bench.h2d(1, nbytes=12_800))
    bench.queue.submit(bench.h2d(2))
    bench.queue.reset()
    assert (bench.bytes[0], bench.queue.pending()) == (1, [])
    bench.queue.submit(broken())
    bench.queue.settle()
    bench.queue.reset()
    assert bench.queue.error is None
    bench.queue.wait(bench.queue.submit(bench.h2d(3)))
    assert bench.bytes[0] == 3


def test_reset_leaves_a_wait_that_holds_the_queue() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    signal = EventSignal()
    bench.queue.submit(idle(1000))
    bench.queue.submit(signal)
    other.submit(EventWait(signal))
    other.submit(bench.h2d(1))
    other.reset()
    other.wait(other.submit(bench.h2d(2, offset=128)))
    assert bench.clock.now < 1000
    bench.runtime.synchronize(0)
    assert (bench.bytes[0], bench.bytes[128]) == (0, 2)


def test_reset_of_a_queue_fails_those_that_wait_for_it() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    promise = EventSignal()
    bench.queue.submit(idle(1000))
    bench.queue.submit(promise)
    other.submit(EventWait(promise))
    bench.queue.reset()
    with pytest.raises(QueueError, match="was reset before it was done"):
        other.synchronize()
    bench.queue.synchronize()


def test_a_closed_queue_takes_nothing() -> None:
    bench = Bench()
    bench.queue.close()
    with pytest.raises(QueueError, match=r"queue 0\.0 is closed"):
        bench.queue.submit(idle(1))
    bench.queue.synchronize()


def test_shutdown_ends_every_queue_without_waiting_for_pending_work() -> None:
    bench = Bench()
    bench.queue.submit(idle(100))
    bench.queue.submit(bench.h2d(1))
    bench.runtime.cards[1].default_queue.submit(idle(10))
    bench.runtime.shutdown()
    assert bench.bytes[0] == 0
    for card in bench.runtime.cards:
        with pytest.raises(QueueError, match="closed"):
            card.default_queue.submit(idle(1))


# Refusals: whatever is refused leaves everything as it was.


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda bench: "copy", TypeError, "it takes HostCallback, H2D"),
        (lambda bench: EventWait(EventSignal()), ValueError, "submit the signal first"),
        (
            lambda bench: H2D(np.zeros(128, np.uint8), bench.at(0)),
            NotPinnedError,
            "not pinned",
        ),
        (
            lambda bench: D2H(bench.at(0), np.zeros(128, np.uint8)),
            NotPinnedError,
            "not pinned",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_enqueued(
    make: Callable[[Bench], Any], error: type[Exception], message: str
) -> None:
    bench = Bench()
    operation = make(bench)
    with pytest.raises(error, match=message):
        bench.queue.submit(operation)
    assert (bench.clock.now, bench.queue.pending()) == (0, [])
    assert bench.queue.submit(idle(1)) == 1


@pytest.mark.parametrize("ask", [Queue.wait, Queue.settle, Queue.completed])
def test_another_queues_ticket_is_an_error_and_not_an_endless_wait(
    ask: Callable[[Queue, int], Any],
) -> None:
    bench = Bench()
    bench.queue.submit(idle(1))
    ticket = bench.card.new_queue().submit(idle(1))
    with pytest.raises(ValueError, match=f"operation {ticket}, but its last one is 1"):
        ask(bench.queue, ticket)


def test_a_signal_is_enqueued_once() -> None:
    bench = Bench()
    signal = EventSignal()
    bench.queue.submit(signal)
    with pytest.raises(ValueError, match="enqueued already"):
        bench.queue.submit(signal)
    assert bench.queue.submit(idle(1)) == 2


def test_a_region_given_back_too_early_is_the_operations_error() -> None:
    bench = Bench()
    bench.queue.submit(bench.h2d(1))
    bench.card.card.regions.release(bench.address.chunks[0].region)
    with pytest.raises(RuntimeError, match="given back while an operation on it was pending"):
        bench.queue.synchronize()


# What an operation held is let go.


def test_completed_work_holds_nothing() -> None:
    bench = Bench()
    host = bench.pinned(1)
    address = host.address
    operation = H2D(host.array, bench.at(0))
    ticket = bench.queue.submit(operation)
    del host, operation
    assert bench.runtime.pinned.is_pinned(address)
    bench.queue.wait(ticket)
    assert not bench.runtime.pinned.is_pinned(address)


def test_dropped_work_holds_nothing() -> None:
    bench = Bench()
    bench.queue.submit(broken())
    operation = bench.h2d(1)
    address = int(operation.source.__array_interface__["data"][0])
    bench.queue.submit(operation)
    del operation
    bench.queue.settle()
    assert not bench.runtime.pinned.is_pinned(address)


class Held:
    """Notes, when it goes, whether others could use the runtime at that moment."""

    def __init__(self, bench: Bench, gone: list[bool]) -> None:
        self.bench, self.gone = bench, gone

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        other = threading.Thread(target=self.bench.queue.completed, args=(0,))
        other.start()
        other.join(1)
        self.gone.append(not other.is_alive())


@pytest.mark.parametrize("fate", ["completed", "dropped", "reset"])
def test_what_an_operation_held_goes_when_the_lock_is_free(fate: str) -> None:
    bench = Bench()
    gone: list[bool] = []
    bench.queue.submit(broken() if fate == "dropped" else idle(100))
    bench.queue.submit(HostCallback(Held(bench, gone)))
    if fate == "reset":
        bench.queue.reset()
    else:
        bench.queue.settle()
    assert gone == [True]


def test_a_finaliser_of_what_an_operation_held_may_use_the_runtime() -> None:
    bench = Bench()
    done: list[int] = []

    class Last:
        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            bench.queue.wait(bench.queue.submit(bench.h2d(8)))
            done.append(int(bench.bytes[0]))

    bench.queue.submit(HostCallback(Last()))
    bench.queue.synchronize()
    assert done == [8]


def test_a_failed_operation_keeps_itself_alive_only_through_its_queue() -> None:
    bench = Bench()

    class Effect:
        def __call__(self) -> None:
            raise BrokenError

    effect = Effect()
    seen = weakref.ref(effect)
    bench.queue.submit(HostCallback(effect))
    bench.queue.settle()
    bench.queue.reset()
    gc.disable()
    try:
        del effect
        assert seen() is None, "no cycle through a traceback keeps it"
    finally:
        gc.enable()


def test_a_move_takes_the_sticks_of_its_more_scattered_side() -> None:
    bench = Bench()
    scattered = DeviceRange(bench.address, 0, (16, 8), (128, 1), 1)
    dense = bench.at(4096, 128)
    for source, target in ((scattered, dense), (dense, scattered)):
        bench.queue.submit(D2D(source, target))
    bench.queue.synchronize()
    assert [record.sticks for record in bench.runtime.timeline] == [16, 16]
    assert [record.nbytes for record in bench.runtime.timeline] == [128, 128]


def test_moves_wait_for_the_move_pipeline_and_overlapping_ones_are_right() -> None:
    bench = Bench()
    bench.bytes[:256] = np.arange(256)
    bench.queue.submit(D2D(bench.at(0, 200), bench.at(56, 200)))
    bench.queue.synchronize()
    assert bench.bytes[56:256].tolist() == list(range(200))
    assert next(iter(bench.runtime.timeline)).pipeline == "move"
