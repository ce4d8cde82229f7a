"""The ops that are compiled, by family. For each, all its overloads are: functional, in-place, out.

What is not here is composed by core from ops that are, moves no byte, or runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

ELEMENTWISE: Final = """
    abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max
    clamp_min copysign cos cosh deg2rad digamma div elu erf erfc erfinv exp exp2 expm1 floor
    floor_divide fmax fmin fmod frac gelu glu hardshrink hardsigmoid hardswish hardtanh heaviside
    hypot i0 igamma igammac isinf isnan isneginf isposinf leaky_relu lerp lgamma log log10 log1p
    log2 log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit maximum minimum mish mul nan_to_num neg nextafter polygamma pow _prelu_kernel rad2deg
    reciprocal relu remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinc sinh softplus
    softshrink special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr
    special_ndtri special_xlog1py special_zeta isin linalg_cross renorm polar sqrt square sub tan
    tanh threshold trunc where xlogy masked_fill __lshift__ __rshift__
"""

COMPARISONS: Final = "eq ge gt le lt ne isclose"

GRADIENTS: Final = """
    elu_backward gelu_backward glu_backward hardshrink_backward hardsigmoid_backward
    hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward logit_backward
    mish_backward sigmoid_backward silu_backward softplus_backward softshrink_backward tanh_backward
    threshold_backward _prelu_kernel_backward _softmax_backward_data _log_softmax_backward_data
    native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
    embedding_dense_backward nll_loss_backward nll_loss2d_backward mse_loss_backward
    smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward _fused_rms_norm_backward select_backward slice_backward
"""

REDUCTIONS: Final = """
    _safe_softmax all amax amin aminmax any argmax argmin linalg_vector_norm logsumexp max mean min
    norm prod std std_mean sum var var_mean count_nonzero nansum _softmax _log_softmax
"""

PRODUCTS: Final = "addbmm addmm addmv addr baddbmm bmm dot mm mv vdot _addmm_activation"

LAYERS: Final = """
    convolution_overrideable convolution_backward_overrideable
    native_batch_norm native_group_norm native_layer_norm _fused_rms_norm embedding nll_loss_forward
    nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss
    binary_cross_entropy_with_logits
"""

MOVES: Final = """
    cat constant_pad_nd flip gather index index_add index_copy index_fill index_put index_select
    _index_put_impl_ masked_scatter reflection_pad1d reflection_pad2d reflection_pad3d repeat
    replication_pad1d replication_pad2d replication_pad3d roll rot90 scatter scatter_add
    scatter_reduce stack take tril triu rsub trace diagonal_scatter select_scatter slice_scatter
"""

POOLS: Final = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d avg_pool2d avg_pool2d_backward
    avg_pool3d avg_pool3d_backward max_pool2d_with_indices max_pool2d_with_indices_backward
    _adaptive_avg_pool2d_backward im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    upsample_trilinear3d upsample_bicubic2d upsample_nearest2d_backward upsample_bilinear2d_backward
    grid_sampler_2d
"""

FAMILIES: Final = (POOLS, ELEMENTWISE, COMPARISONS, GRADIENTS, REDUCTIONS, PRODUCTS, LAYERS, MOVES)


def names() -> Iterator[str]:
    """The overloads to register, without ``aten::``."""
    for packet in dict.fromkeys(" ".join(FAMILIES).split()):
        for name in (packet, f"{packet}_"):
            for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
                overload = f"{name}.{schema.overload_name}".rstrip(".")
                if _is_ours(overload):
                    yield overload


def _is_ours(overload: str) -> bool:
    """Whether the op carries its own derivative: what core composes of such ops mostly does not."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = f"aten::{overload}"
    try:
        return not has(name, "CompositeImplicitAutograd") or has(name, "Autograd")
    except RuntimeError:
        return False  # the dispatcher does not know it: it belongs to TorchScript
