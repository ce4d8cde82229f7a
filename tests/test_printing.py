"""Printing and torch.testing.assert_close: what people look at must work in every dtype."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.support import NUMBERS, STORED, random_bits, values


@pytest.fixture(autouse=True)
def complex_half_is_experimental() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        yield


def printed(tensor: torch.Tensor) -> str:
    return " ".join(repr(tensor).replace(", device='spyre:0'", "").split())


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)], ids=str)
def test_a_tensor_prints_as_on_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    host = values(shape, dtype) if dtype in NUMBERS else random_bits(shape, dtype)
    card = host.to("spyre")
    try:
        expected = printed(host)
    except (NotImplementedError, RuntimeError) as limit:
        with pytest.raises(type(limit)):
            repr(card)
        return
    assert "device='spyre:0'" in repr(card)
    assert printed(card) == expected


def test_special_values_and_long_tensors_print_as_on_the_cpu() -> None:
    host = torch.tensor([[float("nan"), float("inf"), -0.0], [1e-9, 1e9, 1.0]])
    assert printed(host.to("spyre")) == printed(host)
    host = torch.arange(2000.0).view(2, 1000)
    assert printed(host.to("spyre").t()) == printed(host.t())
    host = torch.tensor([1 + 2j, -1j])
    assert printed(host.to("spyre").conj()) == printed(host.conj())
    assert "requires_grad=True" in repr(torch.ones(2, device="spyre", requires_grad=True))
    assert "Parameter containing" in repr(torch.nn.Parameter(torch.ones(2, device="spyre")))
    assert "device='spyre:1'" in repr(torch.ones(2, device="spyre:1"))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_assert_close_compares_on_the_card(dtype: torch.dtype) -> None:
    host = values((3, 4), dtype)
    card = host.to("spyre")
    torch.testing.assert_close(card, host.to("spyre"))
    torch.testing.assert_close(card[::2, 1], host[::2, 1].to("spyre"))
    wrong = host.clone()
    wrong[1, 2] = 1 if dtype is torch.bool and not host[1, 2] else 0
    assert not wrong.equal(host)
    with pytest.raises(AssertionError, match=r"Mismatched elements: 1 / 12"):
        torch.testing.assert_close(card, wrong.to("spyre"))
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(card, host)
    torch.testing.assert_close(card, host, check_device=False)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_equal_and_allclose(dtype: torch.dtype) -> None:
    card = values((3, 4), dtype).to("spyre")
    assert torch.equal(card, card.clone())
    assert not torch.equal(card, card[:2])
    other = card.clone()
    other[0, 0] = 1 - int(card.cpu()[0, 0].ne(0).item())
    assert not torch.equal(card, other)
    if dtype.is_floating_point or dtype.is_complex:
        assert torch.allclose(card, card.clone()) and not torch.allclose(card, other + 2)
