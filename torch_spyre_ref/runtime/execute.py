"""The operation that runs a program: where its bytes lie, and where what is patched into them does.

It names ranges of memory and what the program touches. What the program means the runtime cannot
get wrong: it never sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.runtime.operations import Operation


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Execute(Operation):
    """Run the program at ``program`` as the correction slot ``slot`` patches it.

    The card reads both when it fetches the program, which is as soon as it can, or with ``barrier``
    when the operation starts. ``memory`` is the program's own; ``inputs`` and ``outputs`` are what
    it reads and writes besides. ``owner`` is kept until the operation is over.
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
        return self.outputs

    def __repr__(self) -> str:
        barrier = "" if self.barrier else ", no barrier"
        return f"Execute({self.program}, slot {self.slot}{barrier})"
