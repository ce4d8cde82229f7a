"""The Python that Inductor generates around the kernels of this device."""

from __future__ import annotations

from typing import Any

import sympy
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.ir import TensorBox
from torch._inductor.stream_utils import get_stream_name
from torch._inductor.virtualized import V

from torch_spyre_ref.device import NAME
from torch_spyre_ref.inductor.scheduling import LAUNCHER


class SpyreWrapper(PythonWrapperCodegen):
    """Allocates on the card that the graph was compiled for, not on the current one."""

    _has_named_streams = False

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

    def codegen_inputs(self) -> None:
        """Begin the code with the sizes and strides that are symbols.

        From 2.14 on, torch looks for what the graph asks of its inputs, and otherwise for what it
        checks of them, which is nothing where one has no elements.
        """
        sources = getattr(V.graph, "symbolic_input_sources", {})
        for name, value in self.get_graph_inputs().items():
            if isinstance(value, TensorBox):
                found = {"size": value.get_size(), "stride": value.get_stride()}
                for kind, numbers in found.items():
                    for dim, number in enumerate(numbers):
                        if isinstance(number, sympy.Symbol):
                            sources.setdefault(number, (name, kind, dim))
        super().codegen_inputs()  # type: ignore[no-untyped-call]

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

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        """Enter a stream. Before the first one, give all of them their names.

        Inductor does so where it enters a device guard, which it does for devices it calls GPUs.
        """
        if not self._has_named_streams:
            self._has_named_streams = True
            self._name_streams()
        return super().codegen_cuda_stream_enter(stream_idx)

    def _name_streams(self) -> None:
        given, card = V.graph.scheduler.stream_idx_to_user_obj_idx, V.graph.scheduler.current_device
        assert card is not None  # no stream is entered before the first kernel
        self.imports.writeline(
            "from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index"
        )
        lines = [f"{get_stream_name(0)} = torch.accelerator.current_stream({card.index})"]
        lines += [
            f"{get_stream_name(stream)} = get_external_object_by_index({index})"
            for stream, index in given.items()
        ]
        self.writelines(lines)  # type: ignore[no-untyped-call]
