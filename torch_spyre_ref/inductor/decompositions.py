"""What ops are made of: Inductor's table, with the card's entries in it.

It is the one for models and for single ops, so an op is the same sum of parts in both. An entry of
ours is for tensors on a card; for others it is what it was, or as if there were none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import torch
from torch._decomp import register_decomposition, remove_decompositions
from torch._inductor import decomposition as inductor
from torch.utils._pytree import tree_leaves

from torch_spyre_ref.device import NAME

aten = torch.ops.aten
Parts: TypeAlias = Callable[..., Any]
"""An op in parts, or ``NotImplemented`` where it is taken whole."""


def decompositions() -> dict[Any, Parts]:
    """By op overload, a function of the same arguments."""
    register()
    return inductor.select_decomp_table()


@cache
def register() -> None:
    """Put the entries of the card into Inductor's table, once, and into what it has made of it."""
    for table in (inductor.decompositions, inductor.fast_random_decomps()):
        for op, make in _ENTRIES.items():
            before = table.get(op, _whole)
            remove_decompositions(table, [op])
            register_decomposition(op, table, unsafe=True)(ForCards(make(before), before))


class ForCards:
    """An entry: ``ours`` where a tensor lies on a card, ``others`` where none does."""

    def __init__(self, ours: Parts, others: Parts) -> None:
        self.ours, self.others = ours, others

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = (a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor))
        on_card = any(tensor.device.type == NAME for tensor in tensors)
        return (self.ours if on_card else self.others)(*args, **kwargs)


def _whole(*_: Any, **__: Any) -> Any:
    """Of an op that is taken whole."""
    return NotImplemented


def _scaled_product(product: Any) -> Callable[[Parts], Parts]:
    """``beta * self + alpha * product``; ``self`` is not looked at where beta is 0."""

    def add(self: torch.Tensor, *factors: torch.Tensor, beta: Any = 1, alpha: Any = 1) -> Any:
        beta, alpha = _factors(self, beta, alpha)
        made = product(*factors)
        _require(made.dtype == self.dtype, "factors of another dtype than what they are added to")
        made = made if alpha == 1 else alpha * made
        if beta == 0:
            return made
        return made + (self if beta == 1 else beta * self).expand(made.shape)

    return lambda _: add


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
        # Asked here, so that a single op's factor of 0 is known to be one: then self is not read.
        return parts(self, *factors, beta=0 if beta == 0 else beta, alpha=alpha)

    return add


def _addr(parts: Parts) -> Parts:
    """No factor is silently made one of the dtype of the sum."""

    def add(self: torch.Tensor, *sides: torch.Tensor, beta: Any = 1, alpha: Any = 1) -> Any:
        dtype = self.dtype
        for side in sides:
            dtype = torch.promote_types(dtype, side.dtype)
        for factor in (beta, alpha):
            if isinstance(factor, bool):
                _require(dtype is torch.bool, "a truth value among numbers")
            elif isinstance(factor, (float, torch.SymFloat)):
                _require(dtype.is_floating_point or dtype.is_complex, "a float among whole numbers")
        return parts(self, *sides, beta=beta, alpha=alpha)

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


def _batch_norm(place: int) -> Callable[[Parts], Parts]:
    """Statistics are returned only where they are computed: as ``training``, at ``place``, says."""

    def make(parts: Parts) -> Parts:
        in_training = _with_statistics(parts)

        def norm(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            out, *others = in_training(self, *args, **kwargs)
            if not (args[place - 1] if len(args) >= place else kwargs["training"]):
                others[:2] = (each.new_empty(0) for each in others[:2])
            return out, *others

        return norm

    return make


def _pad(parts: Parts) -> Parts:
    """Among truth values the number is one, too: Inductor's loops would take its bits."""

    def pad(self: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
        if self.dtype is torch.bool and not isinstance(value, bool):
            return aten.constant_pad_nd.default(self, pad, bool(value))
        return parts(self, pad, value)

    return pad


def _floored(parts: Parts) -> Parts:
    """Quotients of floats are floored as Python does it, where ``1.0 // 0.1`` is 9.

    Inductor's loops would floor the rounded quotient, which is 10.
    """

    def divide(self: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
        whole = not (_is_float(self) or _is_float(other))
        if rounding_mode != "floor" or whole:
            return parts(self, other, rounding_mode=rounding_mode)
        sides = [_as_tensor(self, other), _as_tensor(other, self)]
        dtype = torch.result_type(*sides)
        above, below = (side.to(dtype).to(torch.float32) for side in sides)
        return _floor_of_quotient(above, below).to(dtype)

    return divide


def _is_float(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point()
    return isinstance(value, (float, torch.SymFloat))


def _as_tensor(value: Any, beside: Any) -> torch.Tensor:
    """A tensor as it is, a number as one that promotes as the number does."""
    if isinstance(value, torch.Tensor):
        return value
    dtype = torch.get_default_dtype() if _is_float(value) else torch.int64
    return torch.full((), value, dtype=dtype, device=beside.device)


def _floor_of_quotient(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """What is left over is exact, and so is the quotient of the rest, or it is one off."""
    left = torch.fmod(above, below)
    exact = (above - left) / below
    exact = torch.where((left != 0) & ((left < 0) != (below < 0)), exact - 1, exact)
    floor = exact.floor()
    floor = torch.where(exact - floor > 0.5, floor + 1, floor)
    rounded = above / below
    floor = torch.where(exact == 0, torch.copysign(torch.zeros_like(rounded), rounded), floor)
    return torch.where(below == 0, rounded, floor)


def _in_one_row(search: Any) -> Callable[[Parts], Parts]:
    """Where the extreme of a whole tensor is, counted row by row also where strides are not so.

    Inductor goes through memory in the order in which it lies, and counts so, too.
    """

    def find(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or self.dim() < 2:
            return NotImplemented
        place = search(self.contiguous().view(-1), 0)
        return place.view([1] * self.dim()) if keepdim else place

    return lambda _: find


def _of_bytes(reduction: Any) -> Callable[[Parts], Parts]:
    """``any`` and ``all`` of bytes are bytes, alone among all dtypes."""

    def make(parts: Parts) -> Parts:
        def reduce(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.dtype is torch.uint8:
                return reduction(self.to(torch.bool), *args, **kwargs).to(torch.uint8)
            return parts(self, *args, **kwargs)

        return reduce

    return make


_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def _convolution(_: Parts) -> Parts:
    """What core makes of it for a private device, back to what it was, in the CPU's layout."""

    def convolution(input: torch.Tensor, weight: torch.Tensor, *geometry: Any) -> Any:
        made = aten.convolution.default(input, weight, *geometry)
        last = _CHANNELS_LAST.get(made.dim())
        wanted = last is not None and any(
            side.is_contiguous(memory_format=last) and not side.is_contiguous()
            for side in (input, weight)
        )
        return made.contiguous(memory_format=last) if wanted else made

    return convolution


def _convolution_backward(_: Parts) -> Parts:
    def gradients(grad: Any, input: Any, weight: Any, *geometry: Any) -> Any:
        biases = [grad.shape[1]]
        return aten.convolution_backward.default(grad, input, weight, biases, *geometry)

    return gradients


_ENTRIES: Final[dict[Any, Callable[[Parts], Parts]]] = {
    aten.addbmm.default: _scaled_product(lambda left, right: torch.bmm(left, right).sum(0)),
    aten.baddbmm.default: _scaled_product(torch.bmm),
    aten.addmm.default: _addmm,
    aten.addr.default: _addr,
    aten.constant_pad_nd.default: _pad,
    aten.div.Tensor_mode: _floored,
    aten.div.Scalar_mode: _floored,
    aten.convolution_overrideable.default: _convolution,
    aten.convolution_backward_overrideable.default: _convolution_backward,
    aten.argmax.default: _in_one_row(aten.argmax.default),
    aten.argmin.default: _in_one_row(aten.argmin.default),
    aten.cat.default: _cat,
    aten.index_add.default: _index_add,
    aten.native_layer_norm.default: _with_statistics,
    aten.native_group_norm.default: _with_statistics,
    aten.native_batch_norm.default: _batch_norm(5),
    aten._native_batch_norm_legit.default: _batch_norm(5),
    aten._native_batch_norm_legit.no_stats: _batch_norm(3),
    aten._native_batch_norm_legit_functional.default: _batch_norm(5),
    **{
        overload: _of_bytes(overload)
        for packet in (aten.any, aten.all)
        for overload in (packet.default, packet.dim, packet.dims)
    },
}
"""By op, its entry for the card, made of the entry that Inductor has."""
