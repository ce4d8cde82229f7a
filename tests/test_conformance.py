"""The operators run as the committed record says, and the harness sees what is wrong."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import SampleInput

import conformance
import conformance_page
import conformance_samples
from conformance_check import check
from literate import ROOT
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, write_artifact

X = torch.linspace(-1, 1, 12).reshape(3, 4)
WORKERS = """
import os, time
from conformance_workers import Task, check_all

def serve(connection):
    while True:
        op, _ = connection.recv()
        connection.send(f"sample 3 of {op}")
        if op == "dies":
            os.abort()
        if op == "hangs":
            time.sleep(60)
        connection.send({"runs": "view", "faults": []})

if __name__ == "__main__":
    tasks = [Task(op, "float32") for op in ("good", "dies", "fine", "hangs", "well")]
    report = lambda task, outcome: print(task.op, *outcome["faults"])
    check_all(tasks, report, workers=1, serve=serve, time_limit=5)
"""


def operator(function: Callable[..., Any], **fields: Any) -> Any:
    """An entry as in PyTorch's database, with one sample."""
    usual: dict[str, Any] = {
        "name": "an operator",
        "op": function,
        "inplace_variant": None,
        "supports_out": False,
        "error_inputs_func": None,
        "sample_inputs": lambda device, dtype: [SampleInput(X.to(dtype))],
        "supported_dtypes": lambda device: {torch.float32},
    }
    return SimpleNamespace(**(usual | fields))


def on_card(x: torch.Tensor) -> bool:
    return x.device.type == "spyre"


def faults(op: Any) -> list[str]:
    return check(op, torch.float32, lambda text: None).faults


def test_a_sample_of_the_database_runs_as_the_record_says() -> None:
    command = [sys.executable, "tools/conformance.py", "--sample", "--again"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_right_operator_has_no_faults() -> None:
    assert faults(operator(torch.add, op=lambda x: x + 1)) == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + 1e-3 * on_card(x), "not close"),
        (lambda x: x.where(~torch.tensor(on_card(x)).to(x.device), torch.nan), "not close"),
        (lambda x: (x + 1).double() if on_card(x) else x + 1, "float64 instead of"),
        (lambda x: (x + 1)[:2] if on_card(x) else x + 1, "shape"),
        (lambda x: (x + 1).cpu(), "a result on cpu"),
        (lambda x: x.clone() if on_card(x) else x[:], "aliases argument None instead of 0"),
        (lambda x: x[:] if on_card(x) else x.clone(), "aliases argument 0 instead of None"),
        (lambda x: x[1:, :3] if on_card(x) else x[:2, :3], "offset"),
        (lambda x: x.neg() if x.mul_(1 + on_card(x)) is x else x, "not close"),
        (lambda x: (x + 1,) if on_card(x) else x + 1, "<class 'tuple'> instead of"),
        (lambda x: x.shape[0] + on_card(x), "4 instead of 3"),
        (lambda x: x.no_such_method() if on_card(x) else x + 1, "raises AttributeError"),
        (lambda x: x + 1 if on_card(x) else x.no_such_method(), "the CPU refuses it"),
    ],
)
def test_what_only_the_card_does_is_a_fault(function: Callable[..., Any], message: str) -> None:
    found = faults(operator(function))
    assert found and message in found[0], found


def test_a_write_beside_an_out_argument_is_a_fault() -> None:
    def function(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None and on_card(x):
            out.as_strided((1,), (1,), 0).fill_(7)
        return torch.add(x, 1, out=out)

    found = faults(operator(function, supports_out=True))
    assert found and "out=" in found[0] and "beside" in found[0], found


def test_rounding_is_measured_by_what_one_step_of_the_inputs_does() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ((x + 1e4) - 1e4 if on_card(x) else x.clone()) - x

    def ill_conditioned(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(1e4 * (x + 1e-7 * on_card(x)))

    assert "not close" in faults(operator(function))[0]
    assert faults(operator(ill_conditioned)) == []


def test_what_overflows_on_the_cpu_only_is_compared_with_the_truth() -> None:
    def function(x: torch.Tensor, factor: float) -> torch.Tensor:
        return factor * x if on_card(x) else torch.exp(200 * x).log()

    assert faults(operator(lambda x: function(x, 200))) == []
    assert "not close" in faults(operator(lambda x: function(x, 201)))[0]
    assert "not close" in faults(operator(lambda x: function(x, torch.inf)))[0]


@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (lambda x: x.t(), "view"),
        (lambda x: x.clone(), "move"),
        (lambda x: torch.linalg.svdvals(x), "fallback"),
        (lambda x: x.to_sparse(), "none"),
    ],
)
def test_how_an_operator_runs_is_seen(function: Callable[..., Any], runs: str) -> None:
    outcome = check(operator(function), torch.float32, lambda text: None)
    assert (outcome.runs, outcome.faults) == (runs, [])
    assert bool(outcome.on_cpu) == (runs == "fallback")


@pytest.fixture
def doubled(tmp_path: Path) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """An operator of which the card's kernel launches a program."""
    asm = Assembler("double")
    n = asm.dimension("n", X.numel())
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    asm.store(out, {n: 1}, asm.load(x, {n: 1}) * 2.0)
    form = "float32", (X.numel(),), (1,)
    spec = LaunchSpec.of([Argument("x", "input", *form), Argument("out", "output", *form)], [])
    write_artifact(tmp_path / "double", encode(asm.assemble()), spec)
    plans = [prepare_kernel(tmp_path / "double")]

    def on_the_card(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, device=x.device)
        launch_jobplan(plans[0], [x.contiguous().view(-1), out.view(-1)])
        return out

    library = torch.library.Library("conformance", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x.contiguous() * 2, "CPU")
    library.impl("doubled", on_the_card, "PrivateUse1")
    yield torch.ops.conformance.doubled
    library._destroy()
    plans.clear()  # torch keeps the kernel, and with it whatever it holds


def test_an_index_out_of_bounds_is_refused_when_its_program_has_run() -> None:
    place = torch.tensor([99])
    samples = [SampleInput(X, args=(torch.tensor([1]),)), SampleInput(X, args=(place,))]

    def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, index)

    bad = SimpleNamespace(sample_input=samples[1])
    refused = operator(
        take,
        sample_inputs=lambda device, dtype: samples[:1],
        error_inputs_func=take,
        error_inputs=lambda device: [bad, bad],
    )
    assert faults(refused) == []


def test_a_fault_that_only_the_card_finds_leaves_the_next_call_a_card() -> None:
    def take(x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, torch.tensor([99 * on_card(x)], device=x.device))

    found = faults(operator(take))
    assert found and "raises IndexFaultError" in found[0], found
    assert faults(operator(lambda x: x + 1)) == []


def test_programs_are_seen_and_several_are_a_composition(
    doubled: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    for function, runs in ((doubled, "program"), (lambda x: doubled(doubled(x)), "composed")):
        outcome = check(operator(function), torch.float32, lambda text: None)
        assert (outcome.runs, outcome.faults, outcome.on_cpu) == (runs, [], {})


def test_random_numbers_are_not_compared_but_their_form_is() -> None:
    outcome = check(operator(torch.rand_like), torch.float32, lambda text: None)
    assert (outcome.unequal, outcome.why_unequal, outcome.faults) == (1, "random numbers", [])
    wrong = operator(lambda x: torch.rand_like(x)[: 3 - on_card(x)])
    assert "shape" in faults(wrong)[0]


def test_a_worker_that_dies_or_hangs_is_named_and_replaced(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    command = [sys.executable, str(script)]
    environment = {"PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "good",
        "dies sample 3 of dies: the process died: SIGABRT",
        "fine",
        "hangs sample 3 of hangs: no end after 5 s",
        "well",
    ]


def test_the_record_is_written_as_it_is_read(tmp_path: Path) -> None:
    entries = json.loads(conformance.RECORD.read_text())["ops"]
    assert list(entries) == sorted(entries)
    conformance.write(entries, tmp_path / "record.json")
    written = (tmp_path / "record.json").read_text()
    if torch.__version__.startswith(json.loads(conformance.RECORD.read_text())["torch"]):
        assert written == conformance.RECORD.read_text()
    assert conformance.differences(entries, tmp_path / "record.json") == []
    changed = {"abs": {"runs": {"float32": "view"}}}
    assert "abs" in conformance.differences(changed, tmp_path / "record.json")[0]


@pytest.mark.parametrize("option", ["--no-compiled", "--samples=1", "--ops=abs", "--sample"])
def test_only_a_whole_run_of_the_usual_samples_is_written(option: str) -> None:
    with pytest.raises(SystemExit):
        conformance.parse(["--write", option])


@pytest.mark.parametrize(("dtype", "most"), [("float32", 5), ("float16", 3), ("int64", 2)])
def test_samples_are_spread_and_fewer_where_a_dtype_is_less_used(
    dtype: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = operator(torch.abs, sample_inputs=lambda device, dtype: list(range(20)))
    monkeypatch.setenv("CONFORMANCE_SAMPLES", "5")
    taken = conformance_samples.samples(op, getattr(torch, dtype))
    steps = [b - a for a, b in itertools.pairwise(taken)]
    assert len(taken) == most and max(steps) - min(steps) <= 1
    monkeypatch.setenv("CONFORMANCE_SAMPLES", "0")
    assert conformance_samples.samples(op, torch.float16) == list(range(20))


def test_the_page_has_a_row_for_every_operator() -> None:
    record = json.loads(conformance.RECORD.read_text())
    page = conformance_page.page(record)
    assert [op for op in record["ops"] if page.count(f"\n| `{op}` |") != 1] == []
    ways = {way for entry in record["ops"].values() for way in entry["runs"].values()}
    assert ways <= set(conformance_page.WAYS)
