"""Figures drawn from traces: SVG text, about 600 pixels wide, readable on light and on dark pages.

Lines and letters take the page's own colour (``currentColor``); fills are middle tones that stand
out on both. ``Drawing`` is the pencil, for other modules' figures too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from torch_spyre_ref.emulator.timeline import Record

WIDTH = 600

PALETTE = {
    "h2d": "#3b82c4",
    "d2h": "#2f9e8f",
    "move": "#8b6fc0",
    "compute": "#d98032",
    "host": "#7d8794",
    "control": "#a9b0b8",
    "bad": "#cc4b4b",
    "used": "#2f8f96",
    "cached": "#d9a441",
    "free": "#a9b0b8",
}
"""Fill by meaning: a colour a pipeline, one for what went wrong, and one a state of memory."""

_STYLE = (
    "text{{font:12px sans-serif;fill:currentColor}}"
    ".spyre-line{{stroke:currentColor;stroke-opacity:.25}}"
    ".spyre-small{{font-size:10px;fill-opacity:.75}}"
    "{fills}"
).format(fills="".join(f".spyre-{name}{{fill:{fill}}}" for name, fill in PALETTE.items()))


class Drawing:
    """An SVG under construction, which a notebook shows; units are pixels.

    ``title`` is what a screen reader says.
    """

    def __init__(self, height: int, title: str, width: int = WIDTH) -> None:
        self.title = title
        self._open = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">'
        )
        self._parts = [f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>"]

    def box(self, x: float, y: float, width: float, height: float, kind: str, hint: str) -> None:
        """A box in the colour of ``kind``, a key of ``PALETTE``; ``hint`` shows on hovering."""
        self._parts.append(
            f'<rect class="spyre-{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
            f'height="{height:.1f}" rx="2"><title>{escape(hint)}</title></rect>'
        )

    def skyline(
        self, x: float, width: float, edges: Sequence[tuple[float, float]], kind: str, hint: str
    ) -> None:
        """Columns side by side as one shape, each ``width`` wide and with its (top, bottom)."""
        there = "".join(f"V{top:g}h{width:g}" for top, _ in edges)
        back = "".join(f"V{bottom:g}h{-width:g}" for _, bottom in reversed(edges))
        self._parts.append(
            f'<path class="spyre-{kind}" d="M{x:g} {edges[0][1]:g}{there}{back}z">'
            f"<title>{escape(hint)}</title></path>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin line."""
        self._parts.append(
            f'<line class="spyre-line" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", small: bool = False
    ) -> None:
        """``words`` with their baseline at ``y``; ``anchor`` is start, middle or end."""
        style = ' class="spyre-small"' if small else ""
        self._parts.append(
            f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def svg(self) -> str:
        """The finished figure."""
        return "\n".join([self._open, *self._parts, "</svg>\n"])

    _repr_svg_ = svg

    def __repr__(self) -> str:
        return f"Drawing({self.title!r})"


_ROWS = ("host", "h2d", "compute", "move", "d2h", "control")
_LEFT, _TOP, _ROW, _BAR = 112, 12, 24, 16


def gantt(
    records: Iterable[Record], title: str = "Operations over virtual time", until: int = 0
) -> Drawing:
    """A Gantt chart of ``records``: a row for each pipeline in use, the clock to the right.

    What needs no pipeline is drawn as host callbacks (``host``) and as marks (``control``), which
    have their labels beside them. The axis reaches at least to ``until`` virtual ns, so that two
    charts can have one scale.
    """
    shown = list(records)
    rows = sorted({(r.card, _ROWS.index(r.pipeline)) for r in shown})
    cards = {card for card, _ in rows}
    start = min((r.start for r in shown), default=0)
    span = max(until, *(r.end for r in shown), start + 1) - start
    scale = (WIDTH - _LEFT - 16) / span
    bottom = _TOP + len(rows) * _ROW
    drawing = Drawing(bottom + 30, title)
    for number, (card, row) in enumerate(rows):
        name = _ROWS[row] if len(cards) == 1 else f"card {card} {_ROWS[row]}"
        drawing.text(_LEFT - 8, _TOP + number * _ROW + 13, name, "end")
    for at in _ticks(start, span):
        x = _LEFT + (at - start) * scale
        drawing.line(x, _TOP - 4, x, bottom + 4)
        drawing.text(x, bottom + 18, f"{at / 1000:g} µs", "middle", small=True)
    for r in shown:
        y = _TOP + rows.index((r.card, _ROWS.index(r.pipeline))) * _ROW + 1
        x, width = _LEFT + (r.start - start) * scale, (r.end - r.start) * scale
        drawing.box(x, y, width, _BAR, "bad" if r.failed else r.pipeline, _hint(r))
        if r.label and width > 7 * len(r.label):
            drawing.text(x + width / 2, y + 12, r.label, "middle", small=True)
        elif r.label and r.pipeline == "control":
            is_early = x < (_LEFT + WIDTH) / 2
            drawing.text(
                x + (6 if is_early else -5), y + 12, r.label, "start" if is_early else "end"
            )
    return drawing


def _hint(record: Record) -> str:
    what = f"{record.label} ({record.kind})" if record.label else record.kind
    end = "failed" if record.failed else "ends"
    return f"{what}, queue {record.queue}: starts at {record.start} ns, {end} at {record.end} ns"


def _ticks(start: int, span: int) -> list[int]:
    """Three to ten round moments in the ``span`` ns from ``start`` on."""
    step = 1
    while span // step > 9:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(-(-start // step) * step, start + span + 1, step))
