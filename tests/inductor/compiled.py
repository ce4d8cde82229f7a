"""Compile for the card, and compare with the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves

Function = Callable[..., Any]
LOOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def on_card(value: Any, device: str = "spyre") -> Any:
    """The same view of a copy of a tensor's whole storage; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    base = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return base.to(device, copy=True).as_strided(
        value.shape, value.stride(), value.storage_offset()
    )


def copies(values: Sequence[Any]) -> list[Any]:
    """Views of storages of their own."""
    return [on_card(value, "cpu") for value in values]


def same(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Card tensors of the values, shapes, strides and dtypes of the CPU's."""
    for mine, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
        assert mine.device.type == "spyre"
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert mine.stride() == theirs.stride()
        loose = tolerance or LOOSE.get(theirs.dtype)
        limits = {"rtol": loose, "atol": loose} if loose else {"rtol": 2e-5, "atol": 2e-5}
        torch.testing.assert_close(mine.cpu(), theirs, equal_nan=True, **limits)


def check(
    function: Function,
    *arguments: Any,
    dynamic: bool | None = False,
    device: str = "spyre",
    tolerance: float | None = None,
) -> None:
    """A compiled function gives on the card what it gives on the CPU, arguments included."""
    torch._dynamo.reset()
    theirs = copies(arguments)
    want = function(*theirs)
    mine = [on_card(argument, device) for argument in arguments]
    got = torch.compile(function, dynamic=dynamic, fullgraph=True)(*mine)
    same(got, want, tolerance)
    for card, host in zip(mine, theirs, strict=True):
        if isinstance(host, torch.Tensor):
            same(card, host, tolerance)


def counted(function: Function, dynamic: bool | None = None) -> tuple[Function, Any]:
    """A compiled function, and what counts how often it is compiled (``frame_count``)."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    return torch.compile(function, backend=counter, dynamic=dynamic), counter
