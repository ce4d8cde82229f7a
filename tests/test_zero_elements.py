"""Invariant 2: tensors without elements and without dimensions work wherever others do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import same_bits

Op = Callable[[str], Any]

EMPTY: dict[str, Op] = {
    "sum": lambda d: torch.empty(0, 3, device=d).sum(),
    "sum of a dimension": lambda d: torch.empty(0, 3, device=d).sum(0),
    "prod": lambda d: torch.empty(0, device=d).prod(),
    "mean": lambda d: torch.empty(0, device=d).mean(),
    "any": lambda d: torch.empty(0, dtype=torch.bool, device=d).any(),
    "cumsum": lambda d: torch.empty(0, 3, device=d).cumsum(1),
    "cat": lambda d: torch.cat([torch.empty(0, device=d), torch.ones(2, device=d)]),
    "cat of nothing": lambda d: torch.cat([torch.empty(0, 2, device=d)] * 3),
    "stack": lambda d: torch.stack([torch.empty(0, device=d)] * 2),
    "matmul": lambda d: torch.ones(2, 0, device=d) @ torch.ones(0, 3, device=d),
    "bmm": lambda d: torch.ones(0, 2, 3, device=d) @ torch.ones(0, 3, 4, device=d),
    "broadcast": lambda d: torch.ones(1, 3, device=d) + torch.ones(0, 1, device=d),
    "scalar": lambda d: 2 * torch.empty(0, device=d),
    "in place": lambda d: torch.empty(0, device=d).add_(1).mul_(2),
    "out": lambda d: torch.add(
        torch.empty(0, device=d), 1, out=torch.ones(0, dtype=torch.float64, device=d)
    ),
    "index": lambda d: torch.ones(4, 2, device=d)[torch.empty(0, dtype=torch.long, device=d)],
    "mask": lambda d: torch.ones(4, device=d)[torch.zeros(4, dtype=torch.bool, device=d)],
    "nonzero": lambda d: torch.zeros(4, device=d).nonzero(),
    "sort": lambda d: torch.empty(0, device=d).sort().values,
    "arange": lambda d: torch.arange(0, device=d),
    "softmax": lambda d: torch.empty(0, 3, device=d).softmax(1),
    "linear": lambda d: torch.nn.functional.linear(
        torch.empty(0, 3, device=d), torch.ones(2, 3, device=d)
    ),
    "embedding": lambda d: torch.nn.functional.embedding(
        torch.empty(0, 2, dtype=torch.long, device=d), torch.ones(5, 3, device=d)
    ),
    "where": lambda d: torch.where(
        torch.empty(0, dtype=torch.bool, device=d),
        torch.empty(0, device=d),
        torch.empty(0, device=d),
    ),
    "convert": lambda d: torch.empty(0, device=d).to(torch.int64),
    "pad": lambda d: torch.nn.functional.pad(torch.empty(0, device=d), (1, 2)),
}
NO_DIMENSIONS: dict[str, Op] = {
    "add": lambda d: torch.tensor(2.0, device=d) + torch.tensor(3, device=d),
    "reduce": lambda d: torch.tensor(2.0, device=d).sum(),
    "view": lambda d: torch.tensor(2.0, device=d).view(1, 1)[0],
    "expand": lambda d: torch.tensor(2.0, device=d).expand(2, 3).contiguous(),
    "in place": lambda d: torch.tensor(2.0, device=d).mul_(3),
    "stack": lambda d: torch.stack([torch.tensor(1.0, device=d), torch.tensor(2.0, device=d)]),
    "index": lambda d: torch.tensor(2.0, device=d)[None, ...],
    "set": lambda d: torch.zeros(3, device=d).index_fill_(
        0, torch.tensor(1, device=d), torch.tensor(5.0, device=d)
    ),
    "item": lambda d: torch.tensor(torch.tensor(7, device=d).item()),
    "argmax": lambda d: torch.tensor(2.0, device=d).argmax(),
    "out": lambda d: torch.sum(torch.ones(3, device=d), 0, out=torch.tensor(0.0, device=d)),
}


@pytest.mark.parametrize("op", [*EMPTY.values(), *NO_DIMENSIONS.values()])
def test_it_is_as_on_the_cpu(op: Op) -> None:
    card, host = op("spyre:1"), op("cpu")
    assert same_bits(card, host)
    assert card.device.type in ("spyre", host.device.type)


def test_a_gradient_without_elements() -> None:
    weight = torch.ones(3, 2, device="spyre", requires_grad=True)
    (torch.empty(0, 3, device="spyre") @ weight).sum().backward()
    assert weight.grad.tolist() == [[0.0, 0.0]] * 3
    empty = torch.empty(0, 3, device="spyre", requires_grad=True)
    empty.exp().sum().backward()
    assert empty.grad.shape == (0, 3)


def test_reductions_that_need_an_element_say_so() -> None:
    for reduce in (torch.max, torch.min, torch.argmax):
        with pytest.raises((RuntimeError, IndexError), match="dim"):
            reduce(torch.empty(0, device="spyre"))


def test_the_other_sizes_of_a_tensor_without_elements_may_grow() -> None:
    """The second one makes a program of any size, whose sizes only the tensor can tell."""
    for columns in (2, 3, 4):
        assert torch.empty(0, columns, device="spyre").relu().shape == (0, columns)
        assert (torch.empty(0, columns, device="spyre") + 1).shape == (0, columns)
