"""Calls that differ in sizes only: the second size gets a program that serves every size.

Where sizes differ between the calls seen so far they are symbols in the next program; a program is
for every call whose sizes meet what its trace took for granted. So calls with growing sizes compile
a bounded number of times.
"""

from __future__ import annotations

from typing import Any, Final

import sympy
import torch
from torch._dynamo.convert_frame import compile_lock

from torch_spyre_ref.compiled.build import Compiled, compile_call
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.ops import Op
from torch_spyre_ref.compiled.programs import first_run
from torch_spyre_ref.compiled.trace import Sizes

__all__ = ["clear", "compile_lock", "first_run", "program_for"]


class Family:
    """Calls with the same key but for sizes, and the programs that they have."""

    def __init__(self, call: Call) -> None:
        self.first = [(tuple(t.shape), t.stride()) for t in call.tensors]
        self.varied = [Sizes((False,) * t.dim(), (False,) * t.dim()) for t in call.tensors]
        self.programs: list[Compiled] = []

    def see(self, call: Call) -> None:
        """Note what differs from the first call."""
        for i, (tensor, (shape, stride)) in enumerate(zip(call.tensors, self.first, strict=True)):
            sizes, steps = self.varied[i]
            self.varied[i] = Sizes(
                tuple(v or a != b for v, a, b in zip(sizes, tensor.shape, shape, strict=True)),
                tuple(v or a != b for v, a, b in zip(steps, tensor.stride(), stride, strict=True)),
            )


_families: dict[Any, Family] = {}
_asking: set[Op] = set()  # ops of which traces have asked for numbers
_KEPT: Final = 4_096


def program_for(call: Call) -> tuple[Compiled, bool]:
    """A program for a call, and whether it was compiled for it. Raises as ``compile_call``."""
    key = tuple(_without_sizes(part) for part in call.key)
    family = _families.get(key)
    if family is None:
        family = _families[key] = Family(call)
        if len(_families) > _KEPT:
            del _families[next(iter(_families))]
    for compiled in family.programs:
        if _serves(compiled, call):
            return compiled, False
    family.see(call)
    varies = any(any(sizes.shape) or any(sizes.stride) for sizes in family.varied)
    compiled = compile_call(call, family.varied if varies else None)
    if compiled.function is None:
        _asking.add(call.op)
    else:
        family.programs.append(compiled)
    return compiled, True


def clear() -> None:
    """Forget all families, and what traces have asked for."""
    _families.clear()
    while _asking:
        _asking.pop().forget()


def _without_sizes(part: Any) -> Any:
    """A part of a key with only 0, 1 and "many" for sizes."""
    if isinstance(part, tuple) and len(part) == 4:
        dtype, shape, _, where = part
        return dtype, tuple(min(size, 2) for size in shape), where
    return part


def _serves(compiled: Compiled, call: Call) -> bool:
    """Whether sizes and strides are those of a program, and meet its guards."""
    known: dict[sympy.Symbol, int] = {}
    traced = compiled.traced
    for fake, tensor in zip(traced.inputs, call.tensors, strict=False):
        given = zip((*fake.shape, *fake.stride()), (*tensor.shape, *tensor.stride()), strict=True)
        if not all(_binds(wanted, have, known) for wanted, have in given):
            return False
    return all(_holds(guard, known) for guard in traced.guards)


def _binds(wanted: Any, have: int, known: dict[sympy.Symbol, int]) -> bool:
    """Whether a size can be what it is in a program; a new symbol then is known."""
    if not isinstance(wanted, torch.SymInt):
        return bool(wanted == have)
    expr = wanted.node._expr
    if expr.is_Symbol:
        return known.setdefault(expr, have) == have
    return bool(expr.xreplace(known) == have)


def _holds(guard: Any, known: dict[sympy.Symbol, int]) -> bool:
    return bool(sympy.simplify(guard.xreplace(known)) == sympy.true)
