"""The vector and special-function units: elementwise instructions on whole blocks.

``operation`` binds an instruction to its inputs and the block for its result. Blocks are dense;
an input may be a scalar, or have size 1 where it does not vary. Results do not depend on how a
tensor was cut into blocks. Integers wrap; floats follow IEEE 754, and ``minimum`` and ``maximum``
pass NaN on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from math import exp, pi, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Function = Callable[..., Any]

# Elements of a row of a repeated scalar: NumPy's minimum and maximum are three times as slow
# against a scalar as against an array; one of this size stays in cache.
_ROW: Final = 16_384


def _copy(x: Array, out: Array) -> None:
    np.copyto(out, x)


def convert(x: Array, out: Array) -> None:
    """Change the format: floats lose their fraction towards zero, integers wrap, bool is != 0."""
    if out.dtype == np.bool_:
        np.not_equal(x, 0, out=out)
    elif x.dtype.kind == "f" and out.dtype.kind in "iu" and out.itemsize < 8:
        # Straight from float the hardware saturates in some instructions and wraps in others.
        np.copyto(out, x.astype(np.int64), casting="unsafe")
    else:
        np.copyto(out, x, casting="unsafe")


def _dense(ufunc: np.ufunc) -> Function:
    """For ufuncs whose last bit depends on whether an input is dense: make it so."""

    def run(*arguments: Array) -> None:
        *inputs, out = arguments
        ufunc(*(np.ascontiguousarray(np.broadcast_to(x, out.shape)) for x in inputs), out=out)

    return run


def _truncate_divide(a: Array, b: Array, out: Array) -> None:
    if out.dtype.kind == "f":
        np.divide(a, b, out=out)
        np.trunc(out, out=out)
        return
    quotient = np.floor_divide(a, b)
    inexact = np.not_equal(np.remainder(a, b), 0)
    unequal = np.logical_xor(np.less(a, 0), np.less(b, 0))
    np.add(quotient, np.logical_and(inexact, unequal), out=out, casting="unsafe")


def _multiply_add(a: Array, b: Array, c: Array, out: Array) -> None:
    # The result may lie in the bytes of an input that it is the last to read.
    product = np.multiply(a, b, out=None if np.may_share_memory(c, out) else out)
    np.add(product, c, out=out)


def _sign(x: Array, out: Array) -> None:
    if out.dtype.kind == "f":
        # NaN has no sign here: 0, as torch has it.
        np.subtract(np.greater(x, 0), np.less(x, 0), out=out, dtype=out.dtype)
    else:
        np.sign(x, out=out)


def _round_float16(x: Array, out: Array) -> None:
    np.copyto(out, np.asarray(x).astype(np.float16))


def _round_bfloat16(x: Array, out: Array) -> None:
    """To the nearest float32 whose low 16 bits are zero, ties to even."""
    single = np.ascontiguousarray(x, np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    np.copyto(out, np.where(np.isnan(single), single, rounded.view(np.float32)))


def _select(condition: Array, a: Array, b: Array, out: Array) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=np.asarray(condition))


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def _sigmoid(x: Array, out: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, out.dtype.type(1), out=out)
    np.divide(out.dtype.type(1), out, out=out)


def _power(a: Array, b: Array, out: Array) -> None:
    if out.dtype.kind == "f":
        _dense(np.power)(a, b, out)
        return
    # Below zero an integer exponent gives the truncated quotient: 1, -1 or 0.
    negative = np.less(b, 0)
    np.power(a, np.where(negative, out.dtype.type(0), b), out=out)
    if np.any(negative):
        odd = np.not_equal(np.bitwise_and(b, 1), 0)
        minus = np.where(np.equal(a, -1), np.where(odd, -1, 1), 0) if out.dtype.kind == "i" else 0
        small = np.where(np.equal(a, 1), 1, minus).astype(out.dtype)
        np.copyto(out, small, where=negative)


# --8<-- [start:erf]
# erfc(x) exp(x**2) is smooth from 0 to where erfc underflows; in t = (x - 3) / (x + 3), which runs
# from -1 to _END, a short polynomial gives all of it. The table is computed, as a maker of
# hardware would, and as long as the format's last bit needs.
_FAR: Final = 26.0
_END: Final = (_FAR - 3) / (_FAR + 3)
_DEGREE: Final = {4: 12, 8: 24}
# x * x loses digits that exp would magnify. The square of x rounded down to this many steps is
# exact, also in float32, and the rest of x * x is small.
_HEAD: Final = 128.0


def _scaled_erfc(x: float) -> float:
    """erfc(x) exp(x**2): near 0 by its power series, else by its continued fraction."""
    if x < 0.5:
        term, odd = 2 * x / sqrt(pi), 0.0
        for n in range(1, 30):
            odd += term
            term *= 2 * x * x / (2 * n + 1)
        return exp(x * x) - odd
    fraction = x
    for n in range(2_000, 0, -1):
        fraction = x + n / 2 / fraction
    return 1 / (sqrt(pi) * fraction)


@cache
def _erfc_table(itemsize: int) -> list[float]:
    count = _DEGREE[itemsize] + 1
    # Angles in steps of a half turn's 2 * count-th part, and within a turn while they are integers.
    steps = np.outer(np.arange(count), 2 * np.arange(count) + 1) % (4 * count)
    waves = np.cos(steps * (pi / (2 * count)))
    t = (waves[1] + 1) / 2 * (_END + 1) - 1
    x = 3 * (1 + t) / (1 - t)
    scaled = [_scaled_erfc(v) for v in x.tolist()]
    terms = waves @ np.array(scaled) * 2 / count
    terms[0] /= 2
    return [float(term) for term in terms]


def _erfc_of_positive(x: Array) -> Array:
    """erfc(x) for x >= 0, by Clenshaw's recurrence."""
    near = np.minimum(x, x.dtype.type(_FAR))
    t = (near - x.dtype.type(3)) / (near + x.dtype.type(3))
    node = (t + 1) * x.dtype.type(2 / (_END + 1)) - 1
    twice = node + node
    last = before = np.zeros_like(x)
    for term in _erfc_table(x.itemsize)[:0:-1]:
        last, before = twice * last - before + x.dtype.type(term), last
    scaled = node * last - before + x.dtype.type(_erfc_table(x.itemsize)[0])
    head = np.floor(near * x.dtype.type(_HEAD)) / x.dtype.type(_HEAD)
    tail = (near - head) * (near + head)
    result: Array = np.exp(-head * head) * np.exp(-tail) * scaled
    return result


def _erfc(x: Array, out: Array) -> None:
    small = _erfc_of_positive(np.absolute(np.asarray(x, out.dtype)))
    np.copyto(out, np.where(np.less(x, 0), 2 - small, small))


def _erf(x: Array, out: Array) -> None:
    value = np.asarray(x, out.dtype)
    size = np.absolute(value)
    # Below a half, 1 - erfc cancels: the series of erf itself is exact there.
    square, series = value * value, np.zeros_like(value)
    for n in range(_DEGREE[out.itemsize] // 2 + 2, -1, -1):
        series = series * square + out.dtype.type(_erf_term(n))
    far = np.copysign(1 - _erfc_of_positive(size), value)
    np.copyto(out, np.where(size < 0.5, value * series, far))


@cache
def _erf_term(n: int) -> float:
    term = 2 / sqrt(pi) / (2 * n + 1)
    for k in range(1, n + 1):
        term /= -k
    return term


# --8<-- [end:erf]

_PLAIN: Final = (
    "negative absolute add subtract multiply floor_divide remainder fmod floor ceil divide copysign"
    " nextafter gcd bitwise_not bitwise_and bitwise_or bitwise_xor equal not_equal less less_equal"
    " greater greater_equal logical_not logical_and logical_or logical_xor isnan isinf isfinite"
    " signbit trunc rint sqrt"
)
_SMOOTH: Final = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh"
    " arccosh arctanh arctan2 hypot"
)
_RENAMED: Final = {
    "trunc": "truncate",
    "rint": "round",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "arctan2": "atan2",
}


@lru_cache(maxsize=64)
def _repeated(number: bytes, dtype: np.dtype[Any]) -> Array:
    return np.frombuffer(number * _ROW, dtype)


def operation(op: str, inputs: Sequence[Any], out: Array) -> Callable[[], Any]:
    """What does ``op`` on blocks that are there already, each time that it is called."""
    # NumPy makes an array of a scalar at each call, which takes longer than a small block.
    inputs = [np.asarray(x) for x in inputs]
    if op in ("minimum", "maximum") and out.size and out.size % _ROW == 0:
        flat = out.reshape(-1, _ROW)
        rows = [
            x.reshape(-1, _ROW) if np.ndim(x) else _repeated(out.dtype.type(x).tobytes(), out.dtype)
            for x in inputs
            if np.shape(x) in ((), out.shape)
        ]
        if len(rows) == len(inputs):
            return partial(getattr(np, op), *rows, out=flat)
    if op in ("minimum", "maximum"):
        return partial(getattr(np, op), *inputs, out=out)
    smooth = _SMOOTH_UFUNCS.get(op)
    if smooth is not None and all(x.shape == out.shape and x.flags.c_contiguous for x in inputs):
        return partial(smooth, *inputs, out)
    return partial(ALU[op], *inputs, out)


_SMOOTH_UFUNCS: Final = {_RENAMED.get(name, name): getattr(np, name) for name in _SMOOTH.split()}
ALU: Final[dict[str, Function]] = {
    **{_RENAMED.get(name, name): getattr(np, name) for name in _PLAIN.split()},
    **{name: _dense(ufunc) for name, ufunc in _SMOOTH_UFUNCS.items()},
    "copy": _copy,
    "convert": convert,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "truncate_divide": _truncate_divide,
    "multiply_add": _multiply_add,
    "reciprocal": np.reciprocal,
    "sign": _sign,
    "round_float16": _round_float16,
    "round_bfloat16": _round_bfloat16,
    "select": _select,
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "power": _power,
    "erf": _erf,
    "erfc": _erfc,
}
"""What each instruction of the two units does, by name."""
