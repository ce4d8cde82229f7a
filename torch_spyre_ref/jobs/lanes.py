"""The operations of a launch, made once: an artifact's execution plan for one slot of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.jobs.memory import JobMemory
from torch_spyre_ref.runtime import (
    D2H,
    H2D,
    DeviceRange,
    Execute,
    HostCallback,
    Prepared,
    Queue,
)
from torch_spyre_ref.runtime.lowering import again, of_job, rerun
from torch_spyre_ref.spyrecode import Artifact, ComputeOnDevice, ComputeOnHost, DataTransfer

if TYPE_CHECKING:
    from torch_spyre_ref.launch import Job
    from torch_spyre_ref.submission import BoundLaunch, Submission

Queues = tuple[Queue, Queue]
"""Where a launch computes, and where it is prepared."""

WHOLE: Final = slice(None)


def write_slot() -> None:
    """What the prepared callback is named by: each launch writes bytes of its own."""


# --8<-- [start:patch]
class Patch:
    """The step that packs a launch's correction slot into a staging buffer, on the host."""

    def __init__(self, queue: Queue, buffer: Bytes) -> None:
        self._put = buffer.data.__setitem__
        self._callback = queue.prepare(HostCallback(write_slot, staging=buffer))

    def bind(self, patch: bytes, how: dict[str, Any]) -> Prepared:
        """The callback of one launch: what it writes is fixed as it is submitted."""
        return again(*self._callback, partial(self._put, WHOLE, patch))
        # --8<-- [end:patch]


class Run:
    """The step that runs the program, which the card fetches anew each time."""

    def __init__(self, queue: Queue, operation: Execute) -> None:
        self._held_back = queue.prepare(operation)
        self._running_ahead = queue.prepare(replace(operation, barrier=False))

    def bind(self, patch: bytes, how: dict[str, Any]) -> Prepared:
        """The run of one launch: whether a ``barrier`` holds its fetch back, and what is
        ``touched`` by it."""
        run = self._held_back if how["barrier"] else self._running_ahead
        return rerun(*run, how["touched"])


def preparation_steps(artifact: Artifact) -> int:
    """How many steps of a launch, from its first on, touch nothing but its correction slot."""
    binary = artifact.binary.dev_ptr
    for index, step in enumerate(artifact.execution):
        is_patch = isinstance(step, DataTransfer) and step.dirn == "H2D" and step.dev_ptr < binary
        if not (isinstance(step, ComputeOnHost) or is_patch):
            return index
    return len(artifact.execution)


class Lane:
    """All that launches through one slot enqueue, with staging buffers of their own.

    Whoever prepares and launches next on the same queues may use them: a callback fills them in
    queue order. On other queues they may be used when the last launch through here is over.
    """

    def __init__(self, job: Job, memory: JobMemory, slot: int, queues: Queues) -> None:
        self._queues, self._tickets = queues, (0, 0)
        self._job, self._memory, self._slot = job.artifact, memory, slot
        self._shift = job.shift
        self._staging = job.programs.staging
        self._buffers: dict[int, Bytes] = {}
        steps = [self._step(step, queues[0]) for step in job.artifact.execution]
        self._steps = [step if isinstance(step, tuple) else None for step in steps]
        self._open = [(i, s.bind) for i, s in enumerate(steps) if not isinstance(s, tuple)]
        self._first = preparation_steps(job.artifact)

    def is_free(self, queues: Queues) -> bool:
        """Whether a launch that is prepared on the second of two queues may use it."""
        if self._queues == queues:
            return True
        (computing, preparing), (run, prepared) = self._queues, self._tickets
        # A run that is dropped is over before its preparation, which goes on.
        return computing.is_over(run) and preparing.is_over(prepared)

    def launch(self, submission: Submission, queue: Queue, bound: BoundLaunch) -> int:
        """Enqueue a launch that was bound here; the ticket of its last operation.

        If only part of it could be enqueued, waits until that is over: nobody else knows of it.
        """
        queue.require_written(bound.compute)
        try:
            ticket = submission.launch(queue, bound)
        except BaseException:
            bound.prepared_on.settle()
            queue.settle()
            raise
        first = bound.prepared_on
        self._queues, self._tickets = (queue, first), (ticket, first.last)
        bound.slot.used(self._queues, self._tickets)
        return ticket

    def bind(
        self, patch: bytes, how: dict[str, Any]
    ) -> tuple[Sequence[Prepared], Sequence[Prepared]]:
        """Preparation and compute of one launch."""
        steps: list[Any] = self._steps[:]
        for place, bind in self._open:
            steps[place] = bind(patch, how)
        return steps[: self._first], steps[self._first :]

    # --8<-- [start:step]
    def _step(
        self, step: ComputeOnHost | DataTransfer | ComputeOnDevice, queue: Queue
    ) -> Prepared | Patch | Run:
        """A transfer is the same every time; the others await what a launch brings."""
        match step:
            case ComputeOnHost(handle, size):
                return Patch(queue, self._buffer(handle, size))
            case DataTransfer("H2D", handle, start, size):
                transfer = queue.prepare(H2D(self._buffer(handle, size), self._range(start, size)))
                is_patch = start < self._job.binary.dev_ptr
                return of_job(*transfer, self._memory.touched) if is_patch else transfer
            case DataTransfer(_, handle, start, size):
                return queue.prepare(D2H(self._range(start, size), self._buffer(handle, size)))
        binary, size = self._job.binary.size, self._job.spec.correction_size
        operation = Execute(
            self._range(step.job_bin_ptr, binary),
            self._range(step.correction_ptr, size) if size else None,
            memory=self._memory.behind(step.memory_ptr + self._shift),
            owner=self._memory,
        )
        return Run(queue, operation)
        # --8<-- [end:step]

    def _buffer(self, handle: int, size: int) -> Bytes:
        if handle not in self._buffers or self._buffers[handle].size < size:
            self._buffers[handle] = self._staging.take(size)
        return self._buffers[handle][:size]

    def _range(self, start: int, size: int) -> DeviceRange:
        """Bytes of the artifact's plan; in front of the binary there is one slot for each lane."""
        binary = self._job.binary.dev_ptr
        back = self._slot * binary if start < binary else 0
        return self._memory.at(start + self._shift - back, size)
