"""The assembler and the disassembler, on the programs that a newcomer writes first."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.programs import Card
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.disassembly import disassemble
from torch_spyre_ref.emulator.program import Program, ProgramError


def add_views() -> Program:
    """c = a + b, with ``a`` padded rows and ``b`` transposed."""
    asm = Assembler("add")
    rows, columns = asm.dimension("rows", 64), asm.dimension("columns", 48)
    a, b, c = (asm.argument(name, "float16") for name in "abc")
    x = asm.load(a, {rows: 96, columns: 1})
    y = asm.load(b, {rows: 1, columns: 64})
    asm.store(c, {rows: 48, columns: 1}, x + y)
    return asm.assemble()


def test_ten_lines_add_two_views() -> None:
    random = np.random.default_rng(0)
    a = random.normal(size=(64, 96)).astype(np.float16)
    b = random.normal(size=(48, 64)).astype(np.float16)
    card = Card()
    patches = [card.place(a), card.place(b), card.room(64 * 48, np.float16)]
    card.run(add_views(), patches)
    expected = a[:, :48].astype(np.float32) + b.T
    got = card.read(patches[2], np.float16).reshape(64, 48)
    np.testing.assert_array_equal(got, expected.astype(np.float16))


def test_the_text_of_a_program() -> None:
    assert disassemble(add_views()) == (
        """\
program add: 3 addresses, 0 numbers
  a  float16   address 0
  b  float16   address 1
  c  float16   address 2

stage 0
  rows 64, tile 64 on 8 cores
  columns 48, tile 48 on 4 cores
  pass 0
    load     v0 = a[96 rows + columns]
    load     v1 = b[rows + 64 columns]
    vector   v2 = add v0, v1
    store    c[48 rows + columns] = v2
  scratchpad, 1920 bytes a core
    v0   float32  at 0        2 x 384      rows x columns
    v1   float32  at 768      2 x 384      rows x columns
    v2   float32  at 1536     1 x 384      rows x columns
"""
    )


def test_the_text_shows_symbols_masks_indices_and_passes() -> None:
    asm = Assembler("embedding")
    count = asm.size_symbol()
    n, m = asm.dimension("n", count * 2 + 1, tile=16, cores=4), asm.dimension("m", 8)
    table, index, mask, out = (
        asm.argument(name, format)
        for name, format in (
            ("table", "bfloat16"),
            ("index", "int64"),
            ("mask", "bool"),
            ("out", "float32"),
        )
    )
    with asm.stream(m):
        at = asm.load(index, {n: 1})
        keep = asm.load(mask, {m: 1})
        row = asm.load(table, {m: 1}, 5, indices=[(at, 8, 100)], mask=keep, other=0.5)
        total = asm.reduce("sum", asm.convert(asm.apply("round_float16", row), "float64"))
    asm.store(out, {n: -1}, asm.convert(total, "float32"), count * 2, add=True)
    text = disassemble(asm.assemble())
    for line in (
        "  n ((s0 * 2) + 1), tile 16 on 4 cores",
        "  pass 0, streams m",
        "    load     v2 = table[m + 8 (v0 < 100) + 5] where v1 else 0.5",
        "    vector   v4 = float64 v3",
        "    reduce   v5 = sum v4",
        "  pass 1",
        "    store    out[-1 n + (s0 * 2)] += v6",
    ):
        assert line in text.splitlines(), text
    assert "held" in text


def test_a_value_of_one_format_meets_no_other() -> None:
    asm = Assembler("mixed")
    n = asm.dimension("n", 4)
    a, b, c = (
        asm.argument(k, f) for k, f in zip("abc", ("int32", "float16", "int32"), strict=True)
    )
    asm.store(c, {n: 1}, asm.load(a, {n: 1}) + asm.load(b, {n: 1}))
    with pytest.raises(ProgramError, match=r"instruction 2 \(add\): mixes the formats int32"):
        asm.assemble()


def test_what_an_instruction_cannot_work_on_is_said() -> None:
    asm = Assembler("exp of integers")
    n = asm.dimension("n", 4)
    a = asm.argument("a", "int32")
    asm.store(a, {n: 1}, asm.apply("exp", asm.load(a, {n: 1})))
    with pytest.raises(ProgramError, match=r"\(exp\): does not work on int32"):
        asm.assemble()
    asm = Assembler("numbers alone")
    asm.store(asm.argument("a", "bool"), {}, asm.apply("less", 1, 2))
    with pytest.raises(ProgramError, match="needs at least one value"):
        asm.assemble()
    with pytest.raises(ProgramError, match="add is given numbers alone"):
        asm.apply("add", 1, 2)
    with pytest.raises(ProgramError, match="no instruction 'relu'"):
        asm.apply("relu", 1)
    with pytest.raises(ProgramError, match="'complex64' asked for; the formats are bool"):
        asm.argument("z", "complex64")


def test_a_program_of_single_elements_reads_them_when_it_runs() -> None:
    asm = Assembler("single")
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    asm.store(out, {}, asm.apply("atan2", asm.load(x, {}) + 1, asm.constant(2.0, "float32")))
    program = asm.assemble()
    card = Card()
    places = [card.place(np.array([3], np.float32)), card.room(1, np.float32)]
    card.run(program, places)
    assert card.read(places[1], np.float32)[0] == pytest.approx(np.arctan2(4, 2))


def test_the_tiles_of_a_product_load_each_factor_once_where_the_scratchpad_allows_it() -> None:
    asm = Assembler("product")
    m, n, k = asm.dimension("m", 2048), asm.dimension("n", 2048), asm.dimension("k", 2048)
    a, b, c = (asm.argument(name, "float16") for name in "abc")
    with asm.stream(k):
        product = asm.matmul(asm.load(a, {m: 2048, k: 1}), asm.load(b, {k: 2048, n: 1}))
    asm.store(c, {m: 2048, n: 1}, product)
    (stage,) = asm.assemble().stages
    assert [d.tile for d in stage.dimensions[:2]] == [2048, 2048]


def test_what_is_gathered_along_a_long_tile_makes_the_tile_shorter_and_not_an_error() -> None:
    asm = Assembler("gather")
    rows, columns = asm.dimension("rows", 1 << 12), asm.dimension("columns", 1 << 12)
    table, out = asm.argument("table", "float32"), asm.argument("out", "float32")
    taken = asm.load(table, {columns: 1}, indices=[(asm.index(rows), 0, 1 << 12)])
    asm.store(out, {rows: 1 << 12, columns: 1}, taken)
    assert asm.assemble().stages


def test_a_number_may_stand_on_either_side_of_a_value() -> None:
    asm = Assembler("sides")
    n, factor = asm.dimension("n", 4), asm.float_symbol()
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    value = asm.load(x, {n: 1})
    asm.store(out, {n: 1}, (factor * value) + (factor + value) + (factor - value) + factor / value)
    text = disassemble(asm.assemble())
    for line in ("multiply s0, v0", "add s0, v0", "subtract s0, v0", "divide s0, v0"):
        assert line in text


def test_a_value_cannot_be_rounded_down_by_an_operator() -> None:
    asm = Assembler("rounded")
    n, size = asm.dimension("n", 4), asm.size_symbol()
    value = asm.load(asm.argument("x", "float32"), {n: 1})
    with pytest.raises(TypeError, match=r"unsupported operand.* 'Scalar' and 'Wire'"):
        size // value  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"unsupported operand.* 'Scalar' and 'Wire'"):
        size % value  # type: ignore[operator]


def test_arithmetic_on_floats_is_refused_where_it_is_written() -> None:
    asm = Assembler("doubled")
    with pytest.raises(ProgramError, match=r"multiply of a float.*apply it to a value"):
        asm.float_symbol() * 2
    with pytest.raises(ProgramError, match=r"add of a float.*apply it to a value"):
        asm.size_symbol() + asm.number(0.5)


def test_a_value_that_leaves_its_pass_is_named_with_its_axis() -> None:
    asm = Assembler("centre")
    n = asm.dimension("n", 4)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    with asm.stream(n):
        total = asm.reduce("sum", asm.load(x, {n: 1}))
    asm.store(out, {n: 1}, asm.load(x, {n: 1}) - total)
    with pytest.raises(
        ProgramError, match=r"value 2 cannot vary along n.*does not stream.*asm.stage\(\)"
    ):
        asm.assemble()


def test_a_value_that_is_used_in_another_pass_is_named_with_its_axis() -> None:
    asm = Assembler("outside")
    n = asm.dimension("n", 4)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    with asm.stream(n):
        value = asm.load(x, {n: 1})
    asm.store(out, {n: 1}, value)
    with pytest.raises(ProgramError, match=r"value 0 varies along n, which pass 1 does not stream"):
        asm.assemble()
