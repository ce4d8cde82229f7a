"""The emulated card: NumPy only, deterministic, in virtual time."""

from torch_spyre_ref.emulator.addresses import Chunk, CompositeAddress
from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.errors import (
    CardMemoryExhausted,
    HandleBudgetExhausted,
    RegionError,
)
from torch_spyre_ref.emulator.memory import Memory, RegionFaultError
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.regions import Mode, Region, RegionTable
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.emulator.timeline import Record, Timeline

__all__ = [
    "Card",
    "CardMemoryExhausted",
    "CardSpec",
    "Chunk",
    "Clock",
    "CompositeAddress",
    "DeviceRange",
    "HandleBudgetExhausted",
    "Memory",
    "Mode",
    "Record",
    "Region",
    "RegionError",
    "RegionFaultError",
    "RegionTable",
    "Timeline",
]
