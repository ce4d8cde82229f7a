"""Memory: allocations, statistics, foreign storages, storage resize, and all their errors."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from fake_driver import Block, FakeDriver
from torch.utils.dlpack import from_dlpack, to_dlpack

from torch_spyre_ref import _bridge


def test_a_tensor_owns_one_allocation_until_its_last_view_dies(driver: FakeDriver) -> None:
    tensor = torch.empty(100, dtype=torch.int16, device="spyre:1")
    allocation = _bridge.allocation(tensor)
    assert ("allocate", 200, 1, 0) in driver.calls
    assert tensor.data_ptr() == allocation.address
    view = tensor[50:]
    assert _bridge.allocation(view) is allocation
    assert _bridge.storage_allocation(view.untyped_storage()) is allocation
    assert _bridge.locate(view) == (allocation, allocation.address + 100)
    del tensor
    assert ("free", allocation.address) not in driver.calls
    del view
    assert ("free", allocation.address) in driver.calls


def test_zero_bytes_have_no_allocation_and_stay_on_their_card(driver: FakeDriver) -> None:
    tensor = torch.empty(0, 3, device="spyre:1")
    assert tensor.device == torch.device("spyre:1")
    assert tensor.untyped_storage().device == torch.device("spyre:1")
    assert tensor.data_ptr() == 0
    assert _bridge.allocation(tensor) is None
    assert _bridge.locate(tensor) == (None, 0)
    assert driver.calls == []


def test_only_card_tensors_have_allocations(driver: FakeDriver) -> None:
    with pytest.raises(TypeError, match="expected a tensor on spyre, got one on cpu"):
        _bridge.allocation(torch.ones(1))
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor, got int"):
        _bridge.allocation(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a storage on spyre, got one on cpu"):
        _bridge.storage_allocation(torch.ones(1).untyped_storage())
    with pytest.raises(TypeError, match=r"allocation\(\) takes exactly one argument"):
        _bridge.allocation()  # type: ignore[call-arg]


def test_out_of_memory_arrives_as_torch_s_own_error(driver: FakeDriver) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="asked for 4294967296 bytes of spyre:0"):
        torch.empty(1 << 32, dtype=torch.uint8, device="spyre")
    assert driver.blocks == {}


@pytest.mark.parametrize("error", [KeyError, ZeroDivisionError, RuntimeError, MemoryError])
def test_an_error_of_the_driver_keeps_type_message_and_origin(
    driver: FakeDriver, error: type[Exception]
) -> None:
    class Refusing(FakeDriver):
        def allocate(self, nbytes: int, device: int, stream: int) -> Block:
            raise error("the driver's words")

    try:
        _bridge.install(Refusing())
        with pytest.raises(error, match="the driver's words") as caught:
            torch.empty(1, device="spyre")
        assert "allocate" in [entry.name for entry in caught.traceback]
    finally:
        _bridge.install(driver)


def test_address_zero_is_refused(driver: FakeDriver) -> None:
    class Null(FakeDriver):
        def allocate(self, nbytes: int, device: int, stream: int) -> Any:
            return type("Block", (), {"address": 0})()

    try:
        _bridge.install(Null())
        with pytest.raises(RuntimeError, match=r"driver.allocate\(\) gave address 0"):
            torch.empty(1, device="spyre")
    finally:
        _bridge.install(driver)


def test_an_error_in_free_is_reported_and_harms_nobody(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(FakeDriver):
        def free(self, block: object) -> None:
            raise ValueError("not now")

    reported: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: reported.append(str(event.exc_value)))
    try:
        _bridge.install(Stubborn())
        tensor = torch.empty(1, device="spyre")
    finally:
        _bridge.install(driver)
    del tensor
    assert reported == ["not now"]


def test_free_does_not_swallow_the_error_that_is_on_its_way(driver: FakeDriver) -> None:
    class Asking(FakeDriver):
        def free(self, block: object) -> None:
            try:
                raise KeyError("inside free")
            except KeyError:
                pass

    try:
        _bridge.install(Asking())
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(2, device="spyre:0") + torch.ones(2, device="spyre:1")
        with pytest.raises(RuntimeError, match="the driver's words"):
            _fail_on_a_temporary()
    finally:
        _bridge.install(driver)


def _fail_on_a_temporary() -> None:
    library = torch.library.Library("aten", "IMPL")

    def fail(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the driver's words")

    library.impl("erfinv", fail, "PrivateUse1")
    torch.erfinv(torch.empty(8, device="spyre").view(2, 4))


def test_threads_allocate_and_free_at_once(driver: FakeDriver) -> None:
    def work(index: int) -> None:
        torch.accelerator.set_device_index(index % 2)
        for size in range(1, 200):
            tensor = torch.empty(size, device="spyre")
            assert _bridge.allocation(tensor).device == index % 2

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.blocks == {}


def test_backward_frees_on_autograd_s_own_threads(driver: FakeDriver) -> None:
    leaf = torch.ones(4, device="spyre", requires_grad=True)
    (leaf * leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.cpu().tolist() == [2.0] * 4
    del leaf
    gc.collect()
    assert driver.blocks == {}


def test_a_garbage_cycle_collected_inside_an_allocation(driver: FakeDriver) -> None:
    class Collecting(FakeDriver):
        def allocate(self, nbytes: int, device: int, stream: int) -> Block:
            gc.collect()
            return super().allocate(nbytes, device, stream)

    collecting = Collecting()
    try:
        _bridge.install(collecting)
        cycle: list[object] = [torch.empty(4, device="spyre")]
        cycle.append(cycle)
        del cycle
        kept = torch.empty(4, device="spyre")
        assert list(collecting.blocks) == [kept.data_ptr()]
    finally:
        _bridge.install(driver)


def test_statistics_reach_torch_accelerator(driver: FakeDriver) -> None:
    tensor = torch.empty(25, device="spyre:1")
    statistics = torch.accelerator.memory_stats(1)
    assert statistics["allocation.all.current"] == 1
    assert statistics["allocation.all.peak"] == 7
    assert statistics["allocation.all.allocated"] == 8
    assert statistics["allocation.all.freed"] == 9
    assert statistics["allocated_bytes.all.current"] == tensor.nbytes
    assert statistics["oversize_segments.peak"] == 3
    assert statistics["num_ooms"] == 4
    assert torch.accelerator.memory_allocated(1) == tensor.nbytes
    assert torch.accelerator.memory_allocated(0) == 0
    assert torch.accelerator.max_memory_reserved(1) == 0


def test_memory_calls_reach_the_driver(driver: FakeDriver) -> None:
    torch.empty(1, device="spyre")
    driver.calls.clear()
    torch.accelerator.reset_peak_memory_stats(1)
    torch.accelerator.reset_accumulated_memory_stats(0)
    torch.accelerator.empty_cache()
    assert driver.calls == [("reset_peak", 1), ("reset_accumulated", 0), ("empty_cache",)]
    assert torch.accelerator.get_memory_info(0) == (driver.memory - 10, driver.memory)
    with pytest.raises(RuntimeError, match="spyre:9 does not exist"):
        torch._C._accelerator_getDeviceStats(9)


def test_statistics_of_the_wrong_shape_are_refused(driver: FakeDriver) -> None:
    class Wrong(FakeDriver):
        def statistics(self, device: int) -> dict[str, object]:
            return {"allocation": 3}

    try:
        _bridge.install(Wrong())
        torch.empty(1, device="spyre")
        with pytest.raises(TypeError, match="must give a dict of dicts, not int"):
            torch._C._accelerator_getDeviceStats(0)
    finally:
        _bridge.install(driver)


@pytest.mark.parametrize(("before", "after"), [(6, 10), (10, 6), (6, 0), (0, 6), (6, 6)])
def test_storage_resize_keeps_what_fits(driver: FakeDriver, before: int, after: int) -> None:
    tensor = torch.empty(before, dtype=torch.uint8, device="spyre:1")
    tensor.copy_(torch.arange(before, dtype=torch.uint8))
    tensor.untyped_storage().resize_(after)
    assert tensor.untyped_storage().nbytes() == after
    assert tensor.untyped_storage().device == torch.device("spyre:1")
    kept = min(before, after)
    assert tensor[:kept].cpu().tolist() == list(range(kept))
    assert sum(block.memory.numel() for block in driver.blocks.values()) == after
    allocation = _bridge.storage_allocation(tensor.untyped_storage())
    assert (allocation is None) == (after == 0)


def test_storage_resize_that_fails_changes_nothing(driver: FakeDriver) -> None:
    tensor = torch.ones(4, device="spyre")
    with pytest.raises(torch.OutOfMemoryError):
        tensor.untyped_storage().resize_(1 << 33)
    assert tensor.untyped_storage().nbytes() == 16
    assert tensor.cpu().tolist() == [1.0] * 4
    with pytest.raises(RuntimeError):
        tensor.untyped_storage().resize_(-1)


def test_dlpack_capsule_goes_out_and_comes_back(driver: FakeDriver) -> None:
    base = torch.arange(12, dtype=torch.float32).to("spyre:1")
    view = base.view(3, 4)[1:, ::2]
    back = from_dlpack(to_dlpack(view))
    assert back.device == torch.device("spyre:1")
    assert back.data_ptr() == view.data_ptr()
    assert back.cpu().tolist() == [[4.0, 6.0], [8.0, 10.0]]
    back.fill_(0)
    assert base.cpu().tolist() == [0, 1, 2, 3, 0, 5, 0, 7, 0, 9, 0, 11]
    allocation = _bridge.allocation(base)
    assert _bridge.allocation(back) is allocation
    assert _bridge.locate(back) == (allocation, allocation.address + 16)
    del base, view, allocation
    assert len(driver.blocks) == 1
    del back
    assert driver.blocks == {}


def test_from_dlpack_of_a_tensor_is_a_limit_of_torch(driver: FakeDriver) -> None:
    with pytest.raises(ValueError, match=r"privateuse|Unknown device type|spyre"):
        torch.from_dlpack(torch.ones(2, device="spyre"))


def test_a_foreign_storage_cannot_be_resized(driver: FakeDriver) -> None:
    base = torch.ones(4, device="spyre")
    foreign = from_dlpack(to_dlpack(base))
    with pytest.raises(RuntimeError, match="not resizable"):
        foreign.untyped_storage().resize_(64)


def test_copy_on_write_is_refused_before_anything_is_shared(driver: FakeDriver) -> None:
    base = torch.ones(4, device="spyre")
    with pytest.raises(RuntimeError):
        torch._lazy_clone(base)
    assert base.cpu().tolist() == [1.0] * 4


def test_a_storage_grows_on_its_own_card(driver: FakeDriver) -> None:
    torch.accelerator.set_device_index(1)
    tensor = torch.ones(4, device="spyre:0")
    tensor.resize_(8)
    assert tensor.device == torch.device("spyre:0")
    assert [block.device for block in driver.blocks.values()] == [0]


def test_record_stream_reaches_the_driver(driver: FakeDriver) -> None:
    tensor = torch.empty(4, device="spyre:1")
    tensor.record_stream(torch.Stream(device="spyre:1"))
    recorded = [call for call in driver.calls if call[0] == "record_stream"]
    assert [call[1:3] for call in recorded] == [(tensor.data_ptr(), 1)]
    torch.empty(0, device="spyre:1").record_stream(torch.Stream(device="spyre:1"))
    assert [call for call in driver.calls if call[0] == "record_stream"] == recorded
