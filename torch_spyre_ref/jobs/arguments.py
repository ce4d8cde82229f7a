"""The arguments of a launch: what they are to a launch spec, and what memory they name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from torch_spyre_ref.aten.copies import device_range, refuse_internal_overlap
from torch_spyre_ref.spyrecode import Description, LaunchMismatchError, LaunchSpec

_BINDINGS_KEPT: Final = 256


def describe(tensor: torch.Tensor) -> Description:
    """A tensor as a launch spec sees it."""
    return Description(
        tensor.device.type,
        tensor.device.index,
        str(tensor.dtype).removeprefix("torch."),
        "negated" if tensor.is_neg() else "row-major",
        tuple(tensor.shape),
        tensor.stride(),
    )


class Binding(NamedTuple):
    """What launches with arguments of some shapes have in common: sizes, and who has no element."""

    sizes: tuple[int, ...]
    empty: tuple[bool, ...]


class Arguments:
    """What a launch spec makes of arguments, checked once for the same descriptions."""

    def __init__(self, spec: LaunchSpec, card: int) -> None:
        self.spec, self.card = spec, card
        self._bindings: OrderedDict[Any, Binding] = OrderedDict()

    def bind(self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]) -> Binding:
        """What these arguments mean. Raises :class:`LaunchMismatchError`."""
        try:
            key = [(t.shape, t.stride(), t.dtype, t.get_device(), t.is_neg()) for t in args]
        except AttributeError:
            wrong = next(t for t in args if not isinstance(t, torch.Tensor))
            raise LaunchMismatchError(f"{wrong!r} was given where a tensor belongs") from None
        like = (*key, *map(type, scalars))
        if scalars and any(type(s) is int and s.bit_length() > 63 for s in scalars):
            return self._check(like, args, scalars)
        return self._bindings.get(like) or self._check(like, args, scalars)

    def _check(
        self, like: object, args: Sequence[torch.Tensor], scalars: Sequence[int | float]
    ) -> Binding:
        sizes = self.spec.check([describe(t) for t in args], scalars, card=self.card)
        for argument, tensor in zip(self.spec.arguments, args, strict=True):
            if argument.role != "input":
                refuse_internal_overlap(tensor)
        binding = Binding(tuple(sizes.values()), tuple(t.numel() == 0 for t in args))
        self._bindings[like] = binding
        if len(self._bindings) > _BINDINGS_KEPT:
            self._bindings.popitem(last=False)
        return binding

    def touched(self, args: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The ``inputs`` and ``outputs`` of a launch, as far as its arguments tell."""
        inputs, outputs = [], []
        for argument, tensor in zip(self.spec.arguments, args, strict=True):
            if tensor.numel():
                if argument.role != "output":
                    inputs.append(device_range(tensor))
                if argument.role != "input":
                    outputs.append(device_range(tensor))
        return {"inputs": tuple(inputs), "outputs": tuple(outputs)}
