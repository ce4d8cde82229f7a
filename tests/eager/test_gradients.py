"""Gradients of the ops that are taken whole, against the CPU's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.eager.cases import FLOATS, Case

_LABELS = torch.tensor([2, 0, 1])
DIFFERENTIABLE = [
    case
    for case in FLOATS
    if case.name
    not in (
        *("isfinite", "isinf", "isnan", "eq", "ne", "lt", "le", "gt", "ge", "any", "all"),
        *("argmax", "argmin", "to integers", "half", "batch_norm"),
    )
]
MORE = [
    Case("embedding", lambda w: F.embedding(_LABELS.to(w.device), w), ((5, 3),)),
    Case("layer_norm alone", lambda a: F.layer_norm(a, (5, 3)), ((2, 5, 3),)),
    Case("rms_norm alone", lambda a: F.rms_norm(a, (5, 3), eps=0.1), ((2, 5, 3),)),
    Case("approximate gelu", lambda a: F.gelu(a, approximate="tanh"), ((3, 17),)),
    Case("glu", F.glu, ((3, 18),)),
    Case("prelu", F.prelu, ((3, 4), (4,))),
    Case("max_pool2d", lambda a: F.max_pool2d(a, 2), ((1, 2, 6, 6),)),
    Case("avg_pool2d", lambda a: F.avg_pool2d(a, 2), ((1, 2, 6, 6),)),
    Case("nll_loss", lambda a: F.nll_loss(a, _LABELS.to(a.device)), ((3, 5),)),
    Case("huber", F.huber_loss, ((3, 5), (3, 5))),
    Case(
        "binary cross entropy",
        lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()),
        ((3, 5), (3, 5)),
    ),
    Case(
        "batch_norm in evaluation",
        lambda a, w, b: F.batch_norm(a, w.detach(), b.detach().abs(), w, b),
        ((3, 4, 7), (4,), (4,)),
    ),
    Case(
        "batch_norm in training",
        lambda a, w, b: F.batch_norm(a, None, None, w, b, training=True),
        ((3, 4, 7), (4,), (4,)),
    ),
    Case(
        "masked attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=q[..., :5].detach()),
        ((2, 3, 5, 8),) * 3,
    ),
]


def _sums(value: object) -> torch.Tensor:
    """One number of all that a function returns, with a different weight for each element."""
    if isinstance(value, torch.Tensor):
        weights = torch.arange(1, value.numel() + 1, device="cpu").reshape(value.shape)
        return (value * weights.to(value.device, value.dtype)).sum()
    assert isinstance(value, (list, tuple))
    return sum((_sums(part) for part in value if part.is_floating_point()), torch.zeros(()))


@pytest.mark.parametrize("case", [*DIFFERENTIABLE, *MORE], ids=lambda case: case.name)
def test_gradients(case: Case) -> None:
    numbers = [torch.randn(shape) for shape in case.shapes]
    gradients = []
    for device in ("cpu", "spyre"):
        inputs = [n.to(device, copy=True).requires_grad_() for n in numbers]
        _sums(case.function(*inputs)).backward()
        gradients.append([each.grad for each in inputs])
    for mine, wanted in zip(gradients[1], gradients[0], strict=True):
        assert (mine is None) == (wanted is None)
        if mine is not None:
            assert mine.device.type == "spyre"
            torch.testing.assert_close(mine.cpu(), wanted, rtol=2e-4, atol=2e-4, equal_nan=True)


def test_nothing_that_has_a_derivative_of_its_own_is_lost() -> None:
    """An op that core composes of differentiable ones must never be taken whole."""
    from torch_spyre_ref.compiled import table

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = list(table.names())
    assert len(names) > 500
    composed = [n for n in names if has(f"aten::{n}", "CompositeImplicitAutograd")]
    assert all(has(f"aten::{name}", "Autograd") for name in composed)


def test_running_statistics_are_updated() -> None:
    layers = [torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4).to("spyre")]
    numbers = torch.randn(3, 4, 7)
    for _ in range(2):
        results = [layer(numbers.to(layer.weight.device)) for layer in layers]
    torch.testing.assert_close(results[1].detach().cpu(), results[0].detach())
    torch.testing.assert_close(layers[1].running_mean.cpu(), layers[0].running_mean)
    torch.testing.assert_close(layers[1].running_var.cpu(), layers[0].running_var)


def test_a_second_derivative() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(F.gelu(x).pow(2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), x)
        return second

    numbers = torch.randn(7)
    mine = work(numbers.to("spyre").requires_grad_())
    torch.testing.assert_close(mine.cpu(), work(numbers.clone().requires_grad_()))


def test_attention_is_one_program_and_its_backward_another() -> None:
    sides = [torch.randn(2, 3, 5, 8).to("spyre").requires_grad_() for _ in range(3)]
    before = torch.spyre.eager_cache().compiled
    out = F.scaled_dot_product_attention(*sides, is_causal=True)
    assert torch.spyre.eager_cache().compiled == before + 1
    out.backward(torch.ones_like(out))
    rows = [row for row in torch.spyre.eager_cache() if "attention" in row.op]
    assert [row.op.rpartition("_")[2] for row in rows] == ["overrideable", "backward"]


def test_rms_norm_is_one_program_and_its_backward_another() -> None:
    x, w = (torch.randn(shape).to("spyre").requires_grad_() for shape in ((3, 6), (6,)))
    torch.spyre.clear_eager_cache()
    out = F.rms_norm(x, (6,), w)
    assert [row.op for row in torch.spyre.eager_cache()] == ["aten::_fused_rms_norm"]
    out.backward(torch.ones_like(out))
    names = [row.op for row in torch.spyre.eager_cache() if "rms_norm" in row.op]
    assert names == ["aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"]


def test_a_second_derivative_of_rms_norm() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        weights = torch.arange(1.0, 7, device=x.device)
        (first,) = torch.autograd.grad(
            F.rms_norm(x, (6,), weights).sin().sum(), x, create_graph=True
        )
        (second,) = torch.autograd.grad((first * weights).sum(), x)
        return second

    numbers = torch.randn(2, 6)
    mine = work(numbers.to("spyre").requires_grad_())
    wanted = work(numbers.clone().requires_grad_())
    torch.testing.assert_close(mine.cpu(), wanted, rtol=2e-4, atol=2e-4)


def test_rows_of_attention_that_are_masked_whole_are_zero() -> None:
    sides = [torch.randn(1, 1, 3, 4).to("spyre") for _ in range(3)]
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3]).to("spyre")
    out = F.scaled_dot_product_attention(*sides, attn_mask=mask)
    wanted = F.scaled_dot_product_attention(*(s.cpu() for s in sides), attn_mask=mask.cpu())
    torch.testing.assert_close(out.cpu(), wanted)
    assert not out[0, 0, 1].any().item()
