"""The reduce unit and the matrix array, over one tile and over hundreds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.programs import COMPUTED, Array, Card, numbers, seeds
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import FORMATS, ProgramError

FOLDS = {
    "sum": np.add.reduce,
    "product": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
    "any": np.logical_or.reduce,
    "all": np.logical_and.reduce,
    "xor": np.bitwise_xor.reduce,
}


def reduced(op: str, x: Array, format: str, axes: tuple[int, ...], tile: int | None) -> list[Array]:
    """All results of a reduction of ``x`` over ``axes``, by a program."""
    asm = Assembler(op)
    dims = [asm.dimension(f"d{d}", n, tile=tile) for d, n in enumerate(x.shape)]
    kept = [d for d in range(x.ndim) if d not in axes]
    source = asm.argument("x", format)
    strides = [s // x.itemsize for s in x.strides]
    with asm.stream(*(dims[d] for d in axes)):
        wires = asm.reduce_all(op, asm.load(source, dict(zip(dims, strides, strict=True))))
    shape = [x.shape[d] for d in kept]
    card = Card(1 << 20)
    patches = [card.place(x)]
    step = [int(np.prod(shape[k + 1 :])) for k in range(len(kept))]
    for n, wire in enumerate(wires):
        out = asm.argument(f"out{n}", wire.format)
        asm.store(out, {dims[d]: s for d, s in zip(kept, step, strict=True)}, wire)
        patches.append(card.room(int(np.prod(shape)), FORMATS[wire.format].stored))
    card.run(asm.assemble(), patches)
    count = int(np.prod(shape))
    return [
        card.read(patch, FORMATS[wire.format].stored)[:count].reshape(shape)
        for patch, wire in zip(patches[1:], wires, strict=True)
    ]


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


@given(st.data(), shapes, seeds, st.sampled_from(list(FOLDS)))
def test_folds_over_any_axes_and_tiles(
    data: st.DataObject, shape: tuple[int, ...], seed: int, op: str
) -> None:
    formats = [
        f
        for f in COMPUTED
        if not (op in ("sum", "product") and f == "bool")
        and not (op == "xor" and FORMATS[f].kind == "float")
    ]
    format = data.draw(st.sampled_from(formats))
    axes = tuple(d for d in range(len(shape)) if data.draw(st.booleans()))
    tile = data.draw(st.none() | st.integers(1, 4))
    x = numbers(seed, int(np.prod(shape)), format).reshape(shape)
    (got,) = reduced(op, x, format, axes, tile)
    dtype = None if op in ("any", "all") else x.dtype
    with np.errstate(all="ignore"):
        expected = FOLDS[op](x, axis=axes, dtype=dtype)
    if FORMATS[format].kind == "float" and op in ("sum", "product"):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, expected)


@given(st.data(), shapes, seeds, st.sampled_from(["argmax", "argmin"]))
def test_positions_are_of_the_first_extremum(
    data: st.DataObject, shape: tuple[int, ...], seed: int, op: str
) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(0, 4, shape).astype(np.float32)
    x[random.random(shape) < 0.1] = np.nan
    axes = tuple(d for d in range(len(shape)) if data.draw(st.booleans()))
    tile = data.draw(st.none() | st.integers(1, 3))
    kept = [d for d in range(len(shape)) if d not in axes]
    lines = x.transpose(*kept, *axes).reshape(*(shape[d] for d in kept), -1)
    position, value = reduced(op, x, "float32", axes, tile)
    expected = getattr(np, op)(lines, axis=-1)
    np.testing.assert_array_equal(position, expected)
    np.testing.assert_array_equal(value, np.take_along_axis(lines, expected[..., None], -1)[..., 0])


@pytest.mark.parametrize("tile", [None, 3, 50])
def test_welford_gives_mean_deviations_and_count(tile: int | None) -> None:
    x = (np.random.default_rng(0).normal(size=(5, 120)) + 1e3).astype(np.float32)
    mean, deviations, count = reduced("welford", x, "float32", (1,), tile)
    wide = x.astype(float)
    np.testing.assert_allclose(mean, wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(deviations / count, wide.var(1), rtol=1e-3)
    assert count.tolist() == [120] * 5


@pytest.mark.parametrize(
    ("op", "blank"), [("sum", 0), ("product", 1), ("max", -np.inf), ("min", np.inf), ("any", 0)]
)
def test_a_reduction_over_nothing_leaves_the_neutral_element(op: str, blank: float) -> None:
    (got,) = reduced(op, np.empty((3, 0), np.float32), "float32", (1,), None)
    assert got.tolist() == [blank] * 3


def test_a_reduction_of_no_rows_stores_nothing() -> None:
    (got,) = reduced("sum", np.empty((0, 3), np.float32), "float32", (1,), None)
    assert got.shape == (0,)


def softmax(
    rows: int, columns: int, *, column_tile: int | None = None, row_tile: int | None = None
) -> Assembler:
    asm = Assembler("softmax")
    r = asm.dimension("rows", rows, tile=row_tile)
    c = asm.dimension("columns", columns, tile=column_tile)
    source, target = asm.argument("source", "float32"), asm.argument("target", "float32")
    with asm.stream(c):
        x = asm.load(source, {r: columns, c: 1})
        peak = asm.reduce("max", x)
    with asm.stream(c):
        e = asm.apply("exp", x - peak)
        total = asm.reduce("sum", e)
    with asm.stream(c):
        asm.store(target, {r: columns, c: 1}, e / total)
    return asm


@pytest.mark.parametrize("tiles", [(None, None), (None, 7), (2, 7), (1, 1), (5, None)])
def test_softmax_holds_its_rows_in_scratchpad(tiles: tuple[int | None, int | None]) -> None:
    x = np.random.default_rng(1).normal(size=(9, 31)).astype(np.float32)
    program = softmax(9, 31, row_tile=tiles[0], column_tile=tiles[1]).assemble()
    card = Card()
    patches = [card.place(x), card.room(x.size, np.float32)]
    card.run(program, patches)
    e = np.exp(x - x.max(1, keepdims=True))
    got = card.read(patches[1], np.float32)[: x.size].reshape(x.shape)
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)


def multiplied(
    a: Array, b: Array, format: str, order: str, tile: int | None, transposed: bool
) -> Array:
    """A batched product by a program whose stage names its dimensions in ``order``."""
    sizes = {"b": a.shape[0], "m": a.shape[1], "k": a.shape[2], "n": b.shape[2]}
    stored = np.ascontiguousarray(b.transpose(0, 2, 1)) if transposed else b
    asm = Assembler("matmul")
    d = {name: asm.dimension(name, sizes[name], tile=tile) for name in order}
    left, right, out = (asm.argument(name, format) for name in ("left", "right", "out"))
    right_strides = (1, sizes["k"]) if transposed else (sizes["n"], 1)
    with asm.stream(d["k"]):
        product = asm.matmul(
            asm.load(left, {d["b"]: sizes["m"] * sizes["k"], d["m"]: sizes["k"], d["k"]: 1}),
            asm.load(
                right,
                {
                    d["b"]: sizes["k"] * sizes["n"],
                    d["k"]: right_strides[0],
                    d["n"]: right_strides[1],
                },
            ),
        )
    shape = (sizes["b"], sizes["m"], sizes["n"])
    asm.store(out, {d["b"]: shape[1] * shape[2], d["m"]: shape[2], d["n"]: 1}, product)
    card = Card(1 << 20)
    patches = [card.place(a), card.place(stored), card.room(int(np.prod(shape)), a.dtype)]
    card.run(asm.assemble(), patches)
    return card.read(patches[2], a.dtype)[: int(np.prod(shape))].reshape(shape)


@settings(max_examples=60)
@given(
    st.tuples(*[st.integers(0, 6)] * 4),
    st.permutations("bmkn").map("".join),
    st.sampled_from(["float16", "float32", "int64"]),
    st.none() | st.integers(1, 4),
    st.booleans(),
    seeds,
)
def test_products_in_any_order_of_dimensions(
    sizes: tuple[int, ...], order: str, format: str, tile: int | None, transposed: bool, seed: int
) -> None:
    batch, m, k, n = sizes
    random = np.random.default_rng(seed)
    dtype = FORMATS[format].stored
    a = random.integers(-4, 5, (batch, m, k)).astype(dtype)
    b = random.integers(-4, 5, (batch, k, n)).astype(dtype)
    got = multiplied(a, b, format, order, tile, transposed)
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_halves_are_summed_in_float32() -> None:
    a = np.full((1, 1, 4096), 0.1, np.float16)
    got = multiplied(a, np.ones((1, 4096, 1), np.float16), "float16", "bmkn", 64, False)
    assert got.item() == np.float16(np.float32(np.float16(0.1)) * 4096)


def test_a_product_fuses_with_what_comes_before_and_after() -> None:
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(20, 20)).astype(np.float32) for _ in range(2))
    bias = random.normal(size=20).astype(np.float32)
    asm = Assembler("linear")
    m, k, n = (asm.dimension(name, 20, tile=8) for name in "mkn")
    x, w, c, y = (asm.argument(name, "float32") for name in "xwcy")
    with asm.stream(k):
        left = asm.apply("maximum", asm.load(x, {m: 20, k: 1}), 0.0)
        product = asm.matmul(left, asm.load(w, {k: 20, n: 1}))
    asm.store(y, {m: 20, n: 1}, asm.apply("tanh", product + asm.load(c, {n: 1})))
    card = Card()
    patches = [card.place(v) for v in (a, b, bias)]
    patches.append(card.room(400, np.float32))
    card.run(asm.assemble(), patches)
    expected = np.tanh(np.maximum(a, 0) @ b + bias)
    got = card.read(patches[3], np.float32).reshape(20, 20)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_reduction_cannot_be_read_in_the_pass_that_makes_it() -> None:
    asm = Assembler("softmax in one pass")
    c = asm.dimension("columns", 8)
    source, target = asm.argument("source", "float32"), asm.argument("target", "float32")
    with asm.stream(c):
        x = asm.load(source, {c: 1})
        asm.store(target, {c: 1}, x - asm.reduce("max", x))
    with pytest.raises(ProgramError, match="complete only when pass 0 is over"):
        asm.assemble()
