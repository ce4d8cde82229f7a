"""What an error keeps alive, and what numbers may do: nothing of a caller, and no warning."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.test_launch import SCALE, allocated, scale_program
from torch_spyre_ref import backend
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import HostCallback, QueueError
from torch_spyre_ref.spyrecode import ArtifactError, LaunchMismatchError, write_artifact


class UnitFailedError(Exception):
    """What goes wrong in these tests."""


def fail() -> None:
    raise UnitFailedError("unit 7")


def held_since(before: int) -> int:
    gc.collect()
    return allocated() - before


def test_a_failed_synchronize_keeps_no_tensor_of_the_function_that_called_it() -> None:
    def train() -> None:
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="spyre:0")
        backend.current().queue(0).submit(HostCallback(fail))
        torch.accelerator.synchronize(0)
        del kept

    torch.accelerator.synchronize(0)
    torch.ones(1, device="spyre:0")
    before = held_since(0)
    with pytest.raises(UnitFailedError, match="unit 7") as caught:
        train()
    assert "train" in [entry.name for entry in caught.traceback]
    del caught
    assert held_since(before) == 0
    with pytest.raises(QueueError, match="unit 7") as refused:
        torch.zeros(4, device="spyre:0")
    assert isinstance(refused.value.__cause__, UnitFailedError)
    del refused
    backend.current().queue(0).reset()


def test_a_preparation_that_fails_keeps_no_memory(tmp_path: Path) -> None:
    write_artifact(tmp_path / "scale", scale_program(), SCALE)
    queue = backend.current().queue(0)
    torch.accelerator.synchronize(0)
    torch.ones(1, device="spyre:0")
    before = held_since(0)
    queue.submit(HostCallback(fail))
    with pytest.raises((UnitFailedError, QueueError)):
        prepare_kernel(tmp_path / "scale", 0)
    assert held_since(before) == 0
    queue.reset()


def test_a_scalar_beyond_its_format_is_no_warning_and_no_error(tmp_path: Path) -> None:
    write_artifact(tmp_path / "scale", scale_program(), SCALE)
    plan, x = prepare_kernel(tmp_path / "scale", 0), torch.ones(64).to("spyre:0")
    out = torch.empty(64, device="spyre:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch_jobplan(plan, [x, out], [1e308, 0])
        torch.accelerator.synchronize(0)
    assert out.cpu().unique().tolist() == [torch.inf]


NO_SEQUENCES: dict[str, Any] = {
    "iterator": lambda: iter([1.0, 2]),
    "array": lambda: np.array([1.0, 2.0]),
    "tensor": lambda: torch.ones(2),
    "number": lambda: 3,
    "None": lambda: None,
}


@pytest.mark.parametrize("what", NO_SEQUENCES)
def test_arguments_and_scalars_come_in_lists(tmp_path: Path, what: str) -> None:
    write_artifact(tmp_path / "scale", scale_program(), SCALE)
    plan, x = prepare_kernel(tmp_path / "scale", 0), torch.ones(64, device="spyre:0")
    for args, scalars in (([x, x], NO_SEQUENCES[what]()), (NO_SEQUENCES[what](), [1.0, 2])):
        with pytest.raises(LaunchMismatchError, match="expected two lists or tuples"):
            launch_jobplan(plan, args, scalars)


@pytest.mark.parametrize("directory", ["", "no such"])
def test_a_directory_without_an_artifact_is_refused_by_name(directory: str) -> None:
    with pytest.raises(ArtifactError, match="No such file or directory"):
        prepare_kernel(directory, 0)
