"""Ops that core refuses by the device's name, though their parts would run.

``aten::mode.values``, the ``out=`` form of ``torch.mode``, is written once for all devices and then
asks for one of three by name. The functional form asks nothing, so the kernel here calls that one
on the card and writes its results into ``values`` and ``indices``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch


def mode_values(
    self: torch.Tensor,
    dim: int = -1,
    keepdim: bool = False,
    *,
    values: torch.Tensor,
    indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the most frequent values along ``dim`` and their indices into the two ``out`` tensors.

    Raises:
        RuntimeError: ``values`` has not the dtype of ``self``, or ``indices`` not int64.
    """
    for name, out, dtype in (("values", values, self.dtype), ("indices", indices, torch.int64)):
        if out.dtype is not dtype:
            raise RuntimeError(f"mode: expected {name} of {dtype}, got {out.dtype}")
    found = torch.mode(self, dim, keepdim)
    for out, result in zip((values, indices), found, strict=True):
        out.resize_(result.shape).copy_(result)
    return values, indices


KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType({"mode.values": mode_values})
