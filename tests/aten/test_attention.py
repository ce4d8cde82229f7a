"""Attention: the composed implementation is chosen, and trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

CARD = torch.device("spyre", 0)


def operands(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes
    ]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_attention_and_its_gradients_agree_with_the_cpu(name: str, dtype: torch.dtype) -> None:
    on_cpu = operands((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), dtype=dtype)
    on_card = [t.detach().to(CARD).requires_grad_() for t in on_cpu]
    results = []
    for tensors in (on_cpu, on_card):
        output = scaled_dot_product_attention(*tensors, **OPTIONS[name])
        output.sum().backward()
        results.append((output, *(t.grad for t in tensors)))
    for wanted, got in zip(*results, strict=True):
        assert wanted is not None
        assert got is not None
        torch.testing.assert_close(got.detach().cpu(), wanted.detach())


def test_a_mask_and_grouped_heads_agree_with_the_cpu() -> None:
    q, k, v = operands((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    mask = torch.ones(5, 6).tril().bool()
    wanted = scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    got = scaled_dot_product_attention(
        q.to(CARD), k.to(CARD), v.to(CARD), mask.to(CARD), enable_gqa=True
    )
    torch.testing.assert_close(got.detach().cpu(), wanted.detach())


def test_the_choice_is_the_composed_implementation() -> None:
    q = torch.ones(1, 1, 2, 8, device=CARD)
    assert torch._fused_sdp_choice(q, q, q) == SDPBackend.MATH.value


def test_attention_dropout_follows_the_cards_seed() -> None:
    q = torch.ones(1, 2, 6, 8, device=CARD)
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append(scaled_dot_product_attention(q, q, q, dropout_p=0.5).cpu())
    assert torch.equal(*results)


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_layer_agrees_with_the_cpu(training: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.train(training)
    (x,) = operands((2, 5, 8))
    wanted = layer(x)
    got = layer.to(CARD)(x.to(CARD))
    torch.testing.assert_close(got.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [True, False])
def test_an_encoder_with_padding_agrees_with_the_cpu(grad: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    (x,) = operands((2, 3, 8))
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.set_grad_enabled(grad):
        wanted = encoder(x, src_key_padding_mask=padding)
        got = encoder.to(CARD)(x.to(CARD), src_key_padding_mask=padding.to(CARD))
    real = ~padding
    torch.testing.assert_close(got.detach().cpu()[real], wanted.detach()[real])
