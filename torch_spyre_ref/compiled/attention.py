"""Attention as one op with its backward, in the place that core keeps for devices of its own.

Inside a trace core composes attention of products and a softmax, for this device as for any other.
Outside, where each of them would be a program, core is told to call these two ops instead.

Shapes: query ``(…, L, E)``, key ``(…, S, E)``, value ``(…, S, V)``; the bias broadcasts to
``(…, L, S)``.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from torch_spyre_ref.compiled.composed import ComposedOp


def _scores(query: Any, key: Any, bias: Any, is_causal: bool, scale: float | None) -> Any:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ key.transpose(-2, -1)).to(torch.float32) * factor
    if bias is not None:
        scores = scores + bias
    if is_causal:
        rows, columns = scores.shape[-2:]
        kept = torch.ones((rows, columns), dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(kept, scores, -math.inf)
    return scores


def _weights(scores: Any, sums: Any) -> Any:
    """What a row attends to; nothing, where all of it is masked."""
    return torch.where(sums == -math.inf, 0.0, (scores - sums).exp())


def _forward(
    query: Any, key: Any, value: Any, bias: Any, is_causal: bool, scale: float | None
) -> tuple[Any, Any]:
    """The output, and the logarithm of the sum of a row's exponentials."""
    scores = _scores(query, key, bias, is_causal, scale)
    sums = scores.logsumexp(-1, keepdim=True)
    return _weights(scores, sums).to(value.dtype) @ value, sums.squeeze(-1)


def _backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    out: Any,
    sums: Any,
    is_causal: bool,
    scale: float | None,
) -> tuple[Any, ...]:
    """The gradients of query, key, value and bias."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    weights = _weights(_scores(query, key, bias, is_causal, scale), sums.unsqueeze(-1))
    through = (grad @ value.transpose(-2, -1)).to(torch.float32)
    shared = (grad.to(torch.float32) * out.to(torch.float32)).sum(-1, keepdim=True)
    slopes = weights * (through - shared)
    scaled = (slopes * factor).to(query.dtype)
    return (
        scaled @ key,
        scaled.transpose(-2, -1) @ query,
        weights.to(grad.dtype).transpose(-2, -1) @ grad,
        None if bias is None else slopes.sum_to_size(bias.shape).to(bias.dtype),
    )


_TENSORS: Final = dict.fromkeys(("query", "key", "value"), "Tensor")
_OPTIONS: Final = {"is_causal": "bool", "scale": "Optional[float]"}
FORWARD: Final = ComposedOp(
    "aten::_scaled_dot_product_fused_attention_overrideable",
    {**_TENSORS, "bias": "Optional[Tensor]", **_OPTIONS},
    _forward,
    is_inplace=False,
)
BACKWARD: Final = ComposedOp(
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
    {
        "grad": "Tensor",
        **_TENSORS,
        "bias": "Optional[Tensor]",
        "out": "Tensor",
        "sums": "Tensor",
        **_OPTIONS,
    },
    _backward,
    is_inplace=False,
)
