"""What the CPU's kernel refuses is refused, with the same words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_spyre_ref.compiled import table

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32)
NUMBERS = (2, 2.5, True)
OTHERS = ("glu", "isin", "linalg_cross", "renorm", "polar")
"""Not of one element each, or with complex results."""


def _overloads() -> Iterator[Any]:
    """Functional overloads of one or two tensors and of numbers."""
    for name in f"{table.ELEMENTWISE} {table.COMPARISONS}".split():
        packet = getattr(torch.ops.aten, name)
        for overload in (getattr(packet, each) for each in packet.overloads()):
            arguments = [a for a in overload._schema.arguments if not a.has_default_value()]
            kinds = [str(a.type) for a in arguments]
            plain = set(kinds) <= {"Tensor", "number"} and kinds.count("Tensor") in (1, 2)
            if plain and not any(a.alias_info for a in arguments) and name not in OTHERS:
                yield overload


OVERLOADS = {str(overload): overload for overload in _overloads()}


def _outcome(overload: Any, given: list[Any], device: str) -> str | None:
    """The error of a call, if it is refused."""
    args = [
        torch.ones(2, 3, dtype=value, device=device) if isinstance(value, torch.dtype) else value
        for value in given
    ]
    try:
        overload(*args)
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("name", OVERLOADS)
def test_what_the_cpu_refuses_by_dtype_is_refused(name: str) -> None:
    overload = OVERLOADS[name]
    kinds = [str(a.type) for a in overload._schema.arguments if not a.has_default_value()]
    choices = [DTYPES if kind == "Tensor" else NUMBERS for kind in kinds]
    for given in itertools.product(*choices):
        refused = _outcome(overload, list(given), "cpu")
        if refused is not None:
            assert _outcome(overload, list(given), "spyre") == refused, given
    assert not len(torch.spyre.fallback_report())


@pytest.mark.parametrize(
    "work",
    [
        lambda t: t - True,
        lambda t: t - (t > 0),
        lambda t: 1 - (t > 0),
        lambda t: t.sub_(t > 0),
        lambda t: torch.frac(t),
        lambda t: torch.relu(t > 0),
        lambda t: torch.ceil(t > 0, out=t > 0),
    ],
)
def test_subtraction_of_masks_and_roundings_of_them_are_refused(
    work: Callable[[torch.Tensor], object],
) -> None:
    errors = []
    for device in ("cpu", "spyre"):
        with pytest.raises(RuntimeError) as caught:
            work(torch.ones(3, dtype=torch.int32, device=device))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "work",
    [
        lambda t, n: t // n,
        lambda t, n: t % n,
        lambda t, n: t.fmod(n),
        lambda t, n: t**n,
        lambda t, n: t.clamp(min=n),
        lambda t, n: t.clamp_max(n),
        lambda t, n: t.masked_fill(t > 0, n),
        lambda t, n: t.clone().floor_divide_(n),
    ],
)
def test_a_number_that_the_cpu_refuses_is_refused_also_by_a_program_for_others(
    work: Callable[[torch.Tensor, float], torch.Tensor], dtype: torch.dtype
) -> None:
    host = torch.ones(3, dtype=dtype)
    card = host.to("spyre")
    for number in (2, 3, 0, -1, 256, 2**40, 2.5, 1e30):
        refused = None
        try:
            wanted = work(host, number)
        except RuntimeError as error:
            refused = str(error)
        if refused is None:
            made = work(card, number)
            torch.testing.assert_close(made.cpu(), wanted, equal_nan=True)
        else:
            with pytest.raises(RuntimeError) as caught:
                work(card, number)
            assert str(caught.value) == refused, number
