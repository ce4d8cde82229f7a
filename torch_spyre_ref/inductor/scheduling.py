"""What Inductor's scheduler asks of the device: what may be fused, and code for a fused node."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.wrapper import pexpr
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre_ref.emulator.disassembly import disassemble
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.inductor.kernel import SpyreKernel
from torch_spyre_ref.inductor.loop_nest import numel
from torch_spyre_ref.inductor.stage import nest_of
from torch_spyre_ref.spyrecode.schema import write
from torch_spyre_ref.spyrecode.writer import assembled

LAUNCHER: Final = "spyre_kernel"
_NAME: Final = 48


class SpyreScheduling(BaseScheduling):
    """Pointwise and reductions fuse where their loops nest; each fused node is one program."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        if scheduler is not None:
            # Of this one scheduler: no flag is for one device. To fuse more, it would exchange what
            # a node reads and writes, also where an element is read twice, and then be wrong.
            scheduler.shared_data_after_inverting_indexing = _nothing_shared

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:
        return OrderedSet([BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    def group_fn(self, sizes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        return tuple(numel(part) for part in sizes)

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        if node1.is_foreach() or node2.is_foreach():
            return False
        return nest_of([*node1.get_nodes(), *node2.get_nodes()]) is not None

    can_fuse_horizontal = can_fuse_vertical

    def codegen_node(self, node: Any) -> None:
        nodes = node.get_nodes()
        wrapper = V.graph.wrapper_code
        words = get_fused_kernel_name(nodes, "original_aten").removeprefix("fused_")
        name = f"spyre_{words[:_NAME]}_{wrapper.next_kernel_suffix()}"
        kernel = SpyreKernel(nodes, name)
        V.graph.removed_buffers.update(kernel.removed_buffers)
        with V.set_kernel_handler(kernel):
            for each in nodes:
                each.mark_run()
        self.codegen_comment(nodes, name)
        wrapper.define_kernel(
            name, _definition(kernel, node.get_device().index), _comment(kernel), gpu=False
        )
        wrapper.writeline(f"{_chosen(kernel)}({', '.join(kernel.arguments.call())})")
        self.free_buffers_in_scheduler()

    def flush(self) -> None:
        """Every kernel is written as it is made."""


def _nothing_shared(node1: Any, node2: Any) -> int:
    """What Inductor's scheduler says of nodes whose indices it leaves as they are."""
    return -1


def _definition(kernel: SpyreKernel, card: int) -> str:
    """The kernel as a Python expression. Each artifact is its document and its packed program."""
    spec = kernel.arguments.spec
    artifacts = [
        assembled(encode(variant.program), spec, name=kernel.name, memory=0)
        for variant in kernel.variants
    ]
    parts = [
        (json.dumps(write(a)), base64.b85encode(zlib.compress(a.program, 1)).decode())
        for a in artifacts
    ]
    return f"{LAUNCHER}({', '.join(map(repr, (card, *parts)))})"


def _chosen(kernel: SpyreKernel) -> str:
    """The kernel, or by the sizes of a launch its variant for long axes."""
    limits = [f"{pexpr(size)} <= {most}" for size, most in kernel.variants[0].limits]
    if not limits:
        return kernel.name
    return f"({kernel.name} if {' and '.join(limits)} else {kernel.name}.for_long_axes)"


def _comment(kernel: SpyreKernel) -> str:
    """What the kernel does, for who reads the generated code."""
    texts = [str(kernel.arguments.spec), *(disassemble(v.program) for v in kernel.variants)]
    return "\n".join(f"# {line}" for text in texts for line in text.splitlines())
