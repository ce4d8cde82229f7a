"""Ops whose results have the sizes of a tensor that is there already: ranges, and conversions.

Core calls them with an ``out`` tensor, or a target. As programs they are in-place ops of ours, so
that a growing range is a size that grows, not another op each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch

from torch_spyre_ref.compiled.ops import Op

aten = torch.ops.aten


class ComposedOp(Op):
    """An op by a function: of its target and others, or, when it writes nothing, of others only."""

    def __init__(
        self,
        name: str,
        others: Mapping[str, str],
        function: Callable[..., Any],
        is_inplace: bool = True,
    ) -> None:
        super().__init__(name)
        self._arguments = [
            SimpleNamespace(name=n, type=kind, kwarg_only=False, alias_info=None, is_out=False)
            for n, kind in {**({"target": "Tensor"} if is_inplace else {}), **others}.items()
        ]
        self.written, self.is_inplace, self.single = [0] * is_inplace, is_inplace, is_inplace
        self.function = function
        self.overload = SimpleNamespace(tags=())
        self.is_elementwise = self.may_refuse_numbers = False
        self.takes_bare_numbers = True

    def judge_dtypes(self, call: Any) -> None:
        """Nothing to say: the function converts."""

    @property
    def arguments(self) -> Sequence[Any]:
        return self._arguments


def _steps(target: Any, dim: int, dtype: torch.dtype = torch.int64) -> Any:
    """0, 1, 2, … along a dimension of the target."""
    return torch.ops.prims.iota.default(
        target.shape[dim],
        start=0,
        step=1,
        dtype=torch.int64,
        device=target.device,
        requires_grad=False,
    ).to(dtype)


def _convert(target: Any, source: Any) -> Any:
    return aten._to_copy.default(source, dtype=target.dtype).expand(target.shape)


def _arange(target: Any, start: Any, step: Any) -> Any:
    is_whole = not target.is_floating_point()
    steps = _steps(target, 0, torch.int64 if is_whole else torch.float64)
    return aten._to_copy.default(steps * step + start, dtype=target.dtype)


def _linspace(target: Any, start: Any, end: Any) -> Any:
    """From both ends to the middle, as core does it: both are exact."""
    steps, last = _steps(target, 0, torch.float64), max(target.shape[0] - 1, 1)
    step = (end - start) / last
    values = torch.where(steps * 2 < last + 1, steps * step + start, end - (last - steps) * step)
    return aten._to_copy.default(values, dtype=target.dtype)


def _eye(target: Any) -> Any:
    rows, columns = _steps(target, 0), _steps(target, 1)
    return aten._to_copy.default(rows.unsqueeze(1) == columns, dtype=target.dtype)


CONVERT: Final = ComposedOp("aten::_copy_from", {"source": "Tensor"}, _convert)
ARANGE: Final = ComposedOp("aten::arange.start_out", {"start": "number", "step": "number"}, _arange)
LINSPACE: Final = ComposedOp("aten::linspace.out", {"start": "number", "end": "number"}, _linspace)
EYE: Final = ComposedOp("aten::eye.m_out", {}, _eye)
