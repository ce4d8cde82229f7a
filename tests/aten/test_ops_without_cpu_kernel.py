"""The search for ops that the CPU fallback cannot serve, and what is done about each of them.

An op of a card tensor ends in one of: a kernel of ours, a composition of other ops, or the CPU
fallback, which runs the CPU's kernel. What has none of the three fails on the card. Every such op
must be served, or stand here with the reason why nobody reaches it from a card tensor, or why the
CPU refuses the same call.
"""

from __future__ import annotations

import pytest
import torch

COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
OTHER_LAYOUTS = ("SparseCPU", "SparseCsrCPU", "QuantizedCPU", "NestedTensorCPU", "MkldnnCPU")

# Names that another device's library, or another layout, claims for itself.
FAMILIES = {
    "NVIDIA's library": ("cudnn_", "_cudnn_", "_use_cudnn_", "_cslt_", "_mixed_dtypes_linear"),
    "AMD's library": ("miopen_", "_use_miopen_"),
    "Apple's library": ("_mps_", "mps_", "_lstm_mps", "lstm_mps", "max_pool2d_backward"),
    "Intel's CPU library, which takes its own layout": ("mkldnn_", "_mkldnn_"),
    "Triton kernels": ("_triton_",),
    "nested tensors; a card stores strided ones": ("_nested_",),
    "2:4 sparse tensors of NVIDIA cards": ("_sparse_semi_structured_", "_to_sparse_semi_"),
    "sparse tensors; a card stores strided ones": ("_spsolve",),
    "attention kernels of other devices; ours is composed": (
        "_flash_attention_",
        "_efficient_attention_",
        "_fill_mem_eff_dropout_mask_",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_attention_math_for_mps",
    ),
    "CUDA's own convolutions; core sends ours to convolution_overrideable": (
        "_conv_depthwise2d",
        "conv_depthwise3d",
    ),
    "grouped products of low precision; refused by the CPU too": ("_scaled_grouped_mm",),
    "random numbers by key; refused by the CPU too before torch 2.14": ("_philox_",),
    "SyncBatchNorm, which asks for the device by name": (
        "batch_norm_backward_elemt",
        "batch_norm_backward_reduce",
        "batch_norm_elemt",
        "batch_norm_gather_stats",
        "batch_norm_stats",
    ),
}

REASONS = {
    "aten::_convert_weight_to_int4pack": "the CPU has an op of its own, ..._for_cpu",
    "aten::_weight_int4pack_mm": "the CPU has an op of its own, ..._for_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros": "refused by the CPU too",
    "aten::_fused_dropout": "private and superseded by native_dropout, which is served",
    "aten::_masked_scale": "private, the backward of _fused_dropout",
    "aten::_fused_rms_norm_backward": "rms_norm is composed on every device without a fused one",
    "aten::_resize_output_": "meta tensors only",
    "aten::addmm.dtype": "out_dtype= is refused by the CPU too",
    "aten::addmm.dtype_out": "out_dtype= is refused by the CPU too",
    "aten::baddbmm.dtype": "out_dtype= is refused by the CPU too",
    "aten::baddbmm.dtype_out": "out_dtype= is refused by the CPU too",
    "aten::bmm.dtype": "out_dtype= is refused by the CPU too",
    "aten::bmm.dtype_out": "out_dtype= is refused by the CPU too",
    "aten::mm.dtype": "out_dtype= is refused by the CPU too",
    "aten::mm.dtype_out": "out_dtype= is refused by the CPU too",
    "aten::linear_backward": "nested tensors only: linear is composed elsewhere",
    "aten::matmul_backward": "nested tensors only: matmul is composed elsewhere",
}


def has_kernel(op: str, *keys: str) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op, key) for key in keys)


def aten_ops() -> list[str]:
    return sorted(op for op in torch._C._dispatch_get_all_op_names() if op.startswith("aten::"))


def unserved() -> list[str]:
    return [op for op in aten_ops() if not has_kernel(op, "CPU", "PrivateUse1", *COMPOSITES)]


def excused(op: str) -> bool:
    """Whether an op stands in the lists above, or is of a layout that a card does not store."""
    name = op.removeprefix("aten::")
    in_family = any(name.startswith(prefixes) for prefixes in FAMILIES.values())
    return op in REASONS or in_family or has_kernel(op, *OTHER_LAYOUTS)


def test_every_op_without_a_cpu_kernel_is_served_or_has_a_reason() -> None:
    assert [op for op in unserved() if not excused(op)] == []


def test_every_reason_names_an_op_of_core() -> None:
    """Not "an op without a CPU kernel": newer versions of torch add such kernels."""
    ops = aten_ops()
    prefixes = [f"aten::{prefix}" for family in FAMILIES.values() for prefix in family]
    assert [op for op in REASONS if op not in ops] == []
    assert [p for p in prefixes if not any(op.startswith(p) for op in ops)] == []


def test_every_placeholder_of_core_is_served() -> None:
    """Composite on paper; on a private device their composite kernel only says it is missing."""
    placeholders = [op for op in aten_ops() if "overrideable" in op and not op.endswith("out")]
    assert placeholders
    assert [op for op in placeholders if not has_kernel(op, "PrivateUse1")] == []


@pytest.mark.parametrize("keepdim", [True, False])
def test_mode_writes_into_out_on_the_card(keepdim: bool) -> None:
    x = torch.tensor([[1, 2, 2, 3], [4, 4, 5, 6]])
    wanted = torch.mode(x, 1, keepdim)
    values = torch.empty(0, dtype=torch.int64, device="spyre")
    indices = torch.empty(0, dtype=torch.int64, device="spyre")
    got = torch.mode(x.to("spyre"), 1, keepdim, out=(values, indices))
    assert got.values is values
    assert torch.equal(values.cpu(), wanted.values)
    assert torch.equal(indices.cpu(), wanted.indices)
    with pytest.raises(RuntimeError, match=r"expected values of torch.int64, got torch.float32"):
        torch.mode(x.to("spyre"), 1, out=(torch.empty(0, device="spyre"), indices))


def test_a_product_in_another_dtype_is_refused_as_on_the_cpu() -> None:
    for device in ("cpu", "spyre"):
        x = torch.ones(2, 2, dtype=torch.float16, device=device)
        with pytest.raises(NotImplementedError):
            torch.mm(x, x, out_dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float32], ids=str)
def test_conjugating_in_place_works_on_the_card(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=dtype)
    got = x.to("spyre")
    view = got.t()[1:]
    assert view.conj_physical_() is view
    x.t()[1:].conj_physical_()
    assert torch.equal(got.cpu(), x)


def test_recording_a_stream_is_accepted() -> None:
    x = torch.ones(3, device="spyre")
    x.record_stream(torch.accelerator.current_stream(0))
    assert x.tolist() == [1.0, 1.0, 1.0]
