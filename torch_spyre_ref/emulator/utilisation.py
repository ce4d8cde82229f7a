"""How busy the card's pipelines were: exact sums over the records of a timeline, in virtual ns.

A pipeline is busy while an operation of it runs, and two overlap while both are busy. Callbacks,
signals and waits need no pipeline of the card and count for neither.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from torch_spyre_ref.emulator.timeline import Record

PIPELINES = ("h2d", "compute", "move", "d2h")
"""The card's serial resources, in the order in which figures and tables show them."""

Span = tuple[int, int]


class PipelineUse(NamedTuple):
    """What one pipeline of a card did in a window of time."""

    card: int
    pipeline: str
    operations: int
    busy: int
    idle: int

    @property
    def utilisation(self) -> float:
        """The share of the window in which the pipeline was busy, 0 to 1."""
        return self.busy / (self.busy + self.idle) if self.busy else 0.0


class OperationUse(NamedTuple):
    """The operations of one queue that have a kind and a label in common."""

    queue: str
    kind: str
    label: str
    operations: int
    failed: int
    total: int

    @property
    def mean(self) -> float:
        """Virtual ns from start to end of one operation."""
        return self.total / self.operations


def pipeline_use(records: Iterable[Record], start: int, end: int) -> list[PipelineUse]:
    """The use of every pipeline of the cards in ``records``, in the window from start to end."""
    spans: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for record in records:
        spans[record.card, record.pipeline].append((record.start, record.end))
    uses = []
    for card in sorted({card for card, _ in spans}):
        for pipeline in PIPELINES:
            mine = spans[card, pipeline]
            busy = covered(_cut(mine, start, end))
            uses.append(PipelineUse(card, pipeline, len(mine), busy, end - start - busy))
    return uses


def overlap(records: Iterable[Record], start: int, end: int) -> dict[int, int]:
    """By card, the time in which two or more of its pipelines were busy at once."""
    spans: dict[int, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        mine = spans[record.card][record.pipeline]
        if record.pipeline in PIPELINES:
            mine.append((record.start, record.end))
    return {
        card: covered(
            _cut([span for mine in pipelines.values() for span in union(mine)], start, end), depth=2
        )
        for card, pipelines in sorted(spans.items())
    }


def operation_use(records: Iterable[Record]) -> list[OperationUse]:
    """Operations by queue, kind and label; in each queue what took longest comes first."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.queue, record.kind, record.label].append(record)
    uses = [
        OperationUse(
            *name,
            len(same),
            sum(record.failed for record in same),
            sum(record.end - record.start for record in same),
        )
        for name, same in groups.items()
    ]
    return sorted(uses, key=lambda use: (_place(use.queue), -use.total, use.kind, use.label))


def covered(spans: Iterable[Span], depth: int = 1) -> int:
    """The time that at least ``depth`` of the spans cover."""
    total = level = since = 0
    for at, step in _edges(spans):
        if level >= depth:
            total += at - since
        level, since = level + step, at
    return total


def union(spans: Iterable[Span]) -> list[Span]:
    """The spans that cover the same time and do not meet, in order."""
    whole: list[Span] = []
    level = start = 0
    for at, step in _edges(spans):
        if level == 0:
            start = at
        level += step
        if level == 0:
            if whole and whole[-1][1] == start:
                start = whole.pop()[0]
            whole.append((start, at))
    return whole


def _place(queue: str) -> tuple[list[int], str]:
    """Queues by the numbers in their names, so that 0.2 comes before 0.10."""
    return [int(number) for number in re.findall(r"\d+", queue)], queue


def _edges(spans: Iterable[Span]) -> list[tuple[int, int]]:
    real = [span for span in spans if span[0] < span[1]]
    return sorted([(start, 1) for start, _ in real] + [(end, -1) for _, end in real])


def _cut(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    return [(max(first, start), min(last, end)) for first, last in spans]
