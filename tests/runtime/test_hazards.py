"""Derived edges: which there are, that they are enough, and that none is too many."""

from __future__ import annotations

import pytest

from tests.runtime.bench import Bench, BrokenError, broken, idle
from torch_spyre_ref.runtime import (
    D2D,
    Compute,
    DeviceRange,
    EventSignal,
    EventWait,
    Fill,
    QueueError,
)


class Deriving(Bench):
    """A machine that derives edges, with three queues."""

    def __init__(self, queues: int = 3) -> None:
        super().__init__(derive_edges=True)
        self.hazards = self.card.hazards
        self.queues = [self.queue, *(self.card.new_queue() for _ in range(queues - 1))]

    def write(self, queue: int, offset: int = 0, duration: int = 100) -> int:
        touched = (self.at(offset),)
        return self.queues[queue].submit(Compute(duration, lambda memory: None, (), touched))

    def read(self, queue: int, offset: int = 0, duration: int = 100) -> int:  # type: ignore[override]
        touched = (self.at(offset),)
        return self.queues[queue].submit(Compute(duration, lambda memory: None, touched, ()))

    def edges(self) -> list[tuple[str, int, int]]:
        """Why, after which ticket, and which one."""
        return [(edge.reason, edge.after, edge.ticket) for edge in self.hazards.edges]

    def starts(self) -> dict[int, int]:
        self.runtime.synchronize(0)
        return {record.ticket: record.start for record in self.runtime.timeline}


def test_a_reader_comes_after_the_writer_and_a_writer_after_both() -> None:
    bench = Deriving()
    written, read = bench.write(0), bench.read(1)
    rewritten = bench.write(2)
    assert bench.edges() == [("RAW", written, read), ("WAR", read, rewritten)]
    assert bench.hazards.count == 2
    assert str(bench.hazards.edges[0]) == (
        "Edge(RAW on r0[0:128]: 2 of queue 0.1 after 1 of queue 0.0)"
    )


def test_two_writers_come_one_after_the_other_and_two_readers_as_they_like() -> None:
    bench = Deriving()
    first, second = bench.write(0), bench.write(1)
    bench.read(1), bench.read(2)
    assert bench.edges() == [("WAW", first, second), ("RAW", second, second + 2)]


def test_what_one_queue_does_needs_no_edge() -> None:
    bench = Deriving()
    for _ in range(3):
        bench.write(0), bench.read(0)
    assert bench.edges() == []


def test_other_bytes_need_no_edge() -> None:
    bench = Deriving()
    bench.write(0, 0), bench.write(1, 128), bench.read(2, 256)
    assert bench.edges() == []


def test_work_that_is_over_needs_no_edge() -> None:
    bench = Deriving()
    bench.queues[0].wait(bench.write(0))
    bench.write(1)
    assert bench.edges() == []


def test_what_follows_from_other_edges_is_left_out() -> None:
    bench = Deriving()
    first = bench.write(0)
    second = bench.write(1)
    third = bench.write(2)
    again = bench.write(1)
    assert bench.edges() == [
        ("WAW", first, second),
        ("WAW", second, third),
        ("WAW", third, again),
    ]


def test_an_explicit_event_is_an_order_like_any_other() -> None:
    bench = Deriving()
    bench.write(0)
    signal = EventSignal()
    bench.queues[0].submit(signal)
    bench.queues[1].submit(EventWait(signal))
    passed_on = EventSignal()
    bench.queues[1].submit(passed_on)
    bench.queues[2].submit(EventWait(passed_on))
    bench.write(1), bench.read(2, 128)
    assert bench.edges() == []
    bench.write(2)
    assert [edge[0] for edge in bench.edges()] == ["WAW"], (
        "after queue 1's, which queue 2 knows not"
    )


def test_an_event_by_way_of_another_card_is_an_order_too() -> None:
    bench = Deriving()
    far = bench.runtime.cards[1].default_queue
    bench.write(0), bench.write(2, 512)
    there, back = EventSignal(), EventSignal()
    bench.queues[0].submit(there)
    far.submit(EventWait(there))
    far.submit(back)
    bench.queues[1].submit(EventWait(back))
    bench.write(1)
    assert bench.edges() == []


def test_an_edge_holds_the_operation_until_the_other_is_over() -> None:
    bench = Deriving()
    slow = bench.queues[0].submit(Fill(bench.at(0, 128 * 100), b"\1"))
    quick = bench.queues[1].submit(bench.h2d(2))
    free = bench.queues[2].submit(bench.h2d(3, 128 * 200))
    starts = bench.starts()
    end = next(r.end for r in bench.runtime.timeline if r.ticket == slow)
    assert starts[quick] == end
    assert starts[free] < end
    assert bench.bytes[0] == 2


def test_work_enqueued_before_a_second_queue_was_used_is_seen() -> None:
    bench = Deriving()
    bench.write(0), bench.read(0, 128)
    assert bench.hazards.alone is bench.queue
    later = bench.write(1, 128)
    assert bench.edges() == [("WAR", 2, later)]


def test_a_queue_that_is_alone_again_is_left_alone() -> None:
    bench = Deriving()
    bench.write(0), bench.write(1)
    bench.runtime.synchronize(0)
    for _ in range(200):
        bench.write(2)
    assert bench.hazards.alone is bench.queues[2]
    bench.write(1)
    assert len(bench.edges()) == 2


def test_several_edges_hold_one_operation() -> None:
    bench = Deriving()
    first, second = bench.write(0, 0), bench.write(1, 128)
    both = bench.queues[2].submit(D2D(bench.at(0), bench.at(128)))
    assert bench.edges() == [("WAW", second, both), ("RAW", first, both)]
    starts = bench.starts()
    assert starts[both] >= max(r.end for r in bench.runtime.timeline if r.ticket in (first, second))


def test_separate_rows_of_a_view_are_seen_as_they_are() -> None:
    bench = Deriving()
    for queue in range(2):
        column = DeviceRange(bench.address, 64 * queue, (4, 64), (128, 1), 1)
        bench.queues[queue].submit(Compute(100, lambda memory: None, (), (column,)))
    assert bench.edges() == []
    bench.read(2, 128)
    assert [edge[0] for edge in bench.edges()] == ["RAW", "RAW"]


def test_a_failed_operation_takes_along_who_comes_after_it() -> None:
    bench = Deriving()
    failing = broken()
    bench.queues[0].submit(Compute(failing.duration, failing.effect, (), (bench.at(0),)))
    bench.read(1)
    bench.read(2, 128)
    bench.queues[2].synchronize()
    with pytest.raises(QueueError, match="ended before") as error:
        bench.queues[1].synchronize()
    assert isinstance(error.value.__cause__, BrokenError)
    with pytest.raises(BrokenError):
        bench.queues[0].synchronize()


@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_queue_that_ends_takes_along_who_comes_after_it(end: str) -> None:
    bench = Deriving()
    bench.queues[0].submit(idle(1000))
    bench.write(0)
    bench.read(1)
    getattr(bench.queues[0], end)()
    with pytest.raises(QueueError, match="ended before") as error:
        bench.queues[1].synchronize()
    assert isinstance(error.value.__cause__, QueueError)
    bench.queues[1].reset()
    bench.read(1)
    bench.runtime.synchronize(0)


def test_who_waits_for_two_fails_as_soon_as_one_does() -> None:
    bench = Deriving()
    bench.write(0, 0, 1000)
    bench.queues[1].submit(bench.h2d(1, 128))
    bench.queues[2].submit(D2D(bench.at(0), bench.at(128)))
    bench.queues[1].reset()
    bench.write(1, 128)
    assert bench.queues[2].error is None, "the running transfer came to its end"
    bench.queues[1].submit(idle(10))
    bench.write(1, 256)
    bench.queues[2].submit(D2D(bench.at(0), bench.at(256)))
    bench.queues[1].reset()
    bench.queues[0].synchronize()
    with pytest.raises(QueueError):
        bench.queues[2].synchronize()
    bench.runtime.synchronize(0)


def test_derivation_can_be_switched_off_and_on() -> None:
    bench = Deriving()
    with bench.runtime.deriving(False):
        bench.write(0), bench.write(1)
        assert bench.edges() == []
    bench.write(2), bench.write(1)
    assert len(bench.edges()) == 1
    assert Bench().runtime.derive_edges is False
