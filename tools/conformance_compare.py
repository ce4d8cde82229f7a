"""Whether a card's result is the CPU's: structure, dtype, shape, aliasing, strides, values.

Where values differ by more than rounding usually explains, float64 decides: a card may be nearer to
the truth than the CPU, or about as far from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from conformance_samples import CARD, Call, Copier, seed, tensors

_RANGES = {
    "bernoulli": (0.0, 1.0),
    "exponential": (0.0, math.inf),
    "geometric": (1.0, math.inf),
    "log_normal": (0.0, math.inf),
    "multinomial": (0.0, math.inf),
}
"""Between which values the random numbers of an operator lie, whatever its arguments."""


class WrongResultError(Exception):
    """The card's result is not the CPU's."""


@dataclass
class Ran:
    """What one call did on one device: its arguments, afterwards, and what it returned."""

    copier: Copier
    result: Any

    @property
    def values(self) -> list[torch.Tensor]:
        """The tensors of the result, then those of the arguments."""
        return [*tensors(self.result), *self.copier.tensors]

    def aliased(self, tensor: torch.Tensor) -> int | None:
        """Which storage of the arguments a tensor lies in; None for memory of its own."""
        keys = [copy.untyped_storage()._cdata for copy in self.copier.storages.values()]
        key = tensor.untyped_storage()._cdata
        return keys.index(key) if key in keys else None


def compare(op: Any, call: Call, cpu: Ran, card: Ran, unequal: str, number: int) -> None:
    """Compare results, and what the arguments hold afterwards.

    Args:
        op: the operator's entry in PyTorch's database.
        call: what was called.
        cpu: what it did on the CPU.
        card: what it did on the card.
        unequal: why values cannot be compared; nothing if they can.
        number: the sample's, which seeds another run.

    Raises:
        WrongResultError: something differs.
    """
    _same_form(cpu.result, card.result)
    strict = isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo))
    for expected, actual in zip(tensors(cpu.result), tensors(card.result), strict=True):
        _same_place(cpu, expected, card, actual, strict)
    for position, (expected, actual) in enumerate(zip(cpu.values, card.values, strict=True)):
        _same_meta(expected, actual)
        if unequal:
            _in_range(_RANGES.get(op.name, (-math.inf, math.inf)), expected, actual.cpu(), unequal)
        elif reason := _not_close(actual.cpu(), expected):
            in_float64 = functools.partial(_in_float64, call, number, position)
            _judge(actual.cpu(), expected, in_float64, reason)
    for key, whole in cpu.copier.storages.items():
        _same_gaps(whole, card.copier.storages[key].cpu(), cpu.copier.tensors)


def _same_gaps(expected: torch.Tensor, actual: torch.Tensor, views: list[torch.Tensor]) -> None:
    """The same bytes in a storage wherever none of the arguments lies."""
    storage = expected.untyped_storage()
    inside = [view for view in views if view.untyped_storage()._cdata == storage._cdata]
    if sum(view.nbytes for view in inside) >= expected.nbytes:
        return
    between = torch.ones(storage.nbytes(), dtype=torch.bool)
    for view in inside:
        size = view.element_size()
        strides = [size * stride for stride in view.stride()]
        between.as_strided((*view.shape, size), (*strides, 1), size * view.storage_offset()).zero_()
    between = between[: expected.nbytes]
    _require(torch.equal(actual[between], expected[between]), "writes beside an argument")


def _same_form(expected: Any, actual: Any) -> None:
    """The same nesting and the same numbers; tensors are for others to compare."""
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return
    _require(isinstance(actual, type(expected)), f"{type(actual)} instead of {type(expected)}")
    if isinstance(expected, (list, tuple)):
        _require(len(expected) == len(actual), f"{len(actual)} results instead of {len(expected)}")
        for one, other in zip(expected, actual, strict=True):
            _same_form(one, other)
    elif isinstance(expected, torch.device):
        _require(actual.type == CARD, f"on {actual}")
    elif isinstance(expected, (bool, int, float, complex)):
        _require(not _not_close(actual, expected), f"{actual} instead of {expected}")


def _same_meta(expected: torch.Tensor, actual: torch.Tensor) -> None:
    _require(actual.device.type == CARD, f"a result on {actual.device}")
    _require(actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}")
    shapes = tuple(actual.shape), tuple(expected.shape)
    _require(shapes[0] == shapes[1], f"shape {shapes[0]} instead of {shapes[1]}")


def _same_place(
    cpu: Ran, expected: torch.Tensor, card: Ran, actual: torch.Tensor, strict: bool
) -> None:
    """The same storage among the arguments, or memory of its own; then, strides."""
    _same_meta(expected, actual)
    places = card.aliased(actual), cpu.aliased(expected)
    _require(places[0] == places[1], f"aliases argument {places[0]} instead of {places[1]}")
    if places[0] is not None:
        offsets = actual.storage_offset(), expected.storage_offset()
        _require(offsets[0] == offsets[1], f"offset {offsets[0]} instead of {offsets[1]}")
    if (strict or places[0] is not None) and expected.numel():
        strides = _strides(actual), _strides(expected)
        _require(strides[0] == strides[1], f"strides {strides[0]} instead of {strides[1]}")


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: those of dimensions with more than one element."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _not_close(actual: Any, expected: Any) -> str:
    """Say how values differ; nothing if they are close."""
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _in_float64(call: Call, number: int, position: int, jitter: float) -> torch.Tensor:
    """One of a call's values, computed in float64."""
    copier = Copier("cpu", widen=True, jitter=jitter)
    pending = call.on(copier)
    seed(number)
    return Ran(copier, pending()).values[position]


def _judge(
    actual: torch.Tensor,
    expected: torch.Tensor,
    in_float64: Callable[[float], torch.Tensor],
    reason: str,
) -> None:
    """Let float64 decide between two floats.

    The card may be as wrong as the CPU is, or as one rounding of the inputs makes the result; and
    right where the CPU has overflowed on the way.
    """
    _require(expected.is_floating_point(), reason)
    try:
        true, *moved = (in_float64(jitter) for jitter in (0.0, 1.0, -1.0))
    except Exception:
        raise WrongResultError(reason) from None
    _require(true.shape == expected.shape and true.is_floating_point(), reason)
    digits = torch.finfo(expected.dtype).eps
    finite = true.isfinite() & (expected.isfinite() | actual.isfinite())
    _require(not _not_close(actual[~finite], expected[~finite]), reason)
    _require(bool(finite.any()), reason)
    true = true[finite]
    rounding = digits * true.abs().max()
    of_inputs = max((other[finite] - true).abs().max() for other in moved)
    of_cpu = (expected[finite].double() - true).abs().max().clamp(max=16 * rounding)
    error = (actual[finite].double() - true).abs().max()
    _require(bool(error <= 4 * max(of_inputs, of_cpu) + rounding), reason)


def _in_range(
    bounds: tuple[float, float], expected: torch.Tensor, actual: torch.Tensor, unequal: str
) -> None:
    if unequal != "random numbers" or not actual.is_floating_point():
        return
    _require(
        bool(expected.isnan().any()) or not bool(actual.isnan().any()),
        "nan where the CPU has none",
    )
    inside = actual.isnan() | ((actual >= bounds[0]) & (actual <= bounds[1]))
    _require(bool(inside.all()), f"random numbers outside {bounds}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise WrongResultError(otherwise)
