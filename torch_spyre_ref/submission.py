"""The submission seam: the one door between the PyTorch side and the runtime's queues.

Copies, fills and the loading of programs hand over one operation at a time; a launch hands over all
of its operations at once, with what they were made from. The :class:`Submission` in use,
``backend.current().submission``, decides how they are enqueued: all on one queue as shipped, or on
two, or by way of something else altogether. What lies above it does not know.

(Poison, which no user asks for, goes to its queue directly.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.runtime import EventSignal, EventWait, Operation, Queue

if TYPE_CHECKING:
    from torch_spyre_ref.launch import Job
    from torch_spyre_ref.runtime import Prepared


class Slot:
    """A correction slot of a job on a card, and who was last patched from it.

    ``queue`` and ``ticket`` name the last operation of that launch; the launch that comes next may
    write the slot when it is over. ``read`` is for a submission that signals this by an event of
    its own: it is kept for the next launch, and nobody else looks at it.
    """

    __slots__ = ("number", "queue", "read", "ticket")

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: Queue | None = None
        self.ticket = 0
        self.read: EventSignal | None = None

    def reader(self) -> tuple[Queue, int] | None:
        """The queue and ticket of the launch that may still read the slot."""
        if self.queue is None or self.queue.is_over(self.ticket):
            return None
        return self.queue, self.ticket


class BoundLaunch(NamedTuple):
    """One launch, bound to its arguments and lowered, but not enqueued.

    ``preparation`` packs ``patch``, the correction slot's bytes, and brings them to ``slot``; it
    touches nothing else on the card. ``compute`` is the rest, in order: the program's run, and what
    comes before and after it in the job's memory. Both are prepared for the card and may be
    submitted to any of its queues, each of them once.

    ``args`` and ``scalars`` are what ``patch`` was packed from, in the order of
    ``job.artifact.spec``; ``device_range(arg)`` says where an argument lies and how large it is.
    They are good until ``launch`` returns: keep none of them.
    """

    job: Job
    slot: Slot
    patch: bytes
    args: Sequence[torch.Tensor]
    scalars: Sequence[int | float]
    preparation: Sequence[Prepared]
    compute: Sequence[Prepared]

    @property
    def label(self) -> str:
        """What the timeline calls its operations."""
        return self.job.artifact.name


class Submission(Protocol):
    """How operations reach the queues.

    ``queue`` is the one that the caller's work goes to. Both methods return a ticket of *that*
    queue: when it is over, all that was handed over is, and memory that it used is free. Both raise
    as :meth:`Queue.submit` does, and then nothing more of what was handed over is enqueued.
    """

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        """Enqueue one copy, fill or load, or an event that orders two of them."""
        ...

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        """Enqueue a launch: preparation, then compute, and none of it before the slot is free."""
        ...


class OneQueue:
    """Everything goes to the caller's queue, in order: the topology that the package ships."""

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        """See :class:`Submission`."""
        return queue.submit(operation, label)

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        """See :class:`Submission`. Only a reader on another queue has to be waited for."""
        if bound.slot.queue is not queue and (reader := bound.slot.reader()) is not None:
            read = EventSignal()
            reader[0].submit(read)
            queue.submit(EventWait(read))
        return queue.submit_prepared((*bound.preparation, *bound.compute), bound.label)


def transfer(queue: Queue, operation: Operation, label: str = "") -> int:
    """Hand ``operation`` to the submission in use; the ticket, of ``queue``."""
    return backend.current().submission.transfer(queue, operation, label)


@contextmanager
def use(submission: Submission) -> Iterator[Submission]:
    """Have everything in the block go through ``submission``; then through the one before it.

    It is in use for all threads (autograd's too) and all cards, so nest such blocks, and do not
    enter them from two threads at once. A call that is under way on another thread ends with the
    submission it began with, so one in use must bear calls from several threads.
    """
    installed = backend.current()
    before, installed.submission = installed.submission, submission
    try:
        yield submission
    finally:
        installed.submission = before
