"""Prepare a program once, launch it often: addresses are known only when it is launched.

A program on a card has one allocation of its own::

    [ correction slot 1 | correction slot 0 | program binary | memory of the job's own ]

A launch fills the next slot with where its arguments lie, how large they are, and its scalars: a
host callback packs it, a transfer brings it to the slot, and the card patches the program from it
as it fetches the two. Nothing of a caller is ever in the program.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.device import index_of
from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.emulator.program import pack_address
from torch_spyre_ref.emulator.program.slot import slot_end
from torch_spyre_ref.jobs.arguments import Arguments, Binding
from torch_spyre_ref.jobs.memory import JobMemory
from torch_spyre_ref.runtime import (
    D2H,
    H2D,
    CompositeAddress,
    DeviceRange,
    EventSignal,
    EventWait,
    Execute,
    Fill,
    HostCallback,
    Queue,
)
from torch_spyre_ref.runtime.lowering import Prepared, anew
from torch_spyre_ref.spyrecode import (
    Artifact,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    LaunchSpec,
    read_artifact,
)

if TYPE_CHECKING:
    from torch_spyre_ref.jobs.programs import Programs

SLOTS: Final = 2


# Make the operations of a launch once
class Patch:
    """The step that packs a launch's correction slot into a staging buffer, on the host."""

    def __init__(self, queue: Queue, buffer: Bytes) -> None:
        self._view = buffer.data
        self._callback = queue.prepare(HostCallback(self._write))

    def bind(self, slot: bytes) -> Prepared:
        """The callback of one launch: what it writes is fixed as it is submitted."""
        return anew(*self._callback, partial(self._write, slot))

    def _write(self, slot: bytes = b"") -> None:
        self._view[:] = slot


class Lane:
    """All that launches through one slot enqueue, with staging buffers of their own.

    Whoever launches next on the same queue may use them: a callback fills them in queue order. On
    another queue they may be used when the last launch through here is over.
    """

    def __init__(self, job: Job, memory: JobMemory, slot: int, queue: Queue) -> None:
        self.queue, self.ticket = queue, 0
        self._job, self._memory, self._slot = job.artifact, memory, slot
        self._shift = job.shift
        self._staging = job.programs.staging
        self._buffers: dict[int, Bytes] = {}
        self.steps = [self._step(step, queue) for step in job.artifact.execution]

    def is_free(self, queue: Queue) -> bool:
        """Whether a launch on ``queue`` may use it."""
        return self.queue is queue or self.queue.is_over(self.ticket)

    def bind(self, queue: Queue, slot: bytes, changes: dict[str, Any]) -> Iterator[Prepared]:
        """The operations of one launch; ``changes`` are fields of its ``Execute``."""
        for step in self.steps:
            if isinstance(step, Execute):
                yield queue.prepare(replace(step, **changes) if changes else step)
            elif isinstance(step, Patch):
                yield step.bind(slot)
            else:
                yield step

    def _step(
        self, step: ComputeOnHost | DataTransfer | ComputeOnDevice, queue: Queue
    ) -> Prepared | Execute | Patch:
        """A transfer is the same every time; the others await what a launch brings."""
        match step:
            case ComputeOnHost(handle, size):
                return Patch(queue, self._buffer(handle, size))
            case DataTransfer("H2D", handle, start, size):
                return queue.prepare(H2D(self._buffer(handle, size), self._range(start, size)))
            case DataTransfer(_, handle, start, size):
                return queue.prepare(D2H(self._range(start, size), self._buffer(handle, size)))
        binary, size = self._job.binary.size, self._job.spec.correction_size
        return Execute(
            self._range(step.job_bin_ptr, binary),
            self._range(step.correction_ptr, size) if size else None,
            memory=self._memory.behind(step.memory_ptr + self._shift),
            owner=self._memory,
        )

    def _buffer(self, handle: int, size: int) -> Bytes:
        if handle not in self._buffers or self._buffers[handle].size < size:
            self._buffers[handle] = self._staging.take(size)
        return self._buffers[handle][:size]

    def _range(self, start: int, size: int) -> DeviceRange:
        """Bytes of the artifact's plan; in front of the binary there is one slot for each lane."""
        binary = self._job.binary.dev_ptr
        back = self._slot * binary if start < binary else 0
        return self._memory.at(start + self._shift - back, size)


# Keep a program on the card
class Job:
    """A program on one card, with its correction slots; on the card only when it is needed."""

    def __init__(self, programs: Programs, artifact: Artifact, slots: int) -> None:
        self.programs, self.artifact, self.slots = programs, artifact, slots
        self.backend, self.device = programs.backend, programs.device
        self.shift = (slots - 1) * artifact.binary.dev_ptr
        self.memory: JobMemory | None = None
        self._lanes: list[list[Lane]] = []
        self._readers: list[tuple[Queue, int] | None] = []
        self._next = 0

    def loaded(self) -> JobMemory:
        """The job's memory, with the binary in it. Raises ``torch.OutOfMemoryError``."""
        if self.memory is None:
            binary, queue = self.artifact.binary, self.backend.queue(self.device)
            nbytes = self.artifact.allocation.size + self.shift
            memory = JobMemory(self.backend, self.device, nbytes)
            first = binary.dev_ptr + self.shift
            if first:  # what no launch has patched is zero, and no address
                queue.submit(Fill(memory.at(0, first), b"\0"), "unpatched")
            staged = self.backend.runtime.pinned.allocate(binary.size).array
            staged[:] = np.frombuffer(self.artifact.program, np.uint8)
            queue.wait(queue.submit(H2D(staged, memory.at(first, binary.size)), "load program"))
            self._lanes = [[] for _ in range(self.slots)]
            self._readers = [None] * self.slots
            self.memory = memory
        return self.memory

    def evict(self) -> None:
        """Take the program off the card; launches that are enqueued keep what they need."""
        self.memory, self._lanes, self._readers = None, [], []

    def enqueue(self, queue: Queue, slot: bytes, changes: dict[str, Any]) -> int:
        """Launch through the next slot; the ticket of the last operation."""
        memory, number = self.loaded(), self._next
        self._next = (number + 1) % self.slots
        lanes, reader = self._lanes[number], self._readers[number]
        lane = next((lane for lane in lanes if lane.is_free(queue)), None)
        if lane is None:
            lane = Lane(self, memory, number, queue)
            lanes.append(lane)
        if reader is not None and reader[0] is not queue and not reader[0].is_over(reader[1]):
            read = EventSignal()
            reader[0].submit(read)
            queue.submit(EventWait(read))
        ticket = queue.submit_prepared(lane.bind(queue, slot, changes), self.artifact.name)
        lane.queue, lane.ticket = queue, ticket
        self._readers[number] = queue, ticket
        return ticket


# Pack a correction slot
class Packer:
    """Where everything goes in the correction slot: addresses in front, then numbers."""

    def __init__(self, spec: LaunchSpec) -> None:
        symbols = sorted(spec.symbols, key=lambda symbol: symbol.offset)
        self._addresses = [s.index for s in symbols if s.kind == "address"]
        self._numbers = [(s.kind == "scalar", s.index) for s in symbols if s.kind != "address"]
        letters = "".join(
            "d" if is_scalar and spec.scalars[index].type == "float" else "q"
            for is_scalar, index in self._numbers
        )
        padding = spec.correction_size - slot_end(len(self._addresses), len(letters))
        self._tail = struct.Struct(f"<{letters}{padding}x")

    def pack(
        self,
        args: Sequence[torch.Tensor],
        scalars: Sequence[int | float],
        binding: Binding,
        nowhere: CompositeAddress,
    ) -> bytes:
        """The slot of a launch. Arguments without elements lie ``nowhere``, which must exist."""
        parts = []
        for index in self._addresses:
            allocation, address = _bridge.locate(args[index])
            if allocation is not None:
                parts.append(pack_address(allocation.composite, address - allocation.address))
                continue
            if not binding.empty[index]:
                device_range(args[index])  # raises: the storage was resized away
            parts.append(pack_address(nowhere, 0))
        numbers = [scalars[i] if is_scalar else binding.sizes[i] for is_scalar, i in self._numbers]
        parts.append(self._tail.pack(*numbers))
        return b"".join(parts)


class JobPlan:
    """A program on one card, to be launched on any arguments that its launch spec allows."""

    def __init__(self, job: Job) -> None:
        self.job, self.spec, self.device = job, job.artifact.spec, job.device
        self.arguments, self.packer = Arguments(self.spec, self.device), Packer(self.spec)

    def patch(self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]) -> bytes:
        """The correction slot of a launch. Raises :class:`LaunchMismatchError`."""
        binding = self.arguments.bind(args, scalars)
        nowhere = self.job.loaded().allocation.composite
        return self.packer.pack(args, scalars, binding, nowhere)

    def __repr__(self) -> str:
        return f"JobPlan({self.job.artifact.name!r} on spyre:{self.device}: {self.spec})"


# Prepare and launch
def prepare_kernel(
    directory: str | os.PathLike[str],
    device: torch.device | int | str | None = None,
    *,
    slots: int = SLOTS,
) -> JobPlan:
    """Read, check and load the artifact in ``directory``: all that can be done before a launch.

    Args:
        directory: what :func:`torch_spyre_ref.spyrecode.write_artifact` wrote.
        device: the card; by default the current one.
        slots: correction slots: so many launches can be under way with patches of their own.

    Raises:
        ArtifactError: the directory is no artifact that this card can run.
        torch.OutOfMemoryError: the card has no room for it.
    """
    index = index_of(device)
    if slots < 1:
        raise ValueError(f"{slots} correction slots asked for; there must be 1 or more")
    programs = backend.current().programs(index)
    return JobPlan(programs.job(read_artifact(directory), slots))


def launch_jobplan(
    plan: JobPlan,
    args: Sequence[torch.Tensor],
    scalars: Sequence[int | float] = (),
    *,
    queue: Queue | None = None,
    barrier: bool = True,
) -> int:
    """Enqueue one launch of ``plan``, and return the ticket of its last operation.

    Args:
        args: tensors on the plan's card, in the order of the launch spec.
        scalars: its numbers, in order.
        queue: where to; by default the queue that this thread's work goes to.
        barrier: whether the card holds the fetch back until the program's turn; off is for drills.

    Raises:
        LaunchMismatchError: an argument is not what the spec says; nothing was enqueued.
    """
    queue = queue or plan.job.backend.queue(plan.device)
    with plan.job.programs.lock:
        slot = plan.patch(args, scalars)
        changes: dict[str, Any] = plan.arguments.touched(args) if queue.is_checked else {}
        return plan.job.enqueue(queue, slot, changes if barrier else {**changes, "barrier": False})
