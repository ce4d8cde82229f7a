"""What ops are made of: Inductor's table, and a few lines where it takes something whole.

It is the one that ``torch.compile`` uses for a model, so an op is the same sum of parts in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import torch
from torch._inductor.decomposition import select_decomp_table

aten = torch.ops.aten
Parts: TypeAlias = Callable[..., Any]
"""An op in parts, or ``NotImplemented`` where it is taken whole."""


@cache
def decompositions() -> dict[Any, Parts]:
    """By op overload, a function of the same arguments."""
    table: dict[Any, Parts] = {**select_decomp_table(), **_OWN}
    table |= {op: stricter(table[op]) for op, stricter in _STRICTER.items()}
    return {**table, **{op: _of_bytes(op, table.get(op)) for op in _OF_BYTES}}


def _scaled_product(product: Any) -> Callable[..., Any]:
    """``beta * self + alpha * product``; ``self`` is not looked at where beta is 0."""

    def add(self: torch.Tensor, *factors: torch.Tensor, beta: Any = 1, alpha: Any = 1) -> Any:
        beta, alpha = _factors(self, beta, alpha)
        made = product(*factors)
        _require(made.dtype == self.dtype, "factors of another dtype than what they are added to")
        made = made if alpha == 1 else alpha * made
        if beta == 0:
            return made
        return made + (self if beta == 1 else beta * self).expand(made.shape)

    return add


def _factors(self: torch.Tensor, beta: Any, alpha: Any) -> tuple[Any, Any]:
    """Among whole numbers, the whole parts of factors."""
    if self.is_floating_point() or self.is_complex():
        return beta, alpha
    return int(beta), int(alpha)


def _addmm(parts: Parts) -> Parts:
    def add(self: torch.Tensor, *factors: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        whole = _factors(self, beta, alpha)
        if whole != (beta, alpha):
            return aten.addmm.default(self, *factors, beta=whole[0], alpha=whole[1])
        return parts(self, *factors, beta=beta, alpha=alpha)

    return add


def _cat(parts: Parts) -> Parts:
    """Only what has no sizes to speak of, ``[0]``, may have others than the rest."""

    def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
        sized = [tensor.shape for tensor in tensors if tensor.dim() != 1 or tensor.shape[0] != 0]
        rests = [_without(shape, dim) for shape in sized]
        _require(all(rest == rests[0] for rest in rests), "sizes differ in other dimensions")
        return parts(tensors, dim)

    return cat


def _index_add(parts: Parts) -> Parts:
    def add(
        self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
    ) -> Any:
        if self.dim() or source.dim():
            same = _without(self.shape, dim) == _without(source.shape, dim)
            _require(same and self.dim() == source.dim(), "the source has other sizes")
        return parts(self, dim, index, source, alpha=alpha)

    return add


def _without(shape: Sequence[Any], dim: int) -> list[Any]:
    rest = list(shape)
    del rest[dim]
    return rest


def _require(condition: bool, message: str) -> None:
    """Leave to the CPU what core's rules for fake tensors let pass: it says what is wrong."""
    if not condition:
        raise ValueError(message)


def _with_statistics(parts: Parts) -> Parts:
    """Statistics have the dtype of the input, or that of weights of another dtype."""

    def norm(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out, mean, deviation, *others = parts(self, *args, **kwargs)
        given = [self, *(arg for arg in args if isinstance(arg, torch.Tensor))]
        dtype = given[1].dtype if len(given) > 1 else self.dtype
        return out, mean.to(dtype), deviation.to(dtype), *others

    return norm


def _pad(self: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    """Among truth values the number is one, too: Inductor's loops would take its bits."""
    if self.dtype is torch.bool and not isinstance(value, bool):
        return aten.constant_pad_nd.default(self, pad, bool(value))
    return NotImplemented


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


_OWN: Final[dict[Any, Parts]] = {
    aten.addbmm.default: _scaled_product(lambda left, right: torch.bmm(left, right).sum(0)),
    aten.baddbmm.default: _scaled_product(torch.bmm),
    aten._index_put_impl.default: _index_put,
    aten.constant_pad_nd.default: _pad,
    aten.argmax.default: _in_one_row(aten.argmax.default),
    aten.argmin.default: _in_one_row(aten.argmin.default),
}
_STRICTER: Final = {
    aten.addmm.default: _addmm,
    aten.cat.default: _cat,
    aten.index_add.default: _index_add,
    aten.native_layer_norm.default: _with_statistics,
    aten.native_group_norm.default: _with_statistics,
    aten.native_batch_norm.default: _with_statistics,
    aten._native_batch_norm_legit.default: _with_statistics,
    aten._native_batch_norm_legit.no_stats: _with_statistics,
    aten._native_batch_norm_legit_functional.default: _with_statistics,
}
_OF_BYTES: Final = [
    overload
    for packet in (aten.any, aten.all)
    for overload in (packet.default, packet.dim, packet.dims)
]
