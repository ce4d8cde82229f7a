"""Views, aliases and writes in place: compiled code touches what it should, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.inductor.compiled import check, on_card, same
from torch_spyre_ref.emulator.program import IndexFaultError

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda t: t,
    "offset": lambda t: t[1:4, 2:6],
    "transposed": lambda t: t.t()[2:5],
    "every other": lambda t: t[::2, 1::3],
    "one row": lambda t: t[2],
    "no rows": lambda t: t[3:3],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_write_into_a_view_touches_only_the_view(view: str) -> None:
    host = torch.randn(6, 8)
    card = on_card(host)
    VIEWS[view](host).mul_(3).add_(1)
    torch.compile(lambda v: v.mul_(3).add_(1))(VIEWS[view](card))
    same(card, host)


def test_who_reads_after_a_write_in_place_sees_it() -> None:
    check(lambda x, y: (x.add_(y), (x * 2).sum(0)), torch.randn(5, 7), torch.randn(5, 7))


def test_outputs_that_are_views_of_inputs_share_their_storage() -> None:
    x = torch.randn(5, 7, device="spyre")
    turned, tail, fresh = torch.compile(lambda x: (x.t(), x[1:], (x + 1).t()))(x)
    assert turned.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert tail.storage_offset() == 7
    torch.testing.assert_close(fresh.cpu(), (x.cpu() + 1).t())


def test_inputs_that_alias_one_another_are_seen_to() -> None:
    function = torch.compile(lambda a, b: (a.add_(1), a + b))
    host = torch.randn(10)
    card = on_card(host)
    for pair in (lambda t: (t, t), lambda t: (t[:5], t[3:8])):
        a, b = pair(host)
        want = (a.add_(1), a + b)
        same(function(*pair(card)), want)
        same(card, host)


def test_a_compiled_model_trains_as_on_the_cpu() -> None:
    layers = (torch.nn.Linear(20, 30), torch.nn.LayerNorm(30), torch.nn.GELU())
    model = torch.nn.Sequential(*layers, torch.nn.Linear(30, 4))
    x, target = torch.randn(9, 20), torch.randint(0, 4, (9,))
    F.cross_entropy(model(x), target).backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    card = model.to("spyre")
    loss = torch.compile(lambda x, t: F.cross_entropy(card(x), t))
    loss(x.to("spyre"), target.to("spyre")).backward()
    for parameter, gradient in zip(card.parameters(), want, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-4, atol=1e-5)


def test_compiled_dropout_keeps_the_share_that_it_should() -> None:
    ones = torch.ones(10_000, device="spyre")
    dropped = torch.compile(lambda x: F.dropout(x, 0.3, training=True))(ones).cpu()
    kept = dropped[dropped != 0]
    assert 0.67 < len(kept) / 10_000 < 0.73
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7))


def test_an_index_out_of_bounds_is_an_error_and_no_value() -> None:
    x, index = torch.randn(5, device="spyre"), torch.tensor([1, 7], device="spyre")
    torch.compile(lambda x, i: x[i])(x, index)
    with pytest.raises(IndexFaultError, match="index 7 is out of bounds"):
        torch.accelerator.synchronize(0)
    torch.spyre.reset(0)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_after_a_graph_break_kernels_of_the_card_run_as_they_are() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.clone().uniform_() * 0 + x * x.sum().item()

    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(function)(x.to("spyre")).cpu(), x * x.sum())
