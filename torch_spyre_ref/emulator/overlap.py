"""What becomes of memory that two operations use at the same time: poison.

A program reads its operands when it starts and stores when it ends. Whoever writes to either in
between is not ordered with it, and on a card anything could come of that. Here the bytes that both
use become 0xFF, in memory and in what is computed from them: every time, and visibly.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.operands import DeviceRange

POISON = 0xFF


class Span:
    """The time that a program runs for, and what was written to its operands meanwhile.

    ``accesses`` are its loads (False) and stores (True), as far as their places are known exactly.
    """

    def __init__(self, memory: Memory, accesses: Sequence[tuple[bool, DeviceRange]]) -> None:
        self._memory, self._accesses = memory, accesses
        self._written: list[tuple[DeviceRange, DeviceRange]] = []
        memory.watch = self._watch

    def _watch(self, target: DeviceRange) -> None:
        for _, mine in self._accesses:
            if may_overlap(mine, target):
                self._written.append((mine, target))

    def close(self) -> bool:
        """The program is about to run: what it shares, if anything, is poison from now on."""
        self._memory.watch = None
        if self._written:
            self.poison()
        return bool(self._written)

    def poison(self) -> None:
        """Poison what is shared; once more after the program has stored to it."""
        for mine, theirs in self._written:
            _poison(self._memory, mine, theirs)


def may_overlap(one: DeviceRange, other: DeviceRange) -> bool:
    """Whether two ranges could share a byte; never False when they do."""
    return any(
        region == number and start < end and begin < stop
        for region, start, stop in one.footprint()
        for number, begin, end in other.footprint()
    )


def _poison(memory: Memory, mine: DeviceRange, theirs: DeviceRange) -> None:
    marks = Memory()
    for number in {chunk.region for span in (mine, theirs) for chunk in span.address.chunks}:
        marks.attach(number, memory.region(number).size)
    marks.fill(mine, b"\x01")
    data = memory.read(theirs)
    data[marks.read(theirs) != 0] = POISON
    memory.write(theirs, data)
