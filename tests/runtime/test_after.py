"""Operations that come after one of another queue, named by its ticket: no event, no entry."""

from __future__ import annotations

import pytest

from tests.runtime.bench import Bench, BrokenError, broken, idle
from torch_spyre_ref.runtime import Compute, EventSignal, EventWait, HostCallback, QueueError


def starts(bench: Bench) -> dict[int, int]:
    bench.card.settle()
    return {record.ticket: record.start for record in bench.runtime.timeline}


def test_the_first_operation_that_is_no_callback_waits_and_so_do_those_behind_it() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    slow = bench.queue.submit(idle(1000))
    end = bench.clock.now + 1000
    prepare = other.prepare
    steps = [prepare(HostCallback(int)), prepare(bench.h2d(1)), prepare(bench.h2d(2, 128))]
    last = other.submit_prepared(steps, after=(bench.queue, slow))
    begun = starts(bench)
    assert begun[last - 2] < end
    assert begun[last - 1] == end < begun[last]


@pytest.mark.parametrize("after", ["over", "own"])
def test_what_is_over_and_what_is_in_the_same_queue_is_not_waited_for(after: str) -> None:
    bench = Bench()
    other = bench.card.new_queue()
    ticket = bench.queue.submit(idle(10))
    if after == "over":
        bench.queue.synchronize()
    queue = other if after == "over" else bench.queue
    last = queue.submit_prepared([queue.prepare(bench.h2d(1))], after=(bench.queue, ticket))
    assert queue.line.held == {} and bench.queue.line.owed == {}
    queue.wait(last)


def test_who_comes_after_what_fails_fails_with_it() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    ticket = bench.queue.submit(broken())
    other.submit_prepared([other.prepare(bench.h2d(1))], after=(bench.queue, ticket))
    with pytest.raises(QueueError, match="ended before it fired") as caught:
        other.synchronize()
    assert isinstance(caught.value.__cause__, BrokenError)
    assert bench.bytes[0] == 0


def test_who_comes_after_what_has_failed_is_refused_and_stays_good() -> None:
    bench = Bench()
    other = bench.card.new_queue()
    ticket = bench.queue.submit(broken())
    bench.card.settle()
    step = other.prepare(bench.h2d(1))
    with pytest.raises(QueueError, match=f"operation {ticket} .* was not done") as caught:
        other.submit_prepared([step], after=(bench.queue, ticket))
    assert isinstance(caught.value.__cause__, BrokenError)
    assert not other.is_busy
    other.submit_prepared([step])
    other.synchronize()


def test_a_wait_that_comes_after_another_operation_waits_for_both() -> None:
    bench = Bench()
    first, second = bench.card.new_queue(), bench.card.new_queue()
    slow, signal = bench.queue.submit(idle(1000)), EventSignal()
    first.submit(signal)
    end = bench.clock.now + 1000
    second.submit_prepared([second.prepare(EventWait(signal))], after=(bench.queue, slow))
    last = second.submit(bench.h2d(1))
    assert starts(bench)[last] >= end - 20


def test_it_is_an_order_to_the_race_checker() -> None:
    bench = Bench(sanitize=True)
    memcheck, other = bench.runtime.memcheck, bench.card.new_queue()
    assert memcheck is not None
    memcheck.handed_out(0, bench.address)
    for after in (True, False):
        ticket = bench.queue.submit(Compute(1000, lambda memory: None, (), (bench.at(0),)))
        step = other.prepare(bench.h2d(1))
        other.submit_prepared([step], after=(bench.queue, ticket) if after else None)
        bench.card.settle()
        assert (bench.runtime.sanitizer.reports == []) == after


def test_where_edges_are_derived_none_is_added_to_it() -> None:
    bench = Bench(derive_edges=True)
    other = bench.card.new_queue()
    ticket = bench.queue.submit(Compute(1000, lambda memory: None, (), (bench.at(0),)))
    step = other.prepare(bench.h2d(1))
    other.submit_prepared([step], after=(bench.queue, ticket))
    assert bench.card.hazards.count == 0 and len(other.line.held) == 1
    other.synchronize()


def test_a_queue_and_its_companion_are_alone_together() -> None:
    bench = Bench(derive_edges=True)
    queue, hazards = bench.queue, bench.card.hazards
    companion, third = bench.card.companion(queue), bench.card.new_queue()
    touched = Compute(1000, lambda memory: None, (), (bench.at(0),))
    for _ in range(3):
        ready = companion.submit_prepared([companion.prepare(bench.h2d(1))])
        last = queue.submit_prepared([queue.prepare(touched)], after=(companion, ready))
    assert hazards.alone is queue and hazards.count == 0
    third.submit(bench.h2d(2))
    assert hazards.alone is None
    assert [(edge.reason, edge.after) for edge in hazards.edges] == [("WAW", last)], (
        "what was enqueued before is known with its order"
    )
    bench.card.settle()


def test_a_queue_and_its_companion_are_as_fast_alone_as_in_company() -> None:
    """Alone, they take a straight way into the queues; while a third is busy, they do not."""
    lines = []
    for lasts in (0, 100_000):
        bench = Bench(derive_edges=True)
        queue, first, third = bench.queue, bench.card.companion(bench.queue), bench.card.new_queue()
        third.submit(HostCallback(int, duration=lasts))
        before = None
        for number in range(6):
            steps = [first.prepare(HostCallback(int)), first.prepare(bench.h2d(number))]
            ready = first.submit_prepared(steps, behind=before)
            run = [queue.prepare(idle(40 + 30 * (number % 2)))]
            before = queue, queue.submit_prepared(run, after=(first, ready))
        assert (bench.card.hazards.alone is queue) == (not lasts)
        bench.card.settle()
        lines.append([one for one in bench.runtime.timeline if one.queue != third.name])
    assert lines[0] == lines[1]
    assert len(lines[0]) == 18
