"""What ``torch.profiler`` asks for, by way of the bridge (``csrc/profiler.cpp``): traces."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from torch_spyre_ref import _bridge, backend
from torch_spyre_ref.emulator import Record
from torch_spyre_ref.profiler.recorder import Recorder

_TYPES = {
    "H2D": "memcpy",
    "D2H": "memcpy",
    "D2D": "memcpy",
    "Fill": "memset",
    "HostCallback": "sync",
    "EventSignal": "sync",
    "EventWait": "sync",
}
"""Kineto's type of an operation, by kind; whatever else there is computes."""

# Kineto writes a name into its JSON as it is, quotes and all, and one with a backslash, a control
# character or a letter beyond ASCII as "unknown".
_PLAIN = str.maketrans({'"': "'", "\\": "/", **{chr(code): " " for code in (*range(32), 127)}})

Row = tuple[int, int, str, str, str, str, int, int, int, int, int, bool]
"""Card, number and name of the queue, type, name, pipeline, ticket, start and end, correlation id,
bytes, and whether it failed. Times are virtual ns since the trace began."""


class _Trace(NamedTuple):
    recorder: Recorder
    ops: dict[int, int]


class TraceDriver:
    """Traces by handle, each with the op that was under way at every submission."""

    def __init__(self, backend: backend.Backend) -> None:
        self._backend = backend
        self._traces: dict[int, _Trace] = {}
        self._handles = itertools.count(1)

    def start_trace(self) -> int:
        """Record from now on; a handle for ``stop_trace``. Starts no card."""
        ops: dict[int, int] = {}

        def submitted(ticket: int) -> None:
            op = _bridge.correlation_id()
            if op:
                ops[ticket] = op

        handle = next(self._handles)
        self._traces[handle] = _Trace(Recorder(self._backend, submitted), ops)
        self._traces[handle].recorder.begin()
        return handle

    def stop_trace(self, handle: int) -> list[Row]:
        """End a trace: what the cards did meanwhile."""
        recorder, ops = self._traces.pop(handle)
        recorder.finish()
        records, since = recorder.records(), recorder.start
        queues = [self._numbers(card) for card in range(self._backend.settings.devices)]
        rows = []
        for record in records:
            number = queues[record.card].setdefault(record.queue, len(queues[record.card]))
            rows.append(_row(record, number, since, ops.get(record.ticket, 0)))
        return rows

    def _numbers(self, card: int) -> dict[str, int]:
        """The queues of a card by name; the number of one is its place."""
        if not self._backend.started:
            return {}
        queues = self._backend.runtime.cards[card].queues
        return {queue.name: number for number, queue in enumerate(queues)}


def _row(record: Record, number: int, since: int, op: int) -> Row:
    return (
        record.card,
        number,
        record.queue,
        _TYPES.get(record.kind, "kernel"),
        _name(record),
        record.pipeline,
        record.ticket,
        record.start - since,
        record.end - since,
        op,
        record.nbytes,
        record.failed,
    )


def _name(record: Record) -> str:
    name = f"{record.kind} {record.label}".rstrip().translate(_PLAIN)
    return name.encode("ascii", "replace").decode()
