"""Ops with inputs: a name, a function of tensors, and the shapes that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

aten = torch.ops.aten
Shapes = tuple[tuple[int, ...], ...]


class Case(NamedTuple):
    """A function of tensors of these shapes."""

    name: str
    function: Callable[..., Any]
    shapes: Shapes


ONE: Shapes = ((3, 17),)
TWO: Shapes = ((3, 17), (3, 17))


def _named(names: str, shapes: Shapes) -> list[Case]:
    return [Case(name, getattr(torch, name), shapes) for name in names.split()]


def _functional(names: str) -> list[Case]:
    return [Case(name, getattr(F, name), ONE) for name in names.split()]


FLOATS: list[Case] = [
    *_named(
        "abs ceil cos exp exp2 expm1 floor frac isfinite isinf isnan neg relu round sigmoid sign"
        " sin sinh square tan tanh trunc erf atan asinh sgn deg2rad nan_to_num",
        ONE,
    ),
    *_named("add sub mul div maximum minimum fmax fmin atan2 eq ne lt le gt ge hypot", TWO),
    *_functional(
        "gelu silu mish softplus elu selu leaky_relu hardswish hardsigmoid hardtanh relu6"
        " logsigmoid softsign tanhshrink hardshrink softshrink"
    ),
    Case("pow", lambda a: a.pow(3), ONE),
    Case("sqrt", lambda a: a.abs().sqrt(), ONE),
    Case("rsqrt", lambda a: (a.abs() + 1).rsqrt(), ONE),
    Case("log", lambda a: (a.abs() + 1).log(), ONE),
    Case("clamp", lambda a: a.clamp(-0.5, 0.75), ONE),
    Case("clamp by tensors", lambda a, b: torch.clamp(a, min=b), TWO),
    Case("scalars", lambda a: (2 - a) * 3 + 1 - a / 4, ONE),
    Case("broadcast", lambda a, b: a + b, ((3, 17), (17,))),
    Case("broadcast both", lambda a, b: a * b, ((3, 1), (1, 17))),
    Case("addcmul", lambda a, b: torch.addcmul(a, a, b, value=0.5), TWO),
    Case("addcdiv", lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5), TWO),
    Case("lerp", lambda a, b: torch.lerp(a, b, 0.25), TWO),
    Case("where", lambda a, b: torch.where(a > b, a, b), TWO),
    Case("where number", lambda a: torch.where(a > 0, a, 0.5), ONE),
    Case("masked_fill", lambda a: a.masked_fill(a > 0, 7.0), ONE),
    Case("sum", lambda a: a.sum(), ONE),
    Case("sum dim", lambda a: a.sum(1), ONE),
    Case("sum first dim", lambda a: a.sum(0, keepdim=True), ONE),
    Case("sum dtype", lambda a: a.sum(1, dtype=torch.float32), ONE),
    Case("mean", lambda a: a.mean((0, 2)), ((3, 5, 7),)),
    Case("prod", lambda a: a.prod(1), ((3, 5),)),
    Case("max", lambda a: a.max(), ONE),
    Case("max and where", lambda a: tuple(a.max(1)), ONE),
    Case("min and where", lambda a: tuple(a.min(0)), ONE),
    Case("amax", lambda a: a.amax((0, 1)), ONE),
    Case("aminmax", lambda a: tuple(torch.aminmax(a, dim=1)), ONE),
    Case("argmax", lambda a: a.argmax(1), ONE),
    Case("argmin", lambda a: a.argmin(), ONE),
    Case("any", lambda a: (a > 1).any(1), ONE),
    Case("all", lambda a: (a > -1).all(), ONE),
    Case("var", lambda a: a.var(1), ONE),
    Case("std", lambda a: a.std(0), ONE),
    Case("var_mean", lambda a: torch.var_mean(a, 1, correction=0), ONE),
    Case("norm", lambda a: a.norm(dim=1), ONE),
    Case("norm 1", lambda a: torch.linalg.vector_norm(a, 1), ONE),
    Case("logsumexp", lambda a: a.logsumexp(1), ONE),
    Case("softmax", lambda a: a.softmax(1), ONE),
    Case("softmax first dim", lambda a: a.softmax(0), ONE),
    Case("log_softmax", lambda a: a.log_softmax(-1), ONE),
    Case("mm", torch.mm, ((3, 17), (17, 5))),
    Case("bmm", torch.bmm, ((2, 3, 7), (2, 7, 5))),
    Case("addmm", torch.addmm, ((5,), (3, 7), (7, 5))),
    Case(
        "addmm scaled",
        lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=0.5),
        ((3, 5), (3, 7), (7, 5)),
    ),
    Case("baddbmm", torch.baddbmm, ((2, 3, 5), (2, 3, 7), (2, 7, 5))),
    Case("mv", torch.mv, ((3, 7), (7,))),
    Case("dot", torch.dot, ((17,), (17,))),
    Case("matmul", torch.matmul, ((2, 1, 3, 7), (4, 7, 5))),
    Case("linear", F.linear, ((2, 3, 7), (5, 7), (5,))),
    Case("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((2, 3, 7), (2, 5, 7))),
    Case("layer_norm", lambda a, w, b: F.layer_norm(a, (17,), w, b), ((3, 17), (17,), (17,))),
    Case("rms_norm", lambda a, w: F.rms_norm(a, (17,), w), ((3, 17), (17,))),
    Case("group_norm", lambda a, w, b: F.group_norm(a, 2, w, b), ((3, 4, 7), (4,), (4,))),
    Case(
        "batch_norm",
        lambda a, m, v, w, b: F.batch_norm(a, m, v.abs(), w, b),
        ((3, 4, 7), (4,), (4,), (4,), (4,)),
    ),
    Case("attention", F.scaled_dot_product_attention, ((2, 3, 5, 8),) * 3),
    Case(
        "causal attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 3, 5, 8),) * 3,
    ),
    Case("cat", lambda a, b: torch.cat((a, b), 1), ((3, 5), (3, 7))),
    Case("stack", lambda a, b: torch.stack((a, b), 1), TWO),
    Case("split", lambda a: [part + 1 for part in a.split(5, 1)], ONE),
    Case("pad", lambda a: F.pad(a, (1, 2, 3, 0), value=0.5), ONE),
    Case("reflect", lambda a: F.pad(a[None], (1, 2), mode="reflect"), ONE),
    Case("flip", lambda a: a.flip(0, 1), ONE),
    Case("roll", lambda a: a.roll(3, 1), ONE),
    Case("repeat", lambda a: a.repeat(2, 3), ONE),
    Case("tril", lambda a: a.tril(1), ONE),
    Case("triu", lambda a: a.triu(-1), ONE),
    Case("mse_loss", F.mse_loss, TWO),
    Case("smooth_l1_loss", F.smooth_l1_loss, TWO),
    Case("cross_entropy", lambda a: F.cross_entropy(a, _labels(a)), ONE),
    Case("gather", lambda a: a.gather(1, _index(a)), ONE),
    Case("index_select", lambda a: a.index_select(1, _labels(a)), ONE),
    Case("index", lambda a: a[:, _labels(a)], ONE),
    Case("index_put", lambda a: a.clone().index_put_((_labels(a),), a[0]), ((3, 3),)),
    Case("scatter", lambda a: torch.zeros_like(a).scatter(1, _index(a), a), ONE),
    Case("scatter_add", lambda a: torch.zeros_like(a).scatter_add(0, _index(a) * 0, a), ONE),
    Case("embedding", lambda a: F.embedding(_labels(a), a), ONE),
    Case("full_like", lambda a: torch.full_like(a, 3.5) + a, ONE),
    Case("half", lambda a: a.half() + a.to(torch.bfloat16), ONE),
    Case("to integers", lambda a: (a * 100).to(torch.int32), ONE),
]
"""Ops of float32, most of them also of float16 and bfloat16."""


def _labels(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([2, 0, 1], device=like.device)


def _index(like: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    return (rows * 5) % like.shape[1]


INTEGERS: list[Case] = [
    *_named("add sub mul maximum minimum bitwise_and bitwise_or bitwise_xor eq lt", TWO),
    *_named("abs neg bitwise_not sign square", ONE),
    Case("floor_divide", lambda a, b: a // (b % 7 + 1), TWO),
    Case("remainder", lambda a, b: a % (b % 7 + 1), TWO),
    Case("true divide", lambda a: a / 4, ONE),
    Case("shift", lambda a: (a % 7) << 2, ONE),
    Case("sum", lambda a: a.sum(1), ONE),
    Case("cumulated", lambda a: a.amax(0), ONE),
    Case("any", lambda a: a.any(), ONE),
    Case("argmax", lambda a: a.flatten().argmax(), ((1, 1),)),
    Case("where", lambda a, b: torch.where(a > b, a, 3), TWO),
    Case("mixed with a float", lambda a: a + 0.5, ONE),
    Case("one_hot", lambda a: F.one_hot(a.long().abs() % 5, 5), ONE),
    Case("cat", lambda a, b: torch.cat((a, b)), TWO),
]
"""Ops of whole numbers."""
