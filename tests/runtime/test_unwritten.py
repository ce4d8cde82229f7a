"""Bytes that a failed queue did not write: later readers are told, and find no old ones."""

from __future__ import annotations

import pytest

from tests.runtime.bench import Bench, BrokenError, broken
from torch_spyre_ref.runtime import D2D, D2H, Fill, QueueError
from torch_spyre_ref.runtime.faults import Fault


class Failing(Bench):
    """A machine that derives edges; queue ``failed`` did not do what it was given."""

    def __init__(self, derive_edges: bool = True) -> None:
        super().__init__(derive_edges=derive_edges)
        self.failed = self.card.new_queue()
        self.failed.submit(Fill(self.at(512), b"\1"))
        self.failed.submit(broken())
        self.failed.submit(Fill(self.at(0), b"\1"))
        self.card.settle()
        assert isinstance(self.failed.error, BrokenError)


def test_a_later_reader_is_refused_with_the_cause() -> None:
    bench = Failing()
    with pytest.raises(QueueError, match=r"was to read bytes that .* did not write") as caught:
        bench.read(64)
    assert isinstance(caught.value.__cause__, BrokenError)
    assert not bench.queue.is_busy and bench.queue.error is None


def test_other_bytes_are_read_as_ever() -> None:
    bench = Failing()
    assert bench.read(128) == [0]
    assert bench.read(512) == [1], "that one was done"


def test_what_failed_while_it_wrote_counts_too() -> None:
    bench = Bench(derive_edges=True)
    failed = bench.card.new_queue()
    with bench.runtime.faults.planted_in(Fault()):
        failed.submit(Fill(bench.at(0), b"\1"))
    bench.card.settle()
    with pytest.raises(QueueError, match="did not write"):
        bench.read(0)


def test_who_writes_the_bytes_anew_makes_them_good() -> None:
    bench = Failing()
    bench.queue.submit(bench.h2d(7, 64, 64))
    with pytest.raises(QueueError, match="did not write"):
        bench.read(0)
    assert bench.read(64, 64) == [7]
    bench.queue.submit(bench.h2d(8, 0, 64))
    assert bench.read(0) == [7, 8]


def test_who_reads_and_writes_them_at_once_is_refused() -> None:
    bench = Failing()
    for _ in range(2):
        with pytest.raises(QueueError, match="did not write"):
            bench.queue.submit(D2D(bench.at(0), bench.at(64)))


def test_after_a_reset_what_was_dropped_has_not_happened() -> None:
    bench = Failing()
    bench.failed.reset()
    assert bench.read(0) == [0]
    assert bench.read(0, queue=bench.failed) == [0]


def test_who_failed_as_a_dependant_did_not_write_either() -> None:
    bench = Bench(derive_edges=True)
    failed, between = bench.card.new_queue(), bench.card.new_queue()
    failed.submit(broken())
    failed.submit(Fill(bench.at(0), b"\1"))
    between.submit(D2D(bench.at(0), bench.at(256)))
    bench.card.settle()
    for offset in (0, 256):
        with pytest.raises(QueueError, match="did not write"):
            bench.read(offset)
    failed.reset()
    assert bench.read(0) == [0]
    with pytest.raises(QueueError, match=f"queue {between.name} did not write"):
        bench.read(256)
    between.reset()
    assert bench.read(256) == [0]


def test_a_queue_that_failed_alone_is_known_to_those_that_come_later() -> None:
    bench = Bench(derive_edges=True)
    failed = bench.card.new_queue()
    failed.submit(broken())
    failed.submit(Fill(bench.at(0), b"\1"))
    assert bench.card.hazards.alone is failed
    failed.settle()
    with pytest.raises(QueueError, match="did not write"):
        bench.read(0)


@pytest.mark.parametrize("nbytes", [64, 128, 256])
def test_what_a_later_operation_overwrites_anyway_is_its_own_affair(nbytes: int) -> None:
    bench = Bench(derive_edges=True)
    failed = bench.card.new_queue()
    reader = failed.submit(broken(10_000))
    failed.submit(Fill(bench.at(0), b"\1"))
    # It need not know how the other ends: what was there is of no use to it.
    again = bench.queue.prepare(bench.h2d(7, 0, nbytes))
    bench.queue.submit_prepared([again], behind=(failed, reader + 1))
    bench.card.settle()
    assert failed.error is not None and bench.queue.error is None
    if nbytes < 128:
        with pytest.raises(QueueError, match="did not write"):
            bench.read(0)
    else:
        assert bench.read(0) == [7]


def test_what_was_overwritten_before_it_failed_was_not_written_all_the_same() -> None:
    bench = Bench(derive_edges=True)
    failed = bench.card.new_queue()
    bench.queue.submit(Fill(bench.at(0), b"\1"))
    failed.submit(broken(10_000))
    failed.submit(Fill(bench.at(0), b"\2"))
    bench.card.settle()
    with pytest.raises(QueueError, match="did not write"):
        bench.read(0)


def test_several_operations_are_refused_before_the_first_is_enqueued() -> None:
    bench = Failing()
    prepare, read, last = bench.queue.prepare, D2D(bench.at(0), bench.at(256)), bench.queue.last
    for first in (Fill(bench.at(1024), b"\2"), Fill(bench.at(0, 64), b"\2")):
        with pytest.raises(QueueError, match="did not write"):
            bench.queue.require_written([prepare(first), prepare(read)])
    bench.queue.require_written([prepare(Fill(bench.at(0, 256), b"\2")), prepare(read)])
    bench.queue.require_written([prepare(D2D(bench.at(512), bench.at(256)))])
    assert bench.queue.last == last
    with pytest.raises(QueueError, match="did not write"):
        bench.read(0)


def test_with_derivation_off_nobody_looks() -> None:
    assert Failing(derive_edges=False).read(0) == [0]


def test_a_refused_reader_is_no_reader() -> None:
    bench = Failing()
    third = bench.card.new_queue()
    buffer = bench.pinned()
    third.submit(Fill(bench.at(1024), b"\2"))
    with pytest.raises(QueueError):
        bench.queue.submit(D2H(bench.at(0), buffer.array))
    third.submit(Fill(bench.at(0), b"\3"))
    bench.card.settle()
    assert bench.read(0) == [3]
