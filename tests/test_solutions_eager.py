"""The answers of chapter 5 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from literate import ROOT, Chapter
from torch_spyre_ref.compiled.ops import Op

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what torch has deprecated in itself
    ANSWERS = SimpleNamespace(**runpy.run_path(str(ROOT / "chapters/solutions/05_eager.py")))


@pytest.fixture(scope="module")
def chapter() -> SimpleNamespace:
    """The chapter's exercises; its other cells need a process without the device."""
    names: dict[str, Any] = {"torch": torch, "Op": Op, "contextmanager": contextmanager}
    for cell in Chapter(ROOT / "chapters" / "05_eager.py").cells:
        if cell.cell_type == "code" and "\ndef check_" in cell.source:
            exec(cell.source, names)
    return SimpleNamespace(**names)


@pytest.fixture(autouse=True)
def an_empty_cache() -> Iterator[None]:
    """Nothing is compiled before a test, and what it has compiled is let go of."""
    torch.accelerator.synchronize(0)
    torch.spyre.clear_eager_cache()
    torch._dynamo.reset()
    torch.spyre.reset_fallback_report()
    yield
    torch.accelerator.synchronize(0)
    torch.spyre.clear_eager_cache()
    torch.spyre.reset_fallback_report()
    torch._dynamo.reset()


def test_the_prediction_is_right(chapter: Any) -> None:
    assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
    wrong = {**ANSWERS.PREDICTION, "x + y, x.add_(y)": 1}
    assert chapter.check_prediction(wrong) == "wrong: x + y, x.add_(y)"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_a_running_sum_is_a_program_in_both_modes(chapter: Any) -> None:
    assert chapter.check_running_sum(ANSWERS.running_sum) == "right"
    assert chapter.check_running_sum(chapter.running_sum) == "no answer yet"


def test_what_is_added_is_gone_afterwards(chapter: Any) -> None:
    with chapter.added("cumsum", ANSWERS.running_sum):
        pass
    with torch.spyre.fallback_policy("silent"):
        torch.ones(3).spyre().cumsum(0)
    assert torch.spyre.fallback_report().calls == 1


def test_other_running_sums_are_found_wrong(chapter: Any) -> None:
    def without_last(x: Any, dim: int, *, dtype: Any = None) -> Any:
        return ANSWERS.running_sum(x, dim) - x

    def of_another_op(x: Any, dim: int, *, dtype: Any = None) -> Any:
        return torch.cummax(x, dim).values

    assert chapter.check_running_sum(without_last) == "eager, (5, 7), [-1]: wrong"
    assert chapter.check_running_sum(of_another_op) == "eager, (5, 7), [-1]: fell back"


def test_symbols_cost_an_elementwise_op_nothing() -> None:
    for size in (100, 10_000):
        fixed, symbolic = ANSWERS.durations("exp", (size,))
        assert fixed == symbolic


def test_symbols_give_a_softmax_other_tiles() -> None:
    fixed, symbolic = ANSWERS.dimensions("_softmax", (512, 512), -1, False)
    assert fixed[0].startswith("d0 512, tile ") and symbolic[0].startswith("d0 s0, tile ")
    assert fixed != [line.replace("s0", "512").replace("s1", "512") for line in symbolic]
