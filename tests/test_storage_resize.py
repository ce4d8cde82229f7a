"""Storages that change their size, in both directions, and tensors that change their storage."""

from __future__ import annotations

import pytest
import torch

from tests.support import random_bits, same_bits


@pytest.mark.parametrize("placement", ["bind", "interleave"])
@pytest.mark.finds("uninitialised")
def test_a_storage_grows_and_shrinks_and_keeps_what_both_sizes_hold(placement: str) -> None:
    host = random_bits((20_000,), torch.uint8)
    with torch.spyre.placement(placement):
        card = torch.empty(20_000, dtype=torch.uint8, device="spyre:1").copy_(host)
    storage = card.untyped_storage()
    for size in (50_000, 20_000, 10_001, 30_000):
        storage.resize_(size)
        assert storage.nbytes() == size
        assert same_bits(card[:10_001], host[:10_001])
    assert card[10_001:20_000].eq(255).all()  # shrinking gave these bytes up: poison
    assert card.device == torch.device("spyre:1")


def test_a_storage_shrinks_to_nothing_and_comes_back() -> None:
    """What FSDP does between uses of a parameter."""
    before = torch.accelerator.memory_allocated()
    card = torch.ones(1000, device="spyre")
    card.untyped_storage().resize_(0)
    assert torch.accelerator.memory_allocated() == before
    assert card.shape == (1000,) and card.untyped_storage().data_ptr() == 0
    for use in (card.cpu, card.zero_, lambda: card + 1, lambda: card.copy_(torch.ones(1000))):
        with pytest.raises(RuntimeError, match="storage was resized to 0 bytes"):
            use()
    card.untyped_storage().resize_(4000)
    card.fill_(2)
    assert card.eq(2).all()


def test_views_see_the_resized_storage() -> None:
    base = torch.arange(10.0, device="spyre")
    view = base[2:4]
    base.untyped_storage().resize_(400)
    base.mul_(2)
    assert view.tolist() == [4.0, 6.0]


def test_resize_as_torch_does_it() -> None:
    for shape, to in (
        ((2, 3), (3, 2)),
        ((4,), (2, 5)),
        ((4, 4), (3,)),
        ((0,), (2, 2)),
        ((3,), (0,)),
    ):
        host = random_bits(shape, torch.float32)
        card = host.to("spyre")
        card.resize_(to)
        host.resize_(to)
        assert card.shape == host.shape and card.stride() == host.stride()
        kept = min(torch.Size(shape).numel(), host.numel())
        assert same_bits(card.reshape(-1)[:kept], host.reshape(-1)[:kept])
    assert torch.empty(0, device="spyre").resize_as_(card).shape == card.shape
    formatted = torch.empty(0, device="spyre").resize_(
        (2, 3, 4, 5), memory_format=torch.channels_last
    )
    assert formatted.is_contiguous(memory_format=torch.channels_last)


def test_a_tensor_takes_over_another_storage() -> None:
    card = torch.arange(10.0, device="spyre")
    other = torch.empty(0, device="spyre")
    other.set_(card.untyped_storage(), 2, (2, 2), (4, 1))
    assert other.tolist() == [[2.0, 3.0], [6.0, 7.0]]
    other.set_(card)
    assert other.data_ptr() == card.data_ptr()
    other.set_()
    assert other.numel() == 0 and other.device == card.device
    card.data = torch.ones(3, device="spyre")
    assert card.tolist() == [1.0] * 3


def test_out_arguments_are_resized_and_keep_their_identity() -> None:
    """Invariant 9: ``out=`` is written in place, also where it must grow or is a view."""
    a = torch.arange(6.0, device="spyre")
    out = torch.empty(0, device="spyre")
    assert torch.add(a, 1, out=out) is out and out.tolist() == [1, 2, 3, 4, 5, 6]
    base = torch.zeros(2, 6, device="spyre")
    torch.mul(a, 2, out=base[1])
    assert base.tolist() == [[0.0] * 6, [0, 2, 4, 6, 8, 10]]
    torch.cat([a[:1], a[:2]], out=base[0, ::2])
    assert base[0].tolist() == [0, 0, 0, 0, 1, 0]
    values, indices = (
        torch.empty(0, device="spyre"),
        torch.empty(0, dtype=torch.long, device="spyre"),
    )
    torch.max(base, 1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([1, 10], [4, 5])
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(a, 1, out=base)
    assert base.shape == (6,)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_argument_that_would_grow_into_an_operand_is_refused() -> None:
    base = torch.tensor([2, 0, 1], device="spyre")
    x = torch.tensor([10, 20, 30], device="spyre")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.gather(x, 0, base[1:], out=base[:1])
    assert base.tolist() == [2, 0, 1]
    torch.gather(x, 0, base[:2], out=base[2:])
    assert base.tolist() == [2, 0, 30]


def test_sizes_that_make_no_sense() -> None:
    card = torch.ones(4, device="spyre")
    for resize in (
        lambda: card.resize_(-1),
        lambda: torch.empty(-1, device="spyre"),
        lambda: torch.empty((2, -3), device="spyre"),
        lambda: torch.empty_strided((2, -1), (1, 1), device="spyre"),
    ):
        with pytest.raises(RuntimeError, match="negative"):
            resize()
    with pytest.raises(RuntimeError):
        card.untyped_storage().resize_(-8)
    with pytest.raises(RuntimeError):
        torch.empty(2**62, 2**62, device="spyre")
    with pytest.raises(RuntimeError, match="out of bounds"):
        card.as_strided((3,), (2,)).cpu()
    assert card.tolist() == [1.0] * 4
