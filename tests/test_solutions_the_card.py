"""The answers of chapter 0 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from literate import ROOT, Chapter
from torch_spyre_ref import runtime
from torch_spyre_ref.runtime import D2H, H2D, Compute, EventSignal, EventWait, Operation

CHAPTER = Chapter(ROOT / "chapters" / "00_the_card.py")
ANSWERS = SimpleNamespace(**runpy.run_path(str(ROOT / "chapters/solutions/00_the_card.py")))


@pytest.fixture(scope="module")
def chapter() -> Iterator[Any]:
    """The chapter's names after all of its cells have run."""
    module = types.ModuleType("chapter_00")
    sys.modules[module.__name__] = module
    for cell in CHAPTER.cells:
        if cell.cell_type != "code" or '"torch" not in sys.modules' in cell.source:
            continue
        if "raises-exception" in cell.metadata.get("tags", ()):
            with pytest.raises(Exception):  # noqa: B017 any; the notebook shows which
                exec(cell.source, vars(module))
        else:
            exec(cell.source, vars(module))
    yield module
    del sys.modules[module.__name__]


def test_the_prediction_is_right(chapter: Any) -> None:
    assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
    late = {**ANSWERS.PREDICTION, "think": 10192}
    assert chapter.check_prediction(late) == "wrong: think"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_eight_blocks_go_through_two_places(chapter: Any) -> None:
    check = chapter.check_stream_through
    assert check(ANSWERS.stream_through) == "right, and busy all the time"
    assert check(chapter.stream_through) == "no answer yet"


class Without:
    """``ops``, but of every three waits the one ``left_out`` waits for something long past."""

    def __init__(self, ops: Any, left_out: int) -> None:
        self._ops, self._left_out = ops, left_out
        self._signals: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def EventWait(self, signal: Any) -> Any:  # noqa: N802
        self._signals.append(signal)
        careless = len(self._signals) % 3 == self._left_out
        return self._ops.EventWait(self._signals[0] if careless else signal)


@pytest.mark.parametrize(
    ("left_out", "card"), [(0, "usual"), (1, "slow programs"), (2, "slow programs")]
)
def test_a_missing_event_is_found_though_other_cards_win_the_race(
    chapter: Any, left_out: int, card: str
) -> None:
    def careless(ops: Any, *arguments: Any) -> None:
        ANSWERS.stream_through(Without(ops, left_out), *arguments)

    assert chapter.check_stream_through(careless).startswith(f"{card}: wrong bytes")


def test_an_answer_on_one_queue_is_found_slow(chapter: Any) -> None:
    def patient(ops: Any, bench: Any, blocks: Any, results: Any, duration: int) -> None:
        span = bench.block(0)
        for block, result in zip(blocks, results, strict=True):
            bench.queue.submit(ops.H2D(block, span))
            bench.queue.submit(ops.Compute(duration, chapter.double(span)))
            bench.queue.submit(ops.D2H(span, result))

    assert "right, but after" in chapter.check_stream_through(patient)


def drill(chapter: Any, joined: bool) -> list[tuple[str, Operation]]:
    """What the drill of the chapter submits, with or without its events."""
    bench = chapter.Bench(runtime)
    host = bench.host(0)
    submitted: list[tuple[str, Operation]] = []
    for number in range(2):
        block = bench.block(number)
        arrived = EventSignal()
        submitted.append(("send", H2D(host, block)))
        if joined:
            submitted += [("send", arrived), ("work", EventWait(arrived))]
        submitted.append(("work", Compute(1, chapter.double(block), (block,), (block,))))
        submitted.append(("work", D2H(block, host)))
    return submitted


def test_races_are_found_where_no_event_orders_two_queues(chapter: Any) -> None:
    assert ANSWERS.races(drill(chapter, joined=True)) == []
    submitted = drill(chapter, joined=False)
    send, work = ([op for queue, op in submitted if queue == name] for name in ("send", "work"))
    expected = [(send[n], work[2 * n + step]) for n in range(2) for step in range(2)]
    assert ANSWERS.races(submitted) == expected


def test_order_passes_through_a_third_queue(chapter: Any) -> None:
    block = chapter.Bench(runtime).block(0)
    write = Compute(1, chapter.double(block), (), (block,))
    read = Compute(1, chapter.double(block), (block,), ())
    first, second = EventSignal(), EventSignal()
    relay = [("b", EventWait(first)), ("b", second), ("c", EventWait(second))]
    assert ANSWERS.races([("a", write), ("a", first), *relay, ("c", read)]) == []
    assert ANSWERS.races([("a", first), ("a", write), *relay, ("c", read)]) == [(write, read)]
    assert ANSWERS.races([("a", read), ("c", read)]) == [], "two reads"
