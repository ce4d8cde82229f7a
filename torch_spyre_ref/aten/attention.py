"""Attention: which of core's implementations of scaled_dot_product_attention the card uses.

Always the one that is composed of ordinary ops: the fused ones belong to other devices. Answering
here, and not in the CPU fallback, keeps the CPU's own fused kernel from being chosen for tensors
that it must not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch.nn.attention import SDPBackend


def fused_sdp_choice(*args: Any, **kwargs: Any) -> int:
    """Return core's number for the composed implementation, whatever the arguments."""
    return int(SDPBackend.MATH.value)


KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"_fused_sdp_choice": fused_sdp_choice}
)
