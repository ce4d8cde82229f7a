"""Writing one value into every element: the card fills memory itself, nothing crosses the link."""

from __future__ import annotations

import torch

from torch_spyre_ref.aten.copies import device_range, queue_of
from torch_spyre_ref.runtime import Fill
from torch_spyre_ref.submission import transfer


def fill_scalar(tensor: torch.Tensor, value: complex) -> torch.Tensor:
    """``tensor.fill_(value)`` for any dtype and any strided view."""
    one = torch.full((1,), value, dtype=tensor.dtype, device="cpu")
    return _fill(tensor, one.view(torch.uint8).numpy().tobytes())


def fill_tensor(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``tensor.fill_(value)`` for a 0-dim ``value`` on the host or on a card."""
    if value.dim() != 0:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.dim()} "
            "dimensions."
        )
    return fill_scalar(tensor, value.item())


def zero(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor.zero_()``: the same bytes for every dtype."""
    return _fill(tensor, bytes(tensor.element_size()))


def _fill(tensor: torch.Tensor, pattern: bytes) -> torch.Tensor:
    if tensor.numel():
        target = device_range(tensor)
        transfer(queue_of(tensor), Fill(target, pattern))
    return tensor
