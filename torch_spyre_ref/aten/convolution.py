"""Convolution: core routes every convolution of a private device to two ops without a CPU kernel.

Here is what serves them where they have no program: on CPU copies they are core's own convolution
and its backward. They take what ``aten::convolution`` takes, in 1 to 3 dimensions, transposed or
not, with groups and dilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from torch_spyre_ref.aten import on_cpu


def convolution_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of input, weight and bias, None where ``output_mask`` says False."""
    gradients: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] = (
        torch.ops.aten.convolution_backward.default(
            grad_output,
            input,
            weight,
            [grad_output.shape[1]],
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            output_mask,
        )
    )
    return gradients


KERNELS: Final[Mapping[str, Callable[..., Any]]] = on_cpu.kernels(
    {
        "convolution_overrideable": torch.ops.aten.convolution.default,
        "convolution_backward_overrideable": convolution_backward,
    }
)
