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
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.device import index_of
from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.emulator.program import pack_address
from torch_spyre_ref.emulator.program.slot import slot_end
from torch_spyre_ref.jobs.aliasing import refuse_overlap
from torch_spyre_ref.jobs.arguments import Arguments, Binding
from torch_spyre_ref.jobs.memory import JobMemory
from torch_spyre_ref.runtime import (
    D2H,
    H2D,
    DeviceRange,
    Execute,
    Fill,
    HostCallback,
    Prepared,
    Queue,
)
from torch_spyre_ref.runtime.lowering import again, rerun
from torch_spyre_ref.spyrecode import (
    Artifact,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    LaunchSpec,
    read_artifact,
)
from torch_spyre_ref.submission import BoundLaunch, Slot, transfer

if TYPE_CHECKING:
    from torch_spyre_ref.jobs.programs import Programs

SLOTS: Final = 2


# Make the operations of a launch once
class Patch:
    """The step that packs a launch's correction slot into a staging buffer, on the host."""

    def __init__(self, queue: Queue, buffer: Bytes) -> None:
        self._view = buffer.data
        self._callback = queue.prepare(HostCallback(self._write))

    def bind(self, patch: bytes, changes: dict[str, Any]) -> Prepared:
        """The callback of one launch: what it writes is fixed as it is submitted."""
        return again(*self._callback, partial(self._write, patch))

    def _write(self, patch: bytes = b"") -> None:
        self._view[:] = patch


class Run:
    """The step that runs the program, which the card fetches anew each time."""

    def __init__(self, queue: Queue, operation: Execute) -> None:
        self._prepare, self._run = queue.prepare, queue.prepare(operation)
        self._execute = operation

    def bind(self, patch: bytes, changes: dict[str, Any]) -> Prepared:
        """The run of one launch; ``changes`` are fields of its ``Execute``."""
        if changes:
            return self._prepare(replace(self._execute, **changes))
        return rerun(*self._run)


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

    Whoever launches next on the same queue may use them: a callback fills them in queue order. On
    another queue they may be used when the last launch through here is over.
    """

    def __init__(self, job: Job, memory: JobMemory, slot: int, queue: Queue) -> None:
        self.queue, self.ticket = queue, 0
        self._job, self._memory, self._slot = job.artifact, memory, slot
        self._shift = job.shift
        self._staging = job.programs.staging
        self._buffers: dict[int, Bytes] = {}
        steps = [self._step(step, queue) for step in job.artifact.execution]
        first = preparation_steps(job.artifact)
        self._preparation, self._compute = steps[:first], steps[first:]

    def is_free(self, queue: Queue) -> bool:
        """Whether a launch on ``queue`` may use it."""
        return self.queue is queue or self.queue.is_over(self.ticket)

    def bind(
        self, patch: bytes, changes: dict[str, Any]
    ) -> tuple[Sequence[Prepared], Sequence[Prepared]]:
        """Preparation and compute of one launch; ``changes`` are fields of its ``Execute``."""
        return (
            [s if isinstance(s, tuple) else s.bind(patch, changes) for s in self._preparation],
            [s if isinstance(s, tuple) else s.bind(patch, changes) for s in self._compute],
        )

    def _step(
        self, step: ComputeOnHost | DataTransfer | ComputeOnDevice, queue: Queue
    ) -> Prepared | Patch | Run:
        """A transfer is the same every time; the others await what a launch brings."""
        match step:
            case ComputeOnHost(handle, size):
                return Patch(queue, self._buffer(handle, size))
            case DataTransfer("H2D", handle, start, size):
                return queue.prepare(H2D(self._buffer(handle, size), self._range(start, size)))
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

    def _buffer(self, handle: int, size: int) -> Bytes:
        if handle not in self._buffers or self._buffers[handle].size < size:
            self._buffers[handle] = self._staging.take(size)
        return self._buffers[handle][:size]

    def _range(self, start: int, size: int) -> DeviceRange:
        """Bytes of the artifact's plan; in front of the binary there is one slot for each lane."""
        binary = self._job.binary.dev_ptr
        back = self._slot * binary if start < binary else 0
        return self._memory.at(start + self._shift - back, size)


# Bring a program to the card
def load(job: Job, memory: JobMemory) -> int:
    """Write a job's binary to its memory; the ticket of the transfer, which is over."""
    binary, queue = job.artifact.binary, job.backend.queue(job.device)
    first = binary.dev_ptr + job.shift
    if first:  # what no launch has patched is zero, and no address
        transfer(queue, Fill(memory.at(0, first), b"\0"), "unpatched")
    staged = job.backend.runtime.pinned.allocate(binary.size).array
    staged[:] = np.frombuffer(job.artifact.program, np.uint8)
    ticket = transfer(queue, H2D(staged, memory.at(first, binary.size)), "load program")
    queue.wait(ticket)
    return ticket


# Keep a program on the card
class Job:
    """A program on one card, with its correction slots; on the card only when it is needed."""

    def __init__(self, programs: Programs, artifact: Artifact, slots: int) -> None:
        self.programs, self.artifact, self.slots = programs, artifact, slots
        self.backend, self.device = programs.backend, programs.device
        self.shift = (slots - 1) * artifact.binary.dev_ptr
        self.memory: JobMemory | None = None
        self._lanes: list[list[Lane]] = []
        self._slots: list[Slot] = []
        self._next = self._loaded_at = 0

    def loaded(self) -> JobMemory:
        """The job's memory, with the binary in it. Raises ``torch.OutOfMemoryError``."""
        if self.memory is None:
            nbytes = self.artifact.allocation.size + self.shift
            memory = JobMemory(self.backend, self.device, nbytes)
            self._loaded_at = load(self, memory)
            self._lanes = [[] for _ in range(self.slots)]
            self._slots = [Slot(number) for number in range(self.slots)]
            self.memory = memory
        return self.memory

    @property
    def last_used(self) -> int:
        """The ticket of its last launch, or else of its loading."""
        return max(self._loaded_at, *(slot.ticket for slot in self._slots))

    def evict(self) -> None:
        """Take the program off the card; launches that are enqueued keep what they need."""
        self.memory, self._lanes, self._slots = None, [], []

    def launch(
        self,
        queue: Queue,
        patch: bytes,
        args: Sequence[torch.Tensor],
        scalars: Sequence[int | float],
        changes: dict[str, Any],
    ) -> int:
        """Launch through the next slot; the ticket of the last operation."""
        memory, number = self.loaded(), self._next
        self._next = (number + 1) % self.slots
        lane, slot = self._lane(memory, number, queue), self._slots[number]
        preparation, compute = lane.bind(patch, changes)
        bound = BoundLaunch(self, slot, patch, args, scalars, preparation, compute)
        ticket = self.backend.submission.launch(queue, bound)
        lane.queue = slot.queue = queue
        lane.ticket = slot.ticket = ticket
        return ticket

    def _lane(self, memory: JobMemory, number: int, queue: Queue) -> Lane:
        lanes = self._lanes[number]
        for lane in lanes:
            if lane.is_free(queue):
                return lane
        lanes.append(Lane(self, memory, number, queue))
        return lanes[-1]


# Pack a correction slot
class Packer:
    """Where everything goes in the correction slot: addresses in front, then numbers."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
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
        nowhere: Allocation,
    ) -> bytes:
        """The slot of a launch. Arguments without elements lie ``nowhere``, which must exist.

        Raises :class:`LaunchMismatchError` for arguments that overlap where they must not.
        """
        parts, owners = [], set()
        for index in self._addresses:
            owner, address = _bridge.locate(args[index])
            if owner is None:
                if not binding.empty[index]:
                    device_range(args[index])  # raises: the storage was resized away
                owner, address = nowhere, nowhere.address
            owners.add(owner)
            parts.append(pack_address(owner.composite, address - owner.address))
        if len(owners) < len(parts):
            refuse_overlap(self._spec, args)
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
        return self.packer.pack(args, scalars, binding, self.job.loaded().allocation)

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
    """Enqueue one launch of ``plan``; the ticket of its last operation.

    Args:
        args: tensors on the plan's card, in the order of the launch spec.
        scalars: its numbers, in order.
        queue: where to; by default the queue that this thread's work goes to.
        barrier: whether the card holds the fetch back until the program's turn; off is for drills.

    Raises :class:`LaunchMismatchError` before anything is enqueued.
    """
    queue = queue or plan.job.backend.queue(plan.device)
    with plan.job.programs.lock:
        patch = plan.patch(args, scalars)
        changes: dict[str, Any] = plan.arguments.touched(args) if queue.is_checked else {}
        if not barrier:
            changes["barrier"] = False
        return plan.job.launch(queue, patch, args, scalars, changes)
