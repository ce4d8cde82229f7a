"""``register()``: everything that PyTorch must be told, in order, and each of it once."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

from torch_spyre_ref.build_check import check_build

check_build()

from torch_spyre_ref import (  # noqa: E402
    _bridge,
    backend,
    device,
    dynamo,
    eager,
    generator,
    sanitizer,
)
from torch_spyre_ref.aten import fallback, kernels  # noqa: E402
from torch_spyre_ref.inductor import report  # noqa: E402
from torch_spyre_ref.memory import api as memory_api  # noqa: E402
from torch_spyre_ref.memory.driver import MemoryDriver, open_memory  # noqa: E402
from torch_spyre_ref.parts import Parts  # noqa: E402
from torch_spyre_ref.profiler import api as profiler_api  # noqa: E402
from torch_spyre_ref.profiler.driver import TraceDriver  # noqa: E402
from torch_spyre_ref.queueing import api as streams_api  # noqa: E402

_lock = threading.Lock()
_library: list[torch.library.Library] = []


def register(parts: Parts | None = None) -> None:
    """Install the parts and, the first time, tell PyTorch all about the device."""
    with _lock:
        if _library and (parts is None or parts == backend.current().parts):
            return
        if _library:
            eager.forget_programs()  # they are on the cards of the parts that go
            _refuse_live_tensors()
        device.claim_name()
        before = backend.current().parts if _library else None
        _install(parts or Parts())
        if before is None:
            _tell_torch()
        _register_kernels(before)


def _refuse_live_tensors() -> None:
    if not backend.current().started:
        return
    memory = backend.current().memory
    cards = list(memory.allocator.cards.values())
    with memory.allocator.lock:
        memory.allocator.take_back()
        live = sum(len(card.live) for card in cards)
    if live:
        raise RuntimeError(
            f"cannot install other parts while tensors live on the cards (here {live}): the parts "
            "that made them must free them. Delete them first, and call gc.collect(). A notebook "
            "also keeps whatever a cell has shown as its result: restart it, or print instead."
        )


# --8<-- [start:install]
def _install(parts: Parts) -> None:
    """Hand the bridge one object that answers for every part."""
    new = backend.Backend(parts)
    new.memory = MemoryDriver(parts.allocator(partial(open_memory, new)))
    new.streams = parts.stream_driver(new)
    new.driver = SimpleNamespace()
    for role in (
        parts.device_driver(new),
        new.streams,
        parts.event_driver(new.streams),
        new.memory,
        kernels.KernelDriver(),
        TraceDriver(new),
    ):
        for name in dir(role):
            if not name.startswith("_"):
                dynamo.hide(getattr(role, name))
                setattr(new.driver, name, getattr(role, name))
    backend.install(new)
    _bridge.install(new.driver)
    # --8<-- [end:install]


def _tell_torch() -> None:
    functions: tuple[Callable[..., Any], ...] = (
        *device.EXPORTS,
        is_available,
        *memory_api.EXPORTS,
        *generator.EXPORTS,
        *fallback.EXPORTS,
        *eager.EXPORTS,
        *sanitizer.EXPORTS,
        *report.EXPORTS,
        *streams_api.EXPORTS,
        *profiler_api.EXPORTS,
    )
    for function in functions:
        dynamo.hide(function)
    module = device.publish(functions)
    setattr(module, "__getattr__", _computed_attribute)  # noqa: B010 (mypy knows no module method)
    generate_methods_for_privateuse1_backend(for_storage=True)
    atexit.register(_shut_down)
    sanitizer.report_at_exit()


def _register_kernels(before: Parts | None) -> None:
    """Register the kernels of ops, where those that are there are not of the same part."""
    make = backend.current().parts.eager_kernels
    if before is not None and before.eager_kernels is make:
        return
    if _library:
        _library.pop()._destroy()
    library = torch.library.Library("aten", "IMPL")
    kernels.register(library, make(kernels.KERNELS))
    _library.append(library)


def _computed_attribute(name: str) -> bool | None:
    """Attributes of ``torch.spyre`` that change, or that say when something is needed."""
    if name == "_initialized":
        return device.is_initialized()
    if name == "Scheduling":
        # Inductor asks for this when it first generates code and does not know the device. The
        # answer None says that the device has registered itself.
        _tell_inductor()
        return None
    raise AttributeError(f"module 'torch.{device.NAME}' has no attribute {name!r}")


def is_available() -> bool:
    """Whether there is a card. Starts none."""
    # Dynamo asks this, and so does every mode of fake tensors, before anything is traced: the last
    # moment for what a trace depends on. Inductor by itself asks for the device only afterwards.
    if hasattr(sys.modules.get("torch._inductor.compile_fx"), "compile_fx"):
        _tell_inductor()
    return device.is_available()


@cache
def _tell_inductor() -> None:
    """Register with Inductor, which loads it."""
    from torch_spyre_ref.inductor.registration import register as register_with_inductor

    register_with_inductor()


def _shut_down() -> None:
    if backend.current().started:
        # An autograd thread lets go of its last graph after backward() has returned, and needs the
        # GIL for that. Whoever still waits for it when the interpreter ends is ended by force, and
        # torch's frames answer with "terminate called without an active exception".
        time.sleep(0.02)
    _bridge.shutdown()
