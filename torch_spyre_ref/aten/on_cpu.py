"""Kernels that core computes on the CPU: card operands in, a CPU function, card results out.

For ops that the bridge's CPU fallback cannot serve, mostly because core has no CPU kernel of that
name. The tables that use `kernels` name, for each such op, a function of CPU tensors with the op's
own arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from torch_spyre_ref.aten.fallback import NO_CPU_KERNEL, count, known_reason


def kernels(
    table: Mapping[str, Callable[..., Any]], reason: str = NO_CPU_KERNEL
) -> Mapping[str, Callable[..., Any]]:
    """Make, for each op name of ``table``, the card's kernel that runs its function on the CPU.

    Args:
        table: op name without ``aten::`` to a function of CPU tensors with the op's arguments.
        reason: what the fallback report says of these ops, unless why one has no program is known.
    """
    return MappingProxyType({op: kernel(f"aten::{op}", run, reason) for op, run in table.items()})


def kernel(op: str, function: Callable[..., Any], reason: str | None) -> Callable[..., Any]:
    """Make the card's kernel of ``op`` from ``function``, which computes it on CPU tensors."""

    def run(*args: Any, **kwargs: Any) -> Any:
        device = _common_device(op, (*args, *kwargs.values()))
        count(op, known_reason() or reason)
        # Under torch.autocast("cpu") the function would compute in another dtype than asked.
        with torch.autocast("cpu", enabled=False):
            results = function(
                *(_moved(argument, "cpu") for argument in args),
                **{name: _moved(argument, "cpu") for name, argument in kwargs.items()},
            )
        return _moved(results, device)

    return run


def _moved(value: Any, device: torch.device | str) -> Any:
    """Copy every tensor in a tensor, list, tuple or anything else to ``device``."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _common_device(op: str, arguments: tuple[Any, ...]) -> torch.device:
    """Return the one card of all tensors.

    Raises:
        RuntimeError: they lie on several devices. Copying them together would hide the mistake.
    """
    devices = list(dict.fromkeys(tensor.device for tensor in _tensors(arguments)))
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {op} got tensors on "
            f"{' and '.join(str(device) for device in devices)}"
        )
    return devices[0]
