# Produced by chapters/03_launch.py: edit it there, then run `make tangle`.
"""The fetch unit: it feeds the instruction buffer, and runs ahead of what is computing.

A program is fetched together with its correction slot, all at once: from then on nothing that is
written to either matters. The unit fetches as soon as the program before has left the buffer, that
is when it has started, and looks at no queue: a patch that is still on its way is missed. Only a
barrier in the dispatch itself can hold its fetch back, until the program's own start.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.executables import Executables
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.overlap import Span
from torch_spyre_ref.emulator.program import Patched
from torch_spyre_ref.emulator.program.executable import execute


# Say where a program and its patch lie
class Source(NamedTuple):
    """What a fetch reads: a program and its correction slot. ``job`` is memory of its own."""

    program: DeviceRange
    slot: DeviceRange | None
    job: CompositeAddress | None


# Run a program
class Dispatch:
    """One run of a program, from its submission to its end.

    ``barrier`` holds its fetch back until it starts.
    """

    is_fetched = has_left = False
    ticket = 0
    before: int | None = None  # the program that was in the buffer at submission
    next: "Dispatch | None" = None
    accesses: Sequence[tuple[bool, DeviceRange, object]] = ()
    patched: Patched | None = None
    span: Span | None = None
    wrong: Exception | None = None

    def __init__(self, unit: "FetchUnit", source: Source, barrier: bool) -> None:
        self.unit, self.source, self.barrier = unit, source, barrier

    def run_ahead(self) -> None:
        """The instruction buffer is free: fetch, unless the barrier is up."""
        if not self.barrier and not self.is_fetched:
            self._fetch()

    def start(self) -> int:
        """The compute pipeline is free: fetch what is not fetched yet; the run's duration."""
        if not self.is_fetched:
            self._fetch()
        self.leave()
        if self.patched is None:
            return 0
        self.span = Span(self.unit.executables.memory, self.patched.exact)
        return self.patched.duration

    def leave(self) -> None:
        """Make room in the buffer: the run has started, or was dropped and never will."""
        self.has_left = True
        if self.next is not None:
            following, self.next = self.next, None
            following.run_ahead()

    def finish(self) -> None:
        """The run ends: what it computed is in memory. Raises what went wrong since the fetch."""
        patched, wrong, span = self.patched, self.wrong, self.span
        self.patched = self.wrong = self.span = None  # the next run still knows this one
        if patched is None or span is None:
            assert wrong is not None
            raise wrong
        self.accesses = patched.accesses
        is_disturbed = span.close()
        execute(patched, self.unit.executables.memory)
        if is_disturbed:
            span.poison()

    def _fetch(self) -> None:
        self.is_fetched = True
        try:
            self.patched = self.unit.executables.fetch(*self.source)
        except Exception as error:  # kept for the queue: whoever moved the clock is not at fault
            self.wrong = error.with_traceback(None)  # its frames lead to a caller's tensors
            error.__context__ = None  # and so do those of what it came from


# Fetch one program after another
class FetchUnit:
    """Fetches programs in the order of their submission; one unit a card."""

    def __init__(self, executables: Executables) -> None:
        self.executables = executables
        self._last: Dispatch | None = None

    def dispatch(self, source: Source, barrier: bool) -> Dispatch:
        """A run of the program at ``source``, not submitted yet."""
        return Dispatch(self, source, barrier)

    def take(self, dispatch: Dispatch, ticket: int) -> None:
        """A program was submitted: fetch it now, if the one before it has left the buffer."""
        before, self._last = self._last, dispatch
        dispatch.ticket = ticket
        if before is not None and not before.has_left:
            before.next, dispatch.before = dispatch, before.ticket
        else:
            dispatch.run_ahead()
