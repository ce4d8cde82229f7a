"""Card memory against a byte-by-byte oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.strategies import (
    Bench,
    pairs,
    ranges,
    read_slowly,
    touched,
    write_slowly,
)
from torch_spyre_ref.emulator import (
    Chunk,
    CompositeAddress,
    DeviceRange,
    Memory,
    RegionFaultError,
)

seeds = st.integers(0, 1 << 32)


@given(ranges(), seeds)
def test_reading_gives_the_elements_in_row_major_order(span: DeviceRange, seed: int) -> None:
    bench = Bench.new(seed)
    assert bench.memory.read(span).tolist() == read_slowly(bench.contents(), span)


@given(ranges(), seeds)
def test_writing_changes_the_elements_and_no_other_byte(span: DeviceRange, seed: int) -> None:
    bench = Bench.new(seed)
    data = np.random.default_rng(seed + 1).integers(0, 256, span.nbytes, np.uint8)
    expected = write_slowly(bench.contents(), span, data.tolist())
    bench.memory.write(span, data)
    assert bench.contents() == expected


@given(pairs(), seeds)
def test_moving_reads_everything_before_it_writes(
    spans: tuple[DeviceRange, DeviceRange], seed: int
) -> None:
    source, target = spans
    bench = Bench.new(seed)
    before = bench.contents()
    expected = write_slowly(before, target, read_slowly(before, source))
    bench.memory.move(source, target)
    assert bench.contents() == expected


@given(ranges(), st.binary(min_size=1, max_size=8), seeds)
def test_filling_repeats_the_pattern_and_changes_no_other_byte(
    span: DeviceRange, pattern: bytes, seed: int
) -> None:
    while span.nbytes % len(pattern):
        pattern = pattern[:-1]
    bench = Bench.new(seed)
    data = list(pattern) * (span.nbytes // len(pattern))
    expected = write_slowly(bench.contents(), span, data)
    bench.memory.fill(span, pattern)
    assert bench.contents() == expected


@given(ranges())
def test_a_footprint_covers_all_that_is_touched(span: DeviceRange) -> None:
    covered = {
        (region, byte) for region, low, high in span.footprint() for byte in range(low, high)
    }
    assert covered.issuperset(touched(span))


@given(ranges())
def test_a_footprint_has_no_byte_to_spare_at_its_ends(span: DeviceRange) -> None:
    """Looser ones would order what need not be ordered, and report what is no fault."""
    if len(span.loops) == 0:
        covered = [
            (region, byte) for region, low, high in span.footprint() for byte in range(low, high)
        ]
        assert sorted(covered) == sorted(touched(span))


@given(ranges())
def test_folding_keeps_the_number_of_bytes(span: DeviceRange) -> None:
    assert span.nbytes == len(touched(span))
    assert span.runs * span.run == span.nbytes


@given(ranges())
def test_only_a_range_known_to_be_disjoint_says_so(span: DeviceRange) -> None:
    places = touched(span)
    if len(set(places)) < len(places):
        assert span.overlaps_itself


@pytest.mark.parametrize("grain", [0, 4096])
def test_large_contiguous_transfers_survive_every_boundary(grain: int) -> None:
    memory = Memory()
    for region in range(4):
        memory.attach(region, 1 << 17)
    chunks = tuple(Chunk(region, 128 * region, 64 << 10) for region in range(4))
    address = CompositeAddress(chunks, grain)
    data = np.random.default_rng(0).integers(0, 256, 200_001, np.uint8)
    span = DeviceRange.contiguous(address, 4_001, data.size)
    memory.write(span, data)
    assert (memory.read(span) == data).all()
    wrapped = np.concatenate(
        [memory.region(p.region)[p.offset :][: p.length] for p in address.pieces(4_001, data.size)]
    )
    assert (wrapped == data).all()


ONE = CompositeAddress((Chunk(1, 16, 400),))


@pytest.mark.parametrize("run", [1, 2, 3, 8, 24, 32, 48, 64, 96, 128])
def test_rows_of_every_width_are_read_and_written_whole(run: int) -> None:
    bench = Bench.new(run)
    rows = DeviceRange(ONE, 1, (3, run), (130, 1), 1)
    expected = write_slowly(bench.contents(), rows, [run] * rows.nbytes)
    assert bench.memory.read(rows).tolist() == read_slowly(bench.contents(), rows)
    bench.memory.write(rows, np.full(rows.nbytes, run, np.uint8))
    assert bench.contents() == expected


# Three two-byte elements, each one byte before the last. NumPy walks such an array from its other
# end, and then the first element would stay.
BACKWARDS = DeviceRange(ONE, 2, (3,), (-1,), 2)


@pytest.mark.parametrize(
    ("method", "left"), [("write", [5, 6, 4, 2]), ("move", [5, 6, 4, 2]), ("fill", [1, 2, 2, 2])]
)
def test_where_elements_overlap_the_last_in_row_major_order_stays(
    method: str, left: list[int]
) -> None:
    memory = Bench.new(0).memory
    data = np.arange(1, 7, dtype=np.uint8)
    scattered = DeviceRange(ONE, 300, (3,), (4,), 2)
    memory.write(scattered, data)
    match method:
        case "write":
            memory.write(BACKWARDS, data)
        case "move":
            memory.move(scattered, BACKWARDS)
        case _:
            memory.fill(BACKWARDS, b"\1\2")
    assert memory.region(1)[16:20].tolist() == left


@pytest.mark.parametrize(
    ("shape", "strides", "itemsize", "overlaps"),
    [
        ((2,), (4,), 4, False),
        ((2,), (3,), 4, True),
        ((2, 3), (12, 4), 4, False),
        ((2, 3), (11, 4), 4, True),
        ((2, 3), (-12, 4), 4, False),
        ((2,), (0,), 4, True),
        ((1, 2), (0, 4), 4, False),
    ],
)
def test_ranges_know_whether_their_elements_overlap(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, overlaps: bool
) -> None:
    assert DeviceRange(ONE, 40, shape, strides, itemsize).overlaps_itself == overlaps


@pytest.mark.parametrize(
    ("shape", "strides", "run", "loops"),
    [
        ((2, 3, 4), (48, 16, 4), 96, ()),
        ((2, 1, 4), (16, 999, 4), 32, ()),
        ((2, 3, 4), (100, 16, 4), 48, ((2, 100),)),
        ((2, 3, 4), (24, 8, 0), 4, ((6, 8), (4, 0))),
        ((3, 4), (4, 12), 4, ((3, 4), (4, 12))),
        ((2, 3), (-12, -4), 4, ((6, -4),)),
        ((), (), 4, ()),
    ],
)
def test_a_nest_is_folded_to_the_fewest_loops_around_the_longest_run(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    run: int,
    loops: tuple[tuple[int, int], ...],
) -> None:
    span = DeviceRange(ONE, 100, shape, strides, 4)
    assert (span.run, span.loops) == (run, loops)


def test_fresh_memory_is_zero_and_a_region_comes_back_zeroed() -> None:
    memory = Memory()
    memory.attach(0, 256)
    memory.region(0)[:] = 7
    memory.detach(0)
    memory.attach(0, 256)
    assert not memory.region(0).any()


def test_a_region_that_is_gone_is_a_fault_that_says_so() -> None:
    memory = Memory()
    memory.attach(0, 256)
    span = DeviceRange.contiguous(CompositeAddress((Chunk(0, 0, 256),)), 0, 256)
    memory.detach(0)
    with pytest.raises(RegionFaultError, match="region 0 is not there"):
        memory.read(span)


def test_a_smaller_region_under_the_same_id_is_a_fault() -> None:
    memory = Memory()
    span = DeviceRange.contiguous(CompositeAddress((Chunk(0, 0, 256),)), 128, 128)
    memory.attach(0, 128)
    with pytest.raises(RegionFaultError, match="which has 128 bytes"):
        memory.write(span, np.zeros(128, np.uint8))


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(-1, (4,), (1,)), (61, (4,), (1,)), (0, (3,), (-4,)), (8, (4, 4), (16, 4)), (60, (2,), (4,))],
)
def test_a_range_cannot_reach_out_of_its_address(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    address = CompositeAddress((Chunk(0, 0, 64),))
    itemsize = 1 if shape == (4,) else 4
    with pytest.raises(ValueError, match=r"but .* has 64 bytes"):
        DeviceRange(address, offset, shape, strides, itemsize)
    with pytest.raises(ValueError, match=r"but .* has 64 bytes"):
        DeviceRange.contiguous(address, 1, 64)


@pytest.mark.parametrize(
    ("shape", "strides", "itemsize"), [((4,), (), 1), ((-1,), (1,), 1), ((4,), (1,), 0)]
)
def test_a_range_that_is_no_loop_nest_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> None:
    with pytest.raises(ValueError, match="one stride per dimension"):
        DeviceRange(CompositeAddress((Chunk(0, 0, 64),)), 0, shape, strides, itemsize)


def test_an_empty_range_lies_anywhere_and_touches_nothing() -> None:
    address = CompositeAddress((Chunk(0, 0, 64),))
    span = DeviceRange(address, 1_000, (0, 3), (12, 4), 4)
    assert (span.nbytes, span.footprint()) == (0, [])
