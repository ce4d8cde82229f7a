"""Fault injection: make any operation fail, where and when a test wants it to.

A fault is planted before the operation is submitted. The operation then takes its place and its
time like any other, and fails as it ends, with its effect done or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.lowering import Work
    from torch_spyre_ref.runtime.operations import Operation
    from torch_spyre_ref.runtime.queues import Queue

Point = Literal["before", "after"]
"""Whether an operation fails ahead of its effect or with its effect done."""


class InjectedError(RuntimeError):
    """What an operation fails with that a fault was planted in."""


@dataclass
class Fault:
    """The ``nth`` operation from now on, counted from 0, of a ``queue`` and a ``kind`` (of all,
    where that is None) fails ``point`` its effect. ``hit`` is what failed."""

    nth: int = 0
    queue: Queue | None = None
    kind: str | None = None
    point: Point = "before"
    hit: str | None = field(default=None, init=False)

    def is_meant(self, queue: Queue, operation: Operation) -> bool:
        """Whether ``operation`` is the one; called once for each that is submitted."""
        kind = type(operation).__name__
        if self.hit is not None or self.queue not in (None, queue) or self.kind not in (None, kind):
            return False
        self.nth -= 1
        if self.nth >= 0:
            return False
        self.hit = f"{kind} on queue {queue.name}"
        return True


class Faults:
    """The faults that are planted in a runtime; there are none outside of tests."""

    def __init__(self) -> None:
        self.planted: list[Fault] = []

    @contextmanager
    def planted_in(self, fault: Fault) -> Iterator[Fault]:
        """Have ``fault`` wait for its operation in a block."""
        self.planted.append(fault)
        try:
            yield fault
        finally:
            self.planted.remove(fault)

    def submitted(self, queue: Queue, operation: Operation, work: Work) -> Work:
        """The work that an operation really is: it fails, if that was planned."""
        for fault in self.planted:
            if fault.is_meant(queue, operation):
                work = work._replace(effect=_failing(work, fault))
        return work


def _failing(work: Work, fault: Fault) -> Callable[[], None]:
    def fail() -> None:
        if work.effect is not None and fault.point == "after":
            work.effect()
        elif work.dispatch is not None and work.dispatch.span is not None:
            work.dispatch.span.close()  # a run that has begun looks at who writes to its operands
        raise InjectedError(f"a fault was planted in {fault.hit}, {fault.point} its effect")

    return fail
