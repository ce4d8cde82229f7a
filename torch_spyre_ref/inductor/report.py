"""What a compiled function does on a card: its kernels, their scratchpad, traffic and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_spyre_ref.emulator.program import decode
from torch_spyre_ref.inductor.launcher import Launch, recording


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One launch: sticks through memory, bytes of scratchpad a core, virtual ns."""

    name: str
    stages: int
    passes: int
    instructions: int
    scratchpad: int
    loaded: int
    stored: int
    duration: int

    @property
    def sticks(self) -> int:
        """Sticks that go through memory, both ways."""
        return self.loaded + self.stored


@dataclass(frozen=True, slots=True)
class Explanation:
    """The kernels that one call of a function launched, in order."""

    kernels: tuple[KernelReport, ...]

    def __repr__(self) -> str:
        heads = ("kernel", "passes", "instructions", "scratchpad", "loaded", "stored", "virtual us")
        lines = [heads, *(_line(kernel) for kernel in self.kernels)]
        sums = [sum(getattr(k, name) for k in self.kernels) for name in ("loaded", "stored")]
        time = sum(kernel.duration for kernel in self.kernels) / 1_000
        lines.append(("all", "", "", "", *map(str, sums), f"{time:.1f}"))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if n else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )


def _line(kernel: KernelReport) -> tuple[str, ...]:
    numbers = (kernel.passes, kernel.instructions, kernel.scratchpad, kernel.loaded, kernel.stored)
    return (kernel.name, *map(str, numbers), f"{kernel.duration / 1_000:.1f}")


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Call a compiled function once, and say what it launched.

    A kernel's name lists the operations that were fused into it; scratchpad is bytes a core.
    What ran outside of kernels, copies and fallbacks, is not listed: see
    ``torch.spyre.fallback_report()``.
    """
    launches: list[Launch] = []
    token = recording.set(launches)
    try:
        function(*args, **kwargs)
    finally:
        recording.reset(token)
    return Explanation(tuple(_report(launch) for launch in launches))


def _report(launch: Launch) -> KernelReport:
    artifact = launch.artifact
    executable = decode(artifact.program)
    patched = executable.patch(launch.slot)
    stages = executable.program.stages
    ends = [v.offset + v.depth * v.nbytes for stage in stages for v in stage.values]
    return KernelReport(
        artifact.name,
        len(stages),
        sum(len({i.turn for i in stage.instructions}) for stage in stages),
        sum(len(stage.instructions) for stage in stages),
        max(ends, default=0),
        sum(cost.loaded for cost in patched.costs),
        sum(cost.stored for cost in patched.costs),
        patched.duration,
    )


EXPORTS = (explain,)
