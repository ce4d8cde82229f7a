"""The timeline: what the card did, and when, on the virtual clock.

Every operation that ends leaves one record, failed ones too; operations dropped because an earlier
one failed never started and leave none. The last ``limit`` records are kept; who must have all of
them watches.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Row = tuple[Any, ...]
"""The fields of a ``Record``, before anybody has asked for one."""


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
        self._rows: deque[Row] = deque(maxlen=limit)
        # Bound once, called for every operation: rows become records only when somebody looks.
        self.append: Callable[[Row], None] = self._rows.append
        self._watchers: tuple[Callable[[Row], None], ...] = ()

    def __iter__(self) -> Iterator[Record]:
        return map(Record._make, tuple(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all records."""
        self._rows.clear()

    def watch(self, watcher: Callable[[Row], None]) -> None:
        """Have ``watcher`` called with the row of every operation that ends from now on.

        Only the holder of the clock's lock may call this, and ``unwatch``.
        """
        self._tell((*self._watchers, watcher))

    def unwatch(self, watcher: Callable[[Row], None]) -> None:
        """Call ``watcher`` no more."""
        self._tell(tuple(other for other in self._watchers if other != watcher))

    def _tell(self, watchers: tuple[Callable[[Row], None], ...]) -> None:
        keep, self._watchers = self._rows.append, watchers

        def append(row: Row) -> None:
            keep(row)
            for watcher in watchers:
                watcher(row)

        self.append = append if watchers else keep

    def to_chrome_trace(self) -> str:
        """The records as Chrome trace JSON; see ``chrome_trace``."""
        return chrome_trace(self)


def chrome_trace(records: Iterable[Record]) -> str:
    """Records as Chrome trace JSON, which Perfetto opens: a process for each card, in it a row for
    each pipeline, and one for each queue with what needs none. Times are virtual."""
    threads: dict[tuple[int, str], int] = {}
    events: list[dict[str, Any]] = []
    for record in records:
        queued = record.pipeline in ("host", "control")
        row = record.card, f"queue {record.queue}" if queued else record.pipeline
        events.append(_span(record, threads.setdefault(row, len(threads))))
    names = [_name("process_name", card, 0, f"card {card}") for card, _ in threads]
    names += [_name("thread_name", card, tid, row) for (card, row), tid in threads.items()]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": names + events})


def _span(record: Record, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": record.label or record.kind,
        "cat": record.kind,
        "pid": record.card,
        "tid": thread,
        "ts": record.start / 1000,  # the format's unit is the microsecond
        "dur": (record.end - record.start) / 1000,
        "args": record._asdict(),
    }


def _name(kind: str, card: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": card, "tid": thread, "args": {"name": name}}
