"""Which Python function serves which aten op on the card: one table, one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_spyre_ref import _bridge, dynamo
from torch_spyre_ref.aten import (
    attention,
    convolution,
    copies,
    fallback,
    fill,
    named_devices,
    on_cpu,
    random,
    recurrent,
)
from torch_spyre_ref.compiled import special

_addr = on_cpu.kernel("aten::addr", torch.addr, None)


def _addr_out(*sides: torch.Tensor, out: torch.Tensor, **factors: complex) -> torch.Tensor:
    made: torch.Tensor = _addr(*sides, **factors)
    return torch.ops.aten.clone.out(made, out=out)  # type: ignore[no-any-return]


KERNELS: dict[str, Callable[..., Any]] = {
    "_copy_from": copies.copy_from,
    "_copy_from_and_resize": copies.copy_from_and_resize,
    "_local_scalar_dense": copies.local_scalar_dense,
    "fill_.Scalar": fill.fill_scalar,
    "fill_.Tensor": fill.fill_tensor,
    "zero_": fill.zero,
    "addr": _addr,  # core's own parts accept factors that the CPU refuses
    "addr.out": _addr_out,
    **random.KERNELS,
    **convolution.KERNELS,
    **recurrent.KERNELS,
    **attention.KERNELS,
    **named_devices.KERNELS,
}


def register(library: torch.library.Library, compiled: Mapping[str, Callable[..., Any]]) -> None:
    """Register every kernel under PyTorch's dispatch key for the card; ``compiled`` ones first.

    What stands in for ops that core composes also stands above autograd: it calls ops that carry
    their own derivatives.
    """
    for name, kernel in special.COMPOSITES.items():
        dynamo.hide(kernel)
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            library.impl(name, _bridge.shield(kernel), key)
    for name, kernel in {**KERNELS, **compiled}.items():
        dynamo.hide(kernel)
        library.impl(name, _bridge.shield(kernel), "PrivateUse1")


class KernelDriver:
    """What the bridge asks for when an op has no kernel, or a storage changes its size."""

    move_bytes = staticmethod(copies.move_bytes)
    fallback = staticmethod(fallback.count)
