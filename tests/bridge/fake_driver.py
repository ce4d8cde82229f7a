"""A driver with no policy to speak of: what the bridge's tests install in the package's place.

Memory is a CPU tensor for each block, behind addresses that mean nothing to the CPU. Every call is
written to ``calls``. ``start()`` does what the package's ``register()`` does, with this driver.
"""

from __future__ import annotations

import atexit
import bisect
import itertools
import os
import threading
from types import ModuleType
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

from torch_spyre_ref import _bridge

NAME = "spyre"
FIRST_ADDRESS = 1 << 40


class Block:
    """One allocation: an opaque address, and the bytes that stand for card memory."""

    def __init__(self, address: int, nbytes: int, device: int) -> None:
        self.address = address
        self.device = device
        self.memory = torch.full((nbytes,), 0xFF, dtype=torch.uint8)


class Pinned:
    """One block of host memory."""

    def __init__(self, nbytes: int) -> None:
        self.memory = torch.zeros(nbytes, dtype=torch.uint8)
        self.address = self.memory.data_ptr()


class FakeDriver:
    """Two cards whose streams do everything at once."""

    def __init__(self, cards: int = 2, memory: int = 1 << 30) -> None:
        self.cards = cards
        self.memory = memory
        self.started = False
        self.fired = True
        self.blocks: dict[int, Block] = {}
        self.pinned: list[tuple[int, int]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.fallbacks: list[str] = []
        self.handles = itertools.count(1)
        self.next_address = FIRST_ADDRESS
        self.lock = threading.Lock()

    def device_count(self) -> int:
        self.calls.append(("device_count",))
        return self.cards

    def is_initialized(self) -> bool:
        return self.started

    def allocate(self, nbytes: int, device: int, stream: int) -> Block:
        self.calls.append(("allocate", nbytes, device, stream))
        self.started = True
        live = sum(block.memory.numel() for block in list(self.blocks.values()))
        if nbytes > self.memory - live:
            raise torch.OutOfMemoryError(f"asked for {nbytes} bytes of {NAME}:{device}")
        with self.lock:
            address = self.next_address
            self.next_address += -(-nbytes // 128) * 128 + 128
        block = self.blocks[address] = Block(address, nbytes, device)
        return block

    def free(self, block: Block) -> None:
        self.calls.append(("free", block.address))
        del self.blocks[block.address]

    def find(self, address: int) -> Block | None:
        self.calls.append(("find", address))
        addresses = sorted(self.blocks)
        index = bisect.bisect_right(addresses, address) - 1
        if index < 0:
            return None
        block = self.blocks[addresses[index]]
        return block if address < block.address + block.memory.numel() else None

    def device_of(self, address: int) -> int:
        block = self.find(address)
        return -1 if block is None else block.device

    def statistics(self, device: int) -> dict[str, Any]:
        self.calls.append(("statistics", device))
        live = [b.memory.numel() for b in self.blocks.values() if b.device == device]
        return {
            "allocation": {"current": len(live), "peak": 7, "allocated": 8, "freed": 9},
            "allocated_bytes": {"current": sum(live)},
            "oversize_segments": {"peak": 3},
            "num_ooms": 4,
            "something_else": 5,
        }

    def reset_peak(self, device: int) -> None:
        self.calls.append(("reset_peak", device))

    def reset_accumulated(self, device: int) -> None:
        self.calls.append(("reset_accumulated", device))

    def empty_cache(self) -> None:
        self.calls.append(("empty_cache",))

    def memory_info(self, device: int) -> tuple[int, int]:
        return self.memory - 10, self.memory

    def record_stream(self, block: Block, device: int, stream: int) -> None:
        self.calls.append(("record_stream", block.address, device, stream))

    def move_bytes(self, target: Block, source: Block, nbytes: int) -> None:
        self.calls.append(("move_bytes", nbytes))
        target.memory[:nbytes] = source.memory[:nbytes]

    def pin(self, nbytes: int) -> Pinned:
        self.calls.append(("pin", nbytes))
        block = Pinned(nbytes)
        self.pinned.append((block.address, nbytes))
        return block

    def is_pinned(self, address: int) -> bool:
        return any(start <= address < start + size for start, size in self.pinned)

    def new_stream(self, device: int, priority: int) -> int:
        self.calls.append(("new_stream", device, priority))
        return next(self.handles)

    def synchronize_stream(self, device: int, stream: int) -> None:
        self.calls.append(("synchronize_stream", device, stream))

    def query_stream(self, device: int, stream: int) -> bool:
        self.calls.append(("query_stream", device, stream))
        return True

    def synchronize_device(self, device: int) -> None:
        self.calls.append(("synchronize_device", device))

    def stream_handle(self, device: int, stream: int) -> int:
        return 1000 + 10 * device + stream

    def record_event(self, handle: int, device: int, stream: int, timing: bool) -> int:
        self.calls.append(("record_event", handle, device, stream, timing))
        return handle or next(self.handles)

    def block_event(self, handle: int, device: int, stream: int) -> None:
        self.calls.append(("block_event", handle, device, stream))

    def query_event(self, handle: int) -> bool:
        self.calls.append(("query_event", handle))
        return self.fired

    def synchronize_event(self, handle: int) -> None:
        self.calls.append(("synchronize_event", handle))

    def elapsed_time(self, start: int, end: int) -> float:
        return 2.5

    def destroy_event(self, handle: int, device: int) -> None:
        self.calls.append(("destroy_event", handle, device))

    def fallback(self, op: str) -> None:
        self.fallbacks.append(op)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes behind a card tensor as a CPU tensor of the same geometry."""
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    block, address = _bridge.locate(tensor)
    offset = (address - block.address) // tensor.element_size()
    host = torch.empty(0, dtype=tensor.dtype)
    host.set_(block.memory.untyped_storage(), offset, tensor.shape, tensor.stride())
    host = host.conj() if tensor.is_conj() else host
    return torch._neg_view(host) if tensor.is_neg() else host


def on_copy(source: torch.Tensor) -> None:
    """Called with the source of every copy: for tests that count."""


def copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    on_copy(source)
    there = on_host(target) if target.device.type == NAME else target
    there.copy_(on_host(source) if source.device.type == NAME else source)
    return target


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return copy_from(source, target.resize_(source.shape))


def local_scalar_dense(tensor: torch.Tensor) -> Any:
    return on_host(tensor).item()


def device_module(driver: FakeDriver) -> ModuleType:
    """The smallest ``torch.spyre`` that torch's own code is content with."""
    module = ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: _bridge.device_count() > 0,
        "is_initialized": lambda: driver.started,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": _bridge.device_count,
        "current_device": _bridge.current_device,
        "set_device": _bridge.set_device,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "manual_seed_all": lambda seed: [
            _bridge.default_generator(index).manual_seed(seed)
            for index in range(_bridge.device_count())
        ],
        "get_rng_state": lambda index=0: _bridge.default_generator(index).get_state(),
        "set_rng_state": lambda state, index=0: _bridge.default_generator(index).set_state(state),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


KERNELS = {
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_local_scalar_dense": local_scalar_dense,
}
library = torch.library.Library("aten", "IMPL")


def start(driver: FakeDriver | None = None) -> FakeDriver:
    """Install a driver and register everything, once a process."""
    driver = driver or FakeDriver()
    _bridge.install(driver)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, device_module(driver))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    for name, kernel in KERNELS.items():
        library.impl(name, _bridge.shield(kernel), "PrivateUse1")
    atexit.register(_bridge.shutdown)
    return driver
