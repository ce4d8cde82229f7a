"""Scalars on either side: the result stays on the card, with the dtype and values of the CPU."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import NUMBERS, same_bits, values

ARITHMETIC = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
TWO_TENSORS = [torch.remainder, torch.maximum, torch.atan2, torch.sub]


def check(op: Callable[[Any, Any], torch.Tensor], left: Any, right: Any) -> None:
    def on(device: str) -> torch.Tensor:
        return op(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in (left, right)))

    card = on("spyre:1")
    assert card.device == torch.device("spyre:1")
    if op is operator.pow:  # the card's own function, a digit off
        torch.testing.assert_close(card.cpu(), on("cpu"))
    else:
        assert same_bits(card, on("cpu"))


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARE], ids=lambda op: op.__name__)
@pytest.mark.parametrize("scalar", [2, 1.5])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float16], ids=str)
def test_arithmetic_with_a_python_number(op: Any, scalar: Any, dtype: torch.dtype) -> None:
    tensor = torch.tensor([1, 2, 7], dtype=dtype)
    check(op, tensor, scalar)
    check(op, scalar, tensor)


@pytest.mark.parametrize("op", BITS, ids=lambda op: op.__name__)
def test_bits_with_a_python_number(op: Any) -> None:
    tensor = torch.tensor([1, 2, 7])
    check(op, tensor, 2)
    check(op, 2, tensor)


@pytest.mark.parametrize("op", TWO_TENSORS, ids=lambda op: op.__name__)
def test_a_cpu_tensor_without_dimensions_acts_as_a_number(op: Any) -> None:
    card = torch.tensor([1.0, 2.0, 7.0], device="spyre")
    for left, right in ((card, torch.tensor(2.0)), (torch.tensor(2.0), card)):
        result = op(left, right)
        assert result.device == card.device
        if op is torch.atan2:  # the card's own function, a digit off
            torch.testing.assert_close(result.cpu(), op(left.cpu(), right.cpu()))
        else:
            assert same_bits(result, op(left.cpu(), right.cpu()))


def test_two_floor_divided_by_a_tensor_is_on_the_card() -> None:
    b = torch.tensor([1, 2, 3], device="spyre")
    assert (2 // b).device == b.device and (2 // b).tolist() == [2, 1, 0]


def test_a_number_does_not_widen_the_dtype() -> None:
    assert (torch.ones(2, dtype=torch.float16, device="spyre") * 1.5).dtype is torch.float16
    assert (torch.ones(2, dtype=torch.int8, device="spyre") + 1).dtype is torch.int8
    assert (torch.ones(2, dtype=torch.int8, device="spyre") / 2).dtype is torch.float32
    number = torch.ones((), dtype=torch.float64, device="spyre")
    assert (number + torch.ones(2, device="spyre")).dtype is torch.float32


def test_two_dtypes_give_the_dtype_and_the_bits_that_the_cpu_gives() -> None:
    """Invariant 3, dtypes: nothing is silently narrowed."""
    for left, right in itertools.product(NUMBERS, NUMBERS):
        one, two = values((5,), left, 1), values((5,), right, 2)
        try:
            expected = one + two
        except NotImplementedError:
            continue  # the card may have what the CPU has no loop for
        except RuntimeError:
            with pytest.raises(RuntimeError):
                one.to("spyre") + two.to("spyre")
            continue
        assert same_bits(one.to("spyre") + two.to("spyre"), expected)


def test_a_number_of_a_python_type_comes_out() -> None:
    card = torch.tensor(3, device="spyre")
    assert (int(card), float(card), bool(card), complex(card)) == (3, 3.0, True, 3 + 0j)
    assert [10, 20, 30, 40][card] == 40
    assert f"{card}" == "3"
    assert card in torch.tensor([1, 3], device="spyre")
