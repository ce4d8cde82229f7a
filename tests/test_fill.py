"""Filling, the factories that fill, and what fresh memory holds (invariants 2, 3 and 6)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.support import NUMBERS, same_bits


@pytest.fixture(autouse=True)
def complex_half_is_experimental() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        yield


@pytest.mark.parametrize(
    "dtype", [*NUMBERS, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32], ids=str
)
def test_fill_zero_and_the_factories(dtype: torch.dtype) -> None:
    def made(device: str) -> Iterator[torch.Tensor]:
        yield torch.zeros(3, 5, dtype=dtype, device=device)
        yield torch.ones(3, 5, dtype=dtype, device=device)
        yield torch.full((3, 5), 1, dtype=dtype, device=device)
        yield torch.empty(3, 5, dtype=dtype, device=device).fill_(1)
        yield torch.ones(3, 5, dtype=dtype, device=device).zero_()
        yield torch.ones(3, 5, dtype=dtype, device=device).t().fill_(0)
        yield torch.empty(0, dtype=dtype, device=device).fill_(1)
        yield torch.empty((), dtype=dtype, device=device).fill_(1)
        partly = torch.zeros(3, 5, dtype=dtype, device=device)
        partly[:, 1::2].fill_(1)
        yield partly

    for card, host in zip(made("spyre:1"), made("cpu"), strict=True):
        assert same_bits(card, host)


def test_fill_takes_values_as_the_cpu_does() -> None:
    for dtype, value in (
        (torch.float32, float("nan")),
        (torch.float16, -float("inf")),
        (torch.int64, 2**63 - 1),
        (torch.uint64, 2**64 - 1),
        (torch.complex64, 1 - 2j),
        (torch.bool, 5),
        (torch.int32, 2.9),
    ):
        assert same_bits(
            torch.zeros(4, dtype=dtype, device="spyre").fill_(value),
            torch.zeros(4, dtype=dtype).fill_(value),
        )
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.zeros(4, dtype=torch.int8, device="spyre").fill_(300)


def test_fill_takes_a_tensor_without_dimensions() -> None:
    card = torch.zeros(4, device="spyre")
    for value in (torch.tensor(2), torch.tensor(3.0, device="spyre"), torch.tensor(True)):
        assert card.fill_(value).tolist() == [float(value)] * 4
    with pytest.raises(RuntimeError, match="only supports 0-dimension value tensor"):
        card.fill_(torch.ones(1))


def test_filling_a_conjugate_or_negative_view_fills_what_is_seen() -> None:
    card = torch.zeros(3, dtype=torch.complex64, device="spyre")
    card.conj().fill_(1 + 2j)
    assert card.tolist() == [1 - 2j] * 3
    card.conj().imag.fill_(5)
    assert card.tolist() == [1 - 5j] * 3
    card.conj().imag.zero_()
    assert card.cpu().imag.eq(0).all()


def test_a_fill_is_one_operation_on_the_card_and_no_transfer() -> None:
    from torch_spyre_ref import backend

    timeline = backend.current().runtime.timeline
    card = torch.empty(1000, device="spyre")
    torch.spyre.synchronize()
    timeline.clear()
    card[1:].fill_(3)
    torch.spyre.synchronize()
    assert [entry.kind for entry in timeline] == ["Fill"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("placement", ["bind", "interleave"])
@pytest.mark.finds("uninitialised")
def test_fresh_memory_is_poisoned(dtype: torch.dtype, placement: str) -> None:
    """Invariant 6: what nobody wrote is NaN, also where somebody else's numbers were before."""
    used = torch.zeros(5000, dtype=dtype, device="spyre")
    del used
    with torch.spyre.placement(placement):
        for shape in ((5000,), (7, 11), ()):
            assert torch.empty(shape, dtype=dtype, device="spyre").isnan().all()
    assert torch.empty(4, dtype=torch.int32, device="spyre").tolist() == [-1] * 4


@pytest.mark.finds("uninitialised")
def test_padding_never_leaks() -> None:
    """Invariant 6: a block ends at a multiple of 128 bytes, a tensor does not."""
    for count in (1, 31, 33, 63):
        card = torch.ones(count, device="spyre")
        grown = card.resize_(count + 1)
        assert grown.tolist()[:-1] == [1.0] * count
        assert grown[-1].isnan()
        assert torch.ones(count, device="spyre").sum().item() == count
        assert torch.cat([torch.ones(count, device="spyre")] * 3).sum().item() == 3 * count
        assert torch.ones(count, 3, device="spyre").t().contiguous().sum().item() == 3 * count


def test_one_value_may_be_written_to_an_expanded_tensor() -> None:
    base = torch.zeros(1, 3, device="spyre")
    base.expand(4, 3).fill_(7)
    assert base.tolist() == [[7.0] * 3]
    leaf = torch.ones(4, device="spyre", requires_grad=True)
    (gradient,) = torch.autograd.grad(leaf.sum(), leaf)
    assert gradient.zero_().tolist() == [0.0] * 4
