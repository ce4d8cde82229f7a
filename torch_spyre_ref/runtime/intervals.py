"""The interval map: for every byte that pending work touches, who touches it, by bisection.

The bytes of one space (a region of a card, or the host's memory) are cut into disjoint runs. Each
run has its last writer and, for each queue, its last reader since. A newcomer must come after
these and no others: whoever was there before is behind them. Both users of the map ask it that:
derived edges, which add the order that is missing, and racecheck, which reports it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from torch_spyre_ref.emulator.operands import DeviceRange

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.queues import Queue

Interval = tuple[Hashable, int, int]
"""A space, and bytes ``[start, stop)`` of it."""

# A view of more separate runs than this is taken for all that lies between its ends.
_RUNS = 32


class Access(NamedTuple):
    """Operation ``ticket`` of ``queue``; ``about`` is whatever the map's user keeps with it."""

    ticket: int
    queue: Queue
    about: object = None


Conflict = tuple[str, Access]
"""Why an access must come after an earlier one: "RAW", "WAR" or "WAW", and that one."""


class _Run:
    """Bytes up to ``stop``: their last writer, and by queue their last readers since."""

    __slots__ = ("readers", "stop", "writer")

    def __init__(self, stop: int, writer: Access | None, readers: dict[Queue, Access]) -> None:
        self.stop, self.writer, self.readers = stop, writer, readers


class _Space:
    """The runs of one space, by start."""

    __slots__ = ("runs", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.runs: dict[int, _Run] = {}

    def cover(self, start: int, stop: int) -> list[_Run]:
        """Runs that make up exactly ``[start, stop)``, cut or made where there are none."""
        exact = self.runs.get(start)
        if exact is not None and exact.stop == stop:
            return [exact]
        starts, runs = self.starts, self.runs
        index = bisect_left(starts, start)
        if index and runs[starts[index - 1]].stop > start:
            self._cut(index - 1, start)
        found, at = [], start
        while at < stop:
            if index == len(starts) or starts[index] > at:
                gap = stop if index == len(starts) else min(stop, starts[index])
                starts.insert(index, at)
                runs[at] = _Run(gap, None, {})
            elif runs[at].stop > stop:
                self._cut(index, stop)
            found.append(runs[at])
            at, index = runs[at].stop, index + 1
        return found

    def writers(self, start: int, stop: int) -> list[Access]:
        """The last writer of each run that has bytes of ``[start, stop)``, where it has one."""
        index = max(bisect_right(self.starts, start) - 1, 0)
        runs = (self.runs[at] for at in self.starts[index : bisect_left(self.starts, stop)])
        return [run.writer for run in runs if run.writer is not None and run.stop > start]

    def join(self, start: int, runs: Sequence[_Run]) -> _Run:
        """Make one run of ``runs``, which follow one another from ``start``."""
        first = runs[0]
        if len(runs) > 1:
            for run in runs[:-1]:
                del self.runs[run.stop]
            index = bisect_left(self.starts, start)
            del self.starts[index + 1 : index + len(runs)]
            first.stop = runs[-1].stop
        return first

    def _cut(self, index: int, at: int) -> None:
        run = self.runs[self.starts[index]]
        self.starts.insert(index + 1, at)
        self.runs[at] = _Run(run.stop, run.writer, dict(run.readers))
        run.stop = at


class IntervalMap:
    """Who touches what, in any number of spaces."""

    def __init__(self) -> None:
        self._spaces: dict[Hashable, _Space] = {}

    def __len__(self) -> int:
        return sum(len(space.starts) for space in self._spaces.values())

    def read(self, interval: Interval, access: Access) -> Sequence[Conflict]:
        """Take in a reader; the writers that it must come after, once for each run."""
        name, start, stop = interval
        space = self._spaces.get(name) or self._new(name)
        found = []
        for run in space.cover(start, stop):
            run.readers[access.queue] = access
            if run.writer is not None:
                found.append(("RAW", run.writer))
        return found

    def write(self, interval: Interval, access: Access) -> Sequence[Conflict]:
        """Take in a writer; whom it must come after, once for each run."""
        name, start, stop = interval
        space = self._spaces.get(name) or self._new(name)
        runs, found = space.cover(start, stop), []
        for run in runs:
            if run.readers:
                found += [("WAR", reader) for reader in run.readers.values()]
                run.readers.clear()
            if run.writer is not None:
                found.append(("WAW", run.writer))
        space.join(start, runs).writer = access
        return found

    def writers(self, interval: Interval) -> list[Access]:
        """The last writers of the bytes of an interval; nobody is taken in."""
        name, start, stop = interval
        space = self._spaces.get(name)
        return [] if space is None else space.writers(start, stop)

    def forget(self, is_over: Callable[[Access], bool]) -> None:
        """Drop the accesses that nobody needs to come after any more, and runs without any."""
        for name, space in list(self._spaces.items()):
            for start, run in list(space.runs.items()):
                if run.writer is not None and is_over(run.writer):
                    run.writer = None
                for reader in [a for a in run.readers.values() if is_over(a)]:
                    del run.readers[reader.queue]
                if run.writer is None and not run.readers:
                    del space.runs[start]
            space.starts = sorted(space.runs)
            if not space.starts:
                del self._spaces[name]

    def clear(self) -> None:
        """Forget everybody."""
        self._spaces.clear()

    def _new(self, name: Hashable) -> _Space:
        return self._spaces.setdefault(name, _Space())


def accesses(
    reads: Iterable[DeviceRange], writes: Iterable[DeviceRange]
) -> list[tuple[bool, Interval]]:
    """The bytes that are read (False) and written (True), by region."""
    return [
        (is_write, interval)
        for is_write, spans in ((False, reads), (True, writes))
        for span in spans
        for interval in physical(span)
    ]


class Ranges:
    """What is read and written, as ranges, and as bytes once that was asked for."""

    def __init__(self, reads: Sequence[DeviceRange], writes: Sequence[DeviceRange]) -> None:
        self.reads, self.writes = reads, writes

    @cached_property
    def accesses(self) -> list[tuple[bool, Interval]]:
        """The bytes that are read (False) and written (True), by region."""
        return accesses(self.reads, self.writes)


def physical(span: DeviceRange) -> Iterable[Interval]:
    """The bytes of a range by region: exactly those it touches, unless its runs are very many."""
    chunks = span.address.chunks
    low, high = span.bounds
    dense = not span.loops or (span.nbytes == high - low and not span.overlaps_itself)
    if dense and len(chunks) == 1:
        region, base, _ = chunks[0]
        return ((region, base + low, base + high),) if high > low else ()
    return [
        (region, start, start + length)
        for begin, end in _runs(span)
        for region, start, length in span.address.spans(begin, end)
    ]


def _runs(span: DeviceRange) -> list[tuple[int, int]]:
    """Logical bytes [start, stop) of each run, or those that all lie between."""
    loops = [(count, stride) for count, stride in span.loops if stride]
    if math.prod(count for count, _ in loops) > _RUNS:
        return [span.bounds]
    starts = [span.offset]
    for count, stride in loops:
        starts = [start + turn * stride for start in starts for turn in range(count)]
    return [(start, start + span.run) for start in starts] if span.run else []
