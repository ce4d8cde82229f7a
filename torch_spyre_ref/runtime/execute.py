"""The operation that runs a program: where its bytes lie, and where what is patched into them does.

It names ranges of memory and what the program touches. What the program means the runtime cannot
get wrong: it never sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.runtime.intervals import Spot, spots
from torch_spyre_ref.runtime.operations import Operation


class _Remembering(Operation):
    """An operation that finds out once, when it is first asked, which bytes it touches."""

    __slots__ = ("_spots",)
    _spots: Sequence[Spot]

    @property
    def spots(self) -> Sequence[Spot]:
        """The bytes that it reads and writes, by region, but for those that its owner orders."""
        try:
            return self._spots
        except AttributeError:
            object.__setattr__(self, "_spots", self._find())
            return self._spots

    def _find(self) -> Sequence[Spot]:
        return spots(self.reads, self.writes)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Execute(_Remembering):
    """Run the program at ``program`` as the correction slot ``slot`` patches it.

    The card reads both when it fetches the program, which is as soon as it can, or with ``barrier``
    when the operation starts. ``memory`` is the program's own; ``inputs`` and ``outputs`` are what
    it reads and writes besides. ``owner`` is kept until the operation is over, and sees to it that
    ``program`` and ``slot`` are not written meanwhile: no edge is derived for them.
    """

    program: DeviceRange
    slot: DeviceRange | None
    barrier: bool = True
    memory: CompositeAddress | None = None
    inputs: tuple[DeviceRange, ...] = ()
    outputs: tuple[DeviceRange, ...] = ()
    owner: object = None

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        slot = () if self.slot is None else (self.slot,)
        return (self.program, *slot, *self.inputs)

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        if self.memory is None:
            return self.outputs
        return (*self.outputs, DeviceRange.contiguous(self.memory, 0, self.memory.length))

    def _find(self) -> Sequence[Spot]:
        return spots(self.reads if self.owner is None else self.inputs, self.writes)

    def __repr__(self) -> str:
        barrier = "" if self.barrier else ", no barrier"
        return f"Execute({self.program}, slot {self.slot}{barrier})"
