"""The timeline: what the card did, and when, on the virtual clock.

Every operation that ends leaves one record, failed ones too; operations dropped because an earlier
one failed never started and leave none. The last ``limit`` records are kept.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One operation as it happened; times in virtual ns, ``nbytes`` dense bytes moved."""

    ticket: int
    card: int
    queue: str
    pipeline: str
    kind: str
    label: str
    submitted: int
    start: int
    end: int
    nbytes: int
    sticks: int
    failed: bool


class Timeline:
    """The records of all cards, oldest first, in the order in which operations ended."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a timeline of {limit} records asked for; keep at least 1")
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=limit)
        # Bound once, called for every operation: rows become records only when somebody looks.
        self.append = self._rows.append

    def __iter__(self) -> Iterator[Record]:
        return map(Record._make, tuple(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all records."""
        self._rows.clear()

    def to_chrome_trace(self) -> str:
        """The records as Chrome trace JSON, which Perfetto opens: a process a card, a row a
        pipeline or, for what needs no pipeline, a queue. Its microseconds are virtual."""
        rows: dict[tuple[int, str], int] = {}
        events: list[dict[str, Any]] = []
        for record in self:
            row = record.pipeline if record.pipeline in _SHARED_ROWS else f"queue {record.queue}"
            thread = rows.setdefault((record.card, row), len(rows))
            events.append(_trace_event(record, thread))
        names = [_row_name(card, row, thread) for (card, row), thread in rows.items()]
        return json.dumps({"displayTimeUnit": "ns", "traceEvents": names + events})


_SHARED_ROWS = ("h2d", "d2h", "move", "compute")


def _trace_event(record: Record, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": record.label or record.kind,
        "cat": record.kind,
        "pid": record.card,
        "tid": thread,
        "ts": record.start / 1000,
        "dur": (record.end - record.start) / 1000,
        "args": record._asdict(),
    }


def _row_name(card: int, row: str, thread: int) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": "thread_name",
        "pid": card,
        "tid": thread,
        "args": {"name": f"card {card}: {row}"},
    }
