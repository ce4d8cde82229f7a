"""The answers of chapter 6 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.ladder import observed
from examples.decoder import PROMPT, Cache, Config, Decoder, encode, step
from literate import ROOT, Chapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what torch has deprecated in itself
    import torch._inductor.compile_fx

    ANSWERS = SimpleNamespace(
        **runpy.run_path(str(ROOT / "chapters/solutions/06_a_whole_model.py"))
    )
SMALL = Config(window=32, layers=1, width=32, heads=2, groups=1, hidden=48)


@pytest.fixture(scope="module")
def chapter() -> SimpleNamespace:
    """The chapter's exercises; its other cells need a process without the device."""
    names: dict[str, Any] = {
        "torch": torch,
        "observed": observed,
        "replace": replace,
        "Cache": Cache,
        "PROMPT": PROMPT,
        "encode": encode,
        "step": step,
    }
    for cell in Chapter(ROOT / "chapters" / "06_a_whole_model.py").cells:
        if cell.cell_type == "code" and "\ndef check_" in cell.source:
            source = cell.source.replace("check_talk(talk_at_once, on_card, compiled_step)", "")
            exec(source, names)
    return SimpleNamespace(**names)


@pytest.fixture(autouse=True)
def nothing_compiled_is_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.accelerator.synchronize()
    torch._dynamo.reset()


def small() -> Decoder:
    torch.manual_seed(0)
    return Decoder(SMALL).to("spyre")


def test_the_prediction_is_right(chapter: Any) -> None:
    assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
    wrong = {**ANSWERS.PREDICTION, "twice as wide": ("more", "same")}
    assert chapter.check_prediction(wrong) == "wrong: twice as wide"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_talking_at_once_waits_once(chapter: Any) -> None:
    way = torch.compile(step, fullgraph=True, dynamic=False)
    assert chapter.check_talk(ANSWERS.talk_at_once, small(), way) == "right"
    assert chapter.check_talk(chapter.talk_at_once, small(), way) == "no answer yet"


def test_other_ways_to_talk_are_found_wrong(chapter: Any) -> None:
    def one_by_one(decoder: Any, way: Any, prompt: str, length: int) -> list[int]:
        cache = Cache(decoder.config, device="spyre")
        tokens, said = encode(prompt).spyre(), []
        with torch.no_grad():
            for _ in range(length):
                tokens = way(decoder, tokens, cache, 0.0)
                said.append(int(tokens))
        return said

    def too_short(decoder: Any, way: Any, prompt: str, length: int) -> Any:
        return ANSWERS.talk_at_once(decoder, way, prompt, length - 1)

    way = torch.compile(step, fullgraph=True, dynamic=False)
    assert chapter.check_talk(one_by_one, small(), way) == "12 copies from the card"
    assert chapter.check_talk(too_short, small(), way).startswith("wrong tokens: ")


def test_a_batch_is_free_as_long_as_the_host_decides() -> None:
    one, four = ANSWERS.balance(64, 1), ANSWERS.balance(64, 4)
    for total, computing, submitting, _ in (one, four):
        assert computing < 0.9 * submitting
        assert total == pytest.approx(submitting, rel=0.1)
    assert four[3] > 3 * one[3]


def test_a_wide_decoder_is_compute_bound() -> None:
    total, computing, submitting, _ = ANSWERS.balance(1024, 1, steps=3)
    assert submitting < computing <= total < 1.1 * computing
