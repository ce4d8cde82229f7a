"""Automatic mixed precision on the card: what is cast, to what, and what is left alone."""

from __future__ import annotations

import pytest
import torch

HALVES = [torch.float16, torch.bfloat16]


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="spyre")


@pytest.mark.parametrize("dtype", HALVES)
def test_matrix_products_in_the_lower_precision(dtype: torch.dtype) -> None:
    a, b = ones(3, 4), ones(4, 5)
    with torch.autocast("spyre", dtype=dtype):
        assert (a @ b).dtype == dtype
        assert torch.nn.functional.linear(a, ones(2, 4)).dtype == dtype
    assert (a @ b).dtype == torch.float32


def test_sums_in_float32_and_the_widest_of_several() -> None:
    half = ones(4, dtype=torch.float16)
    with torch.autocast("spyre", dtype=torch.float16):
        assert half.exp().dtype == torch.float32
        assert torch.softmax(half, 0).dtype == torch.float32
        assert half.sum().dtype == torch.float32
        assert torch.cat([half, ones(4)]).dtype == torch.float32
        assert (half + half).dtype == torch.float16


def test_a_disabled_region_casts_nothing() -> None:
    a = ones(3, 3)
    with torch.autocast("spyre", dtype=torch.float16):
        with torch.autocast("spyre", enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.float16


def test_autocast_of_the_cpu_leaves_the_card_alone() -> None:
    a = ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.float32


def test_a_step_under_autocast_has_float32_gradients() -> None:
    layer = torch.nn.Linear(4, 2, device="spyre")
    scaler = torch.amp.GradScaler("spyre", init_scale=2.0)
    with torch.autocast("spyre", dtype=torch.float16):
        loss = layer(ones(3, 4)).sum()
    scaler.scale(loss).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    scaled = torch.full((2, 4), 3.0 * 2.0)
    assert torch.equal(layer.weight.grad.cpu(), scaled)
