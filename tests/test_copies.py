"""Copies: every dtype, both directions, card to card, any size, foreign storages, no elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils import dlpack

from tests.support import NUMBERS, STORED, random_bits, same_bits, values
from torch_spyre_ref.runtime import STAGING_BYTES


@pytest.fixture(autouse=True)
def complex_half_is_experimental() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        yield


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (), (0,), (3, 0, 2)], ids=str)
def test_every_dtype_goes_to_the_card_and_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Invariant 3, dtypes: bytes are bytes, whether or not anything computes in them."""
    host = random_bits(shape, dtype)
    card = host.to("spyre")
    assert card.device == torch.device("spyre:0")
    assert same_bits(card, host)
    assert same_bits(card.to("spyre:1"), host)
    assert same_bits(card.clone(), host)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_dtype_is_read_and_written_through_views(dtype: torch.dtype) -> None:
    host = random_bits((6, 8), dtype)
    card = host.to("spyre")
    news = random_bits((3, 4), dtype, seed=1)
    assert same_bits(card[1::2, 2:6].t(), host[1::2, 2:6].t())
    card[1::2, 2:6].copy_(news)
    if host.element_size() == 1:  # torch has no copy of int4 and its like on the CPU
        host, news, card = (t.view(torch.uint8) for t in (host, news, card))
    host[1::2, 2:6].copy_(news)
    assert same_bits(card, host)


@pytest.mark.parametrize("to", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_a_copy_converts_on_the_way(dtype: torch.dtype, to: torch.dtype) -> None:
    host = values((3, 5), dtype)
    card, expected = host.to("spyre"), host.to(to)
    assert same_bits(host.to("spyre", to), expected)
    assert same_bits(card.to(to), expected)
    assert same_bits(card.to("spyre:1", to), expected)
    assert card.to("cpu", to).equal(expected)
    target = torch.zeros(5, 6, dtype=to, device="spyre")
    target[:, 1:4].copy_(card.t())
    assert same_bits(target[:, 1:4], expected.t())
    assert same_bits(target[:, ::5], torch.zeros(5, 2, dtype=to))


NEGATIVE = [lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t._neg_view()]


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("view", [*NEGATIVE, lambda t: t.imag, lambda t: t.real])
@pytest.mark.parametrize("pinned", [False, True])
def test_conjugate_and_negative_views_are_read_and_written(
    view: Callable[[torch.Tensor], torch.Tensor], pinned: bool
) -> None:
    def bases() -> tuple[torch.Tensor, torch.Tensor]:
        host = values((4, 3), torch.complex64) + 1j * values((4, 3), torch.float32, seed=1)
        return host.to("spyre"), host.pin_memory() if pinned else host

    card, host = bases()
    assert same_bits(view(card), view(host))
    assert same_bits(view(card).to("spyre:1"), view(host))
    other_card, other_host = bases()
    for into in (torch.float32, torch.complex64):  # the same view as source, host and card
        news = values((4, 3), into, seed=2)
        for source in (news, news.to("spyre"), news.to("spyre:1")):
            view(card).copy_(source)
            view(host).copy_(news)
            assert same_bits(card, host)
    for source in (view(other_host), view(other_card), view(other_card.to("spyre:1"))):
        view(card).copy_(source)
        view(host).copy_(view(other_host))
        assert same_bits(card, host)
        filled = torch.empty_like(view(host)).copy_(view(card))
        assert filled.equal(view(host))


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("view", [*NEGATIVE, lambda t: t.conj().t(), lambda t: t.conj()[:, ::2]])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_large_conjugate_and_negative_views(
    view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    host = torch.complex(strided(300, 600), strided(300, 600)).nan_to_num()
    card, news = host.to("spyre"), torch.ones_like(view(host), dtype=dtype) * 2
    news = news + 1j if dtype.is_complex and view(host).is_complex() else news
    assert same_bits(view(card), view(host))
    assert same_bits(view(card).to("spyre:1"), view(host))
    for source in (news, news.to("spyre"), news.to("spyre:1"), news.t().contiguous().t()):
        view(card).copy_(source)
        view(host).copy_(news)
        assert same_bits(card, host)
        card.fill_(3), host.fill_(3)
    other = torch.complex(strided(300, 600), strided(300, 600)).nan_to_num()
    for source in (other, other.to("spyre"), other.to("spyre:1")):
        view(card).copy_(view(source))
        view(host).copy_(view(other))
        assert same_bits(card, host)
        card.fill_(3), host.fill_(3)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.bfloat16], ids=str)
def test_a_negative_view_takes_any_dtype(dtype: torch.dtype) -> None:
    host = torch.zeros(4, dtype=torch.complex64)
    card = host.to("spyre")
    news = torch.tensor([0, 1, 1, 0], dtype=dtype)
    for base in (card, host):
        base.conj().imag.copy_(news)
    assert same_bits(card, host)


def strided(rows: int, columns: int) -> torch.Tensor:
    return random_bits((rows, columns), torch.float32)


BIG = STAGING_BYTES // 4  # elements of float32 in one staging buffer
LARGE = {
    "one more than a buffer": lambda: strided(1, BIG + 1)[0],
    "exactly three buffers": lambda: strided(3, BIG),
    "transposed": lambda: strided(1001, BIG // 400).t(),
    "every other column": lambda: strided(1000, BIG // 200)[:, ::2],
    "repeated": lambda: strided(1, BIG + 1),
}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("placement", ["bind", "interleave"])
@pytest.mark.parametrize("kind", LARGE)
def test_a_copy_larger_than_a_staging_buffer(kind: str, placement: str, pinned: bool) -> None:
    host = LARGE[kind]()
    host = host.pin_memory() if pinned else host
    host = host.expand(3, -1) if kind == "repeated" else host
    with torch.spyre.placement(placement):
        card = torch.empty(host.shape, device="spyre").copy_(host)
        turned = torch.empty(host.t().shape, device="spyre:1") if host.dim() == 2 else None
    assert same_bits(card, host)
    if turned is not None:
        assert same_bits(turned.copy_(card.t()), host.t())  # between cards, strided
        assert same_bits(torch.empty_like(turned, device="spyre").copy_(card.t()), host.t())
    back = torch.empty(host.shape, dtype=torch.float64).copy_(card)  # converts piece by piece
    assert back.equal(host.double()) or bool((back != back).any())


def test_an_allocation_of_several_regions(region_bytes: int) -> None:
    count = region_bytes + 4096
    host = torch.arange(count // 8, dtype=torch.int64)
    card = host.to("spyre")
    assert len(card_chunks(card)) == 2
    assert card.cpu().equal(host)
    middle = slice(region_bytes // 8 - 300, region_bytes // 8 + 200, 7)
    card[middle] = -1
    host[middle] = -1
    assert card[middle.start - 5 :].cpu().equal(host[middle.start - 5 :])
    assert card.to("spyre:1").cpu().equal(host)


def card_chunks(tensor: torch.Tensor) -> tuple[object, ...]:
    from torch_spyre_ref import _bridge

    return _bridge.allocation(tensor).composite.chunks


def test_an_interleaved_tensor_lies_in_every_domain() -> None:
    with torch.spyre.placement("interleave"):
        card = torch.empty(4, 4096, dtype=torch.uint8, device="spyre")
        small = torch.empty(4096, dtype=torch.uint8, device="spyre")
    assert len(card_chunks(card)) == min(4, torch.spyre.get_device_properties().domains)
    assert len(card_chunks(small)) == 1
    host = random_bits((4, 4096), torch.uint8)
    assert same_bits(card.copy_(host).t()[5:9], host.t()[5:9])


def imported(card: torch.Tensor) -> torch.Tensor:
    return dlpack.from_dlpack(dlpack.to_dlpack(card))


def wrapped(card: torch.Tensor) -> torch.Tensor:
    other = torch.empty(0, dtype=card.dtype, device="spyre")
    return other.set_(card.untyped_storage(), 0, card.shape)


@pytest.mark.parametrize("foreign", [imported, wrapped, torch.Tensor.detach, torch.nn.Parameter])
def test_storages_that_somebody_else_wrapped(
    foreign: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    host = random_bits((8, 9), torch.float32)
    card = host.to("spyre")
    alias = foreign(card)
    assert same_bits(alias.detach()[2:5, 3], host[2:5, 3])
    news = torch.ones(4, 9)
    for base in (alias.detach(), host):
        base[3:7] = news
    assert same_bits(card, host)


def test_a_copy_on_write_clone_is_refused() -> None:
    """A known limit: torch makes one only of storages whose context is their data pointer."""
    card = torch.ones(4, device="spyre")
    with pytest.raises(RuntimeError, match="storage"):
        torch._lazy_clone(card)
    assert card.tolist() == [1.0] * 4


def test_copies_without_elements() -> None:
    """Invariant 2, zero elements: copies and fills do nothing, on every path."""
    empty = torch.empty(3, 0, 2, device="spyre")
    for source in (torch.empty(3, 0, 2), torch.empty(3, 0, 2, device="spyre:1"), torch.ones(1)):
        empty.copy_(source)
    torch.empty(3, 0, 2).copy_(empty)
    empty.fill_(3), empty.zero_(), empty[:, :, 1].copy_(torch.zeros(3, 0))
    torch.ones(4, device="spyre")[2:2].copy_(torch.empty(0))
    assert empty.cpu().shape == empty.clone().shape == empty.to("spyre:1").shape == (3, 0, 2)
    assert empty.tolist() == [[], [], []]


def test_item_and_tolist() -> None:
    card = torch.tensor([[1.5, -2.0], [3.0, 4.0]], device="spyre")
    assert (card[1, 0].item(), card.t()[1, 0].item(), card[:1, 1].item()) == (3.0, -2.0, -2.0)
    assert card.t().tolist() == [[1.5, 3.0], [-2.0, 4.0]]
    assert torch.tensor(1 + 2j, device="spyre").conj().item() == 1 - 2j
    assert torch.tensor(2**63 + 1, dtype=torch.uint64, device="spyre").item() == 2**63 + 1
    with pytest.raises(RuntimeError, match="2 elements cannot be converted to Scalar"):
        card[0].item()


def test_channels_last_keeps_its_strides() -> None:
    host = random_bits((2, 3, 4, 5), torch.float32).to(memory_format=torch.channels_last)
    card = host.to("spyre")
    assert card.stride() == host.stride()
    assert card.clone().stride() == card.cpu().stride() == host.stride()
    assert same_bits(card, host)
    plain = card.contiguous()
    assert plain.is_contiguous() and same_bits(plain, host)
    assert same_bits(plain.contiguous(memory_format=torch.channels_last), host)
