"""The programs that are prepared on a card, shared by content, and off it when memory is short."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from torch_spyre_ref.emulator.program import parse
from torch_spyre_ref.emulator.program.check import fit
from torch_spyre_ref.jobs.check import check_program
from torch_spyre_ref.jobs.staging import SlotStaging
from torch_spyre_ref.spyrecode import Artifact

if TYPE_CHECKING:
    from torch_spyre_ref.backend import Backend
    from torch_spyre_ref.launch import Job


class Programs:
    """The programs of one card: the same content is there once.

    ``make`` makes a job of an artifact. ``lock`` is held while one is launched.
    """

    def __init__(self, backend: Backend, device: int, make: type[Job]) -> None:
        self.backend, self.device, self._make = backend, device, make
        self.lock = threading.RLock()
        self.staging = SlotStaging(backend.runtime.pinned)
        self._jobs: WeakValueDictionary[tuple[str, int], Job] = WeakValueDictionary()

    def job(self, artifact: Artifact, slots: int) -> Job:
        """The program of ``artifact``, on the card."""
        key = artifact.digest, slots
        with self.lock:
            job = self._jobs.get(key)
            if job is None:
                program = parse(artifact.program)
                check_program(artifact, program)
                fit(program, self.backend.runtime.spec)
                job = self._make(self, artifact, slots)
                job.loaded()
                self._jobs[key] = job
            return job

    def evict(self) -> bool:
        """Take the program that was launched longest ago off the card; False when none is there.

        Nor is one taken while another thread launches.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            there = [job for job in self._jobs.values() if job.memory is not None]
            if there:
                min(there, key=lambda job: job.last_used).evict()
            return bool(there)
        finally:
            self.lock.release()

    def evict_all(self) -> None:
        """Take all programs off the card, as far as no other thread launches."""
        while self.evict():
            pass
