"""What ops are made of: Inductor's table, and a few lines where it takes something whole.

It is the one that ``torch.compile`` uses for a model, so an op is the same sum of parts in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table

aten = torch.ops.aten


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By op overload, a function of the same arguments."""
    return {**select_decomp_table(), **_OWN}


def _addbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    product = torch.bmm(batch1, batch2).sum(0)
    return (beta * self if beta != 1 else self) + (alpha * product if alpha != 1 else product)


def _index_put(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, _: bool = False
) -> torch.Tensor:
    return aten.index_put.default(self, indices, values, accumulate)


_OWN = {aten.addbmm.default: _addbmm, aten._index_put_impl.default: _index_put}
