"""One kernel: nodes that Inductor fused, as the program or programs that compute them.

The first program that fits is taken: all in one stage with every value held that a later pass
needs; all in one stage with such values made again; a stage for each node. Where only the size of a
launch says whether the first one fits, the kernel has two, and the generated code chooses.

Kernels may also be joined: one program has the stages of each, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

import sympy
from torch._inductor.codegen.common import Kernel
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import Program, ScratchpadError
from torch_spyre_ref.emulator.program.check import held
from torch_spyre_ref.emulator.program.model import MAX_PASSES
from torch_spyre_ref.emulator.program.units import OPS
from torch_spyre_ref.inductor.launch_arguments import LaunchArguments
from torch_spyre_ref.inductor.loop_tracer import OverwrittenError
from torch_spyre_ref.inductor.stage import Stage, nest_of, unbounded

Node: TypeAlias = Any  # a SchedulerNode


class Variant(NamedTuple):
    """A program of a kernel, and the sizes up to which it may be launched."""

    program: Program
    limits: list[tuple[sympy.Expr, int]]


class Staged(NamedTuple):
    """Nodes that make a stage, and whether it holds what a later pass needs."""

    nodes: Sequence[Node]
    hold: bool


class Programs(Kernel[Any]):
    """What Inductor asks of a kernel, and its programs; all take the same ``arguments``.

    ``stages`` are those of the first of its ``variants``.
    """

    variants: list[Variant]
    stages: list[Staged]

    def __init__(self, nodes: Sequence[Node], name: str, removed: AbstractSet[str]) -> None:
        super().__init__()
        self.nodes, self.name = list(nodes), name
        self.removed_buffers |= removed
        self.arguments = LaunchArguments(self.nodes, self.removed_buffers)

    def _assembled(self, stages: Sequence[Staged]) -> Program:
        asm = Assembler(self.name)
        declared = self.arguments.declare(asm)
        for nodes, hold in stages:
            Stage(self, asm, declared, nodes, hold).trace()
        program = asm.assemble()
        if any(len(stage.passes) > MAX_PASSES for stage in program.stages):
            raise ScratchpadError(f"{self.name} has more than {MAX_PASSES} passes")
        return program


class SpyreKernel(Programs):
    """The kernel of nodes that were fused: one stage, or one for each of them."""

    def __init__(self, nodes: Sequence[Node], name: str) -> None:
        super().__init__(nodes, name, _private(nodes))
        self.stages = []
        self.variants = self._in_one_stage() if nest_of(self.nodes) else []
        if not self.variants or self.variants[-1].limits:
            self.removed_buffers.clear()
            self.arguments = LaunchArguments(self.nodes, self.removed_buffers)
            self.stages = [Staged([node], False) for node in self.nodes]
            self.variants = [Variant(self._assembled(self.stages), [])]

    def _in_one_stage(self) -> list[Variant]:
        variants = []
        for hold in (True, False):
            stage = Staged(self.nodes, hold)
            try:
                program = self._assembled([stage])
            except (ScratchpadError, OverwrittenError):
                continue
            limits = unbounded(self.nodes) if _is_held_along(program) else []
            variants.append(Variant(program, limits))
            self.stages = self.stages or [stage]
            if not limits:
                break
        return variants


class JoinedKernel(Programs):
    """Kernels that are launched as one, each of them without limits: the stages of all, in order.

    What one hands to the next goes through memory, as between two launches.
    """

    def __init__(self, kernels: Sequence[SpyreKernel], name: str) -> None:
        removed = {name for kernel in kernels for name in kernel.removed_buffers}
        super().__init__([node for kernel in kernels for node in kernel.nodes], name, removed)
        self.stages = [stage for kernel in kernels for stage in kernel.stages]
        self.variants = [Variant(self._assembled(self.stages), [])]


def _is_held_along(program: Program) -> bool:
    """Whether a value is held that varies along what its pass streams."""
    return any(
        set(stage.values[value].dimensions) & set(stage.passes[i.turn])
        for stage in program.stages
        for i in stage.instructions
        if OPS[i.op].unit not in ("reduce", "matrix")
        for value in held(stage).intersection(i.outputs)
    )


def _private(nodes: Sequence[Node]) -> set[str]:
    """The buffers that no one outside of these nodes will read."""
    names = OrderedSet(name for node in nodes for name in node.get_operation_names())
    scheduler = V.graph.scheduler
    return {
        buffer
        for node in nodes
        for buffer in node.get_buffer_names()
        if scheduler.can_buffer_be_removed_through_fusion(buffer, names)
    }
