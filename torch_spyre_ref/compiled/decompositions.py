"""What ops are made of: Inductor's table, and a few lines where it takes something whole.

It is the one that ``torch.compile`` uses for a model, so an op is the same sum of parts in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch._inductor.decomposition import select_decomp_table

aten = torch.ops.aten


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By op overload, a function of the same arguments."""
    table = {**select_decomp_table(), **_OWN}
    return {**table, **{op: _of_bytes(op, table.get(op)) for op in _OF_BYTES}}


def _addbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    product = torch.bmm(batch1, batch2).sum(0)
    return (beta * self if beta != 1 else self) + (alpha * product if alpha != 1 else product)


def _index_put(
    self: torch.Tensor,
    indices: Any,
    values: torch.Tensor,
    accumulate: bool = False,
    _: bool = False,
) -> torch.Tensor:
    result: torch.Tensor = aten.index_put.default(self, indices, values, accumulate)
    return result


def _in_one_row(search: Any) -> Callable[..., Any]:
    """Where the extreme of a whole tensor is, counted row by row also where strides are not so.

    Inductor goes through memory in the order in which it lies, and counts so, too.
    """

    def find(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or self.dim() < 2:
            return NotImplemented
        place = search(self.contiguous().view(-1), 0)
        return place.view([1] * self.dim()) if keepdim else place

    return find


def _of_bytes(reduction: Any, parts: Callable[..., Any] | None) -> Callable[..., Any]:
    """``any`` and ``all`` of bytes are bytes, alone among all dtypes."""

    def reduce(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.dtype is torch.uint8:
            return reduction(self.to(torch.bool), *args, **kwargs).to(torch.uint8)
        return NotImplemented if parts is None else parts(self, *args, **kwargs)

    return reduce


_OWN: Final = {
    aten.addbmm.default: _addbmm,
    aten._index_put_impl.default: _index_put,
    aten.argmax.default: _in_one_row(aten.argmax.default),
    aten.argmin.default: _in_one_row(aten.argmin.default),
}
_OF_BYTES: Final = [
    overload
    for packet in (aten.any, aten.all)
    for overload in (packet.default, packet.dim, packet.dims)
]
