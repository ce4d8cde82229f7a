"""The artifact: one program, how it is prepared once, and how each launch of it goes.

The two plans speak of the job's one allocation in byte offsets::

    [ correction region | program binary | memory of the job's own ]

The correction region has one correction slot here. A launcher that keeps several puts the others in
front and moves every offset up; the program never knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from torch_spyre_ref.emulator.program.slot import STICK
from torch_spyre_ref.spyrecode.schema import AtMost, Command, Place, Record, Text, Whole
from torch_spyre_ref.spyrecode.spec import MAX_SLOT, LaunchSpec

DOCUMENT: Final = "spyrecode.json"
BINARY: Final = "program.bin"
MAX_DOCUMENT: Final = 1 << 20
MAX_PROGRAM: Final = 64 << 20
MAX_JOB: Final = 128 << 30
MAX_HOST: Final = 64 << 20

_MAX_COMMANDS: Final = 64

Offset = Annotated[int, Whole(0, MAX_JOB, step=STICK)]
Handle = Annotated[int, Whole(0, _MAX_COMMANDS - 1)]
Digest = Annotated[str, Text(r"[0-9a-f]{64}", "a SHA-256 digest, 64 digits of 0-9a-f")]
# No slash and no leading dot: the name of a file in the artifact's own directory.
FileName = Annotated[str, Text(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "the plain name of a file")]


@dataclass(frozen=True, slots=True)
class Allocate(Command):
    """Take ``size`` bytes of card memory for the job."""

    size: Offset


@dataclass(frozen=True, slots=True)
class InitTransfer(Command):
    """Load the program binary, ``size`` bytes in a file beside the document, to ``dev_ptr``."""

    init_bin_file: FileName
    dev_ptr: Offset
    size: Annotated[int, Whole(1, MAX_PROGRAM)]
    sha256: Digest


@dataclass(frozen=True, slots=True)
class ComputeOnHost(Command):
    """Fill the host buffer ``ohandle`` with the correction slot of this launch."""

    ohandle: Handle
    size: Annotated[int, Whole(1, MAX_SLOT)]


@dataclass(frozen=True, slots=True)
class DataTransfer(Command):
    """Move ``size`` bytes between a host buffer and the job's allocation."""

    dirn: Literal["H2D", "D2H"]
    host_handle: Handle
    dev_ptr: Offset
    size: Annotated[int, Whole(1, MAX_JOB)]


@dataclass(frozen=True, slots=True)
class ComputeOnDevice(Command):
    """Run the binary with a correction slot, and with the job's own memory at ``memory_ptr``."""

    job_bin_ptr: Offset
    correction_ptr: Offset
    memory_ptr: Offset


Preparation = Allocate | InitTransfer
Execution = ComputeOnHost | DataTransfer | ComputeOnDevice


@dataclass(frozen=True, slots=True)
class Artifact(Record):
    """A program and all that is known of it. ``digest`` names the whole content, program included.

    ``program`` is opaque here. Its integers, and those of the correction slot, are little-endian.
    """

    format: Literal["spyrecode"]
    version: Literal[1]
    digest: Digest
    name: Annotated[str, Text(r"[ -~]{1,64}", "a name of printable ASCII, at most 64")]
    preparation: Annotated[tuple[Preparation, ...], AtMost(_MAX_COMMANDS)] = field(
        metadata={"key": "JobPreparationPlan"}
    )
    execution: Annotated[tuple[Execution, ...], AtMost(_MAX_COMMANDS)] = field(
        metadata={"key": "JobExecPlan"}
    )
    spec: LaunchSpec = field(metadata={"key": "LaunchSpec"})
    program: bytes = field(default=b"", repr=False, metadata={"key": None})

    @property
    def allocation(self) -> Allocate:
        """How the job's memory is taken."""
        return next(step for step in self.preparation if isinstance(step, Allocate))

    @property
    def binary(self) -> InitTransfer:
        """Where the program lies, in the directory and in the job's memory."""
        return next(step for step in self.preparation if isinstance(step, InitTransfer))

    def verify(self, place: Place) -> None:
        here = place.at("JobPreparationPlan")
        kinds = [type(step) for step in self.preparation]
        names = ", ".join(kind.__name__ for kind in kinds) or "no steps"
        here.require(kinds == [Allocate, InitTransfer], names, "Allocate, InitTransfer")
        _inside(self._job, self.binary.dev_ptr, self.binary.size, here.at(1).at("properties"))
        self._verify_execution(place.at("JobExecPlan"))
        runs = any(isinstance(step, ComputeOnDevice) for step in self.execution)
        place.at("JobExecPlan").require(runs, "no ComputeOnDevice", "at least one")

    @property
    def _job(self) -> range:
        return range(self.allocation.size)

    def _verify_execution(self, place: Place) -> None:
        """Follow the plan: what each host buffer holds, and which bytes each step may touch."""
        binary, slot = self.binary.dev_ptr, self.spec.correction_size
        correction, memory = self._job[:binary], self._job[after(self.binary) :]
        buffers: dict[int, int] = {}  # what each holds now
        largest: dict[int, int] = {}
        slots, patched = set[int](), set[tuple[int, int]]()
        for index, step in enumerate(self.execution):
            here = place.at(index).at("properties")
            match step:
                case ComputeOnHost(handle, size):
                    here.require(size == slot, f"size {size}", f"{slot}, a correction slot")
                    buffers[handle] = size
                    slots.add(handle)
                case DataTransfer("D2H", handle, start, size):
                    _inside(self._job, start, size, here)
                    buffers[handle] = size
                    slots.discard(handle)
                case DataTransfer(_, handle, start, size):
                    held = buffers.get(handle, 0)
                    here.require(size == held, f"size {size}", f"{held}, all that the buffer holds")
                    _inside(correction if start < binary else memory, start, size, here)
                    patched = {(s, n) for s, n in patched if s + n <= start or start + size <= s}
                    if handle in slots:
                        patched.add((start, size))
                case ComputeOnDevice(program, start, own):
                    wrong = f"job_bin_ptr {program}"
                    here.require(program == binary, wrong, f"{binary}, where the program is")
                    _inside(correction, start, slot, here)
                    _inside(memory, own, 0, here)
                    wrong = f"a slot at {start}, which no transfer before has filled"
                    here.require(not slot or (start, slot) in patched, wrong, "one that is filled")
            largest |= {h: max(n, largest.get(h, 0)) for h, n in buffers.items()}
            total = sum(largest.values())
            allowed = f"at most {MAX_HOST} in all"
            here.require(total <= MAX_HOST, f"host buffers of {total} bytes", allowed)


def after(binary: InitTransfer) -> int:
    """The first byte behind the program that may be the job's own: on a stick."""
    return -(-(binary.dev_ptr + binary.size) // STICK) * STICK


def _inside(area: range, start: int, size: int, place: Place) -> None:
    holds = area.start <= start and start + size <= area.stop
    place.require(
        holds, f"bytes {start} to {start + size}", f"bytes within {area.start} to {area.stop}"
    )
