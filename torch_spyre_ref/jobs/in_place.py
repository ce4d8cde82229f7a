"""Which output of a program may lie on exactly the elements of which input.

That is well when each element is loaded before it is stored to. A later stage begins when the one
before it has ended, so it may store wherever that one has loaded. Within a stage load and store
must walk the same elements in the same order, and the load must come first: the store needs its
value, or that of a load that comes after it.

An index or a stride that only data or a launch knows is never taken for the same as another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from torch_spyre_ref.emulator.program import Instruction, Place, Program, Stage
from torch_spyre_ref.emulator.program.units import OPS
from torch_spyre_ref.spyrecode import Argument, LaunchSpec
from torch_spyre_ref.spyrecode.spec import EXTENTS

_COMMUTE: Final = ("add", "multiply", "minimum", "maximum")


class _Access(NamedTuple):
    """A load or store: its stage, its place in that stage's instructions, and itself."""

    number: int
    stage: Stage
    position: int
    instruction: Instruction
    place: Place


def in_place(spec: LaunchSpec, program: Program) -> frozenset[tuple[int, int]]:
    """Pairs of an input and an output, by their places in the spec, that may be the same memory."""
    loads: dict[int, list[_Access]] = {}
    stores: dict[int, list[_Access]] = {}
    symbols = sorted(spec.symbols, key=lambda symbol: symbol.offset)
    owners = [symbol.index for symbol in symbols if symbol.kind == "address"]
    for access in _accesses(program):
        symbol = program.operands[access.place.operand].symbol
        if symbol is not None:
            found = loads if access.instruction.op == "load" else stores
            found.setdefault(owners[symbol], []).append(access)
    pairs = set()
    for i, read in enumerate(spec.arguments):
        for o, written in enumerate(spec.arguments):
            if read.role == "input" and written.role != "input":
                same = _Numbers(spec, program, read, written)
                ordered = (
                    _is_first(a, b, same) for a in loads.get(i, ()) for b in stores.get(o, ())
                )
                if all(ordered):
                    pairs.add((i, o))
    return frozenset(pairs)


def _accesses(program: Program) -> Iterator[_Access]:
    for number, stage in enumerate(program.stages):
        for index, instruction in enumerate(stage.instructions):
            if instruction.place is not None:
                yield _Access(number, stage, index, instruction, instruction.place)


class _Numbers:
    """The number table of a program: equal entries have equal names, when two arguments are the
    same tensor."""

    def __init__(self, spec: LaunchSpec, program: Program, one: Argument, other: Argument) -> None:
        self._names: dict[tuple[object, ...], int] = {}
        known = _equal_extents(one, other)
        ordered = sorted(spec.symbols, key=lambda symbol: symbol.offset)
        symbols = [s for s in ordered if s.kind != "address"]
        self.of: list[int] = []
        for op, a, b, value in program.numbers:
            key: tuple[object, ...] = (op, value)
            if op == "integer symbol" and (s := symbols[int(value)]).kind == "dimension":
                extent = known.get(name := spec.dimensions[s.index].name, name)
                key = ("integer", extent) if isinstance(extent, int) else (op, extent)
            elif not op.startswith(("integer", "float ")) and op != "float":
                parts = self.of[a], self.of[b]
                key = (op, *(sorted(parts) if op in _COMMUTE else parts))
            self.of.append(self.constant(*key))
        self.zero, self.one = self.constant("integer", 0), self.constant("integer", 1)

    def constant(self, *key: object) -> int:
        """The name of an entry that is made like this."""
        return self._names.setdefault(key, len(self._names))

    def walk(self, access: _Access, dimensions: Sequence[int]) -> list[tuple[int, int]]:
        """The size and stride of each dimension, less those of one step."""
        sizes = [self.of[access.stage.dimensions[d].size] for d in dimensions]
        strides = [self.of[access.place.strides[d]] for d in dimensions]
        return [pair for pair in zip(sizes, strides, strict=True) if pair[0] != self.one]


def _equal_extents(one: Argument, other: Argument) -> dict[str, int | str]:
    """What a dimension symbol is equal to, when two arguments have the same shape and strides."""
    known: dict[str, int | str] = {}

    def found(extent: int | str) -> int | str:
        while isinstance(extent, str) and extent in known:
            extent = known[extent]
        return extent

    for what in EXTENTS:
        for a, b in zip(getattr(one, what), getattr(other, what), strict=False):
            a, b = found(a), found(b)
            if a != b and isinstance(a, str) and a.isidentifier():
                known[a] = b
            elif a != b and isinstance(b, str) and b.isidentifier():
                known[b] = a
    return {name: found(name) for name in known}


def _is_first(load: _Access, store: _Access, numbers: _Numbers) -> bool:
    """Whether every element is loaded before it is stored to."""
    if load.number != store.number:
        return load.number < store.number
    return (
        load.instruction.turn <= store.instruction.turn
        and _walk_alike(load, store, numbers)
        and _is_awaited(load, store)
    )


def _walk_alike(load: _Access, store: _Access, numbers: _Numbers) -> bool:
    """Whether both are at the same elements at the same time, and at each element once."""
    stage, a, b = load.stage, load.place, store.place
    if a.index_strides or b.index_strides or numbers.of[a.base] != numbers.of[b.base]:
        return False
    turns = load.instruction.turn, store.instruction.turn
    if numbers.walk(load, stage.outer) != numbers.walk(store, stage.outer):
        return False
    streams = [
        numbers.walk(access, stage.passes[turn])
        for access, turn in zip((load, store), turns, strict=True)
    ]
    if turns[0] != turns[1]:  # one pass is over when the other begins: the order is no matter
        streams = [sorted(stream) for stream in streams]
    steps = [*numbers.walk(store, stage.outer), *streams[1]]
    return streams[0] == streams[1] and all(stride != numbers.zero for _, stride in steps)


def _is_awaited(load: _Access, store: _Access) -> bool:
    """Whether the store needs the load, or a load that the same unit makes after it."""
    instructions = load.stage.instructions
    makers = {value: index for index, i in enumerate(instructions) for value in i.outputs}
    seen: set[int] = set()
    left = [store.position]
    while left:
        index = left.pop()
        if index not in seen:
            seen.add(index)
            sources = instructions[index].inputs
            left += [makers[s.entry] for s in sources if not s.number and s.entry in makers]
    first = load.instruction.turn, load.position
    return any(
        OPS[instructions[index].op].unit == "load" and (instructions[index].turn, index) >= first
        for index in seen
    )
