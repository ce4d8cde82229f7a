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
        self._last: dict[object, tuple[bytes, bytes, CompositeAddress | None, Patched]] = {}

    def fetch(
        self, program: DeviceRange, slot: DeviceRange | None, job: CompositeAddress | None
    ) -> Patched:
        """The program as its bytes and its slot's bytes are now. Raises what is wrong with them."""
        data = self.memory.dense(program)
        patch = self.memory.dense(slot) if slot is not None else b""
        place = (slot or program).block
        last = self._last.get(place)
        if last is not None and last[:3] == (data, patch, job):  # cheaper than to hash them
            return last[3]
        executable = self._executables.get(data) or self._decode(data)
        patched = executable.patch(patch, job)
        if len(self._last) >= _KEPT:
            self._last.clear()
        self._last[place] = data, patch, job, patched
        return patched

    def _decode(self, data: bytes) -> Executable:
        executable = self._executables[data] = Executable(parse(data), self.spec)
        if len(self._executables) > _KEPT:
            self._executables.popitem(last=False)
        return executable

    def forget(self) -> None:
        """Let go of memory that earlier programs have resolved operands in."""
        self._last.clear()
        for executable in self._executables.values():
            executable.forget()
