"""The answers of chapter 3 pass the checkers that the chapter prints, and wrong answers do not."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from literate import ROOT, Chapter
from torch_spyre_ref import backend, submission
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import Queue
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, read_artifact, write_artifact

ANSWERS = SimpleNamespace(**runpy.run_path(str(ROOT / "chapters/solutions/03_launch.py")))
WANTED = (
    "\ndef check_",
    "\ndef sum_program",
    "\ndef sum_artifact",
    "\ndef numbers",
    "\ndef observe",
    "\ndef evict_all",
)


@pytest.fixture(scope="module")
def chapter() -> Iterator[SimpleNamespace]:
    """The chapter's exercises; its other cells need a process without the device."""
    names: dict[str, Any] = {
        "torch": torch,
        "backend": backend,
        "OneQueue": submission.OneQueue,
        "Path": Path,
        "prepare_kernel": prepare_kernel,
        "launch_jobplan": launch_jobplan,
    }
    for cell in Chapter(ROOT / "chapters" / "03_launch.py").cells:
        source = "\n" + cell.source
        if cell.cell_type == "code" and any(wanted in source for wanted in WANTED):
            definitions = source.split("\n\n\n")[:-1] if "\ndef check_" not in source else [source]
            exec("\n\n\n".join(definitions), names)
    yield SimpleNamespace(**names)
    names["scratch"].cleanup()


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    """What is pending keeps its program on the card."""
    yield
    torch.accelerator.synchronize(0)


def test_the_prediction_is_right(chapter: Any) -> None:
    with torch.spyre.sanitizer.expect("race"):
        assert chapter.check_prediction(ANSWERS.PREDICTION) == "right"
        stale = {**ANSWERS.PREDICTION, "4 slots, no barrier": 6}
        assert chapter.check_prediction(stale) == "wrong: 4 slots, no barrier"
    assert chapter.check_prediction(chapter.prediction) == "no prediction yet"


def test_the_program_is_right(chapter: Any) -> None:
    assert chapter.check_axpy(ANSWERS.axpy_artifact) == "right"
    assert chapter.check_axpy(chapter.axpy_artifact) == "no answer yet"


def test_a_program_of_one_size_is_not_enough(chapter: Any) -> None:
    def fixed(directory: Path) -> None:
        asm = Assembler("axpy")
        n, alpha = asm.dimension("n", 1000), asm.float_symbol()
        x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
        asm.store(y, {n: 1}, asm.load(x, {n: 1}) * alpha + asm.load(y, {n: 1}))
        spec = LaunchSpec.of(
            [
                Argument("x", "input", "float32", (1000,), (1,)),
                Argument("y", "input_output", "float32", (1000,), (1,)),
            ],
            [],
            [chapter.ALPHA],
        )
        write_artifact(directory, encode(asm.assemble()), spec)

    assert "for 7 elements" in chapter.check_axpy(fixed)


def test_a_result_that_is_read_is_an_input_too(chapter: Any) -> None:
    def only_output(directory: Path) -> None:
        ANSWERS.axpy_artifact(directory)
        artifact = read_artifact(directory)
        x, y = artifact.spec.arguments
        spec = LaunchSpec.of(
            [x, replace(y, role="output")], artifact.spec.dimensions, artifact.spec.scalars
        )
        write_artifact(directory, artifact.program, spec)

    assert "expected input_output" in chapter.check_axpy(only_output)


def test_the_submission_is_right(chapter: Any) -> None:
    assert chapter.check_submission(ANSWERS.Remembering()) == "right"
    assert chapter.check_submission(chapter.Mine()) == "no answer yet"


class OneMemory(submission.OneQueue):
    """Remembers one slot, whichever it is."""

    known: Any = None

    def launch(self, queue: Queue, bound: submission.BoundLaunch) -> int:
        if bound.patch == self.known:
            bound = bound._replace(preparation=())
        self.known = bound.patch
        return super().launch(queue, bound)


class Numbers(submission.OneQueue):
    """Remembers slots by their numbers, which evicted programs have too."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}

    def launch(self, queue: Queue, bound: submission.BoundLaunch) -> int:
        if self.known.get(bound.slot.number) == bound.patch:
            bound = bound._replace(preparation=())
        self.known[bound.slot.number] = bound.patch
        return super().launch(queue, bound)


def test_wrong_memories_of_a_slot_are_seen(chapter: Any) -> None:
    for wrong in (OneMemory(), Numbers()):
        assert "a launch failed: address symbol 0" in chapter.check_submission(wrong)


def kinds() -> list[str]:
    torch.accelerator.synchronize(0)
    return [record.kind for record in backend.current().runtime.timeline]


def test_a_launch_with_the_same_bytes_is_one_operation(chapter: Any) -> None:
    x, y, first, second = chapter.numbers(1, 2, 0, 0)
    plan = prepare_kernel(chapter.sum_artifact(2), slots=1)
    with submission.use(ANSWERS.Remembering()):
        launch_jobplan(plan, [x, y, first])
        first.zero_()
        torch.accelerator.synchronize(0)
        backend.current().runtime.timeline.clear()
        launch_jobplan(plan, [x, y, first])
        assert kinds() == ["Execute"]
        launch_jobplan(plan, [x, y, second])
        assert kinds() == ["Execute", "HostCallback", "H2D", "Execute"]
        torch.spyre.empty_cache()
        second.zero_()
        launch_jobplan(plan, [x, y, second])
    assert first.unique().tolist() == second.unique().tolist() == [3]


def test_a_slot_whose_transfer_was_dropped_is_not_believed_in(chapter: Any) -> None:
    x, y, first, second = chapter.numbers(1, 2, 0, 0)
    plan = prepare_kernel(chapter.sum_artifact(2), slots=1)
    queue = backend.current().queue(0)
    with submission.use(ANSWERS.Remembering()):
        launch_jobplan(plan, [x, y, first])
        torch.accelerator.synchronize(0)
        launch_jobplan(plan, [x, y, second])
        queue.reset()
        launch_jobplan(plan, [x, y, second])
    assert second.unique().tolist() == [3]
