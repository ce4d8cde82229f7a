"""The arguments of a launch: what they are to a launch spec, and what memory they name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import torch

from torch_spyre_ref import _bridge
from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.aten.overlap import refuse_internal_overlap
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program.slot import read_address
from torch_spyre_ref.runtime.intervals import Ranges
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


class Places:
    """Where arguments of some shapes lie, and what of them a launch reads and writes."""

    def __init__(self, spec: LaunchSpec, args: Sequence[torch.Tensor]) -> None:
        symbols = sorted(spec.symbols, key=lambda symbol: symbol.offset)
        addresses = [symbol.index for symbol in symbols if symbol.kind == "address"]
        self._views = [
            (number, spec.arguments[index].role, tuple(t.shape), t.stride(), t.element_size())
            for number, index in enumerate(addresses)
            if (t := args[index]).numel()
        ]
        self._known: dict[bytes, Ranges] = {}

    def touched(self, patch: bytes) -> Ranges:
        """What a launch with this correction slot reads and writes, as far as its slot tells."""
        known = self._known.get(patch)
        if known is None:
            if len(self._known) >= _BINDINGS_KEPT:
                self._known.clear()
            known = self._known[patch] = self._read(patch)
        return known

    def _read(self, patch: bytes) -> Ranges:
        inputs, outputs = [], []
        for number, role, shape, strides, size in self._views:
            address, start = read_address(patch, number)
            steps = tuple(stride * size for stride in strides)
            where = DeviceRange(address, start, shape, steps, size)
            if role != "output":
                inputs.append(where)
            if role != "input":
                outputs.append(where)
        return Ranges(inputs, outputs)


class Binding(NamedTuple):
    """What launches with arguments of some shapes have in common: sizes, and who has no element."""

    sizes: tuple[int, ...]
    empty: tuple[bool, ...]
    places: Places


Located = Sequence[tuple[Allocation | None, int]]
"""The allocation and the byte address of every argument; None for one of zero bytes."""


class Arguments:
    """What a launch spec makes of arguments, checked once for the same descriptions."""

    def __init__(self, spec: LaunchSpec, card: int) -> None:
        self.spec, self.card = spec, card
        self._bindings: OrderedDict[Any, Binding] = OrderedDict()

    def bind(
        self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]
    ) -> tuple[Binding, Located]:
        """What these arguments mean, and where they lie. Raises :class:`LaunchMismatchError`."""
        if not isinstance(scalars, (tuple, list)) or not isinstance(args, (tuple, list)):
            raise LaunchMismatchError(
                f"tensors in a {type(args).__name__} and scalars in a {type(scalars).__name__} "
                f"were given; expected two lists or tuples: {self.spec}"
            )
        like, located = _bridge.signature(args)
        key = (like, *map(type, scalars)) if scalars else like
        binding = self._bindings.get(key)
        if binding is None or (
            scalars and any(type(s) is int and s.bit_length() > 63 for s in scalars)
        ):
            binding = self._check(args, scalars)
            if None in located:  # a tensor that answers for itself may answer otherwise next time
                return binding, [_bridge.locate(tensor) for tensor in args]
            self._keep(key, binding)
        return binding, cast(Located, located)

    def _check(self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]) -> Binding:
        for entry in args:
            if not isinstance(entry, torch.Tensor):
                raise LaunchMismatchError(f"{entry!r} was given where a tensor belongs")
        sizes = self.spec.check([describe(t) for t in args], scalars, card=self.card)
        for argument, tensor in zip(self.spec.arguments, args, strict=True):
            if argument.role != "input":
                refuse_internal_overlap(tensor)
        empty = tuple(tensor.numel() == 0 for tensor in args)
        return Binding(tuple(sizes.values()), empty, Places(self.spec, args))

    def _keep(self, key: object, binding: Binding) -> None:
        self._bindings[key] = binding
        if len(self._bindings) > _BINDINGS_KEPT:
            self._bindings.popitem(last=False)
