"""A copy within one storage: refused where the CPU refuses it, and otherwise right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[:-1].copy_(x[1:]),
        lambda x: x.copy_(x.t()),
        lambda x: x.copy_(x[0]),
        lambda x: x.view(-1)[:3].copy_(x.view(-1)[2:5]),
        lambda x: x[1:].copy_(x.view(torch.int32)[:-1]),
        lambda x: x.copy_(x),
        lambda x: x.copy_(x.view(4, 4)),
        lambda x: x[:2].copy_(x[2:]),
        lambda x: x[0].copy_(x[1]),
        lambda x: x[:0].copy_(x[:0]),
        lambda x: x[1:].copy_(x[:-1].clone()),
        lambda x: x[:, 1].copy_(x[:, 2]),
        lambda x: x[:2].copy_(x.view(torch.int32)[2:]),
    ],
)
def test_a_copy_within_a_storage_is_what_it_is_on_the_cpu(
    work: Callable[[torch.Tensor], object],
) -> None:
    host, card = torch.arange(16.0).reshape(4, 4), torch.arange(16.0).reshape(4, 4).to("spyre")
    refused = None
    try:
        work(host)
    except RuntimeError as error:
        refused = str(error)
    if refused is None:
        work(card)
    else:
        with pytest.raises(RuntimeError) as caught:
            work(card)
        assert str(caught.value) == refused
    assert torch.equal(card.cpu(), host)
