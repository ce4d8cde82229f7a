"""Racecheck: what is in no order is reported, with both lines and the cure, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.bench import Bench
from torch_spyre_ref.runtime import (
    D2H,
    H2D,
    Compute,
    EventSignal,
    EventWait,
    HostCallback,
    Queue,
)
from torch_spyre_ref.runtime.sanitizer import SanitizerReport


class Raced(Bench):
    """A machine with three queues, whose races are counted; everything on card 0 is somebody's."""

    def __init__(self, *, derive_edges: bool = False) -> None:
        super().__init__(sanitize=True, derive_edges=derive_edges)
        assert self.runtime.memcheck is not None
        self.runtime.memcheck.handed_out(0, self.address)
        self.queues = [self.queue, self.card.new_queue(), self.card.new_queue()]

    def races(self) -> list[SanitizerReport]:
        reports = self.runtime.sanitizer.reports
        assert all(isinstance(report, SanitizerReport) for report in reports)
        return reports  # type: ignore[return-value]

    def write(self, queue: int, offset: int = 0) -> int:
        touched = (self.at(offset),)
        return self.queues[queue].submit(Compute(100, lambda memory: None, (), touched), "writing")

    def look(self, queue: int, offset: int = 0) -> int:
        touched = (self.at(offset),)
        return self.queues[queue].submit(Compute(100, lambda memory: None, touched, ()), "reading")


def order(first: Queue, second: Queue) -> None:
    signal = EventSignal()
    first.submit(signal)
    second.submit(EventWait(signal))


def test_a_report_names_both_operations_both_lines_and_the_missing_edge() -> None:
    bench = Raced()
    bench.write(0)
    bench.look(1)
    (report,) = bench.races()
    assert (report.kind, report.operation, report.launch) == ("race", "Compute", "reading")
    assert report.where == bench.at(0)
    assert report.line is not None and report.earlier is not None
    assert report.line.file == report.earlier.file == __file__
    assert report.line.line > report.earlier.line - 10
    text = str(report)
    assert "nothing puts Compute(100 ns, 0 in, 1 out) 'writing' on queue 0.0" in text
    assert "(RAW, 128 bytes)" in text
    assert "record an event on queue 0.0 after that one, and have queue 0.1 wait for it" in text
    assert text.count("test_racecheck.py:") == 2


def test_every_kind_of_conflict_is_a_race() -> None:
    bench = Raced()
    bench.write(0), bench.write(1)
    assert len(bench.races()) == 1
    bench.look(0, 128), bench.write(1, 128)
    assert ["WAW" in bench.races()[0].detail, "WAR" in bench.races()[1].detail] == [True, True]


def test_reading_together_is_none_and_neither_are_other_bytes() -> None:
    bench = Raced()
    bench.look(0), bench.look(1), bench.write(2, 128)
    assert bench.races() == []


def test_an_event_is_an_order() -> None:
    bench = Raced()
    bench.write(0)
    order(bench.queues[0], bench.queues[1])
    bench.look(1)
    assert bench.races() == []
    order(bench.queues[1], bench.queues[2])
    bench.write(2)
    assert bench.races() == []


def test_an_event_says_nothing_of_what_came_after_it() -> None:
    bench = Raced()
    signal = EventSignal()
    bench.queues[0].submit(signal)
    bench.write(0)
    bench.queues[1].submit(EventWait(signal))
    bench.look(1)
    assert len(bench.races()) == 1


@pytest.mark.parametrize("how", ["synchronize", "wait", "settle", "query", "completed", "is_over"])
def test_what_the_host_knows_is_an_order(how: str) -> None:
    bench = Raced()
    ticket = bench.write(0)
    if how in ("query", "completed", "is_over"):
        bench.clock.advance(bench.clock.now + 1000)
    arguments = () if how in ("synchronize", "query") else (ticket,)
    getattr(bench.queues[0], how)(*arguments)
    bench.write(1)
    assert bench.races() == []


def test_that_it_happened_to_be_over_is_no_order() -> None:
    bench = Raced()
    bench.write(0)
    bench.clock.advance(bench.clock.now + 1000)
    bench.write(1)
    assert len(bench.races()) == 1, "on another day it would not have been over"


def test_the_host_knows_what_the_operation_it_waited_for_came_after() -> None:
    bench = Raced()
    bench.write(0)
    order(bench.queues[0], bench.queues[1])
    bench.queues[1].wait(bench.look(1))
    bench.write(2)
    assert bench.races() == []


def test_one_missing_edge_is_one_report() -> None:
    bench = Raced()
    bench.write(0, 0), bench.write(0, 128)
    bench.look(1, 128), bench.look(1, 0)
    bench.write(1, 0)
    assert len(bench.races()) == 1


def test_derived_edges_leave_no_race() -> None:
    bench = Raced(derive_edges=True)
    for queue in (0, 1, 2, 1, 0):
        bench.write(queue), bench.look((queue + 1) % 3)
    assert bench.races() == []
    assert bench.card.hazards.count > 4


def test_a_host_buffer_is_filled_before_it_is_sent() -> None:
    bench = Raced()
    staging = bench.pinned(0)
    fill = HostCallback(lambda: staging.array.fill(1), staging=staging.array)
    bench.queues[0].submit(fill)
    bench.queues[0].submit(H2D(staging.array, bench.at(0)))
    assert bench.races() == []
    bench.queues[1].submit(HostCallback(lambda: staging.array.fill(2), staging=staging.array))
    (report,) = bench.races()
    assert "128 bytes of pinned host memory" in str(report)
    assert "WAR" in str(report)


def test_a_host_buffer_arrives_before_it_is_sent_on() -> None:
    bench = Raced()
    staging = bench.pinned(0)
    bench.queues[0].submit(D2H(bench.at(0), staging.array))
    bench.queues[1].submit(H2D(staging.array[:64], bench.at(512, 64)))
    assert [report.kind for report in bench.races()] == ["race"]


def test_a_source_that_the_host_changes_too_early_is_a_race() -> None:
    bench = Raced()
    staging = bench.pinned(1)
    bench.queue.submit(H2D(staging.array, bench.at(0)))
    staging.array[3] = 2
    bench.queue.synchronize()
    (report,) = bench.races()
    assert "the host changed its source" in str(report)
    staging.array[3] = 4
    assert len(bench.races()) == 1


def test_a_source_that_another_operation_is_still_filling_has_no_checksum() -> None:
    bench = Raced()
    staging = bench.pinned(0)
    fill = HostCallback(lambda: staging.array.fill(1), staging=staging.array)
    bench.queue.submit(fill)
    bench.queue.submit(H2D(staging.array, bench.at(0)))
    bench.queue.synchronize()
    assert bench.races() == []
    assert np.all(bench.bytes[:128] == 1)


def test_a_new_buffer_at_an_old_address_is_another_one() -> None:
    bench = Raced()
    old = bench.pinned(1, 1 << 20)
    bench.queues[0].submit(H2D(old.array[:128], bench.at(0)))
    bench.clock.advance(bench.clock.now + 1000)
    address = old.address
    del old
    with bench.clock:
        pass
    others = [bench.pinned(0, 1 << 20)]
    while others[-1].address != address:
        assert len(others) < 200, "nobody was given the old address: this shows nothing"
        others.append(bench.pinned(0, 1 << 20))
    new = others[-1]
    bench.queues[1].submit(D2H(bench.at(512), new.array[:128]))
    assert bench.races() == []
