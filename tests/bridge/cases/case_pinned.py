"""Pinned host memory: what torch asks for it, and whose it is."""

from __future__ import annotations

import pytest
import torch
from fake_driver import FakeDriver
from torch.utils.data import DataLoader

from torch_spyre_ref import _bridge


def test_pin_memory_and_is_pinned(driver: FakeDriver) -> None:
    host = torch.arange(6.0)
    assert not host.is_pinned()
    pinned = host.pin_memory()
    assert ("pin", 24) in driver.calls
    assert pinned.is_pinned()
    assert pinned.device == torch.device("cpu")
    assert pinned.equal(host)
    assert pinned[2:].is_pinned()
    assert pinned.pin_memory() is pinned


def test_pinned_factories(driver: FakeDriver) -> None:
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert torch.zeros(5, pin_memory=True).tolist() == [0.0] * 5
    assert not torch.empty(0, pin_memory=True).is_pinned()
    assert torch.empty(3).untyped_storage().pin_memory().is_pinned()
    assert not torch.ones(2, device="spyre").is_pinned()


def test_a_pinned_block_dies_with_its_last_tensor(driver: FakeDriver) -> None:
    alive: list[int] = []

    class Counting(FakeDriver):
        def pin(self, nbytes: int) -> object:
            block = super().pin(nbytes)

            class Counted:
                address = block.address
                memory = block.memory

                def __init__(self) -> None:
                    alive.append(1)

                def __del__(self) -> None:
                    alive.pop()

            return Counted()

    try:
        _bridge.install(Counting())
        tensor = torch.ones(4).pin_memory()
        view = tensor[1:]
        del tensor
        assert alive == [1]
        del view
        assert alive == []
    finally:
        _bridge.install(driver)


def test_pinning_that_fails_keeps_its_message(driver: FakeDriver) -> None:
    class Full(FakeDriver):
        def pin(self, nbytes: int) -> object:
            raise MemoryError(f"cannot pin {nbytes} bytes")

    try:
        _bridge.install(Full())
        with pytest.raises(MemoryError, match="cannot pin 16 bytes"):
            torch.ones(4).pin_memory()
    finally:
        _bridge.install(driver)


def test_data_loader_pins_on_its_own_thread(driver: FakeDriver) -> None:
    loader = DataLoader([torch.ones(3) * i for i in range(8)], batch_size=4, pin_memory=True)
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    assert [batch.sum().item() for batch in batches] == [18.0, 66.0]


def test_host_cache_calls_are_harmless(driver: FakeDriver) -> None:
    torch._C._accelerator_emptyHostCache()
