"""Races on correction slots and reads of fresh memory, found and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.test_launch import add_program, add_spec, all_done, good
from torch_spyre_ref import backend
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.sanitizer import SanitizerError
from torch_spyre_ref.spyrecode import write_artifact

__all__ = ["all_done"]


def prepared(path: Path, slots: int = 2) -> JobPlan:
    write_artifact(path / "add", add_program(), add_spec(), name="addition")
    return prepare_kernel(path / "add", 0, slots=slots)


def test_a_right_launch_is_clean(tmp_path: Path) -> None:
    plan, args = prepared(tmp_path), good()
    with torch.spyre.sanitizer():
        for _ in range(5):
            launch_jobplan(plan, args)
        assert args[2].cpu().unique().tolist() == [2]


def test_a_launch_without_the_barrier_is_a_race(tmp_path: Path) -> None:
    plan, args = prepared(tmp_path, slots=1), good()
    launch_jobplan(plan, args)
    with torch.spyre.sanitizer.expect("race") as reports:
        launch_jobplan(plan, args, barrier=False)
    (report,) = reports
    assert (report.operation, report.launch, report.device) == ("Execute", "addition", 0)
    assert report.line is not None
    assert report.line.file == __file__
    assert "H2D" in report.detail
    assert "barrier=False" in str(report)


def test_two_queues_are_ordered_by_the_launcher(tmp_path: Path) -> None:
    plan, args = prepared(tmp_path, slots=1), good()
    queues = [backend.current().runtime.cards[0].new_queue() for _ in range(2)]
    with torch.spyre.sanitizer():
        for index in range(6):
            launch_jobplan(plan, args, queue=queues[index % 2])


def test_an_input_that_nobody_wrote(tmp_path: Path) -> None:
    plan, args = prepared(tmp_path), good()
    with torch.spyre.sanitizer.expect("uninitialised") as reports:
        args[1] = torch.empty(4, 6, device="spyre:0")
        launch_jobplan(plan, args)
    (report,) = reports
    assert (report.operation, report.launch) == ("Execute", "addition")
    assert "96 of the 96 bytes" in report.detail


def test_fresh_memory_copied_to_the_host() -> None:
    torch.zeros(1, device="spyre:0")
    with torch.spyre.sanitizer.expect("uninitialised") as reports:
        torch.empty(64, device="spyre:0")[:32].cpu()
    assert [report.operation for report in reports] == ["D2H"]
    with torch.spyre.sanitizer():
        half = torch.empty(64, device="spyre:0")
        half[:32] = 1
        half[:32].cpu()
        minus = torch.full((8,), -1, dtype=torch.int32).to("spyre:0")
        assert minus.cpu().unique().tolist() == [-1]


def test_a_copy_of_fresh_memory_is_as_fresh() -> None:
    torch.zeros(1, device="spyre:0")
    with torch.spyre.sanitizer.expect("uninitialised") as reports:
        torch.empty(64, device="spyre:0").clone().cpu()
    assert len(reports) == 1


def test_what_is_found_fails_the_block_and_what_is_not_found_too() -> None:
    torch.zeros(1, device="spyre:0")
    with pytest.raises(SanitizerError, match="1 faults"), torch.spyre.sanitizer():
        torch.empty(64, device="spyre:0").cpu()
    with (
        pytest.raises(SanitizerError, match="nothing was found"),
        torch.spyre.sanitizer.expect("race"),
    ):
        pass
    with (
        pytest.raises(SanitizerError, match="only 'race' was expected"),
        torch.spyre.sanitizer.expect("race"),
    ):
        torch.empty(64, device="spyre:0").cpu()
    with pytest.raises(ValueError, match="no kind of fault"), torch.spyre.sanitizer.expect("x"):
        pass
