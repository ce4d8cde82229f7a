"""Ops that core composes for every device, and then binds to devices it knows by name.

Their parts run on a card; the composition asks for the device type, or looks for a loop that was
compiled for it, and fails. Each kernel here takes another way to the same result:

- ``mode.values``, the ``out=`` form of ``torch.mode``, by the functional form;
- ``conj_physical_``, by ``conj_physical`` and a copy.
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


def conj_physical_(self: torch.Tensor) -> torch.Tensor:
    """Conjugate every element in place; a real tensor stays as it is."""
    return self.copy_(torch.conj_physical(self)) if self.is_complex() else self


KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"mode.values": mode_values, "conj_physical_": conj_physical_}
)
