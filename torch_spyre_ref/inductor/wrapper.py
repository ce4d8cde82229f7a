"""The Python that Inductor generates around the kernels of this device."""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen

from torch_spyre_ref.device import NAME
from torch_spyre_ref.inductor.scheduling import LAUNCHER


class SpyreWrapper(PythonWrapperCodegen):
    """Allocates on the card that the graph was compiled for, not on the current one."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            return SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapper()  # type: ignore[no-untyped-call]

    def write_header(self) -> None:
        super().write_header()
        self.imports.writeline(
            f"from torch_spyre_ref.inductor.launcher import CompiledKernel as {LAUNCHER}"
        )

    def make_allocation(
        self,
        name: str,
        device: Any,
        dtype: Any,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        line: str = super().make_allocation(  # type: ignore[no-untyped-call]
            name, device, dtype, shape, stride, allocation_shape, is_pinned
        )
        return line.replace(f"device='{NAME}'", f"device='{device}'")
