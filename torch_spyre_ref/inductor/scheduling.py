"""What Inductor's scheduler asks of the device: what may be fused, and code for a fused node."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._inductor import config
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.wrapper import pexpr
from torch._inductor.ir import NonOwningLayout
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre_ref.emulator.disassembly import disassemble
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.inductor.kernel import JoinedKernel, Programs, SpyreKernel
from torch_spyre_ref.inductor.loop_nest import numel
from torch_spyre_ref.inductor.stage import nest_of
from torch_spyre_ref.spyrecode.schema import write
from torch_spyre_ref.spyrecode.writer import assembled

LAUNCHER: Final = "spyre_kernel"
_NAME: Final = 48
_MOST_JOINED: Final = 64


class SpyreScheduling(BaseScheduling):
    """Pointwise and reductions fuse where their loops nest; each fused node is one program.

    With Inductor's option ``aggressive_fusion``, those that follow one another are launched as one.
    """

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._waiting: list[SpyreKernel] = []  # to be written as one
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
        kernel = SpyreKernel(nodes, _name(nodes))
        joins = self._may_be_joined(kernel)
        if not joins or len(self._waiting) == _MOST_JOINED or _share([*self._waiting, kernel]):
            self.flush()
        V.graph.removed_buffers.update(kernel.removed_buffers)
        with V.set_kernel_handler(kernel):
            for each in nodes:
                each.mark_run()
        self._waiting.append(kernel)
        if not joins:
            self.flush()
            self.free_buffers_in_scheduler()

    def _may_be_joined(self, kernel: SpyreKernel) -> bool:
        """Whether a kernel may be launched as one with others; not where graphs have streams."""
        return (
            config.aggressive_fusion
            and not kernel.variants[0].limits
            and not V.graph.scheduler.stream_idx_to_user_obj_idx
        )

    def flush(self) -> None:
        """Write the kernels that wait, as one. What they use may be freed after that."""
        kernels, self._waiting = self._waiting, []
        if not kernels:
            return
        kernel: Programs = kernels[0]
        if len(kernels) > 1:
            kernel = JoinedKernel(kernels, _name([node for k in kernels for node in k.nodes]))
        wrapper, card = V.graph.wrapper_code, kernel.nodes[0].get_device().index
        self.codegen_comment(kernel.nodes, kernel.name)
        wrapper.define_kernel(kernel.name, _definition(kernel, card), _comment(kernel), gpu=False)
        wrapper.writeline(f"{_chosen(kernel)}({', '.join(kernel.arguments.call())})")


def _nothing_shared(node1: Any, node2: Any) -> int:
    """What Inductor's scheduler says of nodes whose indices it leaves as they are."""
    return -1


def _name(nodes: Sequence[Any]) -> str:
    """A new name for the kernel of nodes."""
    words = get_fused_kernel_name(nodes, "original_aten").removeprefix("fused_")
    return f"spyre_{words[:_NAME]}_{V.graph.wrapper_code.next_kernel_suffix()}"


def _share(kernels: Sequence[SpyreKernel]) -> bool:
    """Whether a buffer that kernels touch lies in another: a launch takes no such arguments."""
    names = {name for kernel in kernels for name in kernel.arguments.tensors}
    return any(isinstance(V.graph.get_buffer(name).get_layout(), NonOwningLayout) for name in names)


def _definition(kernel: Programs, card: int) -> str:
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


def _chosen(kernel: Programs) -> str:
    """The kernel, or by the sizes of a launch its variant for long axes."""
    limits = [f"{pexpr(size)} <= {most}" for size, most in kernel.variants[0].limits]
    if not limits:
        return kernel.name
    return f"({kernel.name} if {' and '.join(limits)} else {kernel.name}.for_long_axes)"


def _comment(kernel: Programs) -> str:
    """What the kernel does, for who reads the generated code."""
    texts = [str(kernel.arguments.spec), *(disassemble(v.program) for v in kernel.variants)]
    return "\n".join(f"# {line}" for text in texts for line in text.splitlines())
