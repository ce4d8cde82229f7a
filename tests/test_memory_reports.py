"""What is told about memory: statistics, information, summary, and the map of what lies where."""

from __future__ import annotations

import pytest
import torch

from torch_spyre_ref.memory.map import size_text


def current(name: str, device: int = 0) -> int:
    return torch.accelerator.memory_stats(device).get(f"{name}.all.current", 0)


def test_statistics_count_blocks_and_bytes() -> None:
    torch.empty(1, device="spyre")
    names = ("allocation", "allocated_bytes", "requested_bytes", "active", "active_bytes")
    before = {name: current(name) for name in names}
    tensors = [torch.empty(n, dtype=torch.int8, device="spyre") for n in (1, 128, 129, 0)]
    grown = {name: current(name) - before[name] for name in names}
    assert grown == {
        "allocation": 3,
        "active": 3,
        "allocated_bytes": 128 + 128 + 256,
        "active_bytes": 128 + 128 + 256,
        "requested_bytes": 1 + 128 + 129,
    }
    del tensors
    assert {name: current(name) for name in names} == before


def test_peaks_and_their_reset() -> None:
    device = torch.device("spyre:1")
    before = torch.accelerator.memory_allocated(device)
    torch.accelerator.reset_peak_memory_stats(device)
    tensor = torch.empty(1000, device=device)
    del tensor
    tensor = torch.empty(500, device=device)
    assert torch.accelerator.max_memory_allocated(device) == before + 4096  # 4000 rounded up
    torch.accelerator.reset_peak_memory_stats(device)
    assert torch.accelerator.max_memory_allocated(device) == before + 2048
    torch.accelerator.reset_accumulated_memory_stats(device)
    stats = torch.accelerator.memory_stats(device)
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    assert stats["allocated_bytes.all.current"] == before + 2048
    del tensor


def test_memory_info_tells_free_and_total() -> None:
    tensor = torch.empty(1 << 20, dtype=torch.int8, device="spyre")
    free, total = torch.accelerator.get_memory_info("spyre:0")
    assert total == torch.spyre.get_device_properties(0).total_memory
    assert total - free == torch.accelerator.memory_allocated("spyre:0")
    assert torch.spyre.mem_get_info(0) == (free, total)
    del tensor
    assert torch.accelerator.get_memory_info(0)[0] == free + (1 << 20)


def test_reserved_memory_goes_back_with_empty_cache() -> None:
    tensor = torch.empty(1000, device="spyre:1")
    reserved = torch.accelerator.memory_reserved("spyre:1")
    assert reserved > 0 and reserved == current("reserved_bytes", 1)
    regions = current("segment", 1)
    del tensor
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved("spyre:1") < reserved
    assert current("segment", 1) < regions


@pytest.mark.parametrize("name", ["memory_allocated", "max_memory_allocated", "memory_reserved"])
def test_torch_spyre_says_what_torch_accelerator_says(name: str) -> None:
    tensor = torch.empty(1000, device="spyre:1")
    for device in (1, "spyre:1", torch.device("spyre", 1)):
        assert getattr(torch.spyre, name)(device) == getattr(torch.accelerator, name)(1) >= 4096
    with torch.spyre.device(1):
        assert getattr(torch.spyre, name)() == getattr(torch.accelerator, name)(1)
    del tensor


def test_the_memory_map_accounts_for_every_byte() -> None:
    with torch.spyre.placement("interleave"):
        tensors = [torch.empty(100_000, device="spyre")]
    tensors += [torch.empty(n * 100, device="spyre") for n in range(1, 10)]
    del tensors[2::2]
    shown = torch.spyre.memory_map("spyre:0")
    assert sum(region.total("cached") for region in shown.regions) > 0
    assert sum(region.total("live") for region in shown.regions) == current("allocated_bytes")
    for region in shown.regions:
        assert sum(span.length for span in region.spans) == region.size
        offset = 0
        for span in region.spans:
            assert span.offset == offset
            offset += span.length
    text = str(shown)
    assert text.startswith(f"spyre:0: {len(shown.regions)} open region") and repr(shown) == text
    assert all(f"region {region.region}," in text for region in shown.regions)


def test_the_summary_names_every_figure() -> None:
    tensor = torch.empty(1000, device="spyre")
    summary = torch.spyre.memory_summary()
    for word in (
        "spyre:0",
        "tensors",
        "in use",
        "requested",
        "reserved",
        "out of memory",
        "region",
    ):
        assert word in summary
    del tensor


def test_sizes_for_people() -> None:
    sizes = (0, 1023, 1024, 1536, 3 << 20, 16 << 30)
    texts = ("0 bytes", "1023 bytes", "1.00 KiB", "1.50 KiB", "3.00 MiB", "16.00 GiB")
    assert tuple(map(size_text, sizes)) == texts


def test_record_stream_is_accepted() -> None:
    tensor = torch.ones(4, device="spyre:1")
    tensor.record_stream(torch.accelerator.current_stream("spyre:1"))
    torch.empty(0, device="spyre").record_stream(torch.accelerator.current_stream("spyre:0"))
    assert tensor.tolist() == [1.0] * 4


def test_placement_is_checked_and_put_back() -> None:
    from torch_spyre_ref.memory.placement import ANYWHERE, current_placement

    with pytest.raises(KeyError), torch.spyre.placement("interleave"):
        raise KeyError
    assert current_placement.get() is ANYWHERE
    for arguments, message in (
        (("scatter",), "use 'bind' or 'interleave'"),
        (("interleave", 1), "leave domain out"),
        (("bind", 9), "domain"),
    ):
        with pytest.raises(ValueError, match=message), torch.spyre.placement(*arguments):
            torch.empty(10, device="spyre")
