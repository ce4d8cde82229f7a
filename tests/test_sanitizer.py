"""Races on correction slots and reads of fresh memory, found and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Run
from tests.test_launch import add_program, add_spec, all_done, good
from torch_spyre_ref import backend
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import Fill, MemcheckError
from torch_spyre_ref.runtime.sanitizer import SanitizerReport
from torch_spyre_ref.sanitizer import SanitizerError
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, write_artifact

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


def picking_program(masked: bool) -> bytes:
    """out[n] = table[index[n]], or table[n] where index[n] is true: 4 of 8 float32."""
    asm = Assembler("pick")
    n = asm.dimension("n", 4)
    table, out = asm.argument("table", "float32"), asm.argument("out", "float32")
    index = asm.load(asm.argument("index", "bool" if masked else "int64"), {n: 1})
    if masked:
        picked = asm.load(table, {n: 1}, mask=index, other=0.0)
    else:
        picked = asm.load(table, {}, indices=[(index, 1, 8)])
    asm.store(out, {n: 1}, picked)
    return encode(asm.assemble())


def picking_spec(masked: bool) -> LaunchSpec:
    arguments = [
        Argument("table", "input", "float32", (8,), (1,)),
        Argument("out", "output", "float32", (4,), (1,)),
        Argument("index", "input", "bool" if masked else "int64", (4,), (1,)),
    ]
    return LaunchSpec.of(arguments, [])


@pytest.mark.parametrize("masked", [False, True])
def test_only_the_elements_that_are_really_picked_count(tmp_path: Path, masked: bool) -> None:
    write_artifact(tmp_path / "pick", picking_program(masked), picking_spec(masked))
    plan = prepare_kernel(tmp_path / "pick", 0)
    torch.zeros(1, device="spyre:0")
    with torch.spyre.sanitizer():
        table = torch.empty(8, device="spyre:0")
        table[1:3] = torch.tensor([1.0, 2.0])
        good = torch.tensor([False, True, True, False] if masked else [1, 2, 1, 2]).to("spyre:0")
        out = torch.zeros(4, device="spyre:0")
        launch_jobplan(plan, [table, out, good])
        assert out.tolist() == [0, 1, 2, 0] if masked else [1, 2, 1, 2]
    with torch.spyre.sanitizer.expect("uninitialised") as reports:
        table = torch.empty(8, device="spyre:0")
        table[1:3] = torch.tensor([1.0, 2.0])
        bad = torch.tensor([True, True, False, False] if masked else [1, 1, 0, 0]).to("spyre:0")
        launch_jobplan(plan, [table, out, bad])
    (report,) = reports
    assert "4 of the" in report.detail


def test_memcheck_comes_on_in_the_middle_and_knows_who_was_there() -> None:
    runtime = backend.current().runtime
    before = torch.ones(64, device="spyre:0")
    was_on = runtime.memcheck is not None
    with torch.spyre.sanitizer():
        assert before.add(1).sum().item() == 128
        assert torch.ones(3, device="spyre:0").tolist() == [1, 1, 1]
        del before
        assert runtime.memcheck is not None
    assert (runtime.memcheck is not None) == was_on
    assert torch.ones(3, device="spyre:0").tolist() == [1, 1, 1]


def test_memcheck_refuses_and_expect_takes_it() -> None:
    queue = backend.current().queue(0)
    gone = torch.ones(64, device="spyre:0")
    where = device_range(gone)
    after = []
    with torch.spyre.sanitizer.expect("use after free") as reports:
        del gone
        torch.spyre.memory_map(0)  # takes back what was freed
        queue.submit(Fill(where, b"\0"))
        after.append("never")
    assert [report.kind for report in reports] == ["use after free"]
    assert after == []
    assert "test_sanitizer.py" in str(reports[0])
    with pytest.raises(MemcheckError), torch.spyre.sanitizer.expect("race"):
        queue.submit(Fill(where, b"\0"))


def test_two_streams_race_when_nothing_orders_them() -> None:
    x = torch.ones(1000, device="spyre:0")
    streams = [torch.Stream("spyre:0") for _ in range(2)]
    runtime = backend.current().runtime
    with runtime.deriving(False), torch.spyre.sanitizer.expect("race") as reports:
        for stream in streams:
            with stream:
                x.zero_()
    (report,) = reports
    assert isinstance(report, SanitizerReport)
    assert report.line is not None and report.earlier is not None
    assert "x.zero_()" in str(report)
    with runtime.deriving(True), torch.spyre.sanitizer():
        for stream in streams:
            with stream:
                x.zero_()
    with runtime.deriving(False), torch.spyre.sanitizer():
        for stream in streams:
            stream.wait_stream(streams[0])
            with stream:
                x.zero_()


def test_what_was_found_is_printed_as_the_process_ends(run_python: Run) -> None:
    run_python(
        """
        import torch
        torch.empty(64, device="spyre").cpu()
        """,
        stderr="the sanitizer found 1 faults:\nuninitialised: D2H on card 0",
        TORCH_SPYRE_REF_SANITIZE="1",
    )
