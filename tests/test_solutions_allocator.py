"""The answers of chapter 2 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import random
import runpy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from literate import ROOT, Chapter
from torch_spyre_ref import backend
from torch_spyre_ref.allocator import ALIGNMENT, RegionSpace, Space
from torch_spyre_ref.emulator.regions import Region

ANSWERS = SimpleNamespace(**runpy.run_path(str(ROOT / "chapters/solutions/02_allocator.py")))


@pytest.fixture(scope="module")
def chapter() -> SimpleNamespace:
    """The chapter's exercises; its other cells need a process without the device."""
    names: dict[str, Any] = {"torch": torch, "random": random, "Region": Region}
    names |= {"ALIGNMENT": ALIGNMENT, "RegionSpace": RegionSpace}
    for cell in Chapter(ROOT / "chapters" / "02_allocator.py").cells:
        if cell.cell_type == "code" and "\ndef check_" in cell.source:
            exec(cell.source, names)
    return SimpleNamespace(**names)


def test_the_prediction_is_right(chapter: Any) -> None:
    assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
    early = {**ANSWERS.PREDICTION, "del x": 256}
    assert chapter.check_prediction(early) == "wrong: del x"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_first_fit_is_found_right_and_nothing_else_is(chapter: Any) -> None:
    assert chapter.check_first_fit(ANSWERS.FirstFit) == "right"
    assert chapter.check_first_fit(chapter.FirstFit) == "no answer yet"
    assert "is at 0, not at 640" in chapter.check_first_fit(RegionSpace)  # takes the smallest


class Unjoined(ANSWERS.FirstFit):  # type: ignore[misc]
    def give(self, start: int, length: int) -> None:
        self.free = sorted([*self.free, (start, length)])


class Greedy(ANSWERS.FirstFit):  # type: ignore[misc]
    def take(self, size: int) -> int | None:
        start = super().take(size)
        if start is not None:
            self.give(start, 128)  # keeps less than it hands out
        return start


@pytest.mark.parametrize(
    ("wrong", "verdict"), [(Unjoined, "refused, though a gap has room"), (Greedy, "are not free")]
)
def test_other_ways_to_keep_free_blocks_are_found_wrong(
    chapter: Any, wrong: type, verdict: str
) -> None:
    assert verdict in chapter.check_first_fit(wrong)


@pytest.fixture
def empty_card() -> Iterator[None]:
    torch.spyre.empty_cache()
    yield
    torch.spyre.empty_cache()


def test_first_fit_serves_pytorch(empty_card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Space, "region_space", ANSWERS.FirstFit)
    tensors = [torch.full((n,), float(n), device="spyre") for n in range(1, 200)]
    del tensors[::3]
    tensors += [torch.full((n,), float(n), device="spyre") for n in range(1, 300, 7)]
    regions = backend.current().memory.allocator.card(0).space.regions.values()
    assert all(type(space) is ANSWERS.FirstFit for space in regions)
    assert all(tensor.eq(len(tensor)).all() for tensor in tensors)
    del tensors
    torch.spyre.empty_cache()


@pytest.mark.skipif(
    backend.current().settings.sanitize,
    reason="memcheck knows blocks by where they were handed out; the answer moves them behind it",
)
def test_compacted_tensors_keep_their_bytes_and_leave_one_hole(
    empty_card: None, region_bytes: int
) -> None:
    piece = region_bytes // 8

    def make(number: int) -> torch.Tensor:
        return torch.full((piece,), number, dtype=torch.int8, device="spyre")

    with torch.spyre.placement("interleave"):
        spread = torch.arange(50_000, device="spyre")
    tensors = {number: make(number) for number in range(60)}
    for number in range(0, 60, 2):
        del tensors[number]
    views = {number: tensor[5::1001] for number, tensor in tensors.items()}
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(3 * piece, dtype=torch.int8, device="spyre")

    with backend.current().memory.settled(0) as memory:
        ANSWERS.compact(memory, backend.current().queue(0))
        holes = [space.holes() for space in memory.space.regions.values()]
    assert all(len(found) <= 1 for found in holes)
    large = torch.zeros(3 * piece, dtype=torch.int8, device="spyre")
    assert all(tensor.eq(number).all() for number, tensor in tensors.items())
    assert all(view.eq(number).all() for number, view in views.items())
    assert spread.cpu().equal(torch.arange(50_000))
    assert not large.any()
