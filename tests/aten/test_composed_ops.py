"""Ops that core composes for every device, where its composition is not as good as the CPU's op."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

CARD = torch.device("spyre", 0)


def test_a_row_of_one_element_normalises_to_exactly_its_bias() -> None:
    x = torch.tensor([[8.6], [-1.3e4], [0.1]], device=CARD)
    bias = torch.tensor([1.75], device=CARD)
    assert functional.layer_norm(x, (1,), bias=bias).cpu().eq(1.75).all()


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_layer_norm_gives_statistics_in_the_dtype_of_the_cpu(dtype: torch.dtype, rows: int) -> None:
    x, weight = torch.randn(rows, 4, dtype=dtype), torch.randn(4, dtype=dtype)
    expected = torch.native_layer_norm(x, (4,), weight, None, 1e-5)
    found = torch.native_layer_norm(x.to(CARD), (4,), weight.to(CARD), None, 1e-5)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_layer_norm_has_the_gradients_of_the_cpu() -> None:
    gradients = []
    for device in ("cpu", CARD):
        operands = [
            torch.linspace(-2, 3, count).reshape(shape).to(device).requires_grad_()
            for count, shape in ((24, (2, 3, 4)), (12, (3, 4)), (12, (3, 4)))
        ]
        functional.layer_norm(operands[0], (3, 4), *operands[1:]).square().sum().backward()
        gradients.append([operand.grad.cpu() for operand in operands if operand.grad is not None])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("shape", [(), (10,), (1, 10)])
def test_addr_in_place_refuses_a_tensor_that_would_have_to_grow(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, device=CARD)
    with pytest.raises(RuntimeError, match=r"size|shape|dim"):
        x.addr_(torch.ones(5, device=CARD), torch.ones(10, device=CARD))
    assert x.shape == shape
    assert x.cpu().eq(1).all()


def test_addr_in_place_writes_into_the_view_that_it_is_given() -> None:
    whole = torch.zeros(2, 6, device=CARD)
    view = whole[:, ::2]
    assert view.addr_(torch.ones(2, device=CARD), torch.ones(3, device=CARD), alpha=2) is view
    assert whole.cpu().tolist() == [[2, 0] * 3] * 2
