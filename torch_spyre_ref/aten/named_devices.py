"""Ops that core composes for every device, and whose composition goes wrong on a private one.

Their parts run on a card; the composition asks for the device by name, looks for a loop that was
compiled for it, or says something untrue to the user. Each kernel here takes another way to the
same result:

- ``mode.values``, the ``out=`` form of ``torch.mode``, by the functional form;
- ``conj_physical_``, by ``conj_physical`` and a copy;
- ``addr_``, by ``addr`` and a copy. Core's composition takes ``self`` as an ``out=`` tensor, which
  it resizes where the CPU refuses;
- ``native_layer_norm``, by the CPU's op. Core's composition is batch normalisation, which leaves
  rounding errors where a row equals its mean, and has its own mind about the statistics' dtype;
- ``mse_loss`` and ``smooth_l1_loss``, by the CPU's functional form. Core makes the 0-dim result
  first and hands it to the CPU's ``out=`` kernel, which takes it as room for the unreduced loss,
  resizes it, and warns of a size that the user never chose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from torch_spyre_ref.aten import on_cpu
from torch_spyre_ref.aten.fallback import NO_PROGRAM


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


def addr_(
    self: torch.Tensor,
    vec1: torch.Tensor,
    vec2: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """Add the outer product of two vectors to ``self``, which keeps its shape.

    Raises:
        RuntimeError: the product does not fit the shape of ``self``.
    """
    return self.copy_(torch.addr(self, vec1, vec2, beta=beta, alpha=alpha))


KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "mode.values": mode_values,
        "conj_physical_": conj_physical_,
        "addr_": addr_,
        **on_cpu.kernels(
            {
                "native_layer_norm": torch.ops.aten.native_layer_norm.default,
                "mse_loss": torch.ops.aten.mse_loss.default,
                "smooth_l1_loss": torch.ops.aten.smooth_l1_loss.default,
            },
            reason=NO_PROGRAM,
        ),
    }
)
