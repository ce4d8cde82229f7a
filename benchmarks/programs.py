"""Programs that the benchmarks launch: written with the assembler, saved, and prepared once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_spyre_ref.emulator.assembly import Assembler, Strides
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.spyrecode import Argument, Dimension, LaunchSpec, write_artifact


def prepared(asm: Assembler, spec: LaunchSpec, card: int = 0) -> JobPlan:
    """What was written with ``asm``, by way of an artifact on disk, prepared on a card."""
    with tempfile.TemporaryDirectory() as directory:
        artifact = Path(directory, asm.name)
        write_artifact(artifact, encode(asm.assemble()), spec, name=asm.name)
        return prepare_kernel(artifact, card)


def add(name: str = "add") -> Assembler:
    """c = a + b, 64 elements of float32."""
    asm = Assembler(name)
    n = asm.dimension("n", 64)
    a, b, c = (asm.argument(argument, "float32") for argument in "abc")
    asm.store(c, {n: 1}, asm.load(a, {n: 1}) + asm.load(b, {n: 1}))
    return asm


ADD = LaunchSpec.of(
    [
        Argument("a", "input", "float32", (64,), (1,)),
        Argument("b", "input", "float32", (64,), (1,)),
        Argument("c", "output", "float32", (64,), (1,)),
    ]
)


def add_of_any_size() -> Assembler:
    """c = a + b over rows and columns, sizes and pitches as symbols, float32."""
    asm = Assembler("add_of_any_size")
    rows, columns, pitch = (asm.size_symbol() for _ in range(3))
    r, c = asm.dimension("rows", rows), asm.dimension("columns", columns)
    x, y, out = (asm.argument(argument, "float32") for argument in "abc")
    place: Strides = {r: pitch, c: 1}
    asm.store(out, place, asm.load(x, place) + asm.load(y, place))
    return asm


ADD_OF_ANY_SIZE = LaunchSpec.of(
    [
        Argument("a", "input", "float32", ("rows", "columns"), ("pitch", 1)),
        Argument("b", "input", "float32", ("rows", "columns"), ("pitch", 1)),
        Argument("c", "output", "float32", ("rows", "columns"), ("pitch", 1)),
    ],
    [Dimension(name, 1, 1 << 20) for name in ("rows", "columns", "pitch")],
)


def run(plan: JobPlan, args: Sequence[torch.Tensor]) -> None:
    """One launch, to its end."""
    queue = plan.job.backend.queue(plan.device)
    queue.wait(launch_jobplan(plan, args))
