"""The interval map: for every byte that pending work touches, who touches it, by bisection.

The bytes of one space (a region of a card, or the host's memory) are cut into disjoint runs. Each
run has its last writer and, for each queue, its last reader since. A newcomer that reads must come
after the writer, one that writes after the readers, or the writer if nobody has read: whoever was
there before is behind them. Both users of the map ask it that: derived edges, which add the order
that is missing, and racecheck, which reports it.
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


class _Run:
    """Bytes up to ``stop``: their last writer, and by queue their last readers since.

    Once it is in no map any more, nobody's bytes end where it does.
    """

    __slots__ = ("readers", "stop", "writer")

    def __init__(self, stop: int, writer: Access | None, readers: dict[Queue, Access]) -> None:
        self.stop, self.writer, self.readers = stop, writer, readers


_GONE = -1
_NO_RUN = _Run(_GONE, None, {})


class Spot:
    """An interval that is read or written, by operations to come too, and the run that it was."""

    __slots__ = ("interval", "is_write", "run", "stop")

    def __init__(self, is_write: bool, interval: Interval) -> None:
        self.is_write, self.interval, self.stop = is_write, interval, interval[2]
        self.run = _NO_RUN

    def __repr__(self) -> str:
        return f"Spot({'written' if self.is_write else 'read'}, {self.interval})"


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

    def join(self, start: int, runs: Sequence[_Run]) -> None:
        """Make one run of ``runs``, which follow one another from ``start``: the first of them."""
        index = bisect_left(self.starts, start)
        for gone in self.starts[index + 1 : index + len(runs)]:
            del self.runs[gone]
        del self.starts[index + 1 : index + len(runs)]
        runs[0].stop = runs[-1].stop
        for run in runs[1:]:
            run.stop = _GONE

    def _cut(self, index: int, at: int) -> None:
        run = self.runs[self.starts[index]]
        self.starts.insert(index + 1, at)
        self.runs[at] = _Run(run.stop, run.writer, dict(run.readers))
        run.stop = at


Conflict = tuple[str, Access, Spot]
"""Why an access must come after an earlier one, "RAW", "WAR" or "WAW", that one, and where."""


class IntervalMap:
    """Who touches what, in any number of spaces."""

    def __init__(self) -> None:
        self._spaces: dict[Hashable, _Space] = {}

    def __len__(self) -> int:
        return sum(len(space.starts) for space in self._spaces.values())

    def take(self, spots: Iterable[Spot], access: Access) -> list[Conflict]:
        """Take in who touches ``spots``; whom it must come after, once for each run."""
        found: list[Conflict] = []
        for spot in spots:
            run = spot.run
            # Most are touched as they were the last time: then there is nothing to look for.
            runs = (run,) if run.stop == spot.stop else self._cover(spot)
            for run in runs:
                if not spot.is_write:
                    run.readers[access.queue] = access
                    if run.writer is not None:
                        found.append(("RAW", run.writer, spot))
                    continue
                if run.readers:
                    found += [("WAR", reader, spot) for reader in run.readers.values()]
                    run.readers.clear()
                elif run.writer is not None:
                    found.append(("WAW", run.writer, spot))
                run.writer = access
            if spot.is_write and len(runs) > 1:
                self._spaces[spot.interval[0]].join(spot.interval[1], runs)
        return found

    def _cover(self, spot: Spot) -> Sequence[_Run]:
        name, start, stop = spot.interval
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = _Space()
        runs = space.cover(start, stop)
        spot.run = runs[0]
        return runs

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
                    space.runs.pop(start).stop = _GONE
            space.starts = sorted(space.runs)
            if not space.starts:
                del self._spaces[name]

    def clear(self) -> None:
        """Forget everybody."""
        self.forget(lambda access: True)


def spots(reads: Iterable[DeviceRange], writes: Iterable[DeviceRange]) -> list[Spot]:
    """The bytes that are read and written, by region."""
    return [
        Spot(is_write, interval)
        for is_write, spans in ((False, reads), (True, writes))
        for span in spans
        for interval in physical(span)
    ]


class Ranges:
    """What is read and written, as ranges, and as bytes once that was asked for."""

    def __init__(self, reads: Sequence[DeviceRange], writes: Sequence[DeviceRange]) -> None:
        self.reads, self.writes = reads, writes

    @cached_property
    def spots(self) -> list[Spot]:
        """The bytes that are read and written, by region."""
        return spots(self.reads, self.writes)


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
