"""Arguments that share memory: which of them a launch takes, and which it refuses.

A program stores one tile after another while it loads. Where an output lies on exactly the elements
of an input, each is loaded before it is stored to, as in ``x.add_(y)``, and a program whose spec
says so may rely on it. Where the two overlap in any other way, what is loaded would depend on how
the program is cut into tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch

from torch_spyre_ref import _bridge
from torch_spyre_ref.spyrecode import LaunchMismatchError, LaunchSpec

_MOST_WORK = 1_000_000


class _Ghost:
    """The elements of a card tensor, for NumPy to compare and never to touch."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (_bridge.locate(tensor)[1], True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }


def refuse_overlap(spec: LaunchSpec, args: Sequence[torch.Tensor]) -> None:
    """Raise :class:`LaunchMismatchError` when a launch would write where it also reads or writes.

    An output on exactly the elements of an input is taken.
    """
    for (a, one), (b, other) in combinations(zip(spec.arguments, args, strict=True), 2):
        if a.role == b.role == "input" or not _share_memory(one, other):
            continue
        written_twice = "input" not in (a.role, b.role)
        if written_twice or not _is_same(one, other):
            raise LaunchMismatchError(
                f"{a.role} {a.name!r} and {b.role} {b.name!r} lie on some of the same elements, "
                "and the launch writes there; give it a clone() of one of them"
            )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    a, b = _Ghost(one).__array_interface__, _Ghost(other).__array_interface__
    return one.dtype == other.dtype and a == b


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have a byte in common; exact, unless it is too hard to tell."""
    if not one.numel() or not other.numel():
        return False
    a: Any = np.asarray(_Ghost(one))
    b: Any = np.asarray(_Ghost(other))
    try:
        # NumPy's stub knows no limit but none.
        return bool(np.shares_memory(a, b, _MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
