"""The dispatcher of a stage: a unit fires its next instruction once its operands are there.

A unit takes its own instructions in order, tile after tile, and knows nothing of the other units
but the FIFOs between them. It fires when every FIFO that it reads has an entry for it, and every
FIFO that it writes has room; where values share bytes of the scratchpad, that means that what lay
there before has been read. How often each instruction has fired is the whole state: what lies in
a FIFO is the difference between the count of who fills it and that of who empties it. So the order
is always the same, and a load runs ahead of its readers by the depth of the FIFO, no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch_spyre_ref.emulator.program.check import held, sharing
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.model import Source, Stage
from torch_spyre_ref.emulator.program.units import OPS, UNITS

Condition = Callable[[], bool]


def firings(
    stage: Stage, outer: int, inner: Sequence[int], live: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """(instruction, how often it fired before), in the order in which the units fire.

    ``outer`` is the number of outer tiles, ``inner`` that of the tiles which each pass streams
    for each of them (1 or more), ``live`` the instructions that take part.
    """
    fired = dict.fromkeys(live, 0)
    conditions = _conditions(stage, inner, fired)
    streams = []
    for name in UNITS:
        mine = [i for i in live if OPS[stage.instructions[i].op].unit == name]
        if mine:
            streams.append(_in_order(stage, outer, inner, mine))
    heads = [next(stream, None) for stream in streams]
    while any(head is not None for head in heads):
        stuck = True
        for unit, stream in enumerate(streams):
            while (head := heads[unit]) is not None and all(c() for c in conditions[head]):
                yield head, fired[head]
                fired[head] += 1
                heads[unit] = next(stream, None)
                stuck = False
        if stuck:
            waiting = [stage.instructions[h].op for h in heads if h is not None]
            raise ProgramError(f"the units wait for one another: {', '.join(waiting)}")


def _in_order(stage: Stage, outer: int, inner: Sequence[int], mine: Sequence[int]) -> Iterator[int]:
    """One unit's instructions over all tiles, in program order."""
    turns = [[i for i in mine if stage.instructions[i].turn == t] for t in range(len(inner))]
    for _ in range(outer):
        for turn, tiles in zip(turns, inner, strict=True):
            for _ in range(tiles if turn else 0):
                yield from turn


def _conditions(
    stage: Stage, inner: Sequence[int], fired: dict[int, int]
) -> dict[int, list[Condition]]:
    """For each instruction, what must hold before it may fire."""
    kept = held(stage)
    conditions: dict[int, list[Condition]] = {i: [] for i in fired}
    maker = {v: i for i in fired for v in stage.instructions[i].outputs}
    for reader in fired:
        instruction = stage.instructions[reader]
        mine = inner[instruction.turn]
        for value in {s.entry for s in instruction.inputs if not s.number and s.entry in maker}:
            source, depth = maker[value], stage.values[value].depth
            turn = stage.instructions[source].turn
            theirs = inner[turn]
            if turn == instruction.turn:
                conditions[reader].append(_has_entry(fired, source, reader))
            else:
                conditions[reader].append(_is_complete(fired, source, theirs, reader, mine))
            per_entry = (theirs, mine) if value in kept else (1, 1)
            conditions[source].append(_has_room(fired, source, reader, per_entry, depth))
    for early, late in _shared(stage, maker):
        for value, other, ahead in ((early, late, 0), (late, early, 1)):
            for reader in _readers(stage, fired, other) or [maker[other]]:
                if reader != maker[value]:
                    conditions[maker[value]].append(_is_read(fired, maker[value], reader, ahead))
    return conditions


def _shared(stage: Stage, maker: dict[int, int]) -> list[tuple[int, int]]:
    """Pairs of values in the same bytes, the one that is made first in front."""
    pairs = [pair for pair in sharing(stage) if maker.keys() >= set(pair)]
    return [(a, b) if maker[a] < maker[b] else (b, a) for a, b in pairs]


def _readers(stage: Stage, fired: dict[int, int], value: int) -> list[int]:
    return [i for i in fired if Source(value) in stage.instructions[i].inputs]


def _is_read(fired: dict[int, int], writer: int, reader: int, ahead: int) -> Condition:
    """What lay in the bytes before has been read: of this tile (``ahead``), or of the last one."""
    return lambda: fired[reader] >= fired[writer] + ahead


def _has_entry(fired: dict[int, int], source: int, reader: int) -> Condition:
    return lambda: fired[source] > fired[reader]


def _is_complete(
    fired: dict[int, int], source: int, theirs: int, reader: int, mine: int
) -> Condition:
    """The pass that makes a held value is over, for the outer tile at which the reader is."""
    return lambda: fired[source] >= (fired[reader] // mine + 1) * theirs


def _has_room(
    fired: dict[int, int], source: int, reader: int, per_entry: tuple[int, int], depth: int
) -> Condition:
    theirs, mine = per_entry
    return lambda: fired[source] // theirs - fired[reader] // mine < depth
