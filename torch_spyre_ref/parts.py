"""Which class plays which part. A chapter installs its own by ``register(parts=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_spyre_ref.allocator import Allocator, CardMemory, Space
from torch_spyre_ref.device import DeviceDriver
from torch_spyre_ref.emulator.fetch import FetchUnit
from torch_spyre_ref.emulator.regions import RegionTable
from torch_spyre_ref.launch import Job
from torch_spyre_ref.runtime.hazards import Hazards
from torch_spyre_ref.streams import EventDriver, StreamDriver, TwoQueues


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
    submission: type[Any] = TwoQueues
    stream_driver: type[Any] = StreamDriver
    event_driver: type[Any] = EventDriver
