"""Devices: the guard and the hooks, seen through torch's own functions."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from fake_driver import FakeDriver

from torch_spyre_ref import _bridge


def test_torch_sees_the_driver_s_cards(driver: FakeDriver) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.device_count() == 2
    assert _bridge.device_count() == 2


def test_the_number_of_cards_is_asked_once(driver: FakeDriver) -> None:
    for _ in range(3):
        torch.accelerator.device_count()
    assert ("device_count",) not in driver.calls


def test_a_device_without_index_is_the_current_one(driver: FakeDriver) -> None:
    torch.accelerator.set_device_index(1)
    assert torch.empty(3, device="spyre").device == torch.device("spyre:1")
    assert torch.empty(3, device="spyre:0").device == torch.device("spyre:0")
    assert torch.accelerator.current_device_index() == 1


def test_device_index_context_manager_restores(driver: FakeDriver) -> None:
    with torch.accelerator.device_index(1):
        assert _bridge.current_device() == 1
    assert _bridge.current_device() == 0
    assert _bridge.exchange_device(1) == 0
    assert _bridge.exchange_device(0) == 1


def test_the_current_device_belongs_to_a_thread(driver: FakeDriver) -> None:
    torch.accelerator.set_device_index(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(_bridge.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.mark.parametrize("index", [2, 5, 127])
def test_a_card_that_does_not_exist(driver: FakeDriver, index: int) -> None:
    message = rf"spyre:{index} does not exist: there are 2 cards, spyre:0 to spyre:1"
    with pytest.raises(RuntimeError, match=message):
        torch.accelerator.set_device_index(index)
    with pytest.raises(RuntimeError, match=message):
        torch.empty(1, device=f"spyre:{index}")
    with pytest.raises(RuntimeError, match=message):
        _bridge.exchange_device(index)
    with pytest.raises(RuntimeError, match=message):
        torch.Generator(device=f"spyre:{index}")
    assert _bridge.current_device() == 0


def test_an_index_beyond_torch_s_numbering(driver: FakeDriver) -> None:
    with pytest.raises(RuntimeError, match="spyre:1000 does not exist"):
        _bridge.set_device(1000)
    with pytest.raises(TypeError):
        _bridge.set_device("0")  # type: ignore[arg-type]


def test_every_dtype_can_be_stored(driver: FakeDriver) -> None:
    supported = torch.accelerator.get_device_capability(0)["supported_dtypes"]
    assert {torch.float64, torch.complex64, torch.bool, torch.float8_e4m3fn} <= supported


def test_another_driver_takes_over_and_memory_goes_back_to_its_own(driver: FakeDriver) -> None:
    old = torch.empty(16, device="spyre")
    address = _bridge.allocation(old).address
    other = FakeDriver(cards=1)
    other.next_address += 1 << 32
    try:
        _bridge.install(other)
        _bridge.install(other)
        assert torch.accelerator.device_count() == 1
        assert other.calls.count(("device_count",)) == 1
        with pytest.raises(RuntimeError, match=r"there is 1 card, spyre:0$"):
            torch.empty(1, device="spyre:1")
        new = torch.empty(16, device="spyre")
        del old
        assert ("free", address) in driver.calls
        address = _bridge.allocation(new).address
    finally:
        _bridge.install(driver)
    del new
    assert ("free", address) in other.calls


def test_a_method_that_the_driver_lacks_is_named_when_it_is_needed(driver: FakeDriver) -> None:
    try:
        _bridge.install(SimpleNamespace(device_count=lambda: 1))
        assert torch.accelerator.is_available()
        with pytest.raises(NotImplementedError, match=r"SimpleNamespace has no method free\(\)"):
            torch.empty(1, device="spyre")
        with pytest.raises(NotImplementedError, match=r"no method synchronize_device\(\)"):
            torch.accelerator.synchronize()
    finally:
        _bridge.install(driver)


def test_a_driver_that_fails_to_count_means_no_card(driver: FakeDriver) -> None:
    def device_count() -> int:
        raise ValueError("TORCH_SPYRE_REF_DEVICES is nonsense")

    try:
        _bridge.install(SimpleNamespace(device_count=device_count))
        assert torch._C._accelerator_hooks_device_count() == 0
        with pytest.raises(ValueError, match="is nonsense"):
            _bridge.device_count()
    finally:
        _bridge.install(driver)


def test_looking_around_starts_no_card(driver: FakeDriver) -> None:
    fresh = FakeDriver()
    try:
        _bridge.install(fresh)
        torch.accelerator.is_available()
        torch.accelerator.device_count()
        torch.manual_seed(1)
        torch.Generator(device="spyre")
        assert not fresh.started
        torch.empty(0, device="spyre")
        assert not fresh.started
        torch.empty(1, device="spyre")
        assert fresh.started
    finally:
        _bridge.install(driver)
