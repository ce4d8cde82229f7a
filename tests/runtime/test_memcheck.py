"""Memcheck: each kind of fault, provoked, named and refused before anything is enqueued."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.bench import SPEC, Bench, idle
from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    Chunk,
    CompositeAddress,
    Compute,
    DeviceRange,
    Fill,
    MemcheckError,
    MemcheckReport,
)


def block(offset: int, length: int) -> CompositeAddress:
    return CompositeAddress((Chunk(0, offset, length),))


def whole(address: CompositeAddress) -> DeviceRange:
    return DeviceRange.contiguous(address, 0, address.length)


class Checked(Bench):
    """A machine under memcheck, with the blocks [0, 256) and [256, 384) handed out."""

    def __init__(self) -> None:
        super().__init__(sanitize=True)
        assert self.runtime.memcheck is not None
        self.memcheck = self.runtime.memcheck
        self.first, self.second = block(0, 256), block(256, 128)
        self.memcheck.handed_out(0, self.first)
        self.memcheck.handed_out(0, self.second)

    def refused(self, span: DeviceRange) -> MemcheckReport:
        before = self.clock.now, self.queue.pending()
        with pytest.raises(MemcheckError) as error:
            self.queue.submit(Fill(span, b"\0"))
        assert (self.clock.now, self.queue.pending()) == before
        assert self.memcheck.reports[-1] == error.value.report
        return error.value.report


def test_what_has_an_owner_may_be_touched() -> None:
    bench = Checked()
    host = bench.pinned(0, 256)
    bench.queue.submit(D2H(whole(bench.first), host.array))
    bench.queue.submit(D2D(whole(bench.second), DeviceRange.contiguous(bench.first, 128, 128)))
    bench.queue.submit(Compute(1, lambda memory: None, (whole(bench.first),), ()))
    bench.queue.synchronize()
    assert bench.memcheck.reports == []


def test_bytes_that_nobody_owns_are_out_of_bounds() -> None:
    report = Checked().refused(whole(block(384, 128)))
    assert (report.kind, report.device, report.region) == ("out of bounds", 0, 0)
    assert (report.start, report.stop) == (384, 512)


def test_running_over_the_end_of_a_block_is_out_of_bounds_even_into_a_neighbour() -> None:
    report = Checked().refused(DeviceRange.contiguous(block(0, 384), 128, 200))
    assert (report.kind, report.start, report.stop) == ("out of bounds", 256, 328)


def test_every_operand_is_checked() -> None:
    bench = Checked()
    bad, good = whole(block(512, 128)), whole(bench.second)
    for operation in (
        D2D(bad, good),
        D2D(good, bad),
        Compute(1, lambda memory: None, (good, bad), ()),
        Compute(1, lambda memory: None, (), (good, bad)),
    ):
        with pytest.raises(MemcheckError, match="out of bounds"):
            bench.queue.submit(operation)


def test_a_strided_view_is_checked_at_both_ends() -> None:
    bench = Checked()
    address = block(0, 512)
    bench.queue.submit(Fill(DeviceRange(address, 0, (2, 8), (248, 1), 1), b"\0"))
    assert bench.refused(DeviceRange(address, 0, (2, 8), (249, 1), 1)).kind == "out of bounds"


def test_use_after_free_says_where_it_was_given_back() -> None:
    bench = Checked()
    bench.memcheck.given_back(0, bench.first)
    with pytest.raises(MemcheckError, match=r"given back at test_memcheck\.py") as error:
        bench.queue.submit(Fill(whole(bench.first), b"\0"))
    assert error.value.report.kind == "use after free"


def test_memory_handed_out_again_is_good_again() -> None:
    bench = Checked()
    bench.memcheck.given_back(0, bench.first)
    bench.memcheck.handed_out(0, block(0, 128))
    bench.queue.submit(Fill(whole(block(0, 128)), b"\0"))
    assert bench.refused(whole(block(128, 128))).kind == "use after free"
    assert bench.refused(whole(block(0, 256))).start == 128


def test_memory_freed_in_parts_is_known_to_be_free_in_each() -> None:
    bench = Checked()
    bench.memcheck.given_back(0, bench.first)
    bench.memcheck.handed_out(0, block(0, 128))
    bench.memcheck.given_back(0, block(0, 128))
    for start in (0, 128):
        assert bench.refused(whole(block(start, 128))).kind == "use after free"


def test_work_enqueued_before_the_memory_was_given_back_is_no_fault() -> None:
    bench = Checked()
    bench.queue.submit(idle(1000))
    bench.queue.submit(Fill(whole(bench.first), b"\1"))
    bench.memcheck.given_back(0, bench.first)
    bench.queue.synchronize()
    assert bench.bytes[0] == 1


def test_a_report_names_the_operation_the_bytes_and_the_line() -> None:
    report = Checked().refused(whole(block(384, 128)))
    assert Path(report.line.file).name == "test_memcheck.py"
    text = str(report)
    assert "Fill(DeviceRange(" in text
    assert "[384, 512) of region 0 on card 0" in text
    assert 'self.queue.submit(Fill(span, b"\\0"))' in text
    assert "/" not in text, "no directory, which would differ from machine to machine"


def test_memory_is_handed_out_once() -> None:
    bench = Checked()
    with pytest.raises(MemcheckError, match="handed out twice") as error:
        bench.memcheck.handed_out(0, CompositeAddress((Chunk(0, 512, 128), Chunk(0, 128, 256))))
    assert error.value.report.start == 0
    assert bench.refused(whole(block(512, 128))).kind == "out of bounds", "nothing was handed out"
    bench.memcheck.handed_out(1, bench.first)


def test_memory_is_given_back_once_and_as_it_was_handed_out() -> None:
    bench = Checked()
    for wrong in (block(384, 128), block(0, 128), block(128, 128), block(0, 384)):
        with pytest.raises(MemcheckError, match="given back twice"):
            bench.memcheck.given_back(0, wrong)
    bench.memcheck.given_back(0, bench.second)
    with pytest.raises(MemcheckError, match="given back twice"):
        bench.memcheck.given_back(0, bench.second)


def test_a_region_with_a_block_cannot_be_given_back() -> None:
    bench = Checked()
    with pytest.raises(MemcheckError, match="region in use"):
        bench.card.card.regions.release(0)
    bench.memcheck.given_back(0, bench.first)
    bench.memcheck.given_back(0, bench.second)
    bench.card.card.regions.release(0)
    assert bench.card.card.regions.live() == []


def test_a_region_under_pending_work_cannot_be_given_back() -> None:
    bench = Checked()
    bench.queue.submit(idle(1000))
    bench.queue.submit(Fill(whole(bench.first), b"\1"), label="late")
    bench.memcheck.given_back(0, bench.first)
    bench.memcheck.given_back(0, bench.second)
    with pytest.raises(MemcheckError, match=r"is not complete; enqueued at test_memcheck\.py"):
        bench.card.card.regions.release(0)
    assert [region.id for region in bench.card.card.regions.live()] == [0]
    bench.queue.synchronize()
    bench.card.card.regions.release(0)


def test_without_the_sanitizer_nothing_is_checked() -> None:
    bench = Bench()
    assert bench.runtime.memcheck is None
    bench.queue.wait(bench.queue.submit(Fill(bench.at(SPEC.region - 128), b"\1")))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 15), st.integers(1, 6)), max_size=30))
def test_blocks_agree_with_a_list_of_bytes(steps: list[tuple[bool, int, int]]) -> None:
    bench = Bench(sanitize=True)
    memcheck = bench.runtime.memcheck
    assert memcheck is not None
    owner: list[str] = ["nobody"] * 22
    blocks: list[tuple[int, int]] = []
    for give_back, start, length in steps:
        address = block(start * 128, length * 128)
        span = slice(start, start + length)
        if give_back:
            if (start, length) in blocks:
                memcheck.given_back(0, address)
                blocks.remove((start, length))
                owner[span] = ["freed"] * length
        elif all("block" not in who for who in owner[span]):
            memcheck.handed_out(0, address)
            blocks.append((start, length))
            owner[span] = [f"block {start}"] * length
    for byte, who in enumerate(owner):
        stick = whole(block(byte * 128, 128))
        if "block" in who:
            bench.queue.submit(Fill(stick, b"\0"))
        else:
            kind = {"nobody": "out of bounds", "freed": "use after free"}[who]
            with pytest.raises(MemcheckError, match=kind):
                bench.queue.submit(Fill(stick, b"\0"))
