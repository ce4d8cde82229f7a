"""Every elementwise instruction against torch, run as a program, in every format that it takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.programs import COMPUTED, FLOATS, narrow, numbers, run_elementwise, widen
from torch_spyre_ref.emulator.alu import operation
from torch_spyre_ref.emulator.program import FORMATS
from torch_spyre_ref.emulator.program.units import OPS

Function = Callable[..., torch.Tensor]

_SAME_NAME = (
    "minimum maximum add subtract multiply divide remainder fmod copysign nextafter gcd"
    " bitwise_and bitwise_or bitwise_xor less less_equal greater greater_equal logical_and"
    " logical_or logical_xor exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid erf"
    " erfc sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh atan2 hypot"
)
ORACLES: dict[str, Function] = {
    "copy": lambda x: x,
    "negative": torch.neg,
    "absolute": torch.abs,
    "sign": torch.sgn,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "truncate": torch.trunc,
    "round": torch.round,
    "reciprocal": torch.reciprocal,
    "round_float16": lambda x: x.half().to(x.dtype),
    "round_bfloat16": lambda x: x.float().bfloat16().to(x.dtype),
    "bitwise_not": torch.bitwise_not,
    "logical_not": torch.logical_not,
    "shift_left": lambda a, b: torch.bitwise_left_shift(a, b & 7),
    "shift_right": lambda a, b: torch.bitwise_right_shift(a, b & 7),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "truncate_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "multiply_add": lambda a, b, c: a * b + c,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "power": torch.pow,
    "select": lambda c, a, b: torch.where(c, a, b),
    **{op: getattr(torch, op) for op in _SAME_NAME.split()},
}
ELEMENTWISE = [
    op
    for op, line in OPS.items()
    if line.unit in ("vector", "special") and op not in ("convert", "select")
]
_KINDS = {"number": "integer float", "float": "float", "integer": "integer", "bits": "integer bool"}


def formats_of(op: str) -> list[str]:
    """The computed formats that an instruction takes, of those that torch can do it in."""
    rule, _, kind = OPS[op].rule.partition(" ")
    kinds = "float" if rule == "test" else _KINDS.get(kind, "integer float bool")
    taken = [f for f in COMPUTED if FORMATS[f].kind in kinds.split()]
    return [f for f in taken if f not in ("uint16", "uint32", "uint64")]


SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-30, 3.0, -2.5, 1.5, 2.5]


def operands(op: str, format: str, count: int) -> list[np.ndarray]:
    made = [numbers(7 + i, count, format) for i in range(OPS[op].inputs)]
    if FORMATS[format].kind == "float":
        for turn, array in enumerate(made):
            array[: len(SPECIALS) ** 2] = (
                np.repeat(SPECIALS, len(SPECIALS)) if turn else np.tile(SPECIALS, len(SPECIALS))
            )
    elif op in ("floor_divide", "truncate_divide", "remainder", "fmod"):
        made[1] = np.where(made[1] == 0, made[1].dtype.type(3), made[1])
        lowest = np.iinfo(made[0].dtype).min
        made[0] = np.where(made[0] == lowest, made[0].dtype.type(1), made[0])
    elif op == "power":
        made[1] = np.abs(made[1] % made[1].dtype.type(7)).astype(made[1].dtype)
    elif op.startswith("shift"):
        made[1] &= made[1].dtype.type(7)
    elif op == "gcd":
        made = [m // m.dtype.type(2) for m in made]
    return made


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_an_instruction_does_what_torch_does(op: str) -> None:
    for format in formats_of(op):
        inputs = operands(op, format, 300)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = ORACLES[op](*map(torch.from_numpy, inputs)).numpy()
        result = {"compare": "bool", "test": "bool"}.get(OPS[op].rule.split()[0], format)
        formats = [format] * len(inputs)
        got = run_elementwise(formats, result, inputs, lambda asm, *v: asm.apply(op, *v))
        if FORMATS[format].kind == "float" and result == format:
            bound = 4e-6 if format == "float32" else 1e-12
            if op in ("remainder", "fmod", "floor_divide", "truncate_divide"):
                keep = np.isfinite(inputs[0]) & np.isfinite(inputs[1]) & (inputs[1] != 0)
                got, expected = got[keep], expected[keep]
            np.testing.assert_allclose(got, expected, rtol=bound, atol=bound * 1e-2)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=format)


@pytest.mark.parametrize("over", [0, 1, 2])
def test_a_multiply_add_may_lie_over_any_of_its_inputs(over: int) -> None:
    inputs = [np.array(v, np.float32) for v in ([2, 3], [5, 7], [11, 13])]
    operation("multiply_add", inputs, inputs[over])()
    assert inputs[over].tolist() == [21, 34]


@pytest.mark.parametrize("format", COMPUTED)
def test_select_chooses_element_by_element(format: str) -> None:
    arrays = [numbers(1, 64, "bool"), numbers(2, 64, format), numbers(3, 64, format)]
    got = run_elementwise(
        ["bool", format, format], format, arrays, lambda asm, c, a, b: asm.apply("select", c, a, b)
    )
    assert got.tobytes() == np.where(*arrays).tobytes()


@pytest.mark.parametrize("source", COMPUTED)
@pytest.mark.parametrize("target", COMPUTED)
def test_conversion_is_torchs(source: str, target: str) -> None:
    values = numbers(5, 200, source)
    if FORMATS[source].kind == "float":
        values = np.abs(values) * 10 if target.startswith("uint") else values * 10
    torch_target = getattr(torch, target)
    expected = torch.from_numpy(values).to(torch_target).numpy()
    got = run_elementwise([source], target, [values], lambda asm, x: asm.convert(x, target))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("format", ["float16", "bfloat16"])
@pytest.mark.parametrize("count", [50, 40_000])
def test_halves_are_computed_in_float32_and_rounded_once(format: str, count: int) -> None:
    inputs = [numbers(i, count, format) for i in range(2)]

    def compute(asm: Any, x: Any, y: Any) -> Any:
        return (x * y + 1e-3) * x - y

    x, y = (widen(v, format) for v in inputs)
    expected = narrow((x * y + np.float32(1e-3)) * x - y, format)
    got = run_elementwise([format, format], format, inputs, compute)
    assert got.tobytes() == expected.tobytes()


@given(st.binary(min_size=8, max_size=64), st.sampled_from(["float16", "bfloat16"]))
def test_any_half_survives_a_copy_or_is_a_nan(data: bytes, format: str) -> None:
    bits = np.frombuffer(data[: len(data) // 2 * 2], FORMATS[format].stored)
    got = run_elementwise([format], format, [bits], lambda asm, x: x)
    before, after = widen(bits, format), widen(got, format)
    np.testing.assert_array_equal(before, after)


def test_a_bool_is_one_whatever_its_byte_was() -> None:
    bytes_ = np.array([0, 1, 2, 255], np.uint8).view(bool)
    got = run_elementwise(["bool"], "int32", [bytes_], lambda asm, x: asm.convert(x, "int32"))
    assert got.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("format", ["float32", "float64"])
def test_erf_and_erfc_hold_their_last_digits(format: str) -> None:
    x = np.linspace(-6, 9, 4001).astype(FORMATS[format].stored)
    epsilon = float(np.finfo(x.dtype).eps)
    for op, function in (("erf", torch.erf), ("erfc", torch.erfc)):
        got = run_elementwise([format], format, [x], lambda asm, v, op=op: asm.apply(op, v))
        expected = function(torch.from_numpy(x).double()).numpy()
        error = np.abs(got.astype(float) - expected) / np.maximum(np.abs(expected), 1e-300)
        assert error.max() < 16 * epsilon, (op, error.max() / epsilon, x[error.argmax()])


@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if "float32" in formats_of(op)])
def test_the_bytes_do_not_depend_on_the_tile(op: str) -> None:
    inputs = [np.ascontiguousarray(v) for v in operands(op, "float32", 1_000)]
    result = {"compare": "bool", "test": "bool"}.get(OPS[op].rule.split()[0], "float32")

    def run(tile: int) -> bytes:
        formats = ["float32"] * len(inputs)
        out = run_elementwise(formats, result, inputs, lambda asm, *v: asm.apply(op, *v), tile)
        return out.tobytes()

    whole = run(1_000)
    assert run(7) == whole
    assert run(333) == whole


@pytest.mark.parametrize("format", [*FLOATS, "int32", "uint8"])
def test_scalars_take_the_format_of_what_they_meet(format: str) -> None:
    values = numbers(3, 20_000, format)
    got = run_elementwise(
        [format], format, [values], lambda asm, x: asm.apply("maximum", x * 3, 5) - 2
    )
    wide = widen(values, format)
    expected = np.maximum(wide * wide.dtype.type(3), wide.dtype.type(5)) - wide.dtype.type(2)
    assert got.tobytes() == narrow(expected, format).tobytes()
