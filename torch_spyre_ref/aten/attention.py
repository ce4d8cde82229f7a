"""Attention: which of core's implementations a card uses.

For ``scaled_dot_product_attention``, always the one that is composed of ordinary ops: the fused
ones belong to other devices, and the CPU's own would be chosen if the CPU fallback answered.
For ``nn.TransformerEncoder``, never the one that packs a padded batch into a nested tensor, which
a card does not store. Core asks first whether the padding is all at the ends, and packs only then;
the answer here is no, and each layer computes the padded batch under its mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch.nn.attention import SDPBackend


def fused_sdp_choice(*args: Any, **kwargs: Any) -> int:
    """Return core's number for the composed implementation, whatever the arguments."""
    return int(SDPBackend.MATH.value)


def nested_tensor_from_mask_left_aligned(*args: Any) -> bool:
    """Return False: no batch is to be packed, whatever its mask."""
    return False


KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "_fused_sdp_choice": fused_sdp_choice,
        "_nested_tensor_from_mask_left_aligned": nested_tensor_from_mask_left_aligned,
    }
)
