"""Allocator statistics, named as in ``DeviceStats`` (c10/core/CachingDeviceAllocator.h)."""

from __future__ import annotations


class Counter:
    """One statistic the way PyTorch reports it: current, peak, allocated and freed.

    The peak is looked at before something is freed and before a report: in between, the current
    value only grows.
    """

    __slots__ = ("_allocated_before", "_freed_before", "allocated", "freed", "peak")

    def __init__(self) -> None:
        self.allocated = self.freed = self.peak = 0
        self._allocated_before = self._freed_before = 0

    @property
    def current(self) -> int:
        """What is there now."""
        return self.allocated - self.freed

    def free(self, amount: int) -> None:
        """Count ``amount`` as freed."""
        self.peak = max(self.peak, self.current)
        self.freed += amount

    def reset_peak(self) -> None:
        """The peak starts again from what is there now."""
        self.peak = self.current

    def restart(self) -> None:
        """Allocated and freed start again from zero."""
        self._allocated_before, self._freed_before = self.allocated, self.freed

    def as_dict(self) -> dict[str, int]:
        """The four figures under torch's names."""
        self.free(0)
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated - self._allocated_before,
            "freed": self.freed - self._freed_before,
        }


class Statistics:
    """Everything that is counted for one card, under the names of torch's ``DeviceStats``."""

    def __init__(self, segments: Counter, reserved: Counter) -> None:
        self.allocation, self.allocated_bytes, self.requested_bytes = (Counter() for _ in range(3))
        self.retries = self.ooms = 0
        self.counters = {
            "allocation": self.allocation,
            "allocated_bytes": self.allocated_bytes,
            "requested_bytes": self.requested_bytes,
            "active": self.allocation,
            "active_bytes": self.allocated_bytes,
            "segment": segments,
            "reserved_bytes": reserved,
        }

    def took(self, size: int, asked: int) -> None:
        """A tensor took a block of ``size`` bytes, having asked for ``asked``."""
        self.allocation.allocated += 1
        self.allocated_bytes.allocated += size
        self.requested_bytes.allocated += asked

    def gave(self, size: int, asked: int) -> None:
        """A tensor gave that block back. Written out, for it is called for every tensor."""
        blocks, held, wanted = self.allocation, self.allocated_bytes, self.requested_bytes
        if (current := blocks.allocated - blocks.freed) > blocks.peak:
            blocks.peak = current
        if (current := held.allocated - held.freed) > held.peak:
            held.peak = current
        if (current := wanted.allocated - wanted.freed) > wanted.peak:
            wanted.peak = current
        blocks.freed += 1
        held.freed += size
        wanted.freed += asked

    def as_dict(self) -> dict[str, dict[str, int] | int]:
        """Nested as the bridge expects it. Blocks in use are ``active`` to torch as well."""
        segments = self.counters["segment"].as_dict()
        return {
            **{name: counter.as_dict() for name, counter in self.counters.items()},
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_device_alloc": segments["allocated"],
            "num_device_free": segments["freed"],
        }

    def reset_peak(self) -> None:
        """Every peak starts again from what is there now."""
        for counter in self.counters.values():
            counter.reset_peak()

    def reset_accumulated(self) -> None:
        """Everything that only grows starts again from zero."""
        self.retries = self.ooms = 0
        for counter in self.counters.values():
            counter.restart()
