"""Functions and arguments of every kind that Inductor lowers to loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
half, brain = torch.float16, torch.bfloat16


def real(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape).to(dtype)


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Integers from ``low`` to ``high - 1``."""
    return torch.randint(low, high, shape, dtype=dtype)


POINTWISE: dict[str, Case] = {
    "multiply, add": (lambda x, y: x * y + x, lambda: (real(7, 33), real(7, 33))),
    "broadcast": (lambda x, y: x + y, lambda: (real(7, 1, 5), real(33, 1))),
    "transposed": (lambda x, y: x + y, lambda: (real(33, 7).t(), real(7, 33))),
    "every other": (lambda x: x * 2, lambda: (real(20, 33)[::2, 1::3],)),
    "offset": (lambda x: x.relu(), lambda: (real(20, 33)[3:, 5:],)),
    "flipped": (lambda x: x.flip(0, 1) + 1, lambda: (real(20, 33),)),
    "expanded": (lambda x: x + 1, lambda: (real(1, 33).expand(9, 33),)),
    "overlapping": (lambda x: x.unfold(0, 5, 2) * 2, lambda: (real(33),)),
    "float16": (lambda x: (x * 3 + 1).tanh(), lambda: (real(20, 33, dtype=half),)),
    "bfloat16": (lambda x: (x * 3 + 1).sigmoid(), lambda: (real(20, 33, dtype=brain),)),
    "float64": (lambda x: x.sin() * 2, lambda: (real(20, 33).double(),)),
    "int64": (lambda x: x * 3 // 2 - x % 5, lambda: (whole(-50, 50, 20, 33),)),
    "int32": (lambda x: x * 3 - (x & 5) | 3 ^ x, lambda: (whole(-50, 50, 9, dtype=torch.int32),)),
    "uint8": (lambda x: x * 3 + 1, lambda: (whole(0, 250, 20, 33, dtype=torch.uint8),)),
    "bool": (lambda x, y: (x & y) | ~x, lambda: (real(20, 33) > 0, real(20, 33) > 0)),
    "compare": (lambda x, y: (x > y).float() * 2, lambda: (real(20, 33), real(20, 33))),
    "where": (lambda x, y: torch.where(x > 0, x, y), lambda: (real(20, 33), real(20, 33))),
    "rounded to a half": (lambda x: x.half().float() + 1, lambda: (real(20, 33),)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), lambda: (real(20, 33),)),
    "gelu": (lambda x: F.gelu(x), lambda: (real(20, 33),)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda: (real(20, 33),)),
    "silu": (lambda x: F.silu(x), lambda: (real(20, 33),)),
    "power": (lambda x: x.abs() ** 1.7 + x**3, lambda: (real(20, 33),)),
    "roots": (lambda x: x.abs().rsqrt() + x.sqrt(), lambda: (real(20, 33),)),
    "two angles": (lambda x, y: torch.atan2(x, y), lambda: (real(20, 33), real(20, 33))),
    "rounding": (lambda x: x.floor() + x.ceil() + x.round() + x.trunc(), lambda: (real(33) * 5,)),
    "remainders": (lambda x, y: (x.fmod(y), x % y), lambda: (real(20, 33) * 5, real(20, 33))),
    "quotients": (
        lambda x, y: (x // y, torch.div(x, y, rounding_mode="trunc"), x / y),
        lambda: (whole(-50, 50, 20, 33), whole(1, 9, 20, 33)),
    ),
    "shifts": (lambda x: (x << 2) + (x >> 1), lambda: (whole(-50, 50, 20, 33),)),
    "not a number": (lambda x: (x / 0).isnan() | x.isinf(), lambda: (real(33).round(),)),
    "one element": (lambda x, y: x * y - 1, lambda: (real(), real())),
    "several tiles": (lambda x: x * 2 + x, lambda: (real(300_007),)),
    "six dimensions": (
        lambda x: x.permute(5, 3, 1, 0, 2, 4) + 1,
        lambda: (real(2, 3, 4, 5, 2, 3),),
    ),
    "more dimensions than the card has": (
        lambda x: x.permute(8, 5, 3, 1, 0, 2, 4, 7, 6) + 1,
        lambda: (real(2, 3, 2, 3, 2, 3, 2, 3, 2),),
    ),
    "nothing": (lambda x: x * 2 + 1, lambda: (real(0, 33),)),
    "no argument": (
        lambda x: torch.arange(33, device=x.device) * 2 + torch.full((33,), 3, device=x.device),
        lambda: (real(1),),
    ),
    "a number of the host": (lambda x, y: y * x + x * y, lambda: (real(20, 33), 2.5)),
}

REDUCTIONS: dict[str, Case] = {
    "all": (lambda x: x.sum(), lambda: (real(20, 33),)),
    "rows": (lambda x: x.sum(0), lambda: (real(20, 33),)),
    "columns": (lambda x: x.sum(1, keepdim=True), lambda: (real(20, 33),)),
    "the middle": (lambda x: x.sum(1), lambda: (real(20, 33, 9),)),
    "outer and inner": (lambda x: x.amax((0, 2)), lambda: (real(20, 33, 9),)),
    "a view": (lambda x: x.sum(1), lambda: (real(33, 40).t()[3:, ::2],)),
    "float16": (lambda x: x.sum(1), lambda: (real(20, 33, dtype=half),)),
    "int32": (lambda x: x.sum(1), lambda: (whole(-9, 9, 20, 33, dtype=torch.int32),)),
    "product": (lambda x: x.prod(1), lambda: (real(20, 13),)),
    "maximum": (lambda x: x.max(1), lambda: (real(20, 33),)),
    "minimum": (lambda x: x.min(0), lambda: (whole(-9, 9, 20, 33),)),
    "position in all": (lambda x: x.argmax(), lambda: (real(20, 33),)),
    "position of equals": (lambda x: x.argmin(0), lambda: (whole(0, 3, 20, 33),)),
    "position in all of a turned one": (
        lambda x: (x.argmax(), x.argmin(keepdim=True), (x * 2).argmax()),
        lambda: (real(4, 5, 6).permute(2, 0, 1),),
    ),
    "any, all of bytes": (
        lambda x: (x.any(), x.all(), x.any(1), x.all(1)),
        lambda: (whole(0, 2, 20, 3, dtype=torch.uint8),),
    ),
    "any, all": (lambda x: ((x > 2).any(1), (x > -2).all(1)), lambda: (real(20, 33),)),
    "variance": (lambda x: x.var(1), lambda: (real(20, 33),)),
    "variance and mean": (lambda x: torch.var_mean(x, (0, 2)), lambda: (real(20, 33, 5),)),
    "norm": (lambda x: x.norm(), lambda: (real(20, 33),)),
    "few elements": (lambda x: x.sum(1), lambda: (real(20, 3),)),
    "nothing": (lambda x: x.sum(0), lambda: (real(0, 33),)),
    "softmax": (lambda x: x.softmax(-1), lambda: (real(20, 33),)),
    "softmax of columns": (lambda x: x.softmax(0), lambda: (real(20, 33, dtype=half),)),
    "log-softmax": (lambda x: x.log_softmax(-1), lambda: (real(20, 33),)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda: (real(20, 33),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (33,), w, b),
        lambda: (real(20, 33), real(33), real(33)),
    ),
    "rms norm": (lambda x, w: F.rms_norm(x, (33,), w), lambda: (real(20, 33), real(33))),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda: (real(4, 9, 5, 5), real(9), real(9)),
    ),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x, t),
        lambda: (real(20, 33), whole(0, 33, 20)),
    ),
    "standardised": (lambda x: (x - x.mean()) / x.std(), lambda: (real(20, 33),)),
    "softmax, then a sum across": (lambda x: x.softmax(-1).sum(0), lambda: (real(20, 33),)),
    "several of one input": (
        lambda x: (x + 1, x.sum(1), (x * 2).relu(), x.max()),
        lambda: (real(20, 33),),
    ),
}

PRODUCTS: dict[str, Case] = {
    "matrices": (lambda x, y: x @ y, lambda: (real(20, 33), real(33, 17))),
    "transposed": (lambda x, y: x @ y.t(), lambda: (real(20, 33), real(17, 33))),
    "views": (lambda x, y: x @ y, lambda: (real(40, 70)[::2, 3:36], real(17, 33).t())),
    "float16": (lambda x, y: x @ y, lambda: (real(20, 33, dtype=half), real(33, 17, dtype=half))),
    "bfloat16": (lambda x, y: x @ y, lambda: (real(9, 33, dtype=brain), real(33, 7, dtype=brain))),
    "int64": (lambda x, y: x @ y, lambda: (whole(-9, 9, 20, 33), whole(-9, 9, 33, 17))),
    "outer": (lambda x, y: x @ y, lambda: (real(20, 1), real(1, 17))),
    "short": (lambda x, y: x @ y, lambda: (real(20, 3), real(3, 17))),
    "over nothing": (lambda x, y: x @ y, lambda: (real(20, 0), real(0, 17))),
    "matrix and vector": (lambda x, y: x @ y, lambda: (real(20, 33), real(33))),
    "vectors": (lambda x, y: x @ y, lambda: (real(33), real(33))),
    "batches": (lambda x, y: x @ y, lambda: (real(5, 20, 33), real(5, 33, 17))),
    "broadcast batches": (lambda x, y: x @ y, lambda: (real(2, 5, 9, 33), real(5, 33, 7))),
    "a repeated factor": (lambda x, y: x.expand(20, 33) @ y, lambda: (real(20, 1), real(33, 17))),
    "addmm": (
        lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3),
        lambda: (real(17), real(20, 33), real(33, 17)),
    ),
    "baddbmm": (
        lambda b, x, y: torch.baddbmm(b, x, y),
        lambda: (real(5, 1, 17), real(5, 20, 33), real(5, 33, 17)),
    ),
    "a product that is not added to": (
        lambda b, x, y: torch.baddbmm(b, x, y, beta=0, alpha=2),
        lambda: (real(5, 1, 17) / 0, real(5, 20, 33), real(5, 33, 17)),
    ),
    "addbmm": (
        lambda b, x, y: torch.addbmm(b, x, y, beta=2),
        lambda: (real(20, 17), real(5, 20, 33), real(5, 33, 17)),
    ),
    "whole factors of a float": (
        lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3),
        lambda: (whole(-9, 9, 17), whole(-9, 9, 20, 33), whole(-9, 9, 33, 17)),
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1) + 1,
        lambda: (real(2, 3, 8, 8), real(4, 3, 3, 3)),
    ),
    "convolution turned around": (
        lambda x, w, b: F.conv_transpose2d(x.relu(), w, b, stride=2, padding=1).relu(),
        lambda: (real(2, 4, 5, 7), real(4, 3, 3, 2), real(3)),
    ),
    "linear": (lambda x, w, b: F.linear(x, w, b), lambda: (real(4, 9, 33), real(17, 33), real(17))),
    "work before and after": (
        lambda x, y: ((x * 2 + 1) @ y).relu() + 1,
        lambda: (real(20, 33), real(33, 17)),
    ),
    "two layers": (
        lambda x, w, v: F.linear(F.gelu(F.linear(x, w)), v),
        lambda: (real(20, 33), real(64, 33) / 8, real(33, 64) / 8),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda: (real(2, 3, 20, 8), real(2, 3, 20, 8), real(2, 3, 20, 8)),
    ),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (real(2, 3, 20, 8), real(2, 3, 20, 8), real(2, 3, 20, 8)),
    ),
}

PLACES: dict[str, Case] = {
    "reshaped": (lambda x: x.reshape(11, 60).t() + 1, lambda: (real(20, 33),)),
    "turned and reshaped": (lambda x: (x.t().reshape(20, 33) * 2).relu(), lambda: (real(20, 33),)),
    "contiguous": (lambda x: x.permute(2, 0, 1).contiguous(), lambda: (real(4, 5, 6),)),
    "cat": (lambda x, y: torch.cat([x + 1, y, x], 1), lambda: (real(20, 3), real(20, 7))),
    "cat of rows": (lambda x, y: torch.cat([x, y]), lambda: (real(20, 3), real(5, 3))),
    "stack": (lambda x, y: torch.stack([x, y], 1), lambda: (real(20, 3), real(20, 3))),
    "split": (lambda x: tuple(t + 1 for t in x.split(7, 1)), lambda: (real(20, 33),)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 4), value=5.0), lambda: (real(20, 33),)),
    "pad of truth values": (
        lambda x: F.pad(x, (1, 2), value=2.0),
        lambda: (real(20, 33) > 0,),
    ),
    "reflected": (lambda x: F.pad(x, (2, 3), mode="reflect"), lambda: (real(4, 20, 33),)),
    "roll": (lambda x: x.roll(3, 1), lambda: (real(20, 33),)),
    "repeat": (lambda x: x.repeat(2, 3), lambda: (real(5, 7),)),
    "repeat of what is also returned": (
        lambda x: (y := x.abs() + 1, y.repeat(2), y[:3].repeat(2), y.repeat_interleave(2)),
        lambda: (real(6),),
    ),
    "add a part of what is added to": (
        lambda x, i: (y := x * 2).index_add(0, i, y[:1]),
        lambda: (whole(-5, 5, 3, 4), torch.tensor([2])),
    ),
    "cat of a flip": (
        lambda x, y: torch.cat([y, x.flip(1)[:, :3]], 1) * 2,
        lambda: (real(3, 4), real(3, 1)),
    ),
    "gather": (lambda x, i: x.gather(1, i), lambda: (real(20, 33), whole(0, 33, 20, 7))),
    "index_select": (lambda x, i: x.index_select(0, i), lambda: (real(20, 33), whole(0, 20, 7))),
    "embedding": (lambda i, w: F.embedding(i, w), lambda: (whole(0, 20, 4, 7), real(20, 33))),
    "negative indices": (lambda x, i: x[i], lambda: (real(20, 33), whole(-20, 20, 7))),
    "two indices": (
        lambda x, i, j: x[i, j],
        lambda: (real(20, 33), whole(0, 20, 7), whole(0, 33, 7)),
    ),
    "index_put": (
        lambda x, i, v: x.index_put((i,), v),
        lambda: (real(20, 33), torch.tensor([1, 3, 7]), real(3, 33)),
    ),
    "index_put, summed": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda: (real(20, 33), torch.tensor([1, 3, 3]), real(3, 33)),
    ),
    "scatter": (
        lambda x, i, v: x.scatter(1, i, v),
        lambda: (real(20, 33), torch.arange(7).repeat(20, 1), real(20, 7)),
    ),
    "scatter_add": (
        lambda x, i, v: x.scatter_add(0, i, v),
        lambda: (real(20, 33), whole(0, 20, 7, 33), real(7, 33)),
    ),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), lambda: (real(20, 33), real(20, 33) > 0)),
    "triangle": (lambda x: x.tril(1), lambda: (real(20, 33),)),
    "one_hot": (lambda i: F.one_hot(i, 9), lambda: (whole(0, 9, 7),)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (real(2, 3, 8, 8),)),
    "gradient of an average pool": (
        lambda g, x: torch.ops.aten.avg_pool2d_backward(
            g, x, [3, 3], [1, 1], [1, 1], False, True, None
        ),
        lambda: (real(2, 3, 4, 6), real(2, 3, 4, 6)),
    ),
    "maximum pool": (lambda x: F.max_pool2d(x, 2), lambda: (real(2, 3, 8, 8),)),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: (real(2, 3, 8, 8),),
    ),
}

FALLBACKS: dict[str, Case] = {
    "cumsum": (lambda x: x.cumsum(1) + 1, lambda: (real(20, 33),)),
    "sort": (lambda x: x.sort(1), lambda: (real(20, 33),)),
    "topk": (lambda x: (x + 1).topk(3), lambda: (real(20, 33),)),
    "lgamma": (lambda x: x.abs().lgamma() + 1, lambda: (real(20, 33),)),
    "erfinv": (lambda x: x.tanh().erfinv() + 1, lambda: (real(20, 33),)),
    "bits": (lambda x: x.view(torch.int32) + 1, lambda: (real(20, 33),)),
    "complex": (lambda x: (torch.complex(x, x) * 2).real + 1, lambda: (real(20, 33),)),
}
