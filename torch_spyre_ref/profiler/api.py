"""``torch.spyre.profiler``: what the cards did in a block, as a table, a trace and a figure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_spyre_ref import backend
from torch_spyre_ref.emulator import Record
from torch_spyre_ref.emulator.figures import Drawing, gantt
from torch_spyre_ref.emulator.timeline import chrome_trace
from torch_spyre_ref.emulator.utilisation import (
    OperationUse,
    PipelineUse,
    operation_use,
    overlap,
    pipeline_use,
)
from torch_spyre_ref.profiler.recorder import Recorder
from torch_spyre_ref.profiler.table import profile_text, time_text

_SHOWN = 2000
"""More bars than this no figure shows: they would be thinner than a pixel, and megabytes."""


class profiler:  # noqa: N801 (a context manager, as torch's own are)
    """``with torch.spyre.profiler() as prof:`` records what all cards do in the block.

    ``print(prof)`` shows a table, a notebook draws a figure, and ``prof.export_chrome_trace(path)``
    writes a file for Perfetto. All times are virtual nanoseconds.

    Entry and exit wait until the cards are idle, so that whatever the block enqueued is recorded
    to its end, failed operations too, also when the block raises; errors of a queue stay where
    they are. No card is started. Profilers may be nested and may run on several threads; each sees
    the work of all. Nothing is dropped: a record takes about 300 bytes until the profiler goes.
    """

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._recording = False

    def __enter__(self) -> profiler:
        if self._recording:
            raise RuntimeError(
                "this profiler records already: make another torch.spyre.profiler() to nest"
            )
        self._recorder, self._recording = Recorder(backend.current()), True
        self._recorder.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._recording = False
        if self._recorder is not None:
            self._recorder.finish()

    @property
    def operations(self) -> list[Record]:
        """The operations that are over, in the order in which they ended."""
        return self._recorder.records() if self._recorder is not None else []

    @property
    def window(self) -> tuple[int, int]:
        """When the block began and ended; inside it, the end is now."""
        return (self._recorder.start, self._recorder.end) if self._recorder is not None else (0, 0)

    @property
    def pipelines(self) -> list[PipelineUse]:
        """Operations, busy and idle time of each pipeline of each card that did something."""
        return pipeline_use(self.operations, *self.window)

    @property
    def overlap(self) -> dict[int, int]:
        """By card, the time in which two or more of its pipelines were busy at once."""
        return overlap(self.operations, *self.window)

    @property
    def kinds(self) -> list[OperationUse]:
        """Count and total time of operations, by queue, kind and label."""
        return operation_use(self.operations)

    def table(self) -> str:
        """Pipelines, their overlap, and operations by queue, kind and label, as text."""
        start, end = self.window
        return profile_text(self.pipelines, self.overlap, self.kinds, end - start)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the operations as Chrome trace JSON, a row for each pipeline, to a file."""
        Path(path).write_text(chrome_trace(self.operations))

    def gantt(self) -> Drawing:
        """A bar for each operation over virtual time, the first 2000 of them."""
        shown = self.operations
        title = f"{len(shown)} operations over virtual time"
        if len(shown) > _SHOWN:
            title = f"The first {_SHOWN} of {title}"
        return gantt(shown[:_SHOWN], title)

    def _repr_svg_(self) -> str:
        return self.gantt().svg()

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        start, end = self.window
        state = "recording, " if self._recording else ""
        return f"profiler({state}{len(self.operations)} operations, {time_text(end - start)})"


EXPORTS: tuple[Callable[..., Any], ...] = (profiler,)
