"""Kernels that are a few lines around programs: what a table of overloads cannot say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from torch_spyre_ref.aten import copies, on_cpu
from torch_spyre_ref.aten.overlap import refuse_internal_overlap, refuse_partial_overlap
from torch_spyre_ref.compiled import attention as attention_ops
from torch_spyre_ref.compiled import composed
from torch_spyre_ref.compiled.calls import PLAIN

Kernel = Callable[..., Any]
aten = torch.ops.aten


def copy_from(convert: Kernel) -> Kernel:
    """``_copy_from``, which converts by a program where both sides lie on cards."""

    def run(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if source.is_cpu or target.is_cpu or not _is_conversion(source, target):
            return copies.copy_from(source, target, non_blocking)
        refuse_internal_overlap(target)
        if source.device == target.device:
            refuse_partial_overlap(source, target)
            convert(target, source)
        else:
            made = torch.empty_like(source, dtype=target.dtype)
            copies.copy_from(convert(made, source), target)
        return target

    return run


def _is_conversion(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether numbers change, and the two are tensors as a program sees them."""
    plain = not (source.is_conj() or source.is_neg() or target.is_conj() or target.is_neg())
    return plain and source.dtype != target.dtype and target.numel() > 0


def convert_on_cpu(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """A conversion that has no program: over the host."""
    return copies.copy_from(source, target)


def arange_out(fill: Kernel) -> Kernel:
    """``arange.start_out``: torch's own rule says how long it is, and what is refused."""

    def run(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
        length = torch.arange(start, end, step, dtype=out.dtype, device="meta").shape
        if out.numel() != length[0]:
            out.resize_(length)
        if not out.is_floating_point():
            start, step = int(start), int(step)
        return fill(out, start, step)  # type: ignore[no-any-return]

    return run


def arange_on_cpu(out: torch.Tensor, start: Any, step: Any) -> torch.Tensor:
    """The same on the CPU."""
    last = start + step * out.numel()
    return out.copy_(torch.arange(start, last, step, dtype=out.dtype, device="cpu")[: out.numel()])


def linspace_out(fill: Kernel) -> Kernel:
    """``linspace.out``."""

    def run(start: Any, end: Any, steps: int, *, out: torch.Tensor) -> torch.Tensor:
        out.resize_(torch.linspace(start, end, steps, dtype=out.dtype, device="meta").shape)
        return fill(out, start, end)  # type: ignore[no-any-return]

    return run


def linspace_on_cpu(out: torch.Tensor, start: Any, end: Any) -> torch.Tensor:
    """The same on the CPU."""
    return out.copy_(torch.linspace(start, end, out.numel(), dtype=out.dtype, device="cpu"))


def eye_m_out(fill: Kernel) -> Kernel:
    """``eye.m_out``."""

    def run(n: int, m: int, *, out: torch.Tensor) -> torch.Tensor:
        out.resize_(torch.eye(n, m, device="meta").shape)
        return fill(out)  # type: ignore[no-any-return]

    return run


def eye_out(fill: Kernel) -> Kernel:
    """``eye.out``, of a square."""
    wide = eye_m_out(fill)

    def run(n: int, *, out: torch.Tensor) -> torch.Tensor:
        return wide(n, n, out=out)  # type: ignore[no-any-return]

    return run


def eye_on_cpu(out: torch.Tensor) -> torch.Tensor:
    """The same on the CPU."""
    return out.copy_(torch.eye(*out.shape, dtype=out.dtype, device="cpu"))


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """``torch.equal``: the answer is a number of the host."""
    if first.device != second.device:
        raise RuntimeError(
            "Cannot compare two tensors on different devices. Got: "
            f"{first.device} and {second.device}"
        )
    return first.shape == second.shape and bool(aten.eq.Tensor(first, second).all().item())


def attention(forward: Kernel) -> Kernel:
    """``_scaled_dot_product_fused_attention_overrideable``."""

    def run(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        out, sums = forward(query, key, value, bias, is_causal, scale)
        return out, sums, None, None, query.shape[-2], key.shape[-2], None, None, None

    return run


def attention_backward(backward: Kernel) -> Kernel:
    """The gradients of it."""

    def run(
        grad: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        wanted: Sequence[bool],
        out: torch.Tensor,
        sums: torch.Tensor,
        cum_seq_q: Any,
        cum_seq_k: Any,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        philox_seed: Any,
        philox_offset: Any,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        made = backward(grad, query, key, value, bias, out, sums, is_causal, scale)
        return tuple(g if want else None for g, want in zip(made, wanted, strict=True))

    return run


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The whole op where it serves; in a trace, and with dropout, what core composes."""
    sides = (query, key, value)
    whole = (
        dropout_p == 0.0
        and not enable_gqa
        and all(type(side) in PLAIN and side.dim() == 4 and side.numel() for side in sides)
        and len({(side.dtype, side.device, side.shape[:2]) for side in sides}) == 1
        and query.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and not (attn_mask is not None and (is_causal or type(attn_mask) not in PLAIN))
        and (attn_mask is None or attn_mask.device == query.device)
    )
    if not whole:
        composed_whole = aten.scaled_dot_product_attention.default
        result: torch.Tensor = composed_whole.decompose(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return result
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
            ~attn_mask, -math.inf
        )
    fused = aten._scaled_dot_product_fused_attention_overrideable.default
    out: torch.Tensor = fused(query, key, value, attn_mask, 0.0, is_causal, scale=scale)[0]
    return out


COMPOSITES: Final[dict[str, Kernel]] = {
    "scaled_dot_product_attention": scaled_dot_product_attention
}
"""Ops above autograd: they choose between ops that carry their own derivatives."""


def kernels(kernel: Callable[[Any, Kernel], Kernel]) -> dict[str, Kernel]:
    """By op; ``kernel`` makes one of an op and what computes it on the CPU."""
    eye = kernel(composed.EYE, eye_on_cpu)
    fused, fused_backward = (
        kernel(op, on_cpu.kernel(op.name, op.function, None))
        for op in (attention_ops.FORWARD, attention_ops.BACKWARD)
    )
    return {
        "_copy_from": copy_from(kernel(composed.CONVERT, convert_on_cpu)),
        "arange.start_out": arange_out(kernel(composed.ARANGE, arange_on_cpu)),
        "linspace.out": linspace_out(kernel(composed.LINSPACE, linspace_on_cpu)),
        "eye.m_out": eye_m_out(eye),
        "eye.out": eye_out(eye),
        "equal": equal,
        attention_ops.FORWARD.name.removeprefix("aten::"): attention(fused),
        attention_ops.BACKWARD.name.removeprefix("aten::"): attention_backward(fused_backward),
    }
