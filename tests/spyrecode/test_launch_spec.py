"""A launch against its spec: what is bound, and what is refused and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spyrecode.samples import SCALARS, SPEC, described, tensors
from torch_spyre_ref.spyrecode import (
    Argument,
    Description,
    Dimension,
    LaunchMismatchError,
    LaunchSpec,
    Scalar,
    Symbol,
)


def refusal(given_: Sequence[Description], scalars: Sequence[Any] = SCALARS) -> str:
    """What a launch of the sample on card 0 is told."""
    with pytest.raises(LaunchMismatchError) as caught:
        SPEC.check(given_, scalars, card=0)
    return str(caught.value)


def with_(index: int, **changes: Any) -> list[Description]:
    """The sample's tensors, one of them different."""
    given_ = tensors()
    given_[index] = given_[index]._replace(**changes)
    return given_


@given(rows=st.integers(0, 4096), columns=st.integers(1, 512), pitch=st.integers(1, 1 << 20))
def test_one_spec_serves_every_size_in_its_range(rows: int, columns: int, pitch: int) -> None:
    bound = SPEC.check(tensors(rows, columns, pitch), SCALARS, card=0)
    # A pitch that nothing steps by is any: its least.
    pitch = pitch if rows > 1 else 1
    assert bound == {"rows": rows, "columns": columns, "pitch": pitch}


def test_symbols_follow_one_another_in_the_slot() -> None:
    spec = LaunchSpec.of(SPEC.arguments[:2], SPEC.dimensions[:1], SPEC.scalars[:1])
    assert spec.symbols == (
        Symbol("address", 0, 0),
        Symbol("address", 1, 256),
        Symbol("dimension", 0, 512),
        Symbol("scalar", 0, 520),
    )
    assert spec.correction_size == 640


@pytest.mark.parametrize(
    ("index", "changes", "expected"),
    [
        (0, {"dtype": "float32"}, "input 'x': dtype float32 was given; expected float16."),
        (1, {"device": "cpu", "card": None}, "input 'w': device cpu was given; expected spyre."),
        (1, {"card": 1}, "input 'w': card 1 was given; expected 0."),
        (3, {"layout": "tiled"}, "output 'out': layout tiled was given; expected row-major."),
        (0, {"shape": (5,)}, "input 'x': shape (5,) was given; expected (rows, columns)."),
        (
            3,
            {"shape": (5, 65)},
            "output 'out': shape (5, 65) was given; expected (rows=5, 64).",
        ),
        (
            3,
            {"shape": (6, 64)},
            "output 'out': shape (6, 64) was given; expected (rows=5, 64).",
        ),
        (
            2,
            {"strides": (32, 8, 1)},
            "input_output 'sums': strides (32, 8, 1) was given; expected (4*columns=32, 0, 1).",
        ),
        (
            0,
            {"shape": (5000, 8)},
            "input 'x': shape (5000, 8) was given; expected rows of 0 to 4096.",
        ),
        (
            0,
            {"strides": (1 << 21, 1)},
            "input 'x': strides (2097152, 1) was given; expected pitch of 1 to 1048576.",
        ),
    ],
)
def test_a_mismatch_names_the_argument_what_was_given_and_what_was_expected(
    index: int, changes: dict[str, Any], expected: str
) -> None:
    message = refusal(with_(index, **changes))
    assert message.startswith(f"argument {index}, {expected}")
    assert message.endswith(
        "The launch takes, in this order: input x float16 (rows, columns), input w float16 "
        "(columns, 64), input_output sums float32 (rows, 4, columns), output out float16 "
        "(rows, 64), float alpha, integer seed"
    )


def test_too_many_too_few_and_the_wrong_order() -> None:
    for wrong in (tensors()[:-1], [*tensors(), tensors()[0]], []):
        message = refusal(wrong)
        assert message.startswith(f"{len(wrong)} tensors and 2 scalars were given; expected 4 and")
    assert "4 tensors and 1 scalars were given" in refusal(tensors(), SCALARS[:1])
    x, w, sums, out = tensors()
    assert refusal([x, w, out, sums]).startswith("argument 2, input_output 'sums': shape (5, 64)")
    assert refusal([out, w, sums, x]).startswith("argument 1, input 'w': shape (8, 64)")


@pytest.mark.parametrize(
    ("scalars", "expected"),
    [
        ((1, 7), "scalar 'alpha': 1, of type int, was given; expected a float"),
        ((0.5, 7.0), "scalar 'seed': 7.0, of type float, was given; expected an int of 64 bits"),
        ((0.5, True), "scalar 'seed': True, of type bool, was given; expected an int of 64 bits"),
        ((0.5, 1 << 63), f"scalar 'seed': {1 << 63}, of type int, was given; expected an int of"),
        ((None, 7), "scalar 'alpha': None, of type NoneType, was given; expected a float"),
    ],
)
def test_a_scalar_must_be_what_the_slot_has_room_for(scalars: Any, expected: str) -> None:
    assert refusal(tensors(), scalars).startswith(expected)


def test_scalars_may_be_anything_that_fits() -> None:
    for scalars in ((float("nan"), -(1 << 63)), (-0.0, (1 << 63) - 1)):
        SPEC.check(tensors(), scalars, card=0)


def test_strides_count_only_where_they_are_stepped() -> None:
    """PyTorch leaves the strides of single elements, and of none, to chance."""
    x = Argument("x", "input", "float16", ("n", 4), (4, 1))
    spec = LaunchSpec.of([x], [Dimension("n", 0, 9)])
    assert spec.check([described("float16", (1, 4), (77, 1))], card=0) == {"n": 1}
    assert spec.check([described("float16", (0, 4), (77, 5))], card=0) == {"n": 0}
    with pytest.raises(LaunchMismatchError, match=r"strides \(77, 1\) was given; expected \(4, 1"):
        spec.check([described("float16", (2, 4), (77, 1))], card=0)


def test_a_stride_symbol_is_read_off_the_first_stride_that_is_stepped() -> None:
    spec = LaunchSpec.of(
        [
            Argument("a", "input", "int8", (1, 2), ("s", 1)),
            Argument("b", "input", "int8", (3, 2), ("s", 1)),
            Argument("c", "input", "int8", (3, 2), ("s", 1)),
        ],
        [Dimension("s", 2, 100)],
    )

    def given_(*strides: int) -> list[Description]:
        return [described("int8", (n, 2), (s, 1)) for n, s in zip((1, 3, 3), strides, strict=True)]

    assert spec.check(given_(999, 5, 5), card=0) == {"s": 5}
    with pytest.raises(LaunchMismatchError, match=r"argument 2, .* expected \(s=5, 1\)"):
        spec.check(given_(999, 5, 6), card=0)


def test_a_launch_of_nothing_but_scalars() -> None:
    spec = LaunchSpec.of([], scalars=[Scalar("seed", "integer")])
    assert spec.check([], [3], card=0) == {}
    assert str(LaunchSpec.of([])) == "nothing"
    many = LaunchSpec.of([], scalars=[Scalar(f"s{n}", "float") for n in range(50)])
    assert str(many).endswith("float s10, float s11, and 38 more")


def test_a_spec_is_a_value() -> None:
    assert replace(SPEC) == SPEC
    assert hash(replace(SPEC)) == hash(SPEC)
    SPEC.check(tensors(), SCALARS, card=0)
    assert replace(SPEC, scalars=()) != SPEC


def test_a_shape_of_one_axis_is_shown_as_a_tuple() -> None:
    spec = LaunchSpec.of([Argument("x", "input", "float32", (1024,), (1,))])
    assert str(spec) == "input x float32 (1024,)"
    with pytest.raises(LaunchMismatchError, match=r"shape \(7,\) was given; expected \(1024,\)\."):
        spec.check([described("float32", (7,), (1,))], card=0)


class Dtype:
    """As torch's, which are no text."""

    def __repr__(self) -> str:
        return "torch.float32"


@pytest.mark.parametrize(
    ("dtype", "shape", "strides", "expected"),
    [
        (Dtype(), (4,), (1,), "'x': dtype torch.float32 was given; expected its name"),
        ("float32", 4, (1,), r"'x': shape 4 was given; expected a tuple, one entry for each axis"),
        ("float32", (4,), [1], r"'x': strides \[1\] was given; expected a tuple"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_where_it_is_written(
    dtype: Any, shape: Any, strides: Any, expected: str
) -> None:
    with pytest.raises(TypeError, match=expected):
        Argument("x", "input", dtype, shape, strides)
