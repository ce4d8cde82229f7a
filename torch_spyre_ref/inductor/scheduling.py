"""What Inductor's scheduler asks of the device: what may be fused, and code for a fused node."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.inductor.kernel import SpyreKernel, nest_of
from torch_spyre_ref.inductor.loop_nest import numel
from torch_spyre_ref.spyrecode.schema import pretty, write
from torch_spyre_ref.spyrecode.writer import assembled

LAUNCHER: Final = "spyre_kernel"
_NAME: Final = 48


class SpyreScheduling(BaseScheduling):
    """Pointwise and reductions fuse where their loops nest; each fused node is one program."""

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
        V.graph.removed_buffers |= kernel.removed_buffers
        with V.set_kernel_handler(kernel):
            for each in nodes:
                each.mark_run()
        self.codegen_comment(nodes, name)
        wrapper.define_kernel(name, _definition(kernel, node.get_device().index), gpu=False)
        wrapper.writeline(f"{name}({', '.join(kernel.arguments.call())})")
        self.free_buffers_in_scheduler()

    def flush(self) -> None:
        """Every kernel is written as it is made."""


def _definition(kernel: SpyreKernel, card: int) -> str:
    """The artifact as a Python expression: its document as text, its program packed."""
    artifact = assembled(
        encode(kernel.program), kernel.arguments.spec, name=kernel.name, memory=0
    )
    document = pretty(write(artifact))
    packed = base64.b85encode(zlib.compress(artifact.program, 1)).decode()
    return f"{LAUNCHER}({card}, '''{document}''', {packed!r})"
