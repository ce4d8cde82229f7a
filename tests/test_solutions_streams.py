"""The answers of chapter 4 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from literate import ROOT, Chapter
from tests.streaming import LONG, pinned, recorded, settle
from torch_spyre_ref import backend
from torch_spyre_ref.aten.copies import device_range, queue_of
from torch_spyre_ref.runtime import Compute, HostCallback

ANSWERS = SimpleNamespace(**runpy.run_path(str(ROOT / "chapters/solutions/04_streams.py")))


@pytest.fixture(scope="module")
def chapter() -> SimpleNamespace:
    """The chapter's exercises; its other cells need a process without the device."""
    names: dict[str, Any] = {"torch": torch, "np": np, "backend": backend, "ELEMENTS": LONG}
    names |= {"Compute": Compute, "HostCallback": HostCallback, "pinned": lambda n: pinned(LONG, n)}
    names |= {"device_range": device_range, "queue_of": queue_of, "fill": lambda text, _: text}
    for cell in Chapter(ROOT / "chapters" / "04_streams.py").cells:
        if cell.cell_type == "code" and "\ndef check_" in cell.source:
            exec(cell.source.rsplit("\n\n\n", 1)[0], names)  # but for what the cell shows
    return SimpleNamespace(**names)


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    yield
    settle()


def test_the_prediction_is_right(chapter: Any) -> None:
    assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
    every_reader = {**ANSWERS.PREDICTION, "5: C writes x": (4, 3, 2)}
    assert chapter.check_prediction(every_reader) == "wrong: 5: C writes x"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_the_missing_edge_is_found_and_the_overlap_stays(chapter: Any) -> None:
    for answer in (ANSWERS.double_buffered, ANSWERS.by_one_event):
        assert chapter.check_double_buffered(answer) == "right, and busy all the time"
    without = chapter.check_double_buffered(chapter.double_buffered)
    assert without.startswith("6 races; the first: race: H2D") and "WAR" in without


Use = Callable[[torch.Tensor, int], None]


def wait_for_everything(
    sources: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    send: torch.Stream,
    work: torch.Stream,
    use: Use,
) -> None:
    for number, source in enumerate(sources):
        send.wait_stream(work)
        with send:
            buffers[number % 2].copy_(source, non_blocking=True)
        work.wait_stream(send)
        with work:
            use(buffers[number % 2], number)


def backward_only(
    sources: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    send: torch.Stream,
    work: torch.Stream,
    use: Use,
) -> None:
    for number, source in enumerate(sources):
        send.wait_stream(work)
        with send:
            buffers[number % 2].copy_(source, non_blocking=True)
        with work:
            use(buffers[number % 2], number)


@pytest.mark.parametrize(
    ("answer", "verdict"), [(wait_for_everything, "right, but after"), (backward_only, "RAW")]
)
def test_other_answers_are_found_too_slow_or_wrong(
    chapter: Any, answer: Callable[..., None], verdict: str
) -> None:
    assert verdict in chapter.check_double_buffered(answer)


def test_the_critical_path_is_a_chain_that_takes_as_long_as_the_run(no_derivation: None) -> None:
    here, there = torch.Stream("spyre"), torch.Stream("spyre")
    cards, host, back = torch.zeros(3, LONG, device="spyre"), pinned(LONG), pinned(LONG, 0)
    with recorded() as done:
        with here:
            cards[0].copy_(host, non_blocking=True)
        there.wait_stream(here)
        with there:
            cards[1].copy_(cards[0], non_blocking=True)
            back.copy_(cards[1], non_blocking=True)
        with here:
            cards[2].copy_(host, non_blocking=True)
    path = ANSWERS.critical_path(done)
    assert [record.kind for record in path] == ["H2D", "D2D", "D2H"]
    assert all(before.end == after.start for before, after in pairwise(path))
    assert path[-1].end == max(record.end for record in done)


def test_the_critical_path_goes_by_way_of_a_pipeline_that_was_busy(no_derivation: None) -> None:
    streams = [torch.Stream("spyre") for _ in range(3)]
    cards, host = torch.zeros(3, LONG, device="spyre"), pinned(LONG)
    with recorded() as done:
        for stream, card in zip(streams, cards, strict=True):
            with stream:
                card.copy_(host, non_blocking=True)
    path = ANSWERS.critical_path(done)
    assert [record.ticket for record in path] == sorted(record.ticket for record in done)
