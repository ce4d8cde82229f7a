# Produced by chapters/01_device.py: edit it there, then run `make tangle`.
"""PyTorch can know a card by name, without a fork.

PyTorch keeps one device type free for hardware outside its tree. Here it gets the name `spyre`,
every question that PyTorch asks about devices gets an answer, and `torch.spyre` gathers what
users call.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from torch_spyre_ref import _bridge, backend

# Claim PyTorch's one free name
NAME = "spyre"


def claim_name() -> None:
    """Give PyTorch's free device type, PrivateUse1, our name.

    Raises:
        RuntimeError: another backend of this process has named it.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in (NAME, "privateuseone"):
        raise RuntimeError(
            f"cannot register {NAME}: PyTorch's one free device type already belongs to {taken}. "
            "Uninstall that backend, or keep it from loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        )
    if taken != NAME:
        rename_privateuse1_backend(NAME)


# Open torch.spyre
def publish(functions: Iterable[Callable[..., Any]]) -> ModuleType:
    """Put functions and classes into ``torch.spyre``, and return it; the first call makes it."""
    module = getattr(torch, NAME, None)
    if not isinstance(module, ModuleType):
        module = ModuleType(f"torch.{NAME}", f"The {NAME} device: what torch.accelerator lacks.")
        torch._register_device_module(NAME, module)
    for function in functions:
        setattr(module, function.__name__, function)
    return module


# Count cards without starting one
def device_count() -> int:
    """How many cards there are (``TORCH_SPYRE_REF_DEVICES``). Starts none."""
    return _bridge.device_count()


def is_available() -> bool:
    """Whether there is a card. Starts none."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the cards have started: the first tensor, copy or query of memory starts them."""
    return backend.current().started


# Answer what guard and hooks ask about cards
class DeviceDriver:
    """What PyTorch's device guard and hooks ask about cards."""

    def __init__(self, backend: backend.Backend) -> None:
        self._backend = backend

    def device_count(self) -> int:
        """How many cards there are. Starts none."""
        return self._backend.settings.devices

    def is_initialized(self) -> bool:
        """Whether the cards have started: PyTorch's "primary context"."""
        return self._backend.started

    def synchronize_device(self, device: int) -> None:
        """Wait for everything that was enqueued on a card, and raise its first error."""
        if self._backend.started:
            self._backend.runtime.synchronize(device)

    def pin(self, nbytes: int) -> Any:
        """A block of host memory that the card's DMA can see."""
        return self._backend.runtime.pinned.allocate(nbytes)

    def is_pinned(self, address: int) -> bool:
        """Whether a host pointer lies in such a block."""
        return self._backend.started and self._backend.runtime.pinned.is_pinned(address)


# Say which card a name means
def current_device() -> int:
    """The index of this thread's current card."""
    return _bridge.current_device()


def set_device(device: torch.device | int | str | None) -> None:
    """Make a card this thread's current one."""
    _bridge.set_device(index_of(device))


def index_of(device: torch.device | int | str | None) -> int:
    """The index that ``device`` means; the current card where it names none.

    Raises:
        ValueError: another kind of device, or a card that does not exist.
    """
    if device is None:
        return current_device()
    if not isinstance(device, int):
        named = torch.device(device)
        if named.type != NAME:
            raise ValueError(f"expected a {NAME} device, got {named}: use '{NAME}' or '{NAME}:0'")
        device = current_device() if named.index is None else named.index
    if not 0 <= device < device_count():
        cards = ", ".join(f"{NAME}:{index}" for index in range(device_count()))
        raise ValueError(
            f"{NAME}:{device} does not exist: this process has {cards or 'no cards'}. "
            f"Use one of them, or set TORCH_SPYRE_REF_DEVICES."
        )
    return device


# Make a card current for a block
class device:  # noqa: N801 (torch's own name for it)
    """``with torch.spyre.device(1):`` makes a card current in the block; None changes nothing."""

    def __init__(self, device: torch.device | int | str | None) -> None:
        self.index = -1 if device is None else index_of(device)
        self._previous = -1

    def __enter__(self) -> None:
        if self.index >= 0:
            self._previous = _bridge.exchange_device(self.index)

    def __exit__(self, *error: object) -> None:
        if self.index >= 0:
            _bridge.exchange_device(self._previous)


class device_of(device):  # noqa: N801
    """``with torch.spyre.device_of(tensor):`` makes the tensor's card current."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == NAME else None)


# Describe a card
@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What there is to know of a card. Sizes are bytes."""

    name: str
    index: int
    mode: str
    total_memory: int
    domains: int
    multi_processor_count: int
    scratchpad_bytes: int
    stick_bytes: int


def get_device_name(device: torch.device | int | str | None = None) -> str:
    """The card's name."""
    index_of(device)
    return "Emulated Spyre"


def get_device_properties(device: torch.device | int | str | None = None) -> DeviceProperties:
    """The properties of a card. Starts it."""
    index = index_of(device)
    runtime = backend.current().runtime
    spec = runtime.cards[index].card.spec
    return DeviceProperties(
        name=get_device_name(index),
        index=index,
        mode=backend.current().settings.mode,
        total_memory=spec.memory,
        domains=spec.domains,
        multi_processor_count=spec.cores,
        scratchpad_bytes=spec.scratchpad,
        stick_bytes=spec.stick,
    )


# Say what a card can do, and wait for it
def get_device_capability(device: torch.device | int | str | None = None) -> dict[str, Any]:
    """What torch.accelerator reports: the dtypes that a tensor may have on the card."""
    return torch.accelerator.get_device_capability(index_of(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("spyre")`` may compute in."""
    return [torch.float16, torch.bfloat16]


def synchronize(device: torch.device | int | str | None = None) -> None:
    """Wait until a card has done all that was enqueued on it, and raise its first error."""
    torch.accelerator.synchronize(index_of(device))


# Gather what users call
def _is_in_bad_fork() -> bool:
    """Whether this is a child that was forked after the cards had started."""
    return backend.current().in_bad_fork


EXPORTS: tuple[Callable[..., Any], ...] = (
    is_available,
    is_initialized,
    device_count,
    current_device,
    set_device,
    device,
    device_of,
    get_device_properties,
    get_device_name,
    get_device_capability,
    synchronize,
    get_amp_supported_dtype,
    _is_in_bad_fork,
)
