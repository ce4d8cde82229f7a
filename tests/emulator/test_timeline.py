"""The timeline and the figures drawn from it."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from tests.runtime.bench import Bench, broken, idle
from torch_spyre_ref.emulator import Record, Timeline
from torch_spyre_ref.emulator.figures import PALETTE, WIDTH, gantt
from torch_spyre_ref.runtime import HostCallback

SVG = "{http://www.w3.org/2000/svg}"


def busy() -> Bench:
    """Four operations: a transfer, two computes of which the second fails, a callback."""
    bench = Bench()
    other = bench.card.new_queue()
    bench.queue.submit(bench.h2d(1, nbytes=12_800), label="weights")
    bench.queue.submit(idle(200), label="<layer>")
    other.submit(HostCallback(lambda: None))
    other.submit(broken(50))
    bench.queue.settle()
    other.settle()
    return bench


def test_every_operation_leaves_a_record() -> None:
    records = sorted(busy().runtime.timeline)
    assert records[0] == Record(
        1, 0, "0.0", "h2d", "H2D", "weights", 10, 10, 115, 12800, 100, False
    )
    assert [(r.kind, r.pipeline, r.start, r.end, r.failed) for r in records[1:]] == [
        ("Compute", "compute", 115, 315, False),
        ("HostCallback", "host", 30, 37, False),
        ("Compute", "compute", 40, 90, True),
    ]


def test_records_come_in_the_order_in_which_operations_ended() -> None:
    ends = [record.end for record in busy().runtime.timeline]
    assert ends == sorted(ends)


def test_only_the_last_records_are_kept() -> None:
    timeline = Timeline(2)
    rows = [(number, *("" for _ in range(11))) for number in range(3)]
    for row in rows:
        timeline.append(row)
    assert [record.ticket for record in timeline] == [1, 2]
    assert len(timeline) == 2
    timeline.clear()
    assert list(timeline) == []


def test_a_timeline_may_grow_while_it_is_read() -> None:
    bench = busy()
    for _ in bench.runtime.timeline:
        bench.queue.wait(bench.queue.submit(idle(1)))


def test_a_timeline_keeps_something() -> None:
    with pytest.raises(ValueError, match="0 records"):
        Timeline(0)


def test_the_chrome_trace_has_an_event_for_each_record_and_a_name_for_each_row() -> None:
    bench = busy()
    trace = json.loads(bench.runtime.timeline.to_chrome_trace())
    shown = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert len(shown) == 4
    weights = next(event for event in shown if event["name"] == "weights")
    assert (weights["ts"], weights["dur"]) == (0.01, 0.105), "microseconds"
    assert weights["args"]["sticks"] == 100
    assert {rows[event["pid"], event["tid"]] for event in shown} == {"h2d", "compute", "queue 0.1"}


def test_the_gantt_chart_has_a_bar_for_each_record_in_its_pipelines_row() -> None:
    bench = busy()
    root = ElementTree.fromstring(gantt(bench.runtime.timeline, "What happened").svg())
    bars = root.findall(f"{SVG}rect")
    assert [bar.get("class") for bar in bars] == [
        "spyre-host",
        "spyre-bad",
        "spyre-h2d",
        "spyre-compute",
    ]
    host, bad, h2d, compute = bars
    assert bad.get("y") == compute.get("y") != h2d.get("y") != host.get("y")
    edge = float(h2d.get("x") or 0) + float(h2d.get("width") or 0)
    assert edge == pytest.approx(float(compute.get("x") or 0), abs=0.2), "one starts as it ends"
    assert all(float(b.get("x") or 0) + float(b.get("width") or 0) <= WIDTH for b in bars)


def test_a_figure_can_be_read_aloud_and_on_any_background() -> None:
    text = gantt(busy().runtime.timeline, "What <happened>").svg()
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "What <happened>"
    assert root.findtext(f"{SVG}title") == "What <happened>"
    assert "<layer>" in [element.text for element in root.iter(f"{SVG}text")]
    assert "currentColor" in text
    assert "black" not in text
    assert "white" not in text


def test_a_figure_is_the_same_in_every_run() -> None:
    assert gantt(busy().runtime.timeline).svg() == gantt(busy().runtime.timeline).svg()


def test_two_figures_can_have_one_scale() -> None:
    def first_bar(until: int) -> float:
        root = ElementTree.fromstring(gantt(busy().runtime.timeline, until=until).svg())
        return float(root.findall(f"{SVG}rect")[-1].get("width") or 0)

    whole = next(record for record in busy().runtime.timeline if record.kind == "H2D")
    assert first_bar(0) == first_bar(whole.end) > 1.9 * first_bar(2 * 315)


def test_the_axis_is_the_clocks() -> None:
    root = ElementTree.fromstring(gantt(busy().runtime.timeline).svg())
    marks = [element.text for element in root.iter(f"{SVG}text") if "µs" in (element.text or "")]
    assert marks == ["0.05 µs", "0.1 µs", "0.15 µs", "0.2 µs", "0.25 µs", "0.3 µs"]


def test_a_notebook_shows_a_figure_and_prints_its_title() -> None:
    figure = gantt(busy().runtime.timeline, "What happened")
    assert figure._repr_svg_() == figure.svg()
    assert repr(figure) == "Drawing('What happened')"


def test_an_empty_timeline_is_a_figure_too() -> None:
    root = ElementTree.fromstring(gantt([]).svg())
    assert root.findall(f"{SVG}rect") == []


def test_every_pipeline_has_a_colour() -> None:
    bench = Bench()
    names = {pipe.name for pipe in vars(bench.card.card.pipelines).values()}
    assert names < set(PALETTE)


def test_a_mark_with_a_label_is_named_beside_it() -> None:
    def mark(start: int, label: str) -> Record:
        return Record(0, 0, "", "control", "fetch", label, start, start, start, 0, 0, False)

    wait = mark(0, "")._replace(end=1000)
    root = ElementTree.fromstring(gantt([wait, mark(100, "early"), mark(900, "late")]).svg())
    bars = [float(bar.get("x") or 0) for bar in root.findall(f"{SVG}rect")][1:]
    names = {text.text: text for text in root.iter(f"{SVG}text")}
    assert (names["early"].get("text-anchor"), names["late"].get("text-anchor")) == ("start", "end")
    assert bars[0] < float(names["early"].get("x") or 0) < bars[0] + 12
    assert bars[1] - 12 < float(names["late"].get("x") or 0) < bars[1]
