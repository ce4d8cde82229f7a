"""The dispatcher, the random unit, virtual time, and the scratchpad's limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.programs import Card, numbers
from tests.emulator.test_program_reductions import softmax
from torch_spyre_ref.emulator import CardSpec, philox
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import (
    Location,
    Program,
    ProgramError,
    ScratchpadError,
    decode,
    encode,
    pack_slot,
)
from torch_spyre_ref.emulator.program.firing import firings


def add(count: int, tile: int | None = None, spec: CardSpec | None = None) -> Program:
    asm = Assembler("add", spec)
    n = asm.dimension("n", count, tile=tile)
    a, b, c = (asm.argument(name, "int32") for name in "abc")
    asm.store(c, {n: 1}, asm.load(a, {n: 1}) + asm.load(b, {n: 1}))
    return asm.assemble()


def order(program: Program, tiles: int) -> list[tuple[str, int]]:
    stage = program.stages[0]
    live = range(len(stage.instructions))
    fired = firings(stage, tiles, [1] * len(stage.passes), live)
    return [(f"{stage.instructions[i].op}{i}", tile) for i, tile in fired]


def test_a_load_runs_ahead_of_its_reader_by_the_depth_of_the_fifo() -> None:
    for depth in (1, 2, 5):
        program = add(64, tile=4)
        stage = program.stages[0]
        values = tuple(
            v._replace(depth=depth, offset=n * 8 * v.nbytes) for n, v in enumerate(stage.values)
        )
        program = replace(program, stages=(replace(stage, values=values),))
        loaded = added = ahead = 0
        for name, _ in order(program, 16):
            loaded += name == "load0"
            added += name == "add2"
            ahead = max(ahead, loaded - added)
        assert ahead == depth


@given(st.integers(1, 20), st.integers(1, 4))
def test_every_instruction_fires_once_a_tile_and_after_what_it_reads(
    tiles: int, depth: int
) -> None:
    program = add(64, tile=4)
    seen: set[tuple[str, int]] = set()
    for name, tile in order(program, tiles):
        if name == "add2":
            assert {("load0", tile), ("load1", tile)} <= seen
        if name == "store3":
            assert ("add2", tile) in seen
        seen.add((name, tile))
    assert len(seen) == 4 * tiles


def test_a_later_pass_waits_for_the_whole_of_the_earlier_one() -> None:
    stage = softmax(4, 12, column_tile=3, row_tile=2).assemble().stages[0]
    done = [0] * len(stage.passes)
    for index, count in firings(stage, 2, [4, 4, 4], range(len(stage.instructions))):
        turn = stage.instructions[index].turn
        if stage.instructions[index].op == "subtract":
            assert done[0] >= (count // 4 + 1) * 4
        if stage.instructions[index].op == "max":
            done[turn] = count + 1


def chain(spec: CardSpec) -> Program:
    """Elementwise work on a matrix and a transposed one, with whatever tiles fit."""
    asm = Assembler("chain", spec)
    n, m = asm.dimension("n", 150), asm.dimension("m", 100)
    a, b, c = (asm.argument(name, "float16") for name in "abc")
    x, y = asm.load(a, {n: 100, m: 1}), asm.load(b, {n: 1, m: 150})
    asm.store(c, {n: 100, m: 1}, asm.apply("tanh", x * y) + asm.apply("maximum", y, 0.0))
    return asm.assemble()


@pytest.mark.parametrize("scratchpad", [8 << 10, 4 << 10, 2304, 1152])
def test_the_same_bytes_from_a_scratchpad_of_any_size(scratchpad: int) -> None:
    results = []
    for spec in (CardSpec(), CardSpec(scratchpad=scratchpad)):
        card = Card(1 << 18)
        patches = [card.place(numbers(i, 15_000, "float16")) for i in range(2)]
        patches.append(card.room(15_000, np.float16))
        card.run(chain(spec), patches, spec=spec)
        results.append(card.read(patches[2], np.uint8).tobytes())
    assert results[0] == results[1]


def test_a_small_scratchpad_makes_hundreds_of_tiles() -> None:
    spec = CardSpec(scratchpad=1024)
    program = add(100_000, spec=spec)
    assert 100_000 // program.stages[0].dimensions[0].tile > 100
    card = Card(1 << 21)
    arrays = [numbers(i, 100_000, "int32") for i in range(2)]
    patches = [*(card.place(a) for a in arrays), card.room(100_000, np.int32)]
    card.run(program, patches, spec=spec)
    got = card.read(patches[2], np.int32)[:100_000]
    np.testing.assert_array_equal(got, arrays[0] + arrays[1])


def test_an_over_full_program_is_refused_with_its_arithmetic() -> None:
    data = encode(add(1 << 18, tile=1 << 18))
    with pytest.raises(ScratchpadError) as refused:
        decode(data, CardSpec(scratchpad=100_000))
    assert "v0: 8192 n x 4 bytes, 32768 bytes x 2 deep = 65536 at 0" in str(refused.value)
    assert "bytes a core, the scratchpad has 100000" in str(refused.value)


def test_too_many_cores_are_refused_with_their_arithmetic() -> None:
    data = encode(add(1 << 18))
    with pytest.raises(ScratchpadError, match="n 32 = 32 cores of 8"):
        decode(data, CardSpec(cores=8))


def test_live_values_cannot_share_bytes() -> None:
    program = add(64)
    stage = program.stages[0]
    values = tuple(v._replace(offset=0) for v in stage.values)
    broken = replace(program, stages=(replace(stage, values=values),))
    with pytest.raises(ScratchpadError, match="values 0 and 2 are alive together"):
        decode(encode(broken))


@given(st.integers(1, 30))
def test_who_writes_over_a_value_waits_until_it_is_read(tiles: int) -> None:
    asm = Assembler("chain")
    n = asm.dimension("n", 64, tile=2)
    a = asm.argument("a", "float32")
    x = asm.apply("exp", asm.load(a, {n: 1}) * 2.0)
    asm.store(a, {n: 1}, asm.apply("sigmoid", x + 1.0) - 3.0)
    program = asm.assemble()
    stage = program.stages[0]
    assert len({v.offset for v in stage.values}) < len(stage.values)
    # Play the order of firing on bytes: whoever reads a value must find what was written for it.
    last: dict[int, tuple[int, int]] = {}
    for index, tile in firings(stage, tiles, [1], range(len(stage.instructions))):
        i = stage.instructions[index]
        for source in i.inputs:
            if not source.number:
                v = stage.values[source.entry]
                assert last[v.offset + tile % v.depth * v.nbytes] == (source.entry, tile)
        for output in i.outputs:
            v = stage.values[output]
            last[v.offset + tile % v.depth * v.nbytes] = (output, tile)


@given(st.integers(1, 6))
def test_a_value_that_nobody_reads_is_not_written_over_another(tiles: int) -> None:
    asm = Assembler("unread")
    n = asm.dimension("n", 4 * tiles, tile=4)
    a = asm.argument("a", "int64")
    x = asm.load(a, {n: 1})
    asm.apply("less", x, 4)
    place = asm.index(n)  # made by another unit, which need not wait for what nobody reads
    asm.store(a, {n: 1}, asm.apply("add", x, asm.apply("multiply", place, 4)))
    card = Card()
    memory = card.place(np.arange(4 * tiles))
    card.run(asm.assemble(), [memory])
    assert card.read(memory, np.int64).tolist() == [5 * i for i in range(4 * tiles)]


def test_a_load_varies_along_every_dimension_that_it_steps_along() -> None:
    program = add(64)
    stage = program.stages[0]
    values = (stage.values[0]._replace(dimensions=()), *stage.values[1:])
    with pytest.raises(ProgramError, match=r"\(load\): value 0 cannot vary along no dimension"):
        encode(replace(program, stages=(replace(stage, values=values),)))


def test_walking_a_tile_without_a_value_is_bounded_too() -> None:
    asm = Assembler("fill")
    n = asm.dimension("n", 1 << 40, tile=1 << 32, cores=1)
    asm.store(asm.argument("out", "int8"), {n: 1}, 0)
    with pytest.raises(ScratchpadError, match="store walks 4294967296 steps a core in one tile"):
        asm.assemble()


def test_a_tile_larger_than_its_entry_is_refused() -> None:
    program = add(1024)
    stage = program.stages[0]
    values = tuple(v._replace(nbytes=64) for v in stage.values)
    broken = replace(program, stages=(replace(stage, values=values),))
    with pytest.raises(ScratchpadError, match=r"its tile needs 32 n x 4 bytes = 128"):
        decode(encode(broken))


def test_held_rows_that_outgrow_their_place_at_launch_are_refused() -> None:
    asm = Assembler("softmax")
    size = asm.size_symbol()
    c = asm.dimension("c", size, tile=64, likely=1024)
    source, target = asm.argument("source", "float32"), asm.argument("target", "float32")
    with asm.stream(c):
        x = asm.load(source, {c: 1})
        peak = asm.reduce("max", x)
    with asm.stream(c):
        asm.store(target, {c: 1}, x - peak)
    program = asm.assemble()
    card = Card()
    patches = [card.place(np.arange(2000, dtype=np.float32)), card.room(2000, np.float32)]
    card.run(program, patches, [1024])
    with pytest.raises(ScratchpadError, match="value 0 is held over 32 tiles of 8 bytes"):
        card.run(program, patches, [2000])


def test_time_is_the_fill_and_then_the_slowest_unit() -> None:
    program = add(1 << 20, tile=1 << 18)
    patches = [Location(Card(1 << 25).room(1 << 20, np.int32).address, 0)] * 3
    patched = decode(encode(program)).patch(pack_slot(patches))
    (cost,) = patched.costs
    spec = CardSpec()
    assert cost.loaded == 2 * cost.stored == 2 * (4 << 20) // 128
    assert cost.busy["memory"] == 3 * 4 * -(-(1 << 20) // spec.memory_rate)
    assert cost.busy["vector"] == (1 << 20) // 32 // spec.vector_rate
    assert patched.duration == cost.fill + cost.busy["memory"]


def test_time_does_not_depend_on_the_machine_nor_on_the_run() -> None:
    program = softmax(64, 200).assemble()
    card = Card(1 << 18)
    patches = [card.room(64 * 200, np.float32), card.room(64 * 200, np.float32)]
    assert len({card.run(program, patches) for _ in range(3)}) == 1


def test_an_empty_space_takes_no_unit_any_time() -> None:
    patches = [Card().room(1, np.int32)] * 3
    patched = decode(encode(add(0))).patch(pack_slot(patches))
    assert not any(patched.costs[0].busy.values())
    assert patched.footprint == ((), ())


@pytest.mark.parametrize("tile", [None, 7])
@pytest.mark.parametrize("format", ["float32", "float64"])
def test_random_numbers_continue_the_generators_stream(format: str, tile: int | None) -> None:
    seed, offset, count = -5, 1_000_003, 40
    asm = Assembler("random")
    s, o = asm.size_symbol(), asm.size_symbol()
    n = asm.dimension("n", count, tile=tile)
    digits = 24 if format == "float32" else 53
    i = asm.index(n)
    outs = [asm.argument(name, format) for name in ("u", "z")] + [asm.argument("k", "int64")]
    asm.store(outs[0], {n: 1}, asm.random("uniform", s, o, i, digits=digits, format=format))
    asm.store(outs[1], {n: 1}, asm.random("normal", s, o, i, format=format))
    asm.store(outs[2], {n: -1}, asm.random("integers", s, o, (count - 1) - i, -3, 10), count - 1)
    card = Card()
    stored = np.dtype(format)
    patches = [card.room(count, stored), card.room(count, stored), card.room(count, np.int64)]
    card.run(asm.assemble(), patches, [seed, offset])
    size = stored.itemsize
    words = philox.random_bits(seed, offset, count * philox.UNIFORM_WORDS[size])
    got = card.read(patches[0], stored)[:count]
    assert got.tobytes() == philox.uniform(words, digits).tobytes()
    words = philox.random_bits(seed, offset, count * philox.NORMAL_WORDS[size])
    np.testing.assert_allclose(
        card.read(patches[1], stored)[:count], philox.normal(words, size), rtol=1e-5
    )
    words = philox.random_bits(seed, offset, count * philox.INTEGER_WORDS)
    got = card.read(patches[2], np.int64)[:count]
    assert got.tolist() == philox.integers(words, -3, 10).tolist()


def test_a_seed_can_come_from_memory() -> None:
    asm = Assembler("seeded")
    n = asm.dimension("n", 8)
    seed, out = asm.argument("seed", "int64"), asm.argument("out", "uint32")
    asm.store(out, {n: 1}, asm.random("bits", asm.load(seed, {}), 4, asm.index(n)))
    card = Card()
    patches = [card.place(np.array([77])), card.room(8, np.uint32)]
    card.run(asm.assemble(), patches)
    assert card.read(patches[1], np.uint32).tolist() == philox.random_bits(77, 4, 8).tolist()


def test_absurdly_many_tiles_are_refused() -> None:
    asm = Assembler("endless")
    n = asm.dimension("n", asm.size_symbol(), tile=1)
    out = asm.argument("out", "int8")
    asm.store(out, {}, asm.convert(asm.index(n), "int8"))
    card = Card()
    with pytest.raises(ProgramError, match="use larger tiles"):
        card.run(asm.assemble(), [card.room(1, np.int8)], [1 << 60])
    with pytest.raises(ProgramError, match="-1 steps"):
        card.run(asm.assemble(), [card.room(1, np.int8)], [-1])
