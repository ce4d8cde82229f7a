"""The submission seam: the one door between the PyTorch side and the runtime's queues.

Copies, fills and the loading of programs hand over one operation at a time; a launch hands over all
of its operations at once, with what they were made from. The :class:`Submission` in use,
``backend.current().submission``, decides how they are enqueued: on two queues as shipped
(:mod:`torch_spyre_ref.streams`), all on one, or by way of something else altogether. What lies
above it does not know.

(Poison, which no user asks for, goes to its queue directly.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.runtime import Operation, Place, Queue

if TYPE_CHECKING:
    from torch_spyre_ref.launch import Job
    from torch_spyre_ref.runtime import Prepared


class Slot:
    """A correction slot of a job on a card, and who was last patched from it.

    ``queue`` and ``ticket`` name the last operation of that launch; the launch that comes next may
    write the slot when it is over, well or not, and so is its preparation.
    """

    __slots__ = ("number", "prepared", "queue", "ticket")

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: Queue | None = None
        self.ticket = 0
        self.prepared: Place | None = None

    def used(self, queues: tuple[Queue, Queue], tickets: tuple[int, int]) -> None:
        """A launch goes through it: where it computes and is prepared, and its last tickets
        there."""
        (self.queue, preparing), (self.ticket, prepared) = queues, tickets
        self.prepared = (preparing, prepared) if preparing is not self.queue else None

    def reader(self) -> Place | None:
        """The queue and ticket of the launch that may still read the slot, or write it."""
        if self.queue is None:
            return None
        if not self.queue.is_over(self.ticket):
            return self.queue, self.ticket
        # A run that was dropped is over before its preparation, which goes on.
        if self.prepared is not None and not self.prepared[0].is_over(self.prepared[1]):
            return self.prepared
        return None


class BoundLaunch(NamedTuple):
    """One launch, bound to its arguments and lowered, but not enqueued.

    ``preparation`` packs ``patch``, the correction slot's bytes, and brings them to ``slot``; it
    touches nothing else on the card. It goes to queue ``prepared_on``, which was asked for before:
    its staging buffer is free in the order of that queue, and of no other. ``compute`` is the rest,
    in order: the program's run, and what comes before and after it in the job's memory.

    ``args`` and ``scalars`` are what ``patch`` was packed from, in the order of
    ``job.artifact.spec``; ``device_range(arg)`` says where an argument lies and how large it is.
    They are good until ``launch`` returns: keep none of them.
    """

    job: Job
    slot: Slot
    patch: bytes
    args: Sequence[torch.Tensor]
    scalars: Sequence[int | float]
    prepared_on: Queue
    preparation: Sequence[Prepared]
    compute: Sequence[Prepared]

    @property
    def label(self) -> str:
        """What the timeline calls its operations."""
        return self.job.artifact.name


class Submission(Protocol):
    """How operations reach the queues.

    ``queue`` is the one that the caller's work goes to. ``transfer`` and ``launch`` return a ticket
    of *that* queue: when it is over, all that was handed over is, and memory that it used is free.
    Both raise as :meth:`Queue.submit` does, and then nothing more of what was handed over is
    enqueued.
    """

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        """Enqueue one copy, fill or load, or an event that orders two of them."""
        ...

    def prepares_on(self, queue: Queue) -> Queue:
        """Where the next launch on ``queue`` is to be prepared."""
        ...

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        """Enqueue a launch: preparation, then compute. Only packing may begin before the slot is
        free."""
        ...


class OneQueue:
    """Everything goes to the caller's queue, in order."""

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        """See :class:`Submission`."""
        return queue.submit(operation, label)

    def prepares_on(self, queue: Queue) -> Queue:
        """See :class:`Submission`."""
        return queue

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        """See :class:`Submission`. Only a reader on another queue has to be waited for."""
        steps = (*bound.preparation, *bound.compute)
        return queue.submit_prepared(steps, bound.label, behind=bound.slot.reader())


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
