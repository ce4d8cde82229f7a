"""A call traced and compiled: what a miss does, but for keeping the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.exc import InductorError
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from torch_spyre_ref.aten.copies import refuse_internal_overlap
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.outputs import NeedsRoom, cast_check
from torch_spyre_ref.compiled.refusal import Refused
from torch_spyre_ref.compiled.trace import Sizes, Traced, trace
from torch_spyre_ref.emulator.program.formats import FORMATS

_UNSUPPORTED: Final = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
_CALLED: Final = re.compile(r"\b(?:torch\.ops\.|extern_kernels\.|(?=aten\.))([\w.]+)\(")


class Compiled(NamedTuple):
    """A compiled call. ``function`` takes the tensors, then the numbers, in one list."""

    traced: Traced
    function: Any


def compile_call(call: Call, symbolic: Sequence[Sizes] | None = None) -> Compiled:
    """Compile one call.

    Numbers whose values the trace asks for become part of their op's key (``call.op.fixed``);
    whoever finds that it was so makes the call anew.

    Raises:
        Refused: there is no program for it.
        NeedsRoom: the call stores into tensors of other shapes.
        Exception: what the op itself raises for these arguments.
    """
    refuse_formats(call.tensors)
    if torch.Tag.pointwise in call.op.overload.tags:
        _refuse_promotion([tensor.dtype for tensor in call.tensors])
    try:
        traced = trace(lambda *inputs: _body(call, inputs), call.tensors, call.numbers, symbolic)
    except _UNSUPPORTED as error:
        raise Refused(_first_line(error)) from error
    asked, function = traced.asked_for(), None
    if not asked:
        try:
            with tracing(TracingContext(traced.mode)):
                function = compile_fx_inner(traced.graph, traced.inputs)
        except InductorError as error:
            if not call.numbers:
                raise Refused(_first_line(error)) from error
            asked = list(range(len(call.numbers)))  # it may know what to do with their values
        else:
            _refuse_calls(function)
            asked = traced.asked_for()
    if asked:
        call.fix(asked)
        function = None
    return Compiled(traced, function)


def refuse_formats(tensors: Sequence[torch.Tensor]) -> None:
    """Raise :class:`Refused` for a dtype that the card stores but cannot compute with."""
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in FORMATS:
            raise Refused(f"the card does not compute with {name}")


def _refuse_promotion(dtypes: Sequence[torch.dtype]) -> None:
    """Raise as torch does for unsigned integers together with others: Inductor promotes them."""
    for dtype in dtypes[1:]:
        torch.promote_types(dtypes[0], dtype)


def _body(call: Call, inputs: Sequence[Any]) -> list[Any]:
    """The functional op, and then the stores into the arguments that the op writes."""
    args, kwargs, targets = call.filled(inputs)
    made = call.op.function(*args, **kwargs)
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    for result in results:
        refuse_formats([result] if result is not None else [])
    if not call.op.written:
        return results
    _check_targets(call, targets, results)
    for target, result in zip(targets, results, strict=True):
        target.copy_(result)
    return []


def _check_targets(call: Call, targets: Sequence[Any], results: Sequence[Any]) -> None:
    shapes = [result.shape for result in results]
    if shapes != [target.shape for target in targets]:
        if call.op.is_inplace:
            raise RuntimeError(f"{call.op} would change the shape of what it is computed in")
        for target in call.targets():
            refuse_internal_overlap(target)  # with another shape it would be gone
        raise NeedsRoom([torch.Size(map(int, shape)) for shape in shapes])
    if any(result.dtype != target.dtype for target, result in zip(targets, results, strict=True)):
        for target, result in zip(targets, results, strict=True):
            cast_check(result, target)
        call.op.judge_dtypes(call)


def _refuse_calls(function: Any) -> None:
    """Refuse what Inductor would have computed by calling ops, this one perhaps: for ever."""
    code = function.source_code.partition("class Runner")[2] if function else ""
    for name in _CALLED.findall(code):
        raise Refused(f"Inductor has no loops for {name}")


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
