"""The answers of chapter 1 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from literate import ROOT, Chapter

ANSWERS = SimpleNamespace(**runpy.run_path(str(ROOT / "chapters/solutions/01_device.py")))


@pytest.fixture(scope="module")
def chapter() -> SimpleNamespace:
    """The chapter's exercises; its other cells need a process without the device."""
    names: dict[str, Any] = {"torch": torch, "threading": threading}
    names |= {"Any": Any, "Callable": Callable}
    for cell in Chapter(ROOT / "chapters" / "01_device.py").cells:
        if cell.cell_type == "code" and "\ndef check_" in cell.source:
            exec(cell.source, names)
    return SimpleNamespace(**names)


def test_the_prediction_is_right(chapter: Any) -> None:
    assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
    inherited = {**ANSWERS.PREDICTION, "in another thread": 1}
    assert chapter.check_prediction(inherited) == "wrong: in another thread"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_the_roomiest_card_is_found(chapter: Any) -> None:
    assert chapter.check_roomiest(ANSWERS.roomiest) == "right"
    assert chapter.check_roomiest(chapter.roomiest) == "no answer yet"
    assert torch.spyre.current_device() == 0


def test_a_card_that_is_always_the_first_is_found_wrong(chapter: Any) -> None:
    @contextmanager
    def first() -> Iterator[int]:
        with torch.spyre.device(0):
            yield 0

    assert "card 1 should be current" in chapter.check_roomiest(first)


def test_a_card_that_stays_current_is_found_wrong(chapter: Any) -> None:
    @contextmanager
    def careless() -> Iterator[int]:
        index = int(torch.spyre.mem_get_info(1)[0] > torch.spyre.mem_get_info(0)[0])
        torch.spyre.set_device(index)
        yield index

    assert "after the block" in chapter.check_roomiest(careless)
    torch.spyre.set_device(0)


def test_most_questions_are_about_memory_and_fallbacks() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model.to("spyre")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(5, 8, device="spyre")

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    step()
    counts = ANSWERS.questions(step)
    counts.pop("is_pinned", None)  # asked by every copy once the process has pinned memory
    # How many frees fall into the step varies: the autograd thread lets go when it comes to it.
    assert {name for name, _ in counts.most_common(2)} <= {"allocate", "free", "fallback"}
    assert sum(counts[name] for name in ("allocate", "free", "fallback")) > 0.7 * counts.total()
    assert ANSWERS.questions(lambda: None) == {}
