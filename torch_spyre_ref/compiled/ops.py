"""One op overload: which of its arguments are written, and which functional op computes it.

``add.Tensor`` makes its result; ``add_.Tensor`` and ``add.out`` are the same computation, stored
into an argument. All three are compiled from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import torch

_NUMBERS: Final = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")
_ELEMENTWISE: Final = frozenset(
    ("floor_divide", "rsub", "log_sigmoid_forward", "hardswish", "_prelu_kernel", "masked_fill")
)
"""Ops without the tag that says so."""

_PARTICULAR: Final = frozenset(
    ("floor_divide", "fmod", "remainder", "clamp", "clamp_max", "clamp_min", "pow", "masked_fill")
)
"""Ops of which the CPU refuses some numbers: zero, negative ones, or what a dtype cannot hold."""


class Op:
    """An overload by its qualified name, say ``"aten::add.Tensor"``; looked at when called."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def overload(self) -> Any:
        """The overload as PyTorch has it."""
        packet, _, overload = self.name.removeprefix("aten::").partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")

    @property
    def arguments(self) -> Sequence[Any]:
        """The arguments of the schema."""
        arguments: Sequence[Any] = self.overload._schema.arguments
        return arguments

    @cached_property
    def patched(self) -> list[bool]:
        """Which arguments are numbers that a launch may bring, as long as no trace asks for one."""
        return [str(argument.type) in _NUMBERS for argument in self.arguments]

    @cached_property
    def packet(self) -> str:
        """The name without overload; the in-place op has that of the op."""
        return self.name.removeprefix("aten::").partition(".")[0].removesuffix("_")

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether each element of a result comes of one element of each argument.

        By the functional op: an in-place or ``out=`` overload may lack the tag.
        """
        tags = getattr(self.function, "tags", ())
        return torch.Tag.pointwise in tags or self.packet in _ELEMENTWISE

    @cached_property
    def takes_bare_numbers(self) -> bool:
        """Whether Python may call the functional op with a number where a tensor is expected."""
        return bool(torch._C._should_allow_numbers_as_tensors(self.packet))

    @cached_property
    def may_refuse_numbers(self) -> bool:
        """Whether it depends on a number's value if the op is refused."""
        return self.packet in _PARTICULAR

    def forget(self) -> None:
        """Take every number for one that a launch may bring, as before the first trace."""
        self.__dict__.pop("patched", None)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Where an argument stands in the schema."""
        return {argument.name: i for i, argument in enumerate(self.arguments)}

    @cached_property
    def written(self) -> list[int]:
        """The arguments that the op stores into."""
        return [
            i
            for i, argument in enumerate(self.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    @cached_property
    def is_inplace(self) -> bool:
        """Whether the op computes with what it overwrites."""
        return any(not self.arguments[i].kwarg_only for i in self.written)

    @cached_property
    def single(self) -> bool:
        """Whether the op returns one tensor."""
        return len(self.overload._schema.returns) == 1

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The op of the same results that writes nothing."""
        if not self.written:
            function: Callable[..., Any] = self.overload
            return function
        name = self.overload._schema.name.removeprefix("aten::")
        packet = getattr(torch.ops.aten, name.removesuffix("_") if self.is_inplace else name)
        wanted = self._signature(self.overload)
        for overload in packet.overloads():
            candidate = getattr(packet, overload)
            written = any(a.alias_info is not None for a in candidate._schema.arguments)
            if not written and self._signature(candidate) == wanted:
                return candidate  # type: ignore[no-any-return]
        raise LookupError(f"{self.name} has no functional form")

    def _signature(self, overload: Any) -> list[tuple[str, str]]:
        return [
            (argument.name, str(argument.type))
            for argument in overload._schema.arguments
            if not (argument.kwarg_only and argument.is_out)
        ]

    def judge_dtypes(self, call: Any) -> None:
        """Raise as torch does where results may not be converted to what ``out=`` tensors are.

        Core's rules for tensors without data are those of the CPU for pointwise ops only.
        """
        is_pointwise = torch.Tag.pointwise in self.overload.tags
        with torch.utils._python_dispatch._disable_current_modes():
            args, kwargs = call.on("meta" if is_pointwise else "cpu")
            self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return self.name
