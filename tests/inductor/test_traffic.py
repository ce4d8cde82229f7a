"""What compiled functions move through memory, in sticks: exact, from the card's own cost model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from torch_spyre_ref.inductor import report

half = torch.float16


def moved(function: Callable[..., Any], *arguments: torch.Tensor) -> tuple[int, int]:
    """Sticks that a compiled function moves, and how many kernels it is."""
    compiled = torch.compile(function, dynamic=False)
    cards = [argument.to("spyre") for argument in arguments]
    told = report.explain(compiled, *cards)
    return sum(kernel.sticks for kernel in told.kernels), len(told.kernels)


def sticks(*tensors: torch.Tensor) -> int:
    return sum(-(-t.numel() * t.element_size() // 128) for t in tensors)


def test_softmax_moves_its_input_and_its_output_once() -> None:
    x = torch.randn(4096, 4096, dtype=half)
    count, kernels = moved(lambda x: x.softmax(-1), x)
    assert kernels == 1
    assert count <= 1.05 * 2 * sticks(x)


def test_two_layers_move_their_weights_once_and_what_is_between_them_twice() -> None:
    x, w, v = (torch.randn(s, dtype=half) / 20 for s in ((512, 768), (3072, 768), (768, 3072)))
    between = torch.empty(512, 3072, dtype=half)
    count, kernels = moved(lambda x, w, v: F.linear(F.gelu(F.linear(x, w)), v), x, w, v)
    assert kernels == 2
    assert count <= 1.1 * (2 * sticks(x) + sticks(w, v) + 2 * sticks(between))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: ((x * y + x).relu() * 2 - y) + 1,
        lambda x, y: F.layer_norm(x * y, (1024,)),
        lambda x, y: (x + y).log_softmax(-1),
    ],
)
def test_a_chain_is_one_kernel_that_moves_nothing_twice(
    function: Callable[..., torch.Tensor],
) -> None:
    x, y = torch.randn(1024, 1024, dtype=half), torch.randn(1024, 1024, dtype=half)
    assert moved(function, x, y) == (3 * sticks(x), 1)


def test_what_comes_before_and_after_a_product_is_part_of_its_kernel() -> None:
    x, y = torch.randn(256, 256), torch.randn(256, 256)
    count, kernels = moved(lambda x, y: ((x * 2) @ y).relu() + 1, x, y)
    assert kernels == 1
    assert count == 3 * sticks(x)


def test_halves_of_rows_that_change_places_are_loaded_as_they_lie() -> None:
    """The loops are cut where the index breaks off, so that it is affine on both sides."""

    def rotated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + x.unflatten(-1, (2, -1)).flip(-2).flatten(-2) * y

    x, y = torch.randn(64, 96), torch.randn(64, 96)
    count, kernels = moved(rotated, x, y)
    assert kernels == 1
    assert count <= 1.05 * (2 * sticks(x) + sticks(y) + sticks(x))
