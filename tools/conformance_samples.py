"""The samples of PyTorch's operator database, and the copies of them that each device gets.

A sample is copied storage by storage: what aliases on the CPU aliases on the card, and every view
keeps its strides, its offset and its conj and neg bits.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db  # no public one serves

from conformance_workers import MOST_SAMPLES

CARD = "spyre"
FUNCTION = "function"
GAPPED = "strided"
OUT = "out="
_ON_HOST = ("tensor_split",)  # where the database puts the tensors among args on the host itself
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_LAST_RESORT = (torch.float64, torch.complex64)
_SHARES = {torch.float32: 1, torch.float16: 2}


class UnstorableError(Exception):
    """A sample holds a tensor that no card stores: sparse, nested or quantized."""


@dataclass
class Copier:
    """Copies values to one device; tensors that share memory share it there, too.

    ``widen`` makes every float a float64 instead, for a reference that rounds less; ``jitter``
    then moves it up or down by that many of its former dtype's rounding steps.
    """

    device: str
    widen: bool = False
    jitter: float = 0.0
    storages: dict[int, torch.Tensor] = field(default_factory=dict)
    tensors: list[torch.Tensor] = field(default_factory=list)

    def copy(self, value: Any) -> Any:
        """Copy every tensor in nested lists, tuples and dicts, and rename the CPU where named.

        Raises:
            UnstorableError: a tensor is not strided.
        """
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value)
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.copy, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.copy, value))
        if isinstance(value, dict):
            return {key: self.copy(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*map(self.copy, (value.start, value.stop, value.step)))
        if isinstance(value, torch.dtype):
            return self._dtype(value)
        if value == "cpu" or value == torch.device("cpu"):
            return self.device
        return value

    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        if not storable(tensor):
            raise UnstorableError(str(tensor.layout))
        if self.widen:
            self.tensors.append(self._widened(tensor))
            return self.tensors[-1]
        storage = tensor.untyped_storage()
        if storage._cdata not in self.storages:
            bytes_ = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.storages[storage._cdata] = bytes_.to(self.device, copy=True)
        place = self.storages[storage._cdata].untyped_storage()
        copy = torch.empty(0, dtype=tensor.dtype, device=self.device)
        copy.set_(place, tensor.storage_offset(), tensor.shape, tensor.stride())
        self.tensors.append(copy)
        copy = copy.conj() if tensor.is_conj() else copy
        return torch._neg_view(copy) if tensor.is_neg() else copy

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.to(self._dtype(tensor.dtype), copy=True)
        if self.jitter and tensor.is_floating_point():
            step = self.jitter * torch.finfo(tensor.dtype).eps
            wide *= 1 + step * torch.randn(wide.shape, dtype=wide.dtype).sign()
        return wide

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64 if self.widen and dtype.is_floating_point else dtype


def storable(tensor: torch.Tensor) -> bool:
    """Whether a card has memory for a tensor of this layout."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))


def operators() -> dict[str, Any]:
    """The database by name, in alphabetical order."""
    return {op.full_name: op for op in sorted(op_db, key=lambda op: op.full_name)}


def dtypes(op: Any) -> list[torch.dtype]:
    """The dtypes in which an operator is checked: those of these that the CPU supports.

    float32, float16, the widest integer and bool; where it has none of them, one other.
    """
    supported = op.supported_dtypes("cpu")
    floats = [dtype for dtype in (torch.float32, torch.float16) if dtype in supported]
    integers = [dtype for dtype in _INTEGERS if dtype in supported][:1]
    found = floats + integers + [torch.bool] * (torch.bool in supported)
    others = [*(dtype for dtype in _LAST_RESORT if dtype in supported), *sorted(supported, key=str)]
    return found or others[:1]


def seed(number: int) -> None:
    """Seed every generator that samples and random operators draw from."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """The same samples each time, on the CPU: all, or as many as asked for, evenly spread.

    As many are for float32; float16 has half of them, and every other dtype a quarter.
    """
    seed(0)
    found = list(op.sample_inputs("cpu", dtype))
    asked = int(os.environ.get(MOST_SAMPLES, "0"))
    most = -(-asked // _SHARES.get(dtype, 4)) or len(found)
    if len(found) <= most:
        return found
    return [found[(2 * number + 1) * len(found) // (2 * most)] for number in range(most)]


@dataclass(frozen=True)
class Call:
    """One way to call an operator with one sample; ``arguments`` are input, args and kwargs."""

    way: str
    function: Callable[..., Any]
    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    args_on_host: bool = False

    def on(self, copier: Copier) -> Callable[[], Any]:
        """Copy the arguments to a device, and return the call that is then still to be made.

        A factory that names no device is called where the device is the default.
        """
        first, kwargs = copier.copy((self.arguments[0], self.arguments[2]))
        args_copier = Copier("cpu") if self.args_on_host else copier
        args = args_copier.copy(self.arguments[1])
        is_factory = not copier.tensors

        def call() -> Any:
            with torch.device(copier.device) if is_factory else nullcontext():
                return self.function(first, *args, **kwargs)

        return call

    @property
    def also_right(self) -> Call | None:
        """What the CPU may do as well, for a result to be right; None if there is only one way.

        With ``out=``, call the function and copy: some CPU kernels take no notice of gaps.
        """
        if self.way != OUT:
            return None
        return replace(self, function=functools.partial(_by_copy, self.function))

    def __str__(self) -> str:
        first, args, kwargs = self.arguments
        shown = [_shown(first), *map(_shown, args)]
        shown += [f"{name}={_shown(value)}" for name, value in kwargs.items()]
        return f"{self.way}: ({', '.join(shown)})"


def _shown(value: Any) -> str:
    """An argument in a few words: of a tensor, its form."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if not storable(value):
            return f"{name}{list(value.shape)} {value.layout}"
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        return f"{name}{list(value.shape)}{strides}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value!r:.80}"


def reading_calls(op: Any, sample: Any) -> Iterator[Call]:
    """The function on a sample as it is, and on the same values with gaps between them."""
    on_host = op.name in _ON_HOST
    yield Call(FUNCTION, op.op, (sample.input, sample.args, sample.kwargs), on_host)
    given = list(tensors((sample.input, sample.args, sample.kwargs)))
    if any(tensor.numel() for tensor in given) and all(map(storable, given)):
        gapped = sample.noncontiguous()
        yield Call(GAPPED, op.op, (gapped.input, gapped.args, gapped.kwargs), on_host)


def writing_calls(op: Any, sample: Any, result: Any) -> Iterator[Call]:
    """The forms that write, once the functional ``result`` on the CPU is known.

    In place, and with ``out=`` every second element of a larger tensor.
    """
    arguments = (sample.input, sample.args, sample.kwargs)
    if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        yield Call("in place", op.inplace_variant, arguments)
    outs = (result,) if isinstance(result, torch.Tensor) else result
    are_tensors = isinstance(outs, tuple) and all(isinstance(out, torch.Tensor) for out in outs)
    if op.supports_out and are_tensors and all(map(storable, outs)):
        gapped = tuple(map(_gapped, outs))
        out = gapped[0] if isinstance(result, torch.Tensor) else gapped
        yield Call(OUT, op.op, (sample.input, sample.args, {**sample.kwargs, "out": out}))


def _by_copy(function: Callable[..., Any], *args: Any, out: Any, **kwargs: Any) -> Any:
    for target, result in zip(tensors(out), tensors(function(*args, **kwargs)), strict=True):
        target.copy_(result)
    return out


def _gapped(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros((*like.shape, 2), dtype=like.dtype)[..., 1]


def bad_calls(op: Any) -> Iterator[Call]:
    """Calls that the database says are errors, in whatever dtype."""
    seed(0)
    if op.error_inputs_func is None:
        return
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        yield Call("bad input", op.op, (sample.input, sample.args, sample.kwargs))
