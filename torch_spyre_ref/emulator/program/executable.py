"""A decoded program, ready to be patched and run: what the fetch unit hands to the cores.

Decoding is done once for the same bytes. Units fire by the availability of their operands; the
order in which they do depends on nothing but the program and the numbers of a launch, so it is
written down once for the same numbers. Where operands lie is resolved once for the same slot.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.alu import operation
from torch_spyre_ref.emulator.memory import Memory, RegionFaultError
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.program import matrix, movement, randomness, reduction
from torch_spyre_ref.emulator.program.check import fit
from torch_spyre_ref.emulator.program.encoding import parse
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.firing import firings
from torch_spyre_ref.emulator.program.lanes import Lanes, Operands
from torch_spyre_ref.emulator.program.model import Instruction, Operand, Program
from torch_spyre_ref.emulator.program.numbers import evaluate
from torch_spyre_ref.emulator.program.slot import ADDRESS_BYTES, Location, read_slot, slot_bytes
from torch_spyre_ref.emulator.program.tiles import Tile
from torch_spyre_ref.emulator.program.timing import cost
from torch_spyre_ref.emulator.program.units import OPS
from torch_spyre_ref.emulator.spec import CardSpec

Step = Callable[[], object]
"""One firing of one instruction, all its operands resolved."""

Key = TypeVar("Key")
Kept = TypeVar("Kept")

_SLOTS_KEPT: Final = 128
_SIZES_KEPT: Final = 32
_STEPS_KEPT: Final = 4_096
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


class Firing(NamedTuple):
    """One firing of one instruction; its step, unless that depends on where operands lie."""

    lanes: Lanes
    instruction: Instruction
    tile: Tile
    step: Step | None


class Sized:
    """A program at the numbers of one launch: tiles, the order of firing, and time.

    It has everything that does not depend on where operands lie, and serves all launches with the
    same sizes and scalars.
    """

    def __init__(self, program: Program, symbols: Sequence[int | float], spec: CardSpec) -> None:
        self.numbers = evaluate(program.numbers, symbols)
        self.stages = [Lanes(stage, self.numbers, spec) for stage in program.stages]
        self.live = [_live(lanes) for lanes in self.stages]
        self.costs = tuple(
            cost(lanes, program.operands, live, spec)
            for lanes, live in zip(self.stages, self.live, strict=True)
        )
        self.duration = sum(stage.duration for stage in self.costs)
        count = sum(
            lanes.space.outer * lanes.space.inner[lanes.stage.instructions[i].turn]
            for lanes, live in zip(self.stages, self.live, strict=True)
            for i in live
        )
        self._order = list(self._fire()) if count <= _STEPS_KEPT else None

    @property
    def is_short(self) -> bool:
        """Whether there are few enough firings to keep the step of each."""
        return self._order is not None

    def order(self) -> Iterable[Firing]:
        """All firings, in order; those that touch no memory with their steps made."""
        return self._fire() if self._order is None else self._order

    def _fire(self) -> Iterator[Firing]:
        for lanes, live in zip(self.stages, self.live, strict=True):
            space, instructions = lanes.space, lanes.stage.instructions
            for index, count in firings(lanes.stage, space.outer, space.inner, live):
                i = instructions[index]
                tile = space.tile(i.turn, count)
                yield Firing(lanes, i, tile, None if i.place else _step(lanes, i, tile))


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
        for lanes, live in zip(self._sized.stages, self._sized.live, strict=True):
            for index in live:
                i = lanes.stage.instructions[index]
                if i.place is not None:
                    box = _reach(lanes, operands, i)
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
            steps = (
                firing.step or _move(firing.lanes, operands, firing.instruction, firing.tile)
                for firing in self._sized.order()
            )
            if not self._sized.is_short:
                for step in steps:
                    step()
                return
            self._steps = list(steps)
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


def _live(lanes: Lanes) -> list[int]:
    """The instructions that fire at all: none over an empty space, and of a pass that streams
    nothing only those which accumulate."""
    if lanes.space.outer == 0:
        return []
    return [
        index
        for index, i in enumerate(lanes.stage.instructions)
        if not lanes.space.empty[i.turn] or OPS[i.op].unit in ("reduce", "matrix")
    ]


def _reach(lanes: Lanes, operands: Operands, i: Instruction) -> DeviceRange:
    """All memory that a load or store may touch."""
    if movement.indirect(i):
        assert i.place is not None
        address = operands.places[i.place.operand][1].address
        return DeviceRange.contiguous(address, 0, address.length)
    if i.op == "load":
        varies = lanes.stage.values[i.outputs[0]].dimensions
        shape = tuple(n if d in varies else 1 for d, n in enumerate(lanes.space.sizes))
    else:
        moved = {*lanes.stage.outer, *lanes.stage.passes[i.turn]}
        sizes = tuple(n if d in moved else 1 for d, n in enumerate(lanes.space.sizes))
        shape = movement.store_shape(lanes, i, sizes)
    return movement.span(lanes, operands, i, shape)


def _move(lanes: Lanes, operands: Operands, i: Instruction, tile: Tile) -> Step:
    """What one firing of a load or store does."""
    unit = movement.load if i.op == "load" else movement.store
    return unit(lanes, operands, i, tile)


def _step(lanes: Lanes, i: Instruction, tile: Tile) -> Step:
    """What one firing does of an instruction that touches no memory."""
    match OPS[i.op].unit:
        case "reduce":
            return reduction.reduce(lanes, i, tile)
        case "matrix":
            return matrix.matmul(lanes, i, tile)
        case "random":
            return partial(randomness.draw, lanes, i, tile)
        case "index":
            return partial(_count, lanes, i, tile)
    return operation(i.op, lanes.inputs(i, tile), lanes.block(i.outputs[0], tile))


def _count(lanes: Lanes, i: Instruction, tile: Tile) -> None:
    out = lanes.block(i.outputs[0], tile)
    start, length = tile.starts[i.parameter], tile.lengths[i.parameter]
    out[...] = np.arange(start, start + length).reshape(out.shape)


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
