"""The memory functions of ``torch.spyre``: torch.accelerator's, and a map of what lies where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.accelerator import memory as accelerator

from torch_spyre_ref import backend
from torch_spyre_ref.device import index_of
from torch_spyre_ref.memory.map import MemoryMap, size_text
from torch_spyre_ref.memory.placement import placement

Device = torch.device | int | str | None


def memory_allocated(device: Device = None) -> int:
    """Bytes that live tensors hold, rounded up to 128 each."""
    return accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The highest ``memory_allocated`` since the last reset."""
    return accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes of the regions that are open."""
    return accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """The highest ``memory_reserved`` since the last reset."""
    return accelerator.max_memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All counters, flattened: ``allocated_bytes.all.current`` and so on."""
    return accelerator.memory_stats(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Every peak starts again from what is there now."""
    accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Everything that only grows starts again from zero."""
    accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes that are not in use, and bytes that there are."""
    return accelerator.get_memory_info(index_of(device))


def empty_cache() -> None:
    """Return cached blocks, and give wholly free regions back to their card."""
    accelerator.empty_cache()


def memory_map(device: Device = None) -> MemoryMap:
    """What lies where on a card: prints as text, shows as a figure in a notebook."""
    index = index_of(device)
    return backend.current().memory.memory_map(index)


def memory_summary(device: Device = None) -> str:
    """The counters as a table, and the memory map."""
    index = index_of(device)
    placed = memory_map(index)  # starts the card: torch has no statistics before that
    stats = memory_stats(index)
    lines = [f"spyre:{index}", f"{'':<16}{'current':>14}{'peak':>14}{'allocated':>14}{'freed':>14}"]
    rows: list[tuple[str, str, Callable[[int], str]]] = [
        ("tensors", "allocation", str),
        ("in use", "allocated_bytes", size_text),
        ("requested", "requested_bytes", size_text),
        ("reserved", "reserved_bytes", size_text),
    ]
    for title, name, text in rows:
        row = (stats[f"{name}.all.{kind}"] for kind in ("current", "peak", "allocated", "freed"))
        lines.append(f"{title:<16}" + "".join(f"{text(value):>14}" for value in row))
    retries, ooms = stats["num_alloc_retries"], stats["num_ooms"]
    lines.append(f"{retries} retries after garbage collection, {ooms} out of memory")
    return "\n".join([*lines, str(placed)])


EXPORTS = (
    memory_allocated,
    max_memory_allocated,
    memory_reserved,
    max_memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    reset_accumulated_memory_stats,
    mem_get_info,
    empty_cache,
    memory_map,
    memory_summary,
    placement,
)
