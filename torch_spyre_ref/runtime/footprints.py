"""Footprints: the physical bytes that an operation reads and writes.

They are asked for only when somebody needs them: when two queues have work, or under the sanitizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.runtime.execute import Execute
from torch_spyre_ref.runtime.intervals import Interval, Spot, physical, spots
from torch_spyre_ref.runtime.operations import Operation
from torch_spyre_ref.runtime.pinned import PinnedMemory

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.lowering import Work


HOST: Final = -1
"""What stands for a card's number where the host's memory is meant."""


def footprint(operation: Operation, work: Work) -> Sequence[Spot]:
    """What an operation reads and writes on its card, but for what its job orders itself."""
    own: Sequence[Spot]
    if isinstance(operation, Execute):
        own = operation.spots
    elif work.touched is not None:
        own = ()
    else:
        reads, writes = operation.reads, operation.writes
        return spots(reads, writes) if reads or writes else ()
    # What the caller has an interest in comes first: of several reasons, the first is told.
    touched = work.touched().spots if work.touched is not None else ()
    return [*touched, *own] if own else touched


def spans(operation: Operation, work: Work) -> Iterator[tuple[bool, Sequence[DeviceRange]]]:
    """The ranges that an operation names, and those that its launch knows it to be patched with."""
    yield False, operation.reads
    yield True, operation.writes
    if work.touched is not None:
        ranges = work.touched()
        yield False, ranges.reads
        yield True, ranges.writes


def is_scratch(operation: Operation, interval: Interval) -> bool:
    """Whether bytes that an operation writes are a program's own, which nobody reads later."""
    memory = operation.memory if isinstance(operation, Execute) else None
    if memory is None:
        return False
    region, start, stop = interval
    return any(
        chunk.region == region and chunk.offset <= start and stop <= chunk.offset + chunk.length
        for chunk in memory.chunks
    )


class HostBytes(NamedTuple):
    """Pinned host memory, as a report names it."""

    nbytes: int

    def __str__(self) -> str:
        return f"{self.nbytes} bytes of pinned host memory"


class Touch(NamedTuple):
    """One access of an operation: to which bytes, and as part of what."""

    is_write: bool
    interval: Interval
    where: DeviceRange | HostBytes
    is_fetch: bool = False


def touches(device: int, operation: Operation, work: Work, pinned: PinnedMemory) -> Iterator[Touch]:
    """All that an operation touches on card ``device`` and of pinned host memory."""
    source = work.dispatch.source if work.dispatch is not None else ()
    for is_write, ranges in spans(operation, work):
        for span in ranges:
            for region, start, stop in physical(span):
                place = ((device, region), start, stop)
                yield Touch(is_write, place, span, any(span is one for one in source))
    is_write, buffer = host_buffer(operation)
    if buffer is not None and buffer.size:
        start = int(buffer.__array_interface__["data"][0])
        interval = ((HOST, pinned.number_of(start)), start, start + buffer.size)
        yield Touch(is_write, interval, HostBytes(buffer.size))


def host_buffer(operation: Any) -> tuple[bool, Bytes | None]:
    """Whether an operation writes pinned memory (or reads it), and which. By name: a chapter's
    operations are classes of its own."""
    match type(operation).__name__:
        case "H2D":
            return False, operation.source
        case "D2H":
            return True, operation.target
        case "HostCallback":
            return True, getattr(operation, "staging", None)
    return False, None
