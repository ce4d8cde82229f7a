"""Tensors that share memory: what torch refuses to write, on every device, and with these words."""

from __future__ import annotations

from typing import Final

import torch

share_storage: Final = torch._C._is_alias_of  # type: ignore[attr-defined]

ONE_PLACE: Final = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)


def refuse_internal_overlap(target: torch.Tensor) -> None:
    """Refuse to write where several elements share one address, as torch does on every device."""
    for size, stride in zip(target.shape, target.stride(), strict=True):
        if stride == 0 and size > 1:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )


def refuse_partial_overlap(source: torch.Tensor, target: torch.Tensor) -> None:
    """Raise ``RuntimeError`` if ``target`` is written while ``source`` is a part of it."""
    if share_storage(source, target) and is_partial(source, target):
        raise RuntimeError(ONE_PLACE)


def is_partial(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one storage overlap and are not the same view.

    As torch judges it: of dense tensors only.
    """
    if not (first.numel() and second.numel() and _is_dense(first) and _is_dense(second)):
        return False
    starts = [t.storage_offset() * t.element_size() for t in (first, second)]
    ends = [start + t.nbytes for start, t in zip(starts, (first, second), strict=True)]
    if starts[0] == starts[1] and ends[0] == ends[1]:
        return first.stride() != second.stride()
    return starts[0] < ends[1] and starts[1] < ends[0]


def _is_dense(tensor: torch.Tensor) -> bool:
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
