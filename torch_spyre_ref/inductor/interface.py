"""What Dynamo and Inductor ask about the device, answered by ``torch.accelerator``'s own means."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface
from torch._inductor.codegen.common import DeviceOpOverrides

from torch_spyre_ref import device as cards
from torch_spyre_ref.device import NAME
from torch_spyre_ref.emulator.spec import CardSpec


class SpyreInterface(DeviceInterface):
    """The device as Dynamo sees it."""

    device = cards.device

    class Event(torch.Event):
        """A device event."""

    class Stream(torch.Stream):
        """A device stream."""

    class Worker(DeviceInterface.Worker):
        """The same for a compile worker, which must not start a card."""

        @staticmethod
        def set_device(device: int) -> None:
            cards.set_device(device)

        @staticmethod
        def current_device() -> int:
            return cards.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return Properties(cards.index_of(device))

    @staticmethod
    def current_device() -> int:
        return cards.current_device()

    @staticmethod
    def set_device(device: Any) -> None:
        cards.set_device(device)

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return SpyreInterface.exchange_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = cards.current_device()
        if device >= 0:
            cards.set_device(device)
        return previous

    @staticmethod
    def device_count() -> int:
        return cards.device_count()

    @staticmethod
    def is_available() -> bool:
        return cards.is_available()

    @staticmethod
    def stream(stream: torch.Stream) -> AbstractContextManager[Any]:
        return stream

    @staticmethod
    def current_stream() -> torch.Stream:
        return torch.accelerator.current_stream()

    @staticmethod
    def set_stream(stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return torch.accelerator.current_stream(device_idx).stream_id

    @staticmethod
    def synchronize(device: Any = None) -> None:
        cards.synchronize(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> int:
        return 0

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True


class Properties:
    """What Inductor's heuristics read of a device; asking starts no card."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.multi_processor_count = CardSpec().cores


class SpyreOpOverrides(DeviceOpOverrides):
    """Lines of generated code that are about the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"def {name}(index):\n    return torch.accelerator.current_stream(index).stream_id"

    def set_device(self, device_idx: int) -> str:
        return f"torch.{NAME}.set_device({device_idx})"

    def synchronize(self) -> str:
        return f"torch.{NAME}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.{NAME}.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.accelerator.current_stream()"
