"""The instruction buffer's way to memory: a program and its slot, read together, decoded once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program import Executable, Patched, parse
from torch_spyre_ref.emulator.spec import CardSpec

_KEPT: Final = 1_024


class Executables:
    """What was fetched lately, decoded once for the same bytes; one unit a card."""

    def __init__(self, memory: Memory, spec: CardSpec) -> None:
        self.memory, self.spec = memory, spec
        self._executables: OrderedDict[bytes, Executable] = OrderedDict()
        self._last: tuple[bytes, Executable] | None = None

    def fetch(
        self, program: DeviceRange, slot: DeviceRange | None, job: CompositeAddress | None
    ) -> Patched:
        """The program as its bytes and its slot's bytes are now. Raises what is wrong with them."""
        data = self.memory.dense(program)
        if self._last is None or data != self._last[0]:  # to compare is cheaper than to hash
            self._last = data, self._executables.get(data) or self._decode(data)
        executable = self._last[1]
        return executable.patch(self.memory.dense(slot) if slot is not None else b"", job)

    def _decode(self, data: bytes) -> Executable:
        executable = self._executables[data] = Executable(parse(data), self.spec)
        if len(self._executables) > _KEPT:
            self._executables.popitem(last=False)
        return executable

    def forget(self) -> None:
        """Let go of memory that earlier programs have resolved operands in."""
        self._last = None
        for executable in self._executables.values():
            executable.forget()
