"""The runtime: typed operations in ordered queues. It knows no torch and no program's meaning."""

from torch_spyre_ref.emulator.addresses import Chunk, CompositeAddress
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.runtime.errors import NotPinnedError, QueueError
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.execute import Execute
from torch_spyre_ref.runtime.lowering import Prepared
from torch_spyre_ref.runtime.machine import AttachedCard, Runtime
from torch_spyre_ref.runtime.memcheck import Memcheck, MemcheckError, MemcheckReport
from torch_spyre_ref.runtime.operations import (
    D2D,
    D2H,
    H2D,
    Compute,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
    Operation,
)
from torch_spyre_ref.runtime.pending import Pending
from torch_spyre_ref.runtime.pinned import PinnedBuffer, PinnedMemory
from torch_spyre_ref.runtime.queues import Place, Queue
from torch_spyre_ref.runtime.staging import STAGING_BYTES, StagingPool

__all__ = [
    "D2D",
    "D2H",
    "H2D",
    "STAGING_BYTES",
    "AttachedCard",
    "Chunk",
    "CompositeAddress",
    "Compute",
    "DeviceRange",
    "Event",
    "EventSignal",
    "EventWait",
    "Execute",
    "Fill",
    "HostCallback",
    "Memcheck",
    "MemcheckError",
    "MemcheckReport",
    "NotPinnedError",
    "Operation",
    "Pending",
    "PinnedBuffer",
    "PinnedMemory",
    "Place",
    "Prepared",
    "Queue",
    "QueueError",
    "Runtime",
    "StagingPool",
]
