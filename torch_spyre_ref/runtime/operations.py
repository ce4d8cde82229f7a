# Produced by chapters/00_the_card.py: edit it there, then run `make tangle`.
"""What may be asked of a card: eight typed operations with explicit operands.

An operation says which bytes it reads and which it writes, and never what a program means. DMA
sees only pinned host memory. Sizes are bytes, durations virtual ns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.runtime.events import Event


# Say what an operation touches
class Operation:
    """Anything that a queue takes. ``reads`` and ``writes`` are its footprint on the card."""

    __slots__ = ()

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        """The card memory that this operation reads."""
        return ()

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        """The card memory that this operation writes."""
        return ()


# Refuse a host buffer that no DMA engine can walk
def check_host_buffer(operation: Operation, buffer: Bytes, nbytes: int) -> None:
    """Raise ``ValueError`` unless ``buffer`` is ``nbytes`` dense bytes in one dimension."""
    if buffer.ndim != 1 or buffer.itemsize != 1 or not buffer.flags.c_contiguous:
        raise ValueError(
            f"{operation}: the host buffer has shape {buffer.shape} and dtype {buffer.dtype}; "
            "give a dense one-dimensional uint8 view of it"
        )
    if buffer.size != nbytes:
        raise ValueError(
            f"{operation}: the host buffer has {buffer.size} bytes, the card range {nbytes}"
        )


# Copy to the card
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class H2D(Operation):
    """Copy pinned host bytes, dense and one-dimensional, to a range of the card."""

    source: Bytes
    target: DeviceRange

    def __post_init__(self) -> None:
        check_host_buffer(self, self.source, self.target.nbytes)

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return (self.target,)

    def __repr__(self) -> str:
        return f"H2D(host -> {self.target})"


# Copy from the card
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class D2H(Operation):
    """Copy a range of the card to pinned host bytes, dense and one-dimensional."""

    source: DeviceRange
    target: Bytes

    def __post_init__(self) -> None:
        check_host_buffer(self, self.target, self.source.nbytes)
        if not self.target.flags.writeable:
            raise ValueError(f"{self}: the host buffer is read-only; give one that can be written")

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        return (self.source,)

    def __repr__(self) -> str:
        return f"D2H({self.source} -> host)"


# Copy within the card
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class D2D(Operation):
    """Copy between two ranges of one card, as if all were read before anything is written."""

    source: DeviceRange
    target: DeviceRange

    def __post_init__(self) -> None:
        if self.source.nbytes != self.target.nbytes:
            raise ValueError(
                f"{self}: {self.source.nbytes} bytes cannot be moved to {self.target.nbytes}"
            )

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return (self.target,)

    def __repr__(self) -> str:
        return f"D2D({self.source} -> {self.target})"


# Fill with a pattern
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fill(Operation):
    """Repeat ``pattern`` over a range. ``free`` is poison: it takes no time, on card or host."""

    target: DeviceRange
    pattern: bytes
    free: bool = False

    def __post_init__(self) -> None:
        if not self.pattern or self.target.nbytes % len(self.pattern):
            raise ValueError(
                f"{self}: a pattern of {len(self.pattern)} bytes does not fill "
                f"{self.target.nbytes} bytes a whole number of times"
            )

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return (self.target,)

    def __repr__(self) -> str:
        return f"Fill({self.target}, {self.pattern.hex()}{', free' if self.free else ''})"


# Compute
def check_duration(operation: Operation, duration: int) -> None:
    """Raise ``ValueError`` for a negative duration."""
    if duration < 0:
        raise ValueError(f"{operation}: {duration} ns asked for; a duration is 0 or more")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compute(Operation):
    """Occupy the compute pipeline for ``duration``, then apply ``effect`` to the card's memory.

    ``inputs`` and ``outputs`` are the ranges that the effect reads and writes.
    """

    duration: int
    effect: Callable[[Memory], None]
    inputs: tuple[DeviceRange, ...] = ()
    outputs: tuple[DeviceRange, ...] = ()

    def __post_init__(self) -> None:
        check_duration(self, self.duration)

    @property
    def reads(self) -> tuple[DeviceRange, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[DeviceRange, ...]:
        return self.outputs

    def __repr__(self) -> str:
        return f"Compute({self.duration} ns, {len(self.inputs)} in, {len(self.outputs)} out)"


# Give the host a turn
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostCallback(Operation):
    """Run ``function`` on the host, in queue order.

    It works on values captured at submission and on its own ``staging`` buffer, pinned bytes that
    it writes, and never calls the runtime. ``duration`` of None is the card's ``callback_time``.
    """

    function: Callable[[], None]
    duration: int | None = None
    staging: Bytes | None = None

    def __post_init__(self) -> None:
        check_duration(self, self.duration or 0)

    def __repr__(self) -> str:
        return f"HostCallback({getattr(self.function, '__name__', 'function')})"


# Let one queue wait for another
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EventSignal(Operation):
    """Fire ``event`` when everything before it in the queue is complete. Enqueue it once."""

    event: Event = field(default_factory=Event, init=False)

    @property
    def time(self) -> int | None:
        """The virtual ns at which it fired; None while it has not."""
        return self.event.time

    def __repr__(self) -> str:
        return f"EventSignal({self.event})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EventWait(Operation):
    """Hold the queue until ``signal``, which is enqueued already, has fired."""

    signal: EventSignal

    def __repr__(self) -> str:
        return f"EventWait({self.signal.event})"
