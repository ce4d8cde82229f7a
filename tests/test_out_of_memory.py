"""Out of memory: garbage is collected, the request retried, and a refusal changes nothing.

Invariant 7: what is refused leaves memory and statistics as they were, and says why.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from torch_spyre_ref import backend


@pytest.fixture
def memory_bytes() -> int:
    return backend.current().settings.memory


@pytest.fixture(autouse=True)
def everything_released() -> Iterator[None]:
    torch.empty(1, device="spyre")
    gc.collect()
    torch.accelerator.empty_cache()
    yield
    torch.accelerator.empty_cache()


def stats() -> dict[str, int]:
    return dict(torch.accelerator.memory_stats("spyre:0"))


def test_cyclic_garbage_makes_room(region_bytes: int, memory_bytes: int) -> None:
    gc.disable()
    try:
        cycle: list[object] = [torch.empty(memory_bytes // 2, dtype=torch.int8, device="spyre")]
        cycle.append(cycle)
        del cycle
        before = stats()
        tensor = torch.empty(memory_bytes - region_bytes, dtype=torch.int8, device="spyre")
        after = stats()
    finally:
        gc.enable()
    assert after["num_alloc_retries"] == before["num_alloc_retries"] + 1
    assert after["num_ooms"] == before["num_ooms"]
    assert after["allocation.all.current"] == before["allocation.all.current"]
    assert tensor.numel() == memory_bytes - region_bytes


def test_cached_blocks_make_room(memory_bytes: int) -> None:
    for size in range(1, 200):
        torch.empty(size * 1000, dtype=torch.int8, device="spyre")
    assert torch.empty(memory_bytes, dtype=torch.int8, device="spyre").numel() == memory_bytes


def test_a_refusal_says_what_is_where_and_changes_nothing(region_bytes: int) -> None:
    held = [torch.full((region_bytes,), 3, dtype=torch.int8, device="spyre") for _ in range(7)]
    before = stats()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(region_bytes + 1, dtype=torch.int8, device="spyre")
    message = str(caught.value)
    assert message.startswith("spyre:0 is out of memory: asked for")
    assert "7 tensors hold" in message and "TORCH_SPYRE_REF_MEMORY" in message
    assert message.count("region ") == 7 and "largest free block" in message
    after = stats()
    assert after.pop("num_ooms") == before.pop("num_ooms") + 1
    assert after.pop("num_alloc_retries") == before.pop("num_alloc_retries") + 1
    totals = (".allocated", ".freed", "num_device_alloc", "num_device_free")  # regions it tried
    assert all(after[name] == before[name] for name in after if not name.endswith(totals))
    assert after["allocation.all.allocated"] == before["allocation.all.allocated"]
    held.append(torch.full((region_bytes,), 3, dtype=torch.int8, device="spyre"))
    assert all(tensor[::4097].cpu().eq(3).all() for tensor in held)


@pytest.mark.parametrize("count", [1 << 30, 1 << 50])
def test_a_request_larger_than_memory(count: int) -> None:
    kept = torch.ones(3, device="spyre")
    before = stats()
    with pytest.raises(torch.OutOfMemoryError, match="asked for"):
        torch.empty(count, dtype=torch.float64, device="spyre")
    after = stats()
    assert after["num_ooms"] == before["num_ooms"] + 1
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert kept.tolist() == [1.0] * 3


def test_out_of_memory_in_the_middle_of_an_op_leaves_its_arguments(region_bytes: int) -> None:
    held = [torch.empty(region_bytes, dtype=torch.int8, device="spyre") for _ in range(7)]
    half = torch.ones(region_bytes // 8, device="spyre")
    with pytest.raises(torch.OutOfMemoryError):
        half.expand(2, -1).contiguous()
    with pytest.raises(torch.OutOfMemoryError):
        half.resize_(region_bytes)
    assert half.shape == (region_bytes // 8,) and half[::997].eq(1).all()
    del held
    assert half.expand(2, -1).contiguous()[1, -1].item() == 1


def test_one_card_that_is_full_takes_nothing_from_the_other(memory_bytes: int) -> None:
    held = torch.empty(memory_bytes, dtype=torch.int8, device="spyre:0")
    with pytest.raises(torch.OutOfMemoryError, match="spyre:0"):
        torch.empty(1, device="spyre:0")
    assert torch.ones(2, device="spyre:1").tolist() == [1.0, 1.0]
    del held


def test_bound_tensors_fill_their_domain_only(region_bytes: int) -> None:
    domains = torch.spyre.get_device_properties().domains
    with torch.spyre.placement("bind", domains - 1):
        size = (region_bytes,)
        held = [torch.empty(size, dtype=torch.int8, device="spyre") for _ in range(8 // domains)]
        with pytest.raises(torch.OutOfMemoryError, match=f"bound to domain {domains - 1}"):
            torch.empty(1, device="spyre")
    if domains > 1:
        held.append(torch.ones(1, device="spyre"))
        assert held[-1].item() == 1
