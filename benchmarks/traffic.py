"""What compiled functions move through the card's memory, in sticks: exact, from its cost model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

from benchmarks.measure import Figure, ratio

STICK = 128
SIZE = 4096
TOKENS, WIDTH, HIDDEN = 512, 768, 3072


def figures() -> list[Figure]:
    """A softmax, and the two layers of a transformer's block."""
    return [_softmax(), _two_layers()]


def _softmax() -> Figure:
    x = _random(SIZE, SIZE)
    moved = _moved(lambda x: x.softmax(-1), x)
    what = f"sticks that a compiled softmax of {SIZE}² float16 moves / its input and output"
    return ratio(what, moved, 2 * _sticks(x.shape), "sticks", 1.05)


def _two_layers() -> Figure:
    """The ideal is two products, gelu a part of the first: what is between them lies in memory."""
    shapes = ((TOKENS, WIDTH), (HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN), (WIDTH,))
    tensors = [_random(*shape) for shape in shapes]
    moved = _moved(lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c), *tensors)
    result, between = (TOKENS, WIDTH), (TOKENS, HIDDEN)
    ideal = sum(map(_sticks, (*shapes, result, between, between)))
    what = "sticks of linear, gelu, linear, compiled / each tensor once, written and read between"
    return ratio(what, moved, ideal, "sticks", 1.1)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float16) / 20


def _moved(function: Callable[..., Any], *tensors: torch.Tensor) -> int:
    """Sticks, loaded and stored, of one call on the card; nothing may run outside of kernels."""
    cards = [tensor.to("spyre:0") for tensor in tensors]
    with torch.spyre.fallback_policy("error"):
        told = torch.spyre.explain(torch.compile(function, dynamic=False), *cards)
    return sum(kernel.sticks for kernel in told.kernels)


def _sticks(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * 2 // STICK)
