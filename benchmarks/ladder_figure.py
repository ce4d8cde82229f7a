"""The rungs of the ladder over one another, on one scale: when the link and the cores were busy."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.ladder import Run
from torch_spyre_ref.emulator.figures import Drawing

_LEFT, _ROW, _BAR, _HEAD, _RIGHT = 64, 18, 13, 22, 584
_LANES = {"h2d": "link", "compute": "compute"}


def figure(runs: Mapping[str, Run], title: str) -> Drawing:
    """A pair of rows for each run, by name; the clock goes to the right, in virtual time."""
    longest = max(run.makespan for run in runs.values())
    scale = (_RIGHT - _LEFT) / longest
    height = len(runs) * (_HEAD + len(_LANES) * _ROW)
    drawing = Drawing(height + 26, title)
    for number, (name, run) in enumerate(runs.items()):
        top = number * (_HEAD + len(_LANES) * _ROW)
        drawing.text(0, top + 15, f"{number + 1} · {name}: {run.makespan / 1000:,.0f} µs")
        for lane, (pipeline, words) in enumerate(_LANES.items()):
            y = top + _HEAD + lane * _ROW
            drawing.text(_LEFT - 8, y + 10, words, "end", small=True)
            drawing.line(_LEFT, y + _BAR, _LEFT + run.makespan * scale, y + _BAR)
            for record in run.records:
                if record.pipeline == pipeline:
                    x, width = _LEFT + record.start * scale, (record.end - record.start) * scale
                    hint = f"{record.kind} {record.label}, {record.start} to {record.end} ns"
                    drawing.box(x, y, width, _BAR, pipeline, hint)
    _axis(drawing, longest, scale, height)
    return drawing


def _axis(drawing: Drawing, longest: int, scale: float, bottom: int) -> None:
    step = next(s for n in range(12) for s in (10**n, 2 * 10**n, 5 * 10**n) if longest / s <= 6)
    for at in range(0, longest + 1, step):
        x = _LEFT + at * scale
        drawing.line(x, bottom, x, bottom + 6)
        drawing.text(x, bottom + 18, f"{at / 1000:g} µs", "middle", small=True)
