# Produced by chapters/03_launch.py: edit it there, then run `make tangle`.
"""A program learns where its tensors are when it is launched.

Programs are compiled ahead of time, and only a launch knows where its tensors lie. So a program is
prepared once, with its addresses left open, and launched often: a launch packs what was open into
a correction slot, a transfer brings the slot to the card, and the card patches the program from it
as it fetches the two. Nothing of a caller is ever in the program.
"""

import os
import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from torch_spyre_ref import backend
from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.device import index_of
from torch_spyre_ref.emulator.program.slot import STICK, pack_address, slot_end
from torch_spyre_ref.jobs.aliasing import Overlaps
from torch_spyre_ref.jobs.arguments import Arguments, Binding, Located
from torch_spyre_ref.jobs.lanes import Lane
from torch_spyre_ref.jobs.memory import JobMemory
from torch_spyre_ref.jobs.refusal import require_good
from torch_spyre_ref.runtime import H2D, Fill, Queue
from torch_spyre_ref.runtime.lowering import Touched
from torch_spyre_ref.spyrecode import Artifact, LaunchSpec, read_artifact
from torch_spyre_ref.submission import BoundLaunch, Slot, transfer


# Pack a correction slot
class Packer:
    """Where everything goes in the correction slot: addresses in front, then numbers."""

    def __init__(self, spec: LaunchSpec) -> None:
        symbols = sorted(spec.symbols, key=lambda symbol: symbol.offset)
        self._addresses = [s.index for s in symbols if s.kind == "address"]
        self._numbers = [(s.kind == "scalar", s.index) for s in symbols if s.kind != "address"]
        letters = (
            "d" if is_scalar and spec.scalars[index].type == "float" else "q"
            for is_scalar, index in self._numbers
        )
        taken = slot_end(len(self._addresses), len(self._numbers))
        self._tail = struct.Struct(f"<{''.join(letters)}{-taken % STICK}x")

    def pack(
        self,
        scalars: Sequence[int | float],
        binding: Binding,
        located: Located,
        nowhere: Allocation,
    ) -> bytes:
        """The slot of a launch. Arguments without elements lie ``nowhere``, which must exist."""
        parts = []
        for index in self._addresses:
            owner, address = located[index]
            if owner is None:
                owner, address = nowhere, nowhere.address
            parts.append(pack_address(owner.composite, address - owner.address))
        if self._tail.size:
            sizes = binding.sizes
            numbers = [scalars[i] if given else sizes[i] for given, i in self._numbers]
            parts.append(self._tail.pack(*numbers))
        return b"".join(parts)


# Load a program
def load(job: "Job", memory: JobMemory) -> int:
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
if TYPE_CHECKING:
    from torch_spyre_ref.jobs.programs import Programs


class Job:
    """A program on one card, with its correction slots; on the card only when it is needed."""

    def __init__(self, programs: "Programs", artifact: Artifact, slots: int) -> None:
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
        how: dict[str, Any],
    ) -> int:
        """Launch through the next slot; the ticket of the last operation."""
        memory, number = self.loaded(), self._next
        self._next = (number + 1) % self.slots
        submission, slot = self.backend.submission, self._slots[number]
        first = submission.prepares_on(queue)
        lane = self._lane(memory, number, (queue, first))
        preparation, compute = lane.bind(patch, how)
        bound = BoundLaunch(self, slot, patch, args, scalars, first, preparation, compute)
        return lane.launch(submission, queue, bound)

    def _lane(self, memory: JobMemory, number: int, queues: tuple[Queue, Queue]) -> Lane:
        lanes = self._lanes[number]
        for lane in lanes:
            if lane.is_free(queues):
                return lane
        lanes.append(Lane(self, memory, number, queues))
        return lanes[-1]


# Plan the launches of a program
class JobPlan:
    """A program on one card, to be launched on any arguments that its launch spec allows."""

    def __init__(self, job: Job) -> None:
        self.job, self.spec, self.device = job, job.artifact.spec, job.device
        self.arguments, self.packer = Arguments(self.spec, self.device), Packer(self.spec)
        self.overlaps = Overlaps(job.artifact)

    def patch(self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]) -> bytes:
        """The correction slot of a launch. Raises :class:`LaunchMismatchError`."""
        return self.bind(args, scalars)[0]

    def bind(
        self, args: Sequence[torch.Tensor], scalars: Sequence[int | float]
    ) -> tuple[bytes, Touched]:
        """The correction slot, and whom to ask what the launch touches. Raises as ``patch``."""
        binding, located = self.arguments.bind(args, scalars)
        self.overlaps.refuse(args, binding, located)
        nowhere = self.job.loaded().allocation
        patch = self.packer.pack(scalars, binding, located, nowhere)
        return patch, partial(binding.places.touched, patch)

    def __repr__(self) -> str:
        return f"JobPlan({self.job.artifact.name!r} on spyre:{self.device}: {self.spec})"


# Prepare a program
SLOTS: Final = 2


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
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise ValueError(f"{slots!r} correction slots asked for; expected a whole number from 1 on")
    programs = backend.current().programs(index)
    return JobPlan(programs.job(read_artifact(directory), slots))


# Launch a program
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

    Raises :class:`LaunchMismatchError`, or ``QueueError`` for a queue that is poisoned or closed,
    before anything is enqueued.
    """
    if not isinstance(plan, JobPlan):
        given = type(plan).__name__
        raise TypeError(f"{given} was given; expected a JobPlan, which prepare_kernel makes")
    queue = plan.job.backend.queue(plan.device) if queue is None else queue
    with plan.job.programs.lock:
        require_good(queue, plan.device)
        patch, touched = plan.bind(args, scalars)
        how = {"touched": touched, "barrier": barrier}
        return plan.job.launch(queue, patch, args, scalars, how)
