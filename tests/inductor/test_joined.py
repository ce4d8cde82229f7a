"""With the option ``aggressive_fusion``, kernels that follow one another are launched as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_spyre_ref.inductor.launcher import Launch, recording

JOINED = {"aggressive_fusion": True}


def launches(compiled: Callable[..., Any], *args: Tensor) -> tuple[Any, list[Launch]]:
    """What a second call gives, and what it launches."""
    compiled(*args)
    noted: list[Launch] = []
    token = recording.set(noted)
    try:
        return compiled(*args), noted
    finally:
        recording.reset(token)


def normalised_product(x: Tensor, w: Tensor) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    return (y @ w).softmax(-1)


def joined_through_cat(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat((x @ w, (x + 1) @ w)).sum(0) @ w


def changed_in_place(x: Tensor, w: Tensor) -> Tensor:
    x.add_(x.sum())
    y = x @ w
    x.mul_(y.max())
    return y @ x


FUNCTIONS = [normalised_product, joined_through_cat, changed_in_place]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_those_of_the_cpu(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, w = torch.rand(16, 16), torch.rand(16, 16)
    on_card = x.to("spyre"), w.to("spyre")
    compiled = torch.compile(function, fullgraph=True, options=JOINED)
    for _ in range(2):
        torch.testing.assert_close(compiled(*on_card).cpu(), function(x, w))
        torch.testing.assert_close(on_card[0].cpu(), x)


def test_a_graph_is_one_launch_instead_of_several() -> None:
    args = torch.rand(4, 32).to("spyre"), torch.rand(32, 64).to("spyre")
    apart, several = launches(torch.compile(normalised_product, fullgraph=True), *args)
    torch._dynamo.reset()
    compiled = torch.compile(normalised_product, fullgraph=True, options=JOINED)
    together, one = launches(compiled, *args)
    assert (len(several), len(one)) == (3, 1)
    assert torch.equal(apart.cpu(), together.cpu())


def test_a_kernel_whose_size_chooses_its_program_is_launched_by_itself() -> None:
    args = [(torch.rand(2, n).to("spyre"), torch.rand(n, 8).to("spyre")) for n in (8, 5_000)]
    apart = torch.compile(normalised_product, fullgraph=True, dynamic=True)
    wanted = [apart(*each).cpu() for each in args]
    torch._dynamo.reset()
    together = torch.compile(normalised_product, fullgraph=True, dynamic=True, options=JOINED)
    assert all(torch.equal(together(*a).cpu(), w) for a, w in zip(args, wanted, strict=True))


def test_gradients_are_those_of_the_cpu() -> None:
    x, w = torch.rand(4, 8), torch.rand(8, 8)
    on_card = torch.compile(normalised_product, fullgraph=True, options=JOINED)
    grads = []
    for device, function in (("cpu", normalised_product), ("spyre", on_card)):
        leaves = [t.detach().to(device, copy=True).requires_grad_() for t in (x, w)]
        result = function(*leaves).square().sum()
        grads.append([grad.cpu() for grad in torch.autograd.grad(result, leaves)])
    torch.testing.assert_close(grads[1], grads[0])
