"""Loads and stores of programs against NumPy, over any view, format, address and tile."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.programs import (
    FORMAT_NAMES,
    Card,
    View,
    along,
    axes,
    numbers,
    seeds,
    shapes,
    views,
)
from torch_spyre_ref.emulator import Chunk, CompositeAddress, RegionFaultError
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import (
    FORMATS,
    IndexFaultError,
    Location,
    ProgramError,
    decode,
    encode,
    pack_slot,
)

formats = st.sampled_from(FORMAT_NAMES)


def copied(
    source: View, target: View, format: str, seed: int, tile: list[int] | None
) -> tuple[np.ndarray, np.ndarray]:
    """What the target's memory holds after a copy, on the card and through NumPy."""
    card, dtype = Card(), FORMATS[format].stored
    data, room = numbers(seed, source.length, format), numbers(seed + 1, target.length, format)
    asm = Assembler("copy")
    dims = axes(asm, source.shape, tile)
    a, b = asm.argument("a", format), asm.argument("b", format)
    loaded = asm.load(a, along(dims, source.strides), source.offset)
    asm.store(b, along(dims, target.strides), loaded, target.offset)
    patches = [card.place(data), card.place(room)]
    card.run(asm.assemble(), patches)
    expected = room.copy()
    if 0 not in target.shape:
        target.of(expected)[...] = source.of(data)
    return card.read(patches[1], dtype), expected


@given(st.data(), shapes, formats, seeds)
def test_a_copy_moves_any_view_and_touches_nothing_else(
    data: st.DataObject, shape: tuple[int, ...], format: str, seed: int
) -> None:
    source, target = data.draw(views(shape)), data.draw(views(shape, distinct=True))
    tile = data.draw(st.none() | st.lists(st.integers(1, 4), min_size=len(shape), max_size=3))
    got, expected = copied(source, target, format, seed, tile)
    assert got.tobytes() == expected.tobytes()


@given(st.data(), st.integers(1, 4), st.sampled_from([0, 0, 8, 16]), formats, seeds)
def test_an_address_of_several_chunks_is_walked_as_one(
    data: st.DataObject, count: int, grain: int, format: str, seed: int
) -> None:
    card, size = Card(), FORMATS[format].itemsize
    length = 48
    values = numbers(seed, length, format)
    total = length * size
    if grain:
        dealt = [0] * count
        for byte in range(total):
            dealt[byte // grain % count] += 1
        dealt = [n for n in dealt if n]
    else:
        cuts = sorted(data.draw(st.lists(st.integers(1, total - 1), max_size=3, unique=True)))
        dealt = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    chunks = tuple(Chunk(i % 3, 1024 * (1 + i // 3), n) for i, n in enumerate(dealt))
    address = CompositeAddress(chunks, grain)
    at = 0
    for region, offset, n in address.pieces(0, total):
        card.memory.region(region)[offset : offset + n] = values.view(np.uint8)[at : at + n]
        at += n
    shape = (4, 5)
    view = data.draw(views(shape).filter(lambda v: v.length <= length))
    asm = Assembler("chunks")
    dims = axes(asm, shape)
    a, b = asm.argument("a", format), asm.argument("b", format)
    asm.store(b, along(dims, (5, 1)), asm.load(a, along(dims, view.strides), view.offset))
    back = Location(CompositeAddress((Chunk(0, 8192, 20 * size),)), 0)
    card.run(asm.assemble(), [Location(address, 0), back])
    assert card.read(back, FORMATS[format].stored).tobytes() == view.of(values).tobytes()
    # And the other way: into the chunks, from dense memory.
    distinct = data.draw(views(shape, distinct=True).filter(lambda v: v.length <= length))
    asm = Assembler("into chunks")
    dims = axes(asm, shape)
    a, b = asm.argument("a", format), asm.argument("b", format)
    asm.store(a, along(dims, distinct.strides), asm.load(b, along(dims, (5, 1))), distinct.offset)
    card.run(asm.assemble(), [Location(address, 0), back])
    expected = values.copy()
    distinct.of(expected)[...] = card.read(back, FORMATS[format].stored).reshape(shape)
    assert card.read(Location(address, 0), FORMATS[format].stored).tobytes() == expected.tobytes()


def test_a_view_begins_at_the_byte_of_its_patch() -> None:
    card = Card()
    place = card.place(np.arange(100, dtype=np.int16))
    out = card.room(10, np.int16)
    asm = Assembler("slice")
    n = asm.dimension("n", 10)
    a, b = asm.argument("a", "int16"), asm.argument("b", "int16")
    asm.store(b, {n: 1}, asm.load(a, {n: 3}))
    program = asm.assemble()
    card.run(program, [Location(place.address, 40), out])
    assert card.read(out, np.int16).tolist() == list(range(20, 50, 3))


@pytest.mark.parametrize("tile", [None, 7])
def test_one_program_serves_every_size_of_its_symbols(tile: int | None) -> None:
    asm = Assembler("transpose")
    rows, columns = asm.size_symbol(), asm.size_symbol()
    i, j = asm.dimension("i", rows, tile=tile), asm.dimension("j", columns, tile=tile)
    a, b = asm.argument("a", "float32"), asm.argument("b", "float32")
    asm.store(b, {j: rows, i: 1}, asm.load(a, {i: columns, j: 1}))
    program = asm.assemble()
    for shape in ((3, 50), (0, 4), (1, 1), (40, 30)):
        card = Card()
        matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        patches = [card.place(matrix), card.room(matrix.size, np.float32)]
        card.run(program, patches, shape)
        got = card.read(patches[1], np.float32)[: matrix.size].reshape(shape[::-1])
        np.testing.assert_array_equal(got, matrix.T)


def test_numbers_are_worked_out_at_fetch() -> None:
    asm = Assembler("every third, from the end")
    size = asm.size_symbol()
    n = asm.dimension("n", (size + 2) // 3)
    a, b = asm.argument("a", "int64"), asm.argument("b", "int64")
    asm.store(b, {n: 1}, asm.load(a, {n: -3}, size - 1))
    card = Card()
    out = card.room(4, np.int64)
    card.run(asm.assemble(), [card.place(np.arange(10)), out], [10])
    assert card.read(out, np.int64).tolist() == [9, 6, 3, 0]


def test_a_number_can_be_stored() -> None:
    asm = Assembler("fill")
    value = asm.float_symbol()
    n, m = asm.dimension("n", 5), asm.dimension("m", 6)
    out = asm.argument("out", "float16")
    asm.store(out, {n: 6, m: 1}, value)
    card = Card()
    place = card.room(30, np.float16)
    program = asm.assemble()
    for number, stored in ((1.5, 1.5), (-2.0, -2.0), (1e9, np.inf)):
        card.run(program, [place], [number])
        assert card.read(place, np.float16).tolist() == [stored] * 30


@given(st.data(), formats, seeds)
def test_gathered_and_masked_loads(data: st.DataObject, format: str, seed: int) -> None:
    rows, columns, picked = 7, 5, data.draw(st.integers(0, 6))
    random = np.random.default_rng(seed)
    table = numbers(seed, rows * columns, format).reshape(rows, columns)
    index = random.integers(0, rows, picked)
    mask = random.integers(0, 2, (picked, columns)).astype(bool)
    tile = data.draw(st.none() | st.integers(1, 3))
    asm = Assembler("gather")
    n, m = asm.dimension("n", picked, tile=tile), asm.dimension("m", columns, tile=tile)
    t, i, w, out = (
        asm.argument(name, f)
        for name, f in (("t", format), ("i", "int64"), ("w", "bool"), ("out", format))
    )
    lane = asm.load(w, {n: columns, m: 1})
    at = asm.load(i, {n: 1})
    got = asm.load(t, {m: 1}, indices=[(at, columns, rows)], mask=lane, other=0)
    asm.store(out, {n: columns, m: 1}, got)
    card = Card()
    patches = [card.place(table), card.place(index), card.place(mask)]
    patches.append(card.room(picked * columns, FORMATS[format].stored))
    card.run(asm.assemble(), patches)
    result = card.read(patches[-1], FORMATS[format].stored)[: picked * columns]
    expected = np.where(mask, table[index], np.zeros((), table.dtype))
    assert result.tobytes() == expected.astype(table.dtype).tobytes()


@pytest.mark.parametrize("format", ["float32", "float16", "int32", "int64", "float64"])
@pytest.mark.parametrize("tile", [None, 3])
def test_scattering_adds_up_what_meets(format: str, tile: int | None) -> None:
    stored = FORMATS[format].stored
    index = np.array([0, 2, 2, 4, 0, 2])
    rows = np.arange(24).reshape(6, 4).astype(stored)
    start = np.ones((5, 4), stored)
    asm = Assembler("index_add")
    n, m = asm.dimension("n", 6, tile=tile), asm.dimension("m", 4)
    x, i, out = asm.argument("x", format), asm.argument("i", "int64"), asm.argument("out", format)
    at = asm.load(i, {n: 1})
    asm.store(out, {m: 1}, asm.load(x, {n: 4, m: 1}), indices=[(at, 4, 5)], add=True)
    card = Card()
    patches = [card.place(rows), card.place(index), card.place(start)]
    card.run(asm.assemble(), patches)
    np.add.at(start, index, rows)
    np.testing.assert_array_equal(card.read(patches[2], stored)[:20].reshape(5, 4), start)


def test_scattering_by_a_mask_leaves_the_rest() -> None:
    asm = Assembler("masked_fill")
    n = asm.dimension("n", 8)
    w, out = asm.argument("w", "bool"), asm.argument("out", "int32")
    asm.store(out, {n: 1}, -1, mask=asm.load(w, {n: 1}))
    card = Card()
    patches = [card.place(np.arange(8) % 3 == 0), card.place(np.arange(8, dtype=np.int32))]
    card.run(asm.assemble(), patches)
    assert card.read(patches[1], np.int32)[:8].tolist() == [-1, 1, 2, -1, 4, 5, -1, 7]


@pytest.mark.parametrize("bad", [-1, 5, 1 << 40])
def test_an_index_out_of_bounds_is_named_before_a_byte_is_touched(bad: int) -> None:
    asm = Assembler("scatter")
    n = asm.dimension("n", 3)
    i, out = asm.argument("i", "int64"), asm.argument("table", "int32")
    asm.store(out, {}, 7, indices=[(asm.load(i, {n: 1}), 1, 5)])
    card = Card()
    patches = [card.place(np.array([0, bad, 1])), card.place(np.zeros(5, np.int32))]
    with pytest.raises(IndexFaultError, match=rf"index {bad} is out of bounds .*'table' .*size 5"):
        card.run(asm.assemble(), patches)
    assert not card.read(patches[1], np.int32).any()


@given(formats, seeds, st.booleans())
def test_rows_moved_one_at_a_time_are_those_that_the_index_names(
    format: str, seed: int, stretched: bool
) -> None:
    rows, columns, stored = 6, 8, FORMATS[format].stored
    random = np.random.default_rng(seed)
    table, start = (numbers(seed + n, rows * columns, format).reshape(rows, -1) for n in (0, 1))
    taken, put = random.integers(0, rows, 4), random.integers(0, rows, 4)
    asm = Assembler("move rows")
    n, m = asm.dimension("n", 4, tile=1), asm.dimension("m", columns)
    t, i, j, out = (
        asm.argument(a, f) for a, f in zip("tijo", (format, "int64", "int64", format), strict=True)
    )
    row = asm.load(t, {m: 1}, indices=[(asm.load(i, {n: 1}), columns, rows)])
    # Where all of a row goes to one element, the last of them stays.
    asm.store(out, {m: 0 if stretched else 1}, row, indices=[(asm.load(j, {n: 1}), columns, rows)])
    card = Card()
    patches = [card.place(a) for a in (table, taken, put, start)]
    card.run(asm.assemble(), patches)
    for a, b in zip(taken, put, strict=True):
        if stretched:
            start[b, 0] = table[a, -1]
        else:
            start[b] = table[a]
    result = card.read(patches[3], stored)[: rows * columns]
    assert result.tobytes() == start.tobytes()


@pytest.mark.parametrize("bad", [-1, 5, 1 << 40])
def test_a_single_index_out_of_bounds_is_named_before_a_byte_is_touched(bad: int) -> None:
    for load in (True, False):
        asm = Assembler("row")
        n, m = asm.dimension("n", 1), asm.dimension("m", 2)
        i, table, out = (
            asm.argument(a, f) for a, f in (("i", "int64"), ("table", "int32"), ("out", "int32"))
        )
        at = [(asm.load(i, {n: 1}), 2, 5)]
        row = asm.load(table, {m: 1}, indices=at) if load else asm.load(out, {m: 1})
        asm.store(out if load else table, {m: 1}, row, indices=() if load else at)
        card = Card()
        patches = [card.place(np.array([bad])), card.place(np.zeros(10, np.int32))]
        patches.append(card.place(np.zeros(2, np.int32)))
        with pytest.raises(IndexFaultError, match=rf"index {bad} is .*'table' .*size 5"):
            card.run(asm.assemble(), patches)
        assert not card.read(patches[1], np.int32).any()


def test_a_masked_index_may_be_anything() -> None:
    asm = Assembler("gather")
    n = asm.dimension("n", 3)
    i, w, t, out = (
        asm.argument(a, f) for a, f in zip("iwto", ("int64", "bool", "int8", "int8"), strict=True)
    )
    at, mask = asm.load(i, {n: 1}), asm.load(w, {n: 1})
    asm.store(out, {n: 1}, asm.load(t, {}, indices=[(at, 1, 4)], mask=mask, other=-9))
    card = Card()
    arrays = [np.array([3, 99, -5]), np.array([1, 0, 0], bool), np.arange(4, dtype=np.int8)]
    patches = [*(card.place(a) for a in arrays), card.room(3, np.int8)]
    card.run(asm.assemble(), patches)
    assert card.read(patches[3], np.int8).tolist() == [3, -9, -9]


def test_memory_of_the_job_lies_in_its_allocation() -> None:
    asm = Assembler("two stages")
    n = asm.dimension("n", 16)
    a, between, b = (
        asm.argument("a", "int32"),
        asm.job_memory("between", "int32", 64),
        asm.argument("b", "int32"),
    )
    asm.store(between, {n: 1}, asm.load(a, {n: 1}) * 3)
    asm.stage()
    n = asm.dimension("n", 16)
    asm.store(b, {n: 1}, asm.load(between, {n: -1}, 15) + 1)
    program = asm.assemble()
    card = Card()
    patches = [card.place(np.arange(16, dtype=np.int32)), card.room(16, np.int32)]
    with pytest.raises(ProgramError, match="job's own memory"):
        card.run(program, patches)
    job = CompositeAddress((Chunk(1, 256, 128),))
    card.run(program, patches, job=job)
    assert card.read(patches[1], np.int32).tolist() == [3 * k + 1 for k in range(15, -1, -1)]
    assert card.memory.region(1)[320:384].view(np.int32).tolist() == [3 * k for k in range(16)]


def test_the_footprint_is_known_before_the_run() -> None:
    asm = Assembler("column")
    n = asm.dimension("n", 4)
    a, b = asm.argument("a", "int16"), asm.argument("b", "int16")
    asm.store(b, {n: 1}, asm.load(a, {n: 5}, 2))
    executable = decode(encode(asm.assemble()))
    patches = [
        Location(CompositeAddress((Chunk(0, 0, 64),)), 4),
        Location(CompositeAddress((Chunk(1, 32, 8),)), 0),
    ]
    reads, writes = executable.footprint(pack_slot(patches))
    assert [r.footprint() for r in reads] == [[(0, 8, 40)]]
    assert [w.footprint() for w in writes] == [[(1, 32, 40)]]


def test_a_view_that_leaves_its_memory_is_refused_before_it_runs() -> None:
    asm = Assembler("copy")
    n = asm.dimension("n", 9)
    a, b = asm.argument("a", "int64"), asm.argument("b", "int64")
    asm.store(b, {n: 1}, asm.load(a, {n: 1}))
    program = asm.assemble()
    card = Card()
    patches = [card.room(8, np.int64), card.room(9, np.int64)]
    with pytest.raises(ProgramError, match="load of operand 'a' leaves its memory"):
        decode(encode(program)).footprint(pack_slot(patches))


def test_a_region_given_back_or_changed_is_noticed() -> None:
    asm = Assembler("copy")
    n = asm.dimension("n", 4)
    a, b = asm.argument("a", "int32"), asm.argument("b", "int32")
    asm.store(b, {n: 1}, asm.load(a, {n: 1}))
    executable = decode(encode(asm.assemble()))
    card = Card()
    patches = [card.place(np.arange(4, dtype=np.int32)), card.room(4, np.int32)]
    slot = pack_slot(patches)
    executable.run(card.memory, slot)
    card.memory.detach(0)
    with pytest.raises(RegionFaultError, match="given back"):
        executable.run(card.memory, slot)
    card.memory.attach(0, 1024)
    card.memory.region(0)[:16].view(np.int32)[:] = 7
    executable.run(card.memory, slot)
    assert card.read(patches[1], np.int32).tolist() == [7] * 4
    card.memory.detach(0)
    card.memory.attach(0, 64)
    with pytest.raises(RegionFaultError, match="has 64 bytes"):
        executable.run(card.memory, slot)


def test_operands_are_where_they_were_in_other_company_too() -> None:
    asm = Assembler("difference")
    n = asm.dimension("n", 4)
    a, b, c = (asm.argument(name, "int32") for name in "abc")
    asm.store(c, {n: 1}, asm.load(a, {n: 1}) - asm.load(b, {n: 1}))
    executable = decode(encode(asm.assemble()))
    for card in (Card(), Card()):
        values = [np.arange(4, dtype=np.int32) * factor for factor in (1, 10, 100)]
        places = [card.place(value) for value in values]
        out = card.room(4, np.int32)
        for one, other in product(range(3), repeat=2):
            executable.run(card.memory, pack_slot([places[one], places[other], out]))
            assert card.read(out, np.int32).tolist() == (values[one] - values[other]).tolist()
