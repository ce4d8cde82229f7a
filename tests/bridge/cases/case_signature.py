"""Signatures: a key of what arguments are, and where those on a card lie, in one call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_driver import FakeDriver
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.dlpack import from_dlpack, to_dlpack

from torch_spyre_ref import _bridge


class Answering(torch.Tensor):
    """A tensor for which Python answers."""

    @classmethod
    def __torch_dispatch__(cls, *call: Any) -> Any:
        raise AssertionError("nobody asked")


class Named(torch.Tensor):
    """A tensor with a name for its class, and nothing else of its own."""


def on_card(*shape: int, **options: Any) -> torch.Tensor:
    return torch.empty(shape, device="spyre", **options)


def key(*entries: object) -> bytes:
    return _bridge.signature(entries)[0]


DIFFERENT: dict[str, Callable[[], object]] = {
    "a tensor": lambda: on_card(4, 6),
    "another card": lambda: on_card(
        4,
        6,
    ).to("spyre:1"),
    "the host": lambda: torch.empty(4, 6),
    "no device": lambda: torch.empty(4, 6, device="meta"),
    "another dtype of its size": lambda: on_card(4, 6, dtype=torch.int32),
    "complex": lambda: on_card(4, 6, dtype=torch.complex64),
    "conjugated": lambda: on_card(4, 6, dtype=torch.complex64).conj(),
    "negated": lambda: on_card(4, 6)._neg_view(),
    "another size": lambda: on_card(4, 7),
    "other strides": lambda: on_card(6, 4).t(),
    "another rank": lambda: on_card(24),
    "sizes that read like strides": lambda: on_card(24, 1),
    "no dimension": lambda: on_card(),
    "no element": lambda: on_card(0, 6),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nothing": lambda: None,
    "bool": lambda: True,
    "int": lambda: 1,
    "float": lambda: 1.0,
    "complex number": lambda: 1j,
    "text": lambda: "1",
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
def test_keys_differ_where_the_entries_do(driver: FakeDriver) -> None:
    keys = {what: key(make()) for what, make in DIFFERENT.items()}
    assert keys == {what: key(make()) for what, make in DIFFERENT.items()}
    for one, other in itertools.combinations(keys, 2):
        assert keys[one] != keys[other], f"{one} and {other}"


def test_a_key_tells_order_and_number(driver: FakeDriver) -> None:
    a, b = on_card(2), on_card(2, 1)
    keys = [key(), key(a), key(b), key(a, b), key(b, a), key(a, None), key(None, a), key([a, b])]
    assert len(set(keys)) == len(keys)
    assert key(a, b) == _bridge.signature([a, b])[0] == key(on_card(2), on_card(2, 1))


def test_a_key_tells_which_tensors_start_at_the_same_place(driver: FakeDriver) -> None:
    x, y = on_card(8), on_card(8)
    assert key(x, x) == key(x, x.detach()) == key(y, y) != key(x, y)
    assert key(x[:4], x[4:]) == key(x[:4], y[4:]), "one storage, another element"
    assert key(x, y, x) != key(x, y, y) != key(x, x, y)
    assert key(x, None, x) != key(x, None, y)
    host = torch.empty(8)
    assert key(host, host) != key(host, torch.empty(8))


def test_a_number_is_told_from_a_tensor_of_its_value(driver: FakeDriver) -> None:
    seen: list[bytes] = []
    library = torch.library.Library("aten", "IMPL")

    def kernel(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen.append(key(other))
        return self

    library.impl("mul.Tensor", kernel, "PrivateUse1")
    for other in (2.0, torch.tensor(2.0, dtype=torch.float64)):
        on_card(2) * other
    assert seen[0] != seen[1]


def test_places_are_what_locate_gives(driver: FakeDriver) -> None:
    x, base = on_card(5), on_card(6, 8)
    view = base[2:, 3:].t()
    entries = [x, view, torch.nn.Parameter(x), x.as_subclass(Named), on_card(0, 3), base]
    assert _bridge.signature(entries)[1] == tuple(_bridge.locate(t) for t in entries)
    allocation = _bridge.allocation(base)
    assert _bridge.signature([view])[1] == ((allocation, allocation.address + 19 * 4),)


def test_what_is_not_on_a_card_has_no_place(driver: FakeDriver) -> None:
    entries = (None, 1, 2.5, "x", [on_card(1)], torch.ones(2), torch.empty(2, device="meta"))
    assert _bridge.signature(entries)[1] == (None,) * len(entries)
    assert _bridge.signature(()) == (b"", ())


def test_a_storage_of_no_bytes_any_more_has_no_allocation(driver: FakeDriver) -> None:
    x = on_card(4)
    x.untyped_storage().resize_(0)
    assert _bridge.signature([x])[1] == ((None, 0),)


def test_a_storage_that_somebody_else_wrapped_is_looked_up(driver: FakeDriver) -> None:
    x = on_card(10)
    taken = from_dlpack(to_dlpack(x[2:]))
    allocation = _bridge.allocation(x)
    assert _bridge.signature([taken])[1] == ((allocation, allocation.address + 8),)


def test_an_error_of_the_look_up_arrives(driver: FakeDriver) -> None:
    class Lost(FakeDriver):
        def find(self, address: int) -> Any:
            raise KeyError("the driver's words")

    taken = from_dlpack(to_dlpack(on_card(10)))
    try:
        _bridge.install(Lost())
        with pytest.raises(KeyError, match="the driver's words"):
            _bridge.signature([on_card(1), taken])
    finally:
        _bridge.install(driver)


def test_the_look_up_may_change_the_list(driver: FakeDriver) -> None:
    taken = from_dlpack(to_dlpack(on_card(10)))
    entries = [taken, *(on_card(1) for _ in range(100))]

    class Clearing(FakeDriver):
        def find(self, address: int) -> Any:
            entries.clear()
            return "found"

    try:
        _bridge.install(Clearing())
        places = _bridge.signature(entries)[1]
    finally:
        _bridge.install(driver)
    assert places[0] is not None and places[0][0] == "found"
    assert len(places) == 101 and None not in places


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_tensors_that_answer_for_themselves_are_of_one_kind_and_have_no_place(
    driver: FakeDriver,
) -> None:
    with FakeTensorMode():
        fake = torch.empty(3, device="spyre")
    opaque: list[torch.Tensor] = [
        fake,
        torch.Tensor._make_subclass(Answering, on_card(3)),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.ones(3).to_mkldnn(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ]

    def inside(x: torch.Tensor) -> torch.Tensor:
        opaque.append(x)
        assert _bridge.signature([x, x]) == (2 * keys[0], (None, None))
        return x.sum()

    keys = [key(tensor) for tensor in opaque]
    assert len(set(keys)) == 1
    assert _bridge.signature(opaque)[1] == (None,) * len(opaque)
    torch.func.vmap(inside)(torch.ones(2, 3))
    torch.func.grad(inside)(torch.ones(3))
    assert len(opaque) == 8


def test_what_is_no_sequence_is_refused(driver: FakeDriver) -> None:
    for nothing in (None, 3):
        with pytest.raises(TypeError, match="object is not iterable"):
            _bridge.signature(nothing)  # type: ignore[arg-type]


def test_no_reference_is_kept(driver: FakeDriver) -> None:
    x = on_card(7)
    address = _bridge.allocation(x).address
    signature = _bridge.signature([x, x])
    del x
    assert ("free", address) in driver.calls
    assert signature[1][0] == signature[1][1] is not None


def test_places_are_apart_when_each_is_in_an_allocation_of_its_own(driver: FakeDriver) -> None:
    x, y, gone = on_card(4), on_card(4), on_card(4)
    gone.untyped_storage().resize_(0)

    def apart(*entries: object) -> bool:
        return _bridge.apart(_bridge.signature(entries)[1])

    assert apart() and apart(x) and apart(x, y)
    assert not apart(x, y, x)
    assert not apart(x[:2], x[2:])
    assert not apart(x, gone)
    assert not apart(x, None)
    with pytest.raises(TypeError, match="sequence of places"):
        _bridge.apart(1)  # type: ignore[arg-type]


def test_an_empty_tensor_is_what_torch_makes(driver: FakeDriver) -> None:
    for shape, strides in (((3, 4), (1, 3)), ((2, 0), (1, 1)), ((), ())):
        made = _bridge.empty_strided(shape, strides, torch.float16, 1)
        like = torch.empty_strided(shape, strides, dtype=torch.float16, device="spyre:1")
        assert (made.shape, made.stride()) == (like.shape, like.stride())
        assert (made.dtype, made.device) == (like.dtype, like.device)
        assert made.untyped_storage().nbytes() == like.untyped_storage().nbytes()
    with pytest.raises(TypeError, match=r"torch\.dtype"):
        _bridge.empty_strided((1,), (1,), "float16", 0)  # type: ignore[arg-type]
