"""Every loss trains on the card, with the CPU's value and without a warning of its own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional

CARD = torch.device("spyre", 0)
CLASSES = torch.tensor([0, 2, 1, 0])
ONES = torch.tensor([1.0, -1.0, 1.0, -1.0])

# Name to the arguments after the input.
LOSSES: dict[str, tuple[Any, ...]] = {
    "mse_loss": (torch.linspace(0, 1, 12).reshape(4, 3),),
    "l1_loss": (torch.linspace(0, 1, 12).reshape(4, 3),),
    "smooth_l1_loss": (torch.linspace(0, 1, 12).reshape(4, 3),),
    "huber_loss": (torch.linspace(0, 1, 12).reshape(4, 3),),
    "cross_entropy": (CLASSES,),
    "nll_loss": (CLASSES,),
    "multi_margin_loss": (CLASSES,),
    "kl_div": (torch.linspace(0.1, 1, 12).reshape(4, 3),),
    "poisson_nll_loss": (torch.linspace(0, 1, 12).reshape(4, 3),),
    "binary_cross_entropy_with_logits": (torch.linspace(0, 1, 12).reshape(4, 3),),
    "soft_margin_loss": (ONES[:, None].expand(4, 3).contiguous(),),
    "multilabel_soft_margin_loss": (torch.eye(4, 3),),
    "gaussian_nll_loss": (torch.ones(4, 3), torch.full((4, 3), 0.5)),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_agree_with_the_cpu(name: str, reduction: str) -> None:
    x = torch.linspace(-2, 2, 12).reshape(4, 3)
    results = []
    for device in ("cpu", CARD):
        here = x.clone().to(device).requires_grad_()
        rest = [argument.to(device) for argument in LOSSES[name]]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if name == "kl_div" and reduction == "mean":
                warnings.filterwarnings("ignore", message="reduction")
            loss = getattr(functional, name)(here, *rest, reduction=reduction)
        loss.sum().backward()
        assert here.grad is not None
        results.append((loss.detach().cpu(), here.grad.cpu()))
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_loss_of_operands_on_two_cards_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        functional.mse_loss(torch.ones(2, device=CARD), torch.ones(2, device="spyre:1"))
