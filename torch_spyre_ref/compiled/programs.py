"""What a compiled call is afterwards: one launch, or code that launches several kernels.

The code that Inductor generates checks its arguments, allocates, launches, and returns. Where it
launches one kernel, all that it does is known after its first run, and later runs need none of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from torch_spyre_ref import _bridge
from torch_spyre_ref.compiled.build import Compiled
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.inductor.launcher import CompiledKernel
from torch_spyre_ref.launch import JobPlan, launch_jobplan

_GIVEN: Final = re.compile(r"arg(\d+)_1")


class Made(NamedTuple):
    """A tensor to allocate."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def maker(self) -> Callable[[], torch.Tensor]:
        """What makes one, uninitialised; as a kernel does, below autograd and dispatch."""
        shape, stride, dtype, device = self
        return partial(_bridge.empty_strided, shape, stride, dtype, device.index)


class Launch:
    """One kernel: allocate its outputs, and launch it.

    ``order`` says where each argument is found among the tensors of the call and those made;
    ``scalars`` does the same for numbers, or is the number.
    """

    kernels = 1

    def __init__(
        self,
        plan: JobPlan,
        made: Sequence[Made],
        order: Sequence[int],
        scalars: Sequence[tuple[bool, int | float]],
    ) -> None:
        self.plan, self.made = plan, tuple(made)
        self.order, self.scalars = tuple(order), tuple(scalars)
        self._make = [one.maker() for one in made]

    def __call__(
        self, tensors: list[torch.Tensor], numbers: Sequence[int | float]
    ) -> list[torch.Tensor]:
        results = [make() for make in self._make]
        every, scalars = tensors + results, []
        if self.scalars:
            scalars = [numbers[int(value)] if given else value for given, value in self.scalars]
        launch_jobplan(self.plan, [every[i] for i in self.order], scalars)
        return results


class Code:
    """The code that Inductor generated."""

    def __init__(self, function: Callable[[list[Any]], Sequence[Any]], kernels: int) -> None:
        self.function, self.kernels = function, kernels

    def __call__(
        self, tensors: list[torch.Tensor], numbers: Sequence[int | float]
    ) -> list[torch.Tensor]:
        return list(self.function([*tensors, *numbers]))


class Record:
    """A kernel in the generated code, for one run on one thread: it notes how it is launched."""

    def __init__(self, kernel: CompiledKernel, launches: list[tuple[CompiledKernel, Any]]) -> None:
        self._kernel, self._launches = kernel, launches
        self._thread = threading.get_ident()

    def __call__(self, *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            self._launches.append((self._kernel, arguments))
        self._kernel(*arguments)

    @property
    def for_long_axes(self) -> Record | CompiledKernel:
        """The same for the kernel's other variant."""
        if threading.get_ident() == self._thread:
            return Record(self._kernel.for_long_axes, self._launches)
        return self._kernel.for_long_axes


def first_run(compiled: Compiled, call: Call) -> tuple[Launch | Code, list[Any]]:
    """Run what was compiled, and say what is left to do the next time."""
    inputs = [*call.tensors, *call.numbers]
    with _recording(compiled.function) as launches:
        results = list(compiled.function(list(inputs)))
    launch = _only_launch(compiled, call, launches, results)
    return launch or Code(compiled.function, len(launches)), results


@contextmanager
def _recording(function: Any) -> Iterator[list[tuple[CompiledKernel, Any]]]:
    """Put recorders in place of the kernels among the globals of the generated module."""
    launches: list[tuple[CompiledKernel, Any]] = []
    code = getattr(function, "current_callable", function)
    names = getattr(code, "__globals__", None) or code.__func__.__globals__
    kernels = {name: k for name, k in names.items() if isinstance(k, CompiledKernel)}
    names.update({name: Record(kernel, launches) for name, kernel in kernels.items()})
    try:
        yield launches
    finally:
        names.update(kernels)


def _only_launch(
    compiled: Compiled, call: Call, launches: list[tuple[CompiledKernel, Any]], results: list[Any]
) -> Launch | None:
    """The one launch of a run, if there is no more to it; otherwise None."""
    if len(launches) != 1 or any(_is_view(result) for result in results):
        return None
    (kernel, arguments), *_ = launches
    spec = kernel.plan.spec
    given, count = len(call.tensors), len(spec.arguments)
    order = [
        _place(argument.name, tensor, given, results)
        for argument, tensor in zip(spec.arguments, arguments[:count], strict=True)
    ]
    stored = {given + i for i, result in enumerate(results) if result.numel()}
    if None in order or not stored <= set(order):
        return None
    symbols = [str(symbol) for symbol in compiled.traced.numbers]
    scalars = []
    for scalar, value in zip(spec.scalars, arguments[count:], strict=True):
        if scalar.name in symbols:
            scalars.append((True, symbols.index(scalar.name)))
        elif call.numbers:
            return None
        else:
            scalars.append((False, value))
    made = [Made(tuple(r.shape), r.stride(), r.dtype, r.device) for r in results]
    return Launch(kernel.plan, made, [i for i in order if i is not None], scalars)


def _is_view(result: Any) -> bool:
    """Whether a result is anything else than a tensor with memory of its own."""
    return (
        not isinstance(result, torch.Tensor)
        or result.storage_offset() != 0
        or result.untyped_storage().nbytes() > result.numel() * result.element_size()
    )


def _place(name: str, tensor: Any, given: int, results: Sequence[Any]) -> int | None:
    """Where an argument is found. Not by what it is: one tensor may have been given twice."""
    if found := _GIVEN.fullmatch(name):
        return int(found[1])
    return next((given + i for i, result in enumerate(results) if result is tensor), None)
