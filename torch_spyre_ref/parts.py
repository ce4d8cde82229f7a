"""Which class plays which part. A chapter installs its own by ``register(parts=...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_spyre_ref import eager
from torch_spyre_ref.allocator import Allocator, CardMemory, Space
from torch_spyre_ref.device import DeviceDriver
from torch_spyre_ref.emulator.fetch import FetchUnit
from torch_spyre_ref.emulator.regions import RegionTable
from torch_spyre_ref.launch import Job
from torch_spyre_ref.runtime.hazards import Hazards
from torch_spyre_ref.streams import EventDriver, StreamDriver, TwoQueues


def shipped_loop_tracer(*args: Any) -> Any:
    """A ``LoopTracer``. Only now is it loaded: whoever imports it imports Inductor."""
    from torch_spyre_ref.inductor.loop_tracer import LoopTracer

    return LoopTracer(*args)


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes in use; ``dataclasses.replace(Parts(), allocator=Mine)`` swaps one."""

    device_driver: type[Any] = DeviceDriver
    allocator: type[Any] = Allocator
    card_memory: type[Any] = CardMemory
    space: type[Any] = Space
    region_table: type[Any] = RegionTable
    hazards: type[Any] = Hazards
    fetch_unit: type[Any] = FetchUnit
    job: type[Any] = Job
    loop_tracer: Callable[..., Any] = shipped_loop_tracer
    eager_kernels: Callable[..., dict[str, Any]] = eager.kernels
    submission: type[Any] = TwoQueues
    stream_driver: type[Any] = StreamDriver
    event_driver: type[Any] = EventDriver
