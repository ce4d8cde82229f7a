"""``torch.spyre.profiler``: what it records, how it adds up, and that it is in nobody's way."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Run
from torch_spyre_ref import backend
from torch_spyre_ref.emulator import Record
from torch_spyre_ref.emulator.utilisation import (
    PIPELINES,
    OperationUse,
    PipelineUse,
    covered,
    operation_use,
    overlap,
    pipeline_use,
    union,
)
from torch_spyre_ref.profiler.table import profile_text, time_text
from torch_spyre_ref.runtime import Compute, HostCallback, Queue, Runtime

SVG = "{http://www.w3.org/2000/svg}"


def record(
    pipeline: str,
    start: int,
    end: int,
    card: int = 0,
    kind: str = "Compute",
    label: str = "",
    queue: int = 0,
    failed: bool = False,
) -> Record:
    """A record made by hand."""
    name = f"{card}.{queue}"
    return Record(1, card, name, pipeline, kind, label, start, start, end, 0, 0, failed)


@pytest.fixture
def runtime() -> Runtime:
    return backend.current().runtime


@pytest.fixture
def queue(runtime: Runtime) -> Iterator[Queue]:
    """A queue of card 0 that no other test uses."""
    made = runtime.cards[0].new_queue()
    yield made
    made.close()
    runtime.cards[0].queues.remove(made)


def idle(duration: int) -> Compute:
    """Occupy the compute pipeline and do nothing."""
    return Compute(duration, lambda memory: None)


def broken(duration: int = 100) -> Compute:
    """Occupy the compute pipeline, then fail."""

    def effect(memory: object) -> None:
        raise RuntimeError("a fuse blew")

    return Compute(duration, effect)


# What a block did


def test_what_a_block_does_is_recorded() -> None:
    torch.ones(8).to("spyre")
    with torch.spyre.profiler() as prof:
        x = torch.ones(64).to("spyre:1")
        x.cpu()
    torch.ones(8).to("spyre")
    assert [(r.card, r.kind, r.nbytes) for r in prof.operations] == [
        (1, "Fill", 256),
        (1, "H2D", 256),
        (1, "D2H", 256),
    ]
    start, end = prof.window
    assert all(start <= r.start <= r.end <= end for r in prof.operations)


def test_what_was_enqueued_before_is_not_and_what_is_under_way_at_the_end_is(
    queue: Queue,
) -> None:
    queue.submit(idle(10_000), label="before")
    with torch.spyre.profiler() as prof:
        queue.submit(idle(10_000), label="inside")
    assert [r.label for r in prof.operations] == ["inside"]
    assert prof.pipelines[1].busy == 10_000


def test_the_block_sees_what_is_over_so_far(queue: Queue) -> None:
    with torch.spyre.profiler() as prof:
        assert prof.operations == []
        queue.wait(queue.submit(idle(500)))
        assert len(prof.operations) == 1
        queue.submit(idle(500))
        assert len(prof.operations) == 1
        assert repr(prof).startswith("profiler(recording, 1 operations, ")
    assert len(prof.operations) == 2


def test_an_error_in_the_block_loses_nothing(queue: Queue) -> None:
    prof = torch.spyre.profiler()
    with pytest.raises(ZeroDivisionError), prof:
        queue.submit(idle(300), label="first")
        1 / 0  # noqa: B018
    assert [r.label for r in prof.operations] == ["first"]


def test_what_failed_is_recorded_and_its_error_stays_in_the_queue(queue: Queue) -> None:
    with torch.spyre.profiler() as prof:
        queue.submit(broken(), label="bad")
    assert [(r.label, r.failed) for r in prof.operations] == [("bad", True)]
    assert "1 operation in " in prof.table()
    assert ", 1 failed" in prof.table()
    with pytest.raises(RuntimeError, match="a fuse blew"):
        queue.synchronize()


def test_profilers_may_be_nested(queue: Queue) -> None:
    with torch.spyre.profiler() as outer:
        queue.submit(idle(10), label="a")
        with torch.spyre.profiler() as inner:
            queue.submit(idle(10), label="b")
        queue.submit(idle(10), label="c")
    assert [r.label for r in outer.operations] == ["a", "b", "c"]
    assert [r.label for r in inner.operations] == ["b"]


def test_profilers_may_overlap(queue: Queue) -> None:
    first, second = torch.spyre.profiler(), torch.spyre.profiler()
    first.__enter__()
    queue.submit(idle(10), label="a")
    second.__enter__()
    queue.submit(idle(10), label="b")
    first.__exit__()
    queue.submit(idle(10), label="c")
    second.__exit__()
    assert [r.label for r in first.operations] == ["a", "b"]
    assert [r.label for r in second.operations] == ["b", "c"]


def test_one_profiler_is_not_entered_twice_at_once_and_starts_anew_later(queue: Queue) -> None:
    prof = torch.spyre.profiler()
    with prof:
        queue.submit(idle(10), label="a")
        with pytest.raises(RuntimeError, match="records already"):
            prof.__enter__()
    with prof:
        queue.submit(idle(10), label="b")
    assert [r.label for r in prof.operations] == ["b"]


def test_profilers_on_many_threads_each_see_their_own_work_whole(runtime: Runtime) -> None:
    missing: list[str] = []

    def work(number: int) -> None:
        mine = runtime.cards[number % 2].new_queue()
        for turn in range(20):
            label = f"{number} {turn}"
            with torch.spyre.profiler() as prof:
                for _ in range(5):
                    mine.submit(idle(100), label=label)
            if [r.label for r in prof.operations].count(label) != 5:
                missing.append(label)
        mine.close()
        runtime.cards[number % 2].queues.remove(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []


def test_more_operations_than_the_timeline_keeps_are_all_there(
    queue: Queue, runtime: Runtime
) -> None:
    count = (1 << 16) + 100
    prepared = queue.prepare(idle(1))
    with torch.spyre.profiler() as prof:
        queue.submit_prepared([prepared] * count)
    assert len(runtime.timeline) < count
    assert len(prof.operations) == count
    assert prof.kinds == [OperationUse(queue.name, "Compute", "", count, 0, count)]


def test_a_record_takes_about_300_bytes() -> None:
    with torch.spyre.profiler() as prof:
        torch.ones(1000).to("spyre")
    row = tuple(prof.operations[-1])
    own = [sys.getsizeof(value) for value in row if isinstance(value, int) and value > 256]
    assert 200 < sys.getsizeof(row) + sum(own) < 350


def test_when_nobody_looks_nothing_is_in_the_way(runtime: Runtime, queue: Queue) -> None:
    append, ticket = runtime.timeline.append, runtime.clock.ticket
    with torch.spyre.profiler(), torch.spyre.profiler():
        assert runtime.timeline.append != append
    assert runtime.timeline.append == append
    assert runtime.clock.ticket == ticket


def test_no_card_is_started_and_a_card_that_starts_is_recorded_whole(run_python: Run) -> None:
    out = run_python("""
        import torch
        with torch.spyre.profiler() as prof:
            pass
        print(torch.spyre.is_initialized(), prof.operations, prof)
        with torch.spyre.profiler() as prof:
            torch.ones(4).to("spyre")
        print(prof.window[0], [r.kind for r in prof.operations])
        with torch.spyre.profiler() as prof:
            pass
        print(len(prof.operations))
    """)
    assert out.splitlines() == [
        "False [] 0 operations in 0.00 µs of virtual time",
        "0 ['Fill', 'H2D']",
        "0",
    ]


def test_a_forked_child_leaves_the_block_of_its_parent(run_python: Run) -> None:
    out = run_python("""
        import os, sys, torch
        torch.ones(4).to("spyre")
        with torch.spyre.profiler() as prof:
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
        if not child:
            with torch.spyre.profiler() as other:
                pass
            os._exit(0 if other.operations == [] else 1)
        print("good")
    """)
    assert out == "good\n"


# How it adds up

TIMES = st.integers(0, 40)
SPANS = st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair)))
RECORDS = st.lists(
    st.builds(
        lambda span, pipeline, card: record(pipeline, *span, card=card),
        SPANS,
        st.sampled_from([*PIPELINES, "host", "control"]),
        st.integers(0, 2),
    ),
    max_size=20,
)


def sweep(records: list[Record], card: int, pipeline: str, start: int, end: int) -> np.ndarray:
    """Whether a pipeline is busy, for every nanosecond of the window."""
    busy = np.zeros(41, dtype=bool)
    for r in records:
        if (r.card, r.pipeline) == (card, pipeline):
            busy[r.start : r.end] = True
    return busy[start:end]


@given(RECORDS, SPANS)
def test_busy_idle_and_overlap_are_what_counting_every_nanosecond_gives(
    records: list[Record], window: tuple[int, int]
) -> None:
    cards = sorted({r.card for r in records})
    busy = {
        (card, pipe): sweep(records, card, pipe, *window) for card in cards for pipe in PIPELINES
    }
    assert pipeline_use(records, *window) == [
        PipelineUse(
            card,
            pipe,
            sum((r.card, r.pipeline) == (card, pipe) for r in records),
            int(busy[card, pipe].sum()),
            int((~busy[card, pipe]).sum()),
        )
        for card in cards
        for pipe in PIPELINES
    ]
    assert overlap(records, *window) == {
        card: int((sum(busy[card, pipe].astype(int) for pipe in PIPELINES) >= 2).sum())
        for card in cards
    }


@given(st.lists(SPANS, max_size=12), st.integers(1, 4))
def test_cover_and_union_are_what_counting_gives(spans: list[tuple[int, int]], depth: int) -> None:
    count = np.zeros(41, dtype=int)
    for start, end in spans:
        count[start:end] += 1
    assert covered(spans, depth) == (count >= depth).sum()
    whole = union(spans)
    edges = [at for span in whole for at in span]
    assert edges == sorted(set(edges)), "in order, none empty, none meeting"
    assert {at for start, end in whole for at in range(start, end)} == set(
        np.flatnonzero(count).tolist()
    )


def test_operations_are_counted_by_queue_kind_and_label() -> None:
    records = [
        record("compute", 0, 10, label="mul", queue=10),
        record("compute", 10, 40, label="mul", queue=10, failed=True),
        record("compute", 0, 50, label="add", queue=10),
        record("h2d", 0, 5, kind="H2D", queue=2),
        record("h2d", 0, 6, kind="H2D", queue=2)._replace(queue="0.2 preparation"),
    ]
    uses = operation_use(records)
    assert uses == [
        OperationUse("0.2", "H2D", "", 1, 0, 5),
        OperationUse("0.2 preparation", "H2D", "", 1, 0, 6),
        OperationUse("0.10", "Compute", "add", 1, 0, 50),
        OperationUse("0.10", "Compute", "mul", 2, 1, 40),
    ]
    assert uses[3].mean == 20


# How it looks


def test_the_table_of_a_profile() -> None:
    records = [
        record("h2d", 0, 4_000, kind="H2D", label="weights"),
        record("compute", 2_000, 9_000, label="layer"),
        record("compute", 9_000, 9_500, label="layer", failed=True),
        record("control", 9_500, 9_500, kind="EventSignal"),
    ]
    window = 0, 10_000
    text = profile_text(
        pipeline_use(records, *window), overlap(records, *window), operation_use(records), 10_000
    )
    assert text == (
        "4 operations in 10.00 µs of virtual time, 1 failed\n"
        "\n"
        "card  pipeline  operations     busy      idle  utilisation\n"
        "0     h2d                1  4.00 µs   6.00 µs        40.0%\n"
        "0     compute            2  7.50 µs   2.50 µs        75.0%\n"
        "0     move               0  0.00 µs  10.00 µs         0.0%\n"
        "0     d2h                0  0.00 µs  10.00 µs         0.0%\n"
        "\n"
        "card 0: two or more pipelines busy for 2.00 µs (20.0%)\n"
        "\n"
        "queue  kind         label          count    total     mean\n"
        "0.0    Compute      layer    2, 1 failed  7.50 µs  3.75 µs\n"
        "0.0    H2D          weights            1  4.00 µs  4.00 µs\n"
        "0.0    EventSignal                     1  0.00 µs  0.00 µs"
    )


def test_times_are_microseconds_and_when_long_milliseconds() -> None:
    assert [time_text(ns) for ns in (0, 12, 999_994, 1_000_000, 12_345_678)] == [
        "0.00 µs",
        "0.01 µs",
        "999.99 µs",
        "1.000 ms",
        "12.346 ms",
    ]


def test_printing_a_profile_shows_its_table() -> None:
    with torch.spyre.profiler() as prof:
        torch.ones(8).to("spyre")
    assert str(prof) == prof.table()
    assert repr(prof).startswith("profiler(2 operations, ")
    assert repr(torch.spyre.profiler()) == "profiler(0 operations, 0.00 µs)"


def test_a_profile_is_the_same_whenever_the_card_is_idle_at_its_start() -> None:
    def once() -> list[tuple[int, ...]]:
        with torch.spyre.profiler() as prof:
            torch.ones(8).to("spyre").cpu()
        return [(r.start - prof.window[0], r.end - r.start) for r in prof.operations]

    assert once() == once()


def test_a_chrome_trace_is_written(tmp_path: Path, queue: Queue) -> None:
    with torch.spyre.profiler() as prof:
        queue.submit(idle(700), label="läyer")
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    shown = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["dur"]) for e in shown] == [("läyer", 0.7)]
    prof.export_chrome_trace(str(path))


def test_a_notebook_draws_a_figure_with_a_bar_for_each_operation(queue: Queue) -> None:
    with torch.spyre.profiler() as prof:
        for _ in range(3):
            queue.submit(idle(700))
        queue.submit(HostCallback(lambda: None))
    root = ElementTree.fromstring(prof._repr_svg_())
    assert len(root.findall(f"{SVG}rect")) == 4
    assert root.get("aria-label") == "4 operations over virtual time"


def test_a_figure_of_very_many_operations_says_how_many_it_leaves_out(queue: Queue) -> None:
    prepared = queue.prepare(idle(1))
    with torch.spyre.profiler() as prof:
        queue.submit_prepared([prepared] * 2500)
    assert prof.gantt().title == "The first 2000 of 2500 operations over virtual time"
    assert prof._repr_svg_().count("<rect") == 2000


def test_an_empty_profile_has_a_table_and_a_figure() -> None:
    with torch.spyre.profiler() as prof:
        pass
    assert prof.table().startswith("0 operations in ")
    assert "<svg" in prof._repr_svg_()
    assert torch.spyre.profiler().table() == "0 operations in 0.00 µs of virtual time"
