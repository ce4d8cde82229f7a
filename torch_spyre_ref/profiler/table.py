"""A profile as text: aligned columns, words to the left and figures to the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch_spyre_ref.emulator.utilisation import OperationUse, PipelineUse

_PIPELINES = ("card", "pipeline", "operations", "busy", "idle", "utilisation")
_OPERATIONS = ("queue", "kind", "label", "count", "total", "mean")


def time_text(ns: float) -> str:
    """Virtual ns in µs, and from 1000 µs on in ms."""
    return f"{ns / 1e3:.2f} µs" if ns < 1e6 else f"{ns / 1e6:.3f} ms"


def profile_text(
    pipelines: Iterable[PipelineUse],
    overlap: dict[int, int],
    operations: Sequence[OperationUse],
    duration: int,
) -> str:
    """The table of a profile: pipelines, overlap, and operations by queue, kind and label."""
    count = sum(use.operations for use in operations)
    failed = sum(use.failed for use in operations)
    words = f"{_counted(count, 'operation')} in {time_text(duration)} of virtual time"
    head = f"{words}, {failed} failed" if failed else words
    if not count:
        return head
    parts = [head, _table(_PIPELINES, 2, [_pipeline_row(use) for use in pipelines])]
    parts.append(
        "\n".join(
            f"card {card}: two or more pipelines busy for {time_text(time)} "
            f"({_share(time, duration)})"
            for card, time in overlap.items()
        )
    )
    parts.append(_table(_OPERATIONS, 3, [_operation_row(use) for use in operations]))
    return "\n\n".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _share(part: int, whole: int) -> str:
    return f"{part / whole if whole else 0:.1%}"


def _pipeline_row(use: PipelineUse) -> tuple[str, ...]:
    times = time_text(use.busy), time_text(use.idle), f"{use.utilisation:.1%}"
    return str(use.card), use.pipeline, str(use.operations), *times


def _operation_row(use: OperationUse) -> tuple[str, ...]:
    count = f"{use.operations}, {use.failed} failed" if use.failed else str(use.operations)
    return use.queue, use.kind, use.label, count, time_text(use.total), time_text(use.mean)


def _table(heads: tuple[str, ...], words: int, rows: Iterable[tuple[str, ...]]) -> str:
    """Rows under their heads; the first ``words`` columns go to the left."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
