"""A call traced and compiled: what a miss does, but for keeping the result."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.exc import (
    InductorError,
    LoweringException,
    MissingOperatorWithDecomp,
    MissingOperatorWithoutDecomp,
)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from torch_spyre_ref.aten.overlap import refuse_internal_overlap
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.outputs import NeedsRoom, as_tensors, cast_check
from torch_spyre_ref.compiled.refusal import Refused, RefusedByCpu, first_line, note_defect
from torch_spyre_ref.compiled.trace import Sizes, Traced, trace
from torch_spyre_ref.emulator.program import ScratchpadError
from torch_spyre_ref.emulator.program.formats import FORMATS

_UNSUPPORTED: Final = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
)
_FORESEEN: Final = (
    NotImplementedError,  # of ours: the card has no instruction, no format, no such store
    ScratchpadError,
    MissingOperatorWithDecomp,
    MissingOperatorWithoutDecomp,
    GuardOnDataDependentSymNode,
)
"""What a compilation may end with. Anything else is a defect, of the compiler or of Inductor."""

_IN_WHOLE_NUMBERS: Final = ("aten::upsample_bilinear2d", "aten::upsample_bicubic2d")
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
    _refuse_bytes(call)
    wanted = ask_cpu(call) if call.op.is_elementwise and not _grows(call) else []
    try:
        traced = trace(lambda *inputs: _body(call, inputs), call.tensors, call.numbers, symbolic)
    except _UNSUPPORTED as error:
        raise Refused(first_line(error)) from error
    asked, function = traced.asked_for(), None
    if wanted and not call.op.written and wanted != [made.dtype for made in traced.outputs]:
        asked = list(range(len(call.numbers)))  # some rules of promotion know no symbols
    if not asked:
        try:
            with tracing(TracingContext(traced.mode)):
                function = compile_fx_inner(traced.graph, traced.inputs)
        except InductorError as error:
            if not call.numbers:
                raise Refused(_reason(call, error)) from error
            asked = list(range(len(call.numbers)))  # it may know what to do with their values
        else:
            _refuse_calls(function)
            asked = traced.asked_for()
    if asked:
        call.fix(asked)
        function = None
    return Compiled(traced, function)


def _refuse_bytes(call: Call) -> None:
    """Raise :class:`Refused` where torch has another arithmetic for bytes than for the rest."""
    is_own = call.op.name.partition(".")[0] in _IN_WHOLE_NUMBERS
    if is_own and any(tensor.dtype is torch.uint8 for tensor in call.tensors):
        raise Refused("torch interpolates bytes in whole numbers")


def refuse_formats(tensors: Sequence[torch.Tensor]) -> None:
    """Raise :class:`Refused` for a dtype that the card stores but cannot compute with."""
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in FORMATS:
            raise Refused(f"the card does not compute with {name}")


def _grows(call: Call) -> bool:
    """Whether a target of no dimension meets a tensor with some: shapes come first then."""
    most = max((tensor.dim() for tensor in call.tensors), default=0)
    return most > 0 and any(target.dim() == 0 for target in call.targets())


def ask_cpu(call: Call) -> list[torch.dtype]:
    """The dtypes of the results, and whether there are any: one element is given to the CPU.

    Tracing is more lenient: core's rules for tensors without data, and Inductor's, know nothing of
    which dtypes a kernel was written for. Raises :class:`RefusedByCpu`.
    """
    with torch.utils._python_dispatch._disable_current_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = call.on("cpu", one_element=True)
        try:
            made = call.op.overload(*as_tensors(call, args), **kwargs)
        except Exception as error:
            raise RefusedByCpu from error
    return [one.dtype for one in ([made] if isinstance(made, torch.Tensor) else made)]


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


def _reason(call: Call, error: InductorError) -> str:
    """Why a call could not be compiled, and whether it was to be expected."""
    cause: BaseException | None = error.inner_exception
    if isinstance(cause, LoweringException):
        cause = cause.__context__  # which it hides
    if isinstance(cause, _FORESEEN) or _is_check(cause):
        return first_line(error)
    return note_defect(call.op.name, cause or error)


def _is_check(error: BaseException | None) -> bool:
    """Whether Inductor says that it has no lowering for such arguments.

    It does so with ``torch._check``, and for the greatest of no elements with an assertion.
    """
    if isinstance(error, AssertionError) and "zero-dimension" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return bool(frames) and frames[-1].name == "_check_with"
