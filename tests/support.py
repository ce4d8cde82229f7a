"""What the tests of tensors share: every dtype, tensors of random bits, and views of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from torch_spyre_ref import backend

NUMBERS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
"""The dtypes that the CPU computes in."""

STORED = (
    *NUMBERS,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.bits8,
    torch.bits16,
    torch.uint1,
    torch.uint7,
    torch.int4,
)
"""The dtypes that a tensor may have, whether or not anything computes in them."""


def random_bits(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A CPU tensor whose every bit is random (NaN payloads and all), so that bytes tell."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator, dtype=torch.uint8).bool()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 is "experimental"
        itemsize = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 256, (count * itemsize,), generator=generator, dtype=torch.uint8)
        return raw.view(dtype).view(tuple(shape))


def values(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A CPU tensor of small ordinary numbers: every dtype of ``NUMBERS`` holds them exactly."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 2 if dtype is torch.bool else 100, tuple(shape), generator=generator)
    return whole.to(dtype)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a CPU tensor's elements in row-major order."""
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)  # torch cannot copy all dtypes of one byte on the CPU
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return dense.view(-1).view(torch.uint8).numpy().tobytes()


def same_bits(card: torch.Tensor, host: torch.Tensor) -> bool:
    """Whether a card tensor holds what a CPU tensor holds, bit by bit."""
    return (
        card.dtype == host.dtype
        and card.shape == host.shape
        and raw_bytes(card.cpu()) == raw_bytes(host)
    )


def take_programs_off() -> None:
    """Wait for the cards, and take what eager ops have compiled off them: it comes back."""
    for card in backend.current().runtime.cards:
        for queue in card.queues:
            queue.settle()  # what is enqueued keeps its program
    for _, programs in backend.current().prepared():
        programs.evict_all()
