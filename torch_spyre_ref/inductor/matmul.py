"""Products of matrices, as reductions: ``spyre::matmul`` is a loop nest that sums ``dot``.

It has the loops of any other reduction, so what comes before and after fuses with it, and the
handler turns the sum of products into one instruction of the matrix array.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import (
    lowerings,
    make_pointwise,
    make_reduction,
    register_lowering,
    transform_args,
)
from torch._inductor.virtualized import V, ops

_OPERATIONS = 4
_library: list[torch.library.Library] = []


def define() -> None:
    """Define the operation and its lowering, once."""
    if _library:
        return
    library = torch.library.Library("spyre", "DEF")
    _library.append(library)
    library.define("matmul(Tensor left, Tensor right) -> Tensor")
    library.impl("matmul", _result, "Meta")
    register_lowering(torch.ops.spyre.matmul.default, type_promotion_kind=None)(_lowered)


def _result(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.new_empty((*left.shape[:-1], right.shape[-1]))


def _lowered(left: TensorBox, right: TensorBox) -> TensorBox:
    for side in (left, right):
        if _is_costly(side):
            side.realize()
    unsqueeze = lowerings[torch.ops.aten.unsqueeze]
    sides, _ = transform_args(
        args=[unsqueeze(left, -1), unsqueeze(right, -3)],
        kwargs={},
        broadcast=True,
        type_promotion_kind=None,
        convert_input_to_bool=False,
    )
    empty = V.graph.sizevars.statically_known_equals(left.get_size()[-1], 0)
    kind: Any = "sum" if empty else "dot"  # only of the two has a value over nothing, to Inductor
    product: TensorBox = make_reduction(kind)(make_pointwise(ops.dot)(*sides), -2)
    return product


def _is_costly(side: Any) -> bool:
    """Whether a side is better computed once, where it comes from, than with every tile of it.

    What another kernel makes is: there it is an epilogue. So is what takes many operations.
    """
    names = side.get_read_names()
    made = any(name in V.graph.name_to_buffer for name in names)
    loops: Any = getattr(side.data, "data", None)
    count = loops.inner_fn_opcount().num_ops if hasattr(loops, "inner_fn_opcount") else 0
    return count > _OPERATIONS or (made and count > 1) or len(names) > 1
