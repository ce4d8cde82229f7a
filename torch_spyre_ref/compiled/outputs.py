"""Where the results of a call go: new tensors, or tensors that the caller gave.

In-place ops and ``out=`` store into an argument. A program may do so itself as long as nothing else
that it reads lies in the same memory; otherwise results are made first and copied then.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from torch_spyre_ref.aten import fallback
from torch_spyre_ref.aten.overlap import ONE_PLACE, is_partial, share_storage
from torch_spyre_ref.compiled.calls import Call, is_number
from torch_spyre_ref.compiled.refusal import RefusedByCpu, note_defect


def returned(call: Call, made: Sequence[Any]) -> Any:
    """What a call returns: its targets if it has any, otherwise what was made."""
    op = call.op
    results = call.targets() if op.written else made
    return results[0] if op.single else tuple(results)


def overlaps(call: Call) -> bool:
    """Whether a target shares memory with anything else that the op is given."""
    if len(call.tensors) == 1:
        return False
    targets = call.targets()
    for target in targets:
        met = 0
        for tensor in call.tensors:
            if tensor is target:
                met += 1
            elif share_storage(tensor, target):
                return True
        if met > 1:
            return True
    return False


def by_copy(call: Call) -> Any:
    """Compute first, then copy into the targets. Refuses what torch refuses: a partial overlap."""
    args, kwargs, targets = call.filled([*call.tensors, *call.numbers])
    _refuse_overlap(call, targets)
    made = call.op.function(*args, **kwargs)
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    for target, result in zip(targets, results, strict=True):
        cast_check(result, target)
        if target.shape != result.shape:
            if call.op.is_inplace or _is_read(call, target):
                raise RuntimeError(
                    f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                    f"{list(result.shape)}"
                )
            _refuse_to_grow_into(call.tensors, target, result.shape)
            _resize(target, result.shape)
        target.copy_(result)
    return returned(call, results)


def cast_check(result: torch.Tensor, target: torch.Tensor) -> None:
    """Raise where a result has no place in a target, such as a float among whole numbers."""
    if not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(
            f"result type {_name(result.dtype)} can't be cast to the desired output type "
            f"{_name(target.dtype)}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_read(call: Call, target: torch.Tensor) -> bool:
    """Whether a pointwise op also reads what it stores into, which then keeps its shape."""
    return call.op.is_elementwise and sum(tensor is target for tensor in call.tensors) > 1


_DISJOINT: Final = {
    "cat": ("tensors",),
    "gather": ("self",),
    "index_select": ("self", "index"),
    "take": ("self", "index"),
    "scatter": ("index", "src"),
    "scatter_add": ("index", "src"),
    "scatter_reduce": ("index", "src"),
    "index_add": ("index", "source"),
    "index_copy": ("index", "source"),
    "index_put": ("indices", "values"),
}
"""What must lie elsewhere than what is written, as torch has it."""


def _refuse_overlap(call: Call, targets: Sequence[torch.Tensor]) -> None:
    """Refuse what torch refuses: of pointwise ops, and of these, also every partial overlap."""
    disjoint = _DISJOINT.get(call.op.packet, ())
    if not disjoint and not call.op.is_elementwise:
        return
    for position, value in call.arguments():
        must_be = call.op.arguments[position].name in disjoint
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if position in call.op.written or not isinstance(tensor, torch.Tensor):
                continue
            if any(_meets(tensor, target, must_be) for target in targets):
                raise RuntimeError(ONE_PLACE)


def _meets(tensor: torch.Tensor, target: torch.Tensor, must_be_disjoint: bool) -> bool:
    """Whether two tensors share memory in a way that they must not."""
    if tensor is target:
        return must_be_disjoint
    if not (tensor.numel() and target.numel() and share_storage(tensor, target)):
        return False
    return (must_be_disjoint and _is_same(tensor, target)) or is_partial(tensor, target)


def _is_same(tensor: torch.Tensor, target: torch.Tensor) -> bool:
    forms = [(t.storage_offset(), t.shape, t.stride(), t.dtype) for t in (tensor, target)]
    return forms[0] == forms[1]


class NeedsRoom(Exception):  # noqa: N818 (it is no error: the call is made again)
    """``out=`` tensors have another shape than the results."""

    def __init__(self, shapes: list[torch.Size]) -> None:
        super().__init__(shapes)
        self.shapes = shapes


class Room(NamedTuple):
    """In place of a program: the ``out=`` tensors must first have these shapes."""

    shapes: Sequence[torch.Size]


def make_room(call: Call, shapes: Sequence[torch.Size]) -> Any:
    """Give ``out=`` tensors the shapes of the results, and make the call again."""
    for target, shape in zip(call.targets(), shapes, strict=True):
        _refuse_to_grow_into(call.tensors, target, shape)
        _resize(target, shape)
    return call.op.overload(*call.args, **call.kwargs)


def _refuse_to_grow_into(
    tensors: Sequence[torch.Tensor], target: torch.Tensor, shape: torch.Size
) -> None:
    """Refuse an ``out=`` tensor whose new elements are those of another argument."""
    start = target.storage_offset() * target.element_size()
    stop = start + shape.numel() * target.element_size()
    for tensor in tensors:
        if tensor is target or not tensor.numel() or not share_storage(tensor, target):
            continue
        first = tensor.storage_offset() * tensor.element_size()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = first + (1 + sum((n - 1) * step for n, step in steps)) * tensor.element_size()
        if first < stop and start < last:
            raise RuntimeError(ONE_PLACE)


def _resize(target: torch.Tensor, shape: torch.Size) -> None:
    if target.shape == shape:
        return
    if target.numel():
        warnings.warn(
            "An output with one or more elements was resized since it had shape "
            f"{list(target.shape)}, which does not match the required output shape {list(shape)}. "
            "This behavior is deprecated, and in a future PyTorch release outputs will not be "
            "resized unless they have zero elements. You can explicitly reuse an out tensor t by "
            "resizing it, inplace, to zero elements with t.resize_(0).",
            stacklevel=2,
        )
    target.resize_(shape)


def with_indices_on_card(call: Call) -> list[Any] | None:
    """The arguments with indices of the host brought to the card; None where there are none."""
    for position, value in enumerate(call.args):
        named = call.op.arguments[position].name == "indices"
        if named and isinstance(value, (list, tuple)) and any(map(_is_on_host, value)):
            args = list(call.args)
            args[position] = [item.to(call.card) if _is_on_host(item) else item for item in value]
            return args
    return None


def _is_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cpu


def check_devices(call: Call) -> None:
    """Raise for tensors on several devices, as every device does."""
    card = call.card
    for position, value in call.arguments():
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device != card:
                if is_number(tensor) and position not in call.op.written:
                    continue
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {card} and {tensor.device}! (when checking argument for argument "
                    f"{call.op.arguments[position].name} in method {call.op})"
                )


def judge(call: Call, on_cpu: Callable[..., Any], error: Exception) -> Any:
    """Have the CPU say what is wrong with arguments that could not be traced.

    Where it finds nothing wrong, the op has fallen back, and what could not trace it has a defect.
    """
    try:
        if isinstance(error, RefusedByCpu):
            raise error.take() from None
        if call.op.written and fallback.get_fallback_policy() == "error":
            raise error
        with fallback.judged(partial(note_defect, call.op.name, error)):
            return on_cpu(*as_tensors(call), **call.kwargs)
    finally:
        del error  # its traceback leads here, and so to itself and to the tensors of the call


def as_tensors(call: Call, args: Sequence[Any] | None = None) -> list[Any]:
    """The arguments as the dispatcher had them: numbers in place of tensors are tensors again."""
    return [
        call.as_tensor(value) if call.is_bare(position, value) else value
        for position, value in enumerate(call.args if args is None else args)
    ]
