"""A decoded program, ready to be patched and run: what the fetch unit hands to the cores.

Decoding is done once for the same bytes. Units fire by the availability of their operands; the
order in which they do depends on nothing but the program and the numbers of a launch, so it is
written down once for the same numbers. Where operands lie is resolved once for the same slot.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import Context
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.memory import Memory, RegionFaultError
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program import movement
from torch_spyre_ref.emulator.program.check import fit
from torch_spyre_ref.emulator.program.encoding import parse
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.lanes import Operands
from torch_spyre_ref.emulator.program.model import Instruction, Operand, Program
from torch_spyre_ref.emulator.program.sized import Sized, Step, move
from torch_spyre_ref.emulator.program.slot import ADDRESS_BYTES, Location, read_slot, slot_bytes
from torch_spyre_ref.emulator.spec import CardSpec

Key = TypeVar("Key")
Kept = TypeVar("Kept")

_SLOTS_KEPT: Final = 128
_SIZES_KEPT: Final = 32
# There is one set of scratchpads, as on a card, and one program runs on it.
_running = threading.Lock()
# What NumPy should say of overflow is a context variable: one context for all runs, set once, is
# ten times cheaper than np.errstate around each.
_quiet = Context()
_quiet.run(np.seterr, all="ignore")


class Footprint(NamedTuple):
    """The card memory that a program reads and writes as it was patched; conservative."""

    reads: tuple[DeviceRange, ...]
    writes: tuple[DeviceRange, ...]


class Patched:
    """A program with one correction slot's addresses and numbers in it.

    ``exact`` are the loads (False) and stores (True) whose place is known beforehand, in order.
    ``accesses`` are all loads and stores; for others it has all memory that they may go to, and the
    instruction, by which the memory notes where they really went.
    """

    def __init__(self, name: str, sized: Sized, places: Sequence[tuple[Operand, Location]]) -> None:
        self.duration, self.costs = sized.duration, sized.costs
        self._name, self._sized, self._places = name, sized, places
        self._memory: Memory | None = None
        self._changes = 0
        self._steps: list[Step] | None = None
        self.accesses: list[tuple[bool, DeviceRange, Instruction | None]] = []
        self.exact: list[tuple[bool, DeviceRange]] = []
        self.footprint = self._survey(Operands(places, Memory()))

    def _survey(self, operands: Operands) -> Footprint:
        """What may be read and written; refuses what would leave an operand's memory."""
        reads: list[DeviceRange] = []
        writes: list[DeviceRange] = []
        for number, (_, i) in enumerate(self._sized.accesses):
            box = self._sized.box(number, operands)
            exact = not movement.indirect(i)
            noted = None if exact and i.op != "store_add" else i
            self.accesses.append((i.op != "load", box, noted))
            if exact:
                self.exact.append((i.op != "load", box))
            if i.op != "store":
                reads.append(box)
            if i.op != "load":
                writes.append(box)
        return Footprint(tuple(reads), tuple(writes))

    def run(self, memory: Memory) -> None:
        """Run on ``memory``, in which all operands must lie."""
        if self._changes != memory.changes or self._memory is not memory:
            self._find_regions(memory)
        if self._steps is None:
            operands = Operands(self._places, memory)
            if not self._sized.is_short:
                for lanes, i, tile, step in self._sized.order():
                    (step or move(lanes, operands, i, tile))()
                return
            self._steps = self._sized.steps(operands)
        for step in self._steps:
            step()

    def _find_regions(self, memory: Memory) -> None:
        """Look every region up, and refuse a chunk that runs over the end of its region."""
        self._memory = self._steps = None
        for operand, (address, _) in self._places:
            for chunk in address.chunks:
                region = memory.region(chunk.region)
                if chunk.offset + chunk.length > region.size:
                    raise RegionFaultError(
                        f"operand {operand.name!r} of program {self._name!r} lies in "
                        f"{chunk}, but that region has {region.size} bytes; was the correction "
                        "slot patched before it was fetched?"
                    )
        self._memory, self._changes = memory, memory.changes


def _place(
    program: Program, operand: Operand, places: list[Location], job: CompositeAddress | None
) -> Location:
    if operand.symbol is not None:
        return places[operand.symbol]
    if job is None:
        raise ProgramError(
            f"program {program.name!r} keeps {operand.name!r} in its job's own memory, but was "
            "run without a job allocation; give its address"
        )
    return Location(job, operand.offset)


def _keep(cache: OrderedDict[Key, Kept], key: Key, value: Kept, most: int) -> None:
    """Put an entry in a cache; the oldest one makes room."""
    cache[key] = value
    if len(cache) > most:
        cache.popitem(last=False)


class Executable:
    """A checked program that fits a card of ``spec``. Make one with ``decode``."""

    def __init__(self, program: Program, spec: CardSpec) -> None:
        fit(program, spec)
        self.program, self.spec = program, spec
        self.slot_bytes = slot_bytes(program.addresses, program.symbols)
        self._sized: OrderedDict[bytes, Sized] = OrderedDict()
        self._patched: OrderedDict[tuple[bytes, CompositeAddress | None], Patched] = OrderedDict()

    def patch(self, slot: bytes, job: CompositeAddress | None = None) -> Patched:
        """The program with the addresses and numbers of ``slot``, a whole correction slot.

        ``job`` is the allocation for memory of the job's own. Raises ``ProgramError``.
        """
        key = (slot, job)
        patched = self._patched.get(key)
        if patched is None:
            given, symbols = read_slot(self.program, slot)
            places = [(o, _place(self.program, o, given, job)) for o in self.program.operands]
            # By bytes: as keys, 1 and 1.0 are one, and so are 0.0 and -0.0.
            numbers = slot[self.program.addresses * ADDRESS_BYTES :]
            sized = self._sized.get(numbers)
            if sized is None:
                with _running:  # a scalar may overflow the format that it is used in
                    sized = _quiet.run(Sized, self.program, symbols, self.spec)
                _keep(self._sized, numbers, sized, _SIZES_KEPT)
            patched = Patched(self.program.name, sized, places)
            _keep(self._patched, key, patched, _SLOTS_KEPT)
        return patched

    def footprint(self, slot: bytes, job: CompositeAddress | None = None) -> Footprint:
        """What the program would read and write with this correction slot."""
        return self.patch(slot, job).footprint

    def run(self, memory: Memory, slot: bytes, job: CompositeAddress | None = None) -> int:
        """Run the program with this correction slot; returns its duration in virtual ns.

        Raises ``ProgramError``, also for an index out of bounds met on the way, and
        ``RegionFaultError`` when memory was given back.
        """
        patched = self.patch(slot, job)
        execute(patched, memory)
        return patched.duration

    def forget(self) -> None:
        """Let go of every region that earlier runs have resolved operands in."""
        self._patched.clear()
        for sized in self._sized.values():
            sized.forget()

    def __repr__(self) -> str:
        return f"Executable({self.program.name!r}, {len(self.program.stages)} stages)"


def execute(patched: Patched, memory: Memory) -> None:
    """Run a patched program. Raises as :meth:`Executable.run` does."""
    with _running:
        _quiet.run(patched.run, memory)


@lru_cache(maxsize=1_024)
def decode(data: bytes, spec: CardSpec = CardSpec()) -> Executable:  # noqa: B008
    """The program in ``data``, ready to run on a card of ``spec``; the same for the same bytes.

    Raises ``ProgramError`` when the bytes are no program that this card can run.
    """
    return Executable(parse(data), spec)
