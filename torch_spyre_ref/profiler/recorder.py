"""The recorder: every operation of every card between two moments at which the cards are idle."""

from __future__ import annotations

from collections.abc import Callable

from torch_spyre_ref import backend
from torch_spyre_ref.emulator import Record
from torch_spyre_ref.emulator.timeline import Row
from torch_spyre_ref.runtime import Runtime


class Recorder:
    """Records from ``begin`` to ``finish``, on any thread; any number may record at once.

    Both wait until the cards are idle, which raises no error of a queue and costs the virtual time
    of a ``synchronize``. Neither starts a card; if one starts in between, that is recorded from
    virtual time 0. ``submitted`` is called with the number of every operation that is enqueued
    meanwhile, on the thread that enqueues it; only one recorder may ask for that.

    These are the cards of one backend: what other parts do, when some are registered meanwhile, is
    not seen. What is kept has no limit: about 300 bytes an operation.
    """

    def __init__(
        self, backend: backend.Backend, submitted: Callable[[int], None] | None = None
    ) -> None:
        self._backend, self._submitted = backend, submitted
        self._runtime: Runtime | None = None
        self._rows: list[Row] = []
        self._end: int | None = None
        self.start = 0

    def begin(self) -> None:
        """Start to record."""
        if self._backend.in_bad_fork:
            return
        if self._backend.started:
            _settle(self._backend.runtime)
        self._backend.when_started(self._attach)

    def finish(self) -> None:
        """Stop to record, when all that was enqueued is over."""
        self._backend.forget(self._attach)
        runtime = self._runtime
        if runtime is None or self._backend.in_bad_fork:
            return
        try:
            _settle(runtime)
        finally:
            with runtime.clock:
                self._end = runtime.clock.now
                runtime.timeline.unwatch(self._rows.append)
                if self._submitted is not None:
                    runtime.clock.watch_tickets(None)

    @property
    def end(self) -> int:
        """Virtual ns at ``finish``; before it, the time it is."""
        if self._end is not None:
            return self._end
        return self.start if self._runtime is None else self._runtime.clock.now

    def records(self) -> list[Record]:
        """What ran since ``begin`` and is over, in the order in which it ended."""
        # What another thread enqueued while ``begin`` waited may have been under way already.
        records = map(Record._make, tuple(self._rows))
        return [record for record in records if record.start >= self.start]

    def _attach(self, runtime: Runtime) -> None:
        with runtime.clock:
            self._runtime, self.start = runtime, runtime.clock.now
            runtime.timeline.watch(self._rows.append)
            if self._submitted is not None:
                runtime.clock.watch_tickets(self._submitted)


def _settle(runtime: Runtime) -> None:
    for card in runtime.cards:
        card.settle()
