"""The one process-wide state: which parts are installed, and the card once it has started.

Importing the package makes a ``Backend``; the first call that needs a card starts it. Every layer
asks ``current()`` and keeps nothing of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING

from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.runtime import Queue, Runtime
from torch_spyre_ref.settings import Settings

if TYPE_CHECKING:
    from torch_spyre_ref.jobs.programs import Programs
    from torch_spyre_ref.memory.driver import MemoryDriver
    from torch_spyre_ref.parts import Parts
    from torch_spyre_ref.streams import StreamDriver
    from torch_spyre_ref.submission import Submission


class Backend:
    """Settings, parts and cards of this process.

    The settings are read and validated at first use; the cards start at the first call that needs
    one, on whatever thread makes it.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.submission: Submission = parts.submission()
        self.in_bad_fork = False
        self.memory: MemoryDriver
        self.streams: StreamDriver
        self.driver: SimpleNamespace  # what the bridge calls
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()
        self._programs: dict[int, Programs] = {}
        self._waiting: list[Callable[[Runtime], None]] = []

    @cached_property
    def settings(self) -> Settings:
        """What the environment says. Raises ValueError for a variable with nonsense."""
        return Settings.from_environment()

    @property
    def started(self) -> bool:
        """Whether the cards have started; in a forked child, never those of its parent."""
        return self._runtime is not None and not self.in_bad_fork

    @property
    def runtime(self) -> Runtime:
        """The runtime, started on first use.

        Raises:
            RuntimeError: in a child that was forked after the cards had started.
        """
        self.require_cards()
        return self._runtime or self._start()

    def require_cards(self) -> None:
        """Raise ``RuntimeError`` in a child that was forked after the cards had started."""
        if self.in_bad_fork:
            raise RuntimeError(
                "Cannot use spyre in a forked subprocess: the parent had already started the "
                "cards, and a card cannot be shared by fork. Use the 'spawn' start method of "
                "torch.multiprocessing, or fork before the first use of the device."
            )

    def queue(self, device: int) -> Queue:
        """The queue that this thread's work on a card goes to: that of its current stream."""
        return self.streams.current_queue(device)

    def programs(self, device: int) -> Programs:
        """The programs that are prepared on a card."""
        if device not in self._programs:
            from torch_spyre_ref.jobs.programs import Programs

            self._programs.setdefault(device, Programs(self, device, self.parts.job))
        return self._programs[device]

    def prepared(self) -> list[tuple[int, Programs]]:
        """The cards that have programs, with them."""
        return list(self._programs.items())

    def when_started(self, tell: Callable[[Runtime], None]) -> None:
        """Call ``tell`` with the runtime: now, or when the cards start, before anything happens."""
        with self._lock:
            if self._runtime is None:
                self._waiting.append(tell)
                return
        tell(self.runtime)

    def forget(self, tell: Callable[[Runtime], None]) -> None:
        """Do not call ``tell`` when the cards start."""
        with self._lock:
            if tell in self._waiting:
                self._waiting.remove(tell)

    def _start(self) -> Runtime:
        with self._lock:
            if self._runtime is None:
                settings = self.settings
                runtime = Runtime(
                    devices=settings.devices,
                    mode=settings.mode,
                    memory=settings.memory,
                    domains=settings.domains,
                    sanitize=settings.sanitize,
                    derive_edges=settings.derive_edges,
                    region_table=self.parts.region_table,
                    hazards=self.parts.hazards,
                    fetch_unit=self.parts.fetch_unit,
                )
                while self._waiting:
                    self._waiting.pop()(runtime)
                self._runtime = runtime
            return self._runtime

    def after_fork(self) -> None:
        """In a forked child: a card that the parent had started is out of reach."""
        self._lock = threading.Lock()
        UNDISTURBED.after_fork()
        self.in_bad_fork = self._runtime is not None
        self._programs.clear()
        self.streams.after_fork()
        self.memory.after_fork()


_current: Backend | None = None


def current() -> Backend:
    """The installed backend.

    Raises:
        RuntimeError: before ``torch_spyre_ref.register()``.
    """
    if _current is None:
        raise RuntimeError(
            "No spyre backend is registered: call torch_spyre_ref.register(), or import torch "
            "without TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        )
    return _current


def install(backend: Backend) -> None:
    """Make ``backend`` the one that every layer uses."""
    global _current
    if _current is None:
        os.register_at_fork(after_in_child=lambda: current().after_fork())
    _current = backend
