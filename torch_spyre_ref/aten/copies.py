"""``aten::_copy_from``, the one door for bytes: host to card, card to host, and between cards.

A copy becomes typed operations. The card's DMA walks any strided view of device memory, but on the
host it sees dense pinned memory only: everything else goes through a staging buffer, where torch's
CPU copy gathers, scatters and converts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.aten import fallback
from torch_spyre_ref.aten.overlap import refuse_internal_overlap, refuse_partial_overlap
from torch_spyre_ref.aten.staging import Stage, seen_as
from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    H2D,
    STAGING_BYTES,
    DeviceRange,
    EventSignal,
    EventWait,
    Queue,
)
from torch_spyre_ref.submission import transfer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# One byte each, and torch's copy on the CPU knows none of them.
_OPAQUE = {getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in range(1, 8)}

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Write ``source``, broadcast to the target's shape, into every element of ``target``.

    Args:
        source: any shape that broadcasts to the target's, any dtype, on the host or a card.
        target: any strided view; only its elements are written.
        non_blocking: with a pinned host side, return before the transfer is done.

    Returns:
        ``target``.

    Raises:
        RuntimeError: the source is a part of the target, or the target overlaps itself.
    """
    if type(source) not in _PLAIN or type(target) not in _PLAIN:
        source, target = _plain(source), _plain(target)
    if source.device == target.device and source is not target:
        refuse_partial_overlap(source, target)
    if source.shape != target.shape:
        source = source.expand(target.shape)
    if source.dtype == target.dtype and source.dtype in _OPAQUE:
        copy_from(source.view(torch.uint8), target.view(torch.uint8), non_blocking)
        return target
    if target.numel() == 0 or source is target:
        return target
    # --8<-- [start:door]
    if target.is_cpu:
        _to_host(source, target, non_blocking)
    else:
        refuse_internal_overlap(target)
        if source.is_cpu:
            _to_card(source, target, non_blocking)
        elif not _same_bits(source, target):
            fallback.count("aten::_copy_from", "conversion on the card")
            host = torch.empty_like(source, device="cpu")
            _to_host(source, host, False)
            _to_card(host, target, non_blocking)
        elif source.device == target.device:
            _on_card(source, target)
        else:
            _between_cards(source, target)
    return target
    # --8<-- [end:door]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A subclass's bare tensor: a lazy module's parameter, for one, has no shape that it tells."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copy into an ``out=`` tensor, which takes the source's shape first."""
    if source.shape != target.shape:
        target.resize_(source.shape)
    return copy_from(source, target)


def local_scalar_dense(tensor: torch.Tensor) -> int | float | bool | complex:
    """The value of a one-element tensor: what ``.item()`` asks for."""
    host = torch.empty_like(tensor, device="cpu")
    _to_host(tensor, host, False)
    return host.item()


# --8<-- [start:device-range]
def device_range(tensor: torch.Tensor) -> DeviceRange:
    """Where a card tensor's elements lie: address, first byte, loop nest in bytes."""
    allocation, address = _bridge.locate(tensor)
    if allocation is None:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} has no memory: its "
            "storage was resized to 0 bytes. Resize the storage before using the tensor."
        )
    start = address - allocation.address
    if tensor.is_contiguous():
        return DeviceRange.contiguous(allocation.composite, start, tensor.nbytes)
    itemsize = tensor.element_size()
    strides = tuple(stride * itemsize for stride in tensor.stride())
    return DeviceRange(allocation.composite, start, tuple(tensor.shape), strides, itemsize)
    # --8<-- [end:device-range]


def by_falling_stride(
    first: torch.Tensor, second: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both tensors permuted so that the first is contiguous wherever it is dense."""
    if first.is_contiguous():
        return first, second
    stride = first.stride()
    order = sorted(range(first.dim()), key=lambda dim: (-stride[dim], dim))
    return first.permute(order), second.permute(order)


def queue_of(tensor: torch.Tensor) -> Queue:
    """The queue that work on this tensor's card goes to."""
    return backend.current().queue(tensor.device.index)


def _same_bits(source: torch.Tensor, target: torch.Tensor) -> bool:
    return (
        source.dtype == target.dtype
        and source.is_conj() == target.is_conj()
        and source.is_neg() == target.is_neg()
    )


def _dma_visible(host: torch.Tensor, card: torch.Tensor) -> bool:
    """Whether the DMA can use a host tensor as it is: the card tensor's bits, dense and pinned."""
    return _same_bits(host, card) and host.is_contiguous() and host.is_pinned()


def _host_bytes(host: torch.Tensor) -> Bytes:
    """The bytes of a dense host tensor, shared with it."""
    start = host.storage_offset() * host.element_size()
    flat = torch.empty(0, dtype=torch.uint8, device="cpu")
    array: Bytes = flat.set_(host.untyped_storage(), start, (host.nbytes,), (1,)).numpy()
    return array


def _to_card(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
    target, source = by_falling_stride(target, source)
    queue = queue_of(target)
    if _dma_visible(source, target):
        ticket = transfer(queue, H2D(_host_bytes(source), device_range(target)))
        if not non_blocking:
            queue.wait(ticket)
        return
    if target.is_contiguous() and target.nbytes > STAGING_BYTES:
        if not (_same_bits(source, target) and source.is_contiguous()):
            dense = torch.empty(target.shape, dtype=target.dtype, device="cpu")
            seen_as(target, dense).copy_(source)
            source = dense
        _stream_in(queue, _host_bytes(source), device_range(target))
    else:
        _stage_in(queue, source, target)


def _stream_in(queue: Queue, source: Bytes, target: DeviceRange) -> None:
    """A large dense tensor in pieces: the card takes one while the host stages the next."""
    for start in range(0, target.nbytes, STAGING_BYTES):
        piece = source[start : start + STAGING_BYTES]
        where = DeviceRange.contiguous(target.address, target.offset + start, piece.size)
        with Stage(piece.size) as stage:
            np.copyto(stage.array, piece)
            stage.busy(queue, transfer(queue, H2D(stage.array, where)))


def _stage_in(queue: Queue, source: torch.Tensor, target: torch.Tensor) -> None:
    where = device_range(target)
    with Stage(target.nbytes) as stage:
        stage.view(target).copy_(source)
        stage.busy(queue, transfer(queue, H2D(stage.array, where)))


def _to_host(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
    if source.is_cpu:
        target.copy_(source)
        return
    source, target = by_falling_stride(source, target)
    queue = queue_of(source)
    if _dma_visible(target, source):
        ticket = transfer(queue, D2H(device_range(source), _host_bytes(target)))
        if not non_blocking:
            queue.wait(ticket)
    elif source.is_contiguous() and source.nbytes > STAGING_BYTES:
        _stream_out(queue, source, target)
    else:
        _deliver(_fetch(queue, source), source, target)


def _fetch(queue: Queue, source: torch.Tensor) -> Stage:
    where = device_range(source)
    stage = Stage(source.nbytes)
    stage.busy(queue, transfer(queue, D2H(where, stage.array)))
    return stage


def _deliver(stage: Stage, source: torch.Tensor, target: torch.Tensor) -> None:
    with stage:
        stage.wait()
        target.copy_(stage.view(source))


def _stream_out(queue: Queue, source: torch.Tensor, target: torch.Tensor) -> None:
    """A large dense tensor in pieces: one is on its way while the host takes out the one before."""
    dense = target if target.is_contiguous() else torch.empty_like(source, device="cpu")
    flat_source, flat = source.view(-1), dense.view(-1)
    before: tuple[Stage, torch.Tensor, torch.Tensor] | None = None
    for start, count in pieces(source):
        part = flat_source.narrow(0, start, count)
        now = (_fetch(queue, part), part, flat.narrow(0, start, count))
        if before is not None:
            _deliver(*before)
        before = now
    if before is not None:
        _deliver(*before)
    if dense is not target:
        target.copy_(dense)


def pieces(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Cut a dense tensor into (first element, elements) that fit a staging buffer."""
    step, total = STAGING_BYTES // tensor.element_size(), tensor.numel()
    return [(start, min(step, total - start)) for start in range(0, total, step)]


def _between_cards(source: torch.Tensor, target: torch.Tensor) -> None:
    """Device to host on one card, an event, host to device on the other.

    Where no edges are derived, an event back: what comes later on either stream comes after the
    copy, as on CUDA.
    """
    target, source = by_falling_stride(target, source)
    sender, receiver = queue_of(source), queue_of(target)
    if target.is_contiguous() and source.is_contiguous():
        flat_source, flat_target = source.view(-1), target.view(-1)
        for start, count in pieces(target):
            parts = flat_source.narrow(0, start, count), flat_target.narrow(0, start, count)
            _hand_over(sender, receiver, *parts)
    else:
        _hand_over(sender, receiver, source, target)
    if not backend.current().runtime.derive_edges:
        _wait_for(sender, receiver)


def _hand_over(sender: Queue, receiver: Queue, source: torch.Tensor, target: torch.Tensor) -> None:
    read, written = device_range(source), device_range(target)
    with Stage(target.nbytes) as stage:
        stage.busy(sender, transfer(sender, D2H(read, stage.array)))
        _wait_for(receiver, sender)
        stage.busy(receiver, transfer(receiver, H2D(stage.array, written)))


def _wait_for(queue: Queue, other: Queue) -> None:
    """What comes next on ``queue`` comes after all that ``other`` was given."""
    signal = EventSignal()
    transfer(other, signal)
    transfer(queue, EventWait(signal))


def _on_card(source: torch.Tensor, target: torch.Tensor) -> None:
    target, source = by_falling_stride(target, source)
    transfer(queue_of(target), D2D(device_range(source), device_range(target)))


def move_bytes(target: Allocation, source: Allocation, nbytes: int) -> None:
    """Copy the first bytes of one allocation to another on the same card (storage resize)."""
    read = DeviceRange.contiguous(source.composite, 0, nbytes)
    written = DeviceRange.contiguous(target.composite, 0, nbytes)
    transfer(backend.current().queue(target.device), D2D(read, written))
