"""Allocator statistics under the names of torch's ``DeviceStats`` (c10/core/CachingDeviceAllocator.h)."""

from __future__ import annotations


class Counter:
    """One statistic the way PyTorch reports it: current, peak, allocated and freed."""

    __slots__ = ("_base", "allocated", "current", "peak")

    def __init__(self) -> None:
        self.allocated = self.current = self.peak = 0
        self._base = 0

    def add(self, amount: int) -> None:
        """Count ``amount`` as allocated."""
        self.allocated += amount
        self.current = now = self.current + amount
        if now > self.peak:
            self.peak = now

    def restart(self) -> None:
        """Allocated and freed start again from zero."""
        self._base = self.current
        self.allocated = 0

    def as_dict(self) -> dict[str, int]:
        """The four figures under torch's names."""
        freed = self.allocated + self._base - self.current
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": freed,
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
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        """Everything that only grows starts again from zero."""
        self.retries = self.ooms = 0
        for counter in self.counters.values():
            counter.restart()
