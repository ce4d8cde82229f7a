"""Everything that Inductor must be told, by its own registration calls, and each of it once."""

from __future__ import annotations

from torch._dynamo.device_interface import register_interface_for_device
from torch._inductor.codegen.common import (
    register_backend_for_device,
    register_device_op_overrides,
)

from torch_spyre_ref.device import NAME
from torch_spyre_ref.inductor import convolution, decompositions, matmul
from torch_spyre_ref.inductor.graph_pass import SpyrePass
from torch_spyre_ref.inductor.interface import SpyreInterface, SpyreOpOverrides
from torch_spyre_ref.inductor.scheduling import SpyreScheduling
from torch_spyre_ref.inductor.wrapper import SpyreWrapper


def register() -> None:
    """Tell Dynamo and Inductor of the device; calling it again changes nothing."""
    matmul.define()
    convolution.define()
    decompositions.register()
    register_interface_for_device(NAME, SpyreInterface)
    register_device_op_overrides(NAME, SpyreOpOverrides())
    register_backend_for_device(NAME, SpyreScheduling, SpyreWrapper, device_custom_pass=SpyrePass())
