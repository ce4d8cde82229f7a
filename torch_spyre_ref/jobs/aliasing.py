"""Arguments that share memory: which of them a launch takes, and which it refuses.

A program stores one tile after another while it loads. Where an output lies on exactly the elements
of an input, as in ``x.add_(y)``, that is well if the program loads each before it stores to it
(:mod:`torch_spyre_ref.jobs.in_place`). Where the two overlap in any other way, what is loaded would
depend on how the program is cut into tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch

from torch_spyre_ref import _bridge
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.emulator.program import parse
from torch_spyre_ref.jobs.arguments import Binding, Located
from torch_spyre_ref.jobs.in_place import in_place
from torch_spyre_ref.spyrecode import Artifact, LaunchMismatchError

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


class Overlaps:
    """Which arguments of a program may share memory; ``artifact`` is the program's."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    def refuse(self, args: Sequence[torch.Tensor], binding: Binding, located: Located) -> None:
        """Raise :class:`LaunchMismatchError` when a launch would write where it also reads or
        writes.

        An output on exactly the elements of an input is taken where the program allows it. Raises
        ``RuntimeError`` for a tensor whose memory has gone.
        """
        if _bridge.apart(located):
            return
        for tensor, (owner, _), empty in zip(args, located, binding.empty, strict=True):
            if owner is None and not empty:
                device_range(tensor)  # raises: the storage was resized away
        self._compare(args)

    def _compare(self, args: Sequence[torch.Tensor]) -> None:
        arguments = enumerate(zip(self._artifact.spec.arguments, args, strict=True))
        for (i, (a, one)), (j, (b, other)) in combinations(arguments, 2):
            if a.role == b.role == "input" or not _share_memory(one, other):
                continue
            whole = f"{a.role} {a.name!r} and {b.role} {b.name!r} lie on "
            if "input" not in (a.role, b.role) or not _is_same(one, other):
                why = "some of the same elements, and the launch writes there"
            elif ((i, j) if a.role == "input" else (j, i)) not in self._in_place:
                why = f"the same elements, and program {self._artifact.name!r} may store to one "
                why += "before it has loaded it"
            else:
                continue
            raise LaunchMismatchError(f"{whole}{why}; give it a clone() of one of them")

    @cached_property
    def _in_place(self) -> frozenset[tuple[int, int]]:
        """Inputs, and outputs that may lie on them; worked out when a launch first asks."""
        return in_place(self._artifact.spec, parse(self._artifact.program))


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
