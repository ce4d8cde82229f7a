"""Run PyTorch's own operator database on the card, against the CPU.

    python tools/conformance.py                         all of it; resumes where it was left
    python tools/conformance.py --write                 and write docs/conformance.json
    python tools/conformance.py --sample                a small fixed part, compared with that file
    python tools/conformance.py --ops add,mul --dtype float32 --samples 0

Sample inputs of every operator run in each form that it has (function, on tensors with gaps, in
place, with `out=`), and everything is compared: values, dtype, shape, aliasing, strides. So do the
calls that are errors. Each new form of a call is compiled, which takes its time: of the samples
there are a few, in float16 half as many as in float32, in other dtypes a quarter; the record says
how many. `--no-compiled` is a card without compiled operators, where all but copies and views run
on the CPU. How an operator ran is seen while it runs, never declared. A wrong result or a crash is
an exit status of 1 and is not written anywhere: it is to be put right.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from conformance_workers import COMPILED, MOST_SAMPLES, Task, check_all, database
from literate import PACKAGE, ROOT, ChapterError, run

RECORD = ROOT / "docs" / "conformance.json"
STATES = ROOT / "build" / "conformance"
WORKERS = 2
SAMPLES = 4
ONE_IN = 24  # operators: those in the small fixed part

Outcomes = dict[Task, dict[str, Any]]
Record = dict[str, dict[str, Any]]


class States:
    """What is known already: a file for each operator and dtype, valid while no source changes."""

    def __init__(self, root: Path) -> None:
        self._fingerprint = fingerprint()
        self._root = root

    def _path(self, task: Task) -> Path:
        return self._root / f"{task.op}.{task.dtype}.json"

    def load_all(self, tasks: Iterable[Task]) -> Outcomes:
        """The outcomes of those tasks that were found right before."""
        return {task: outcome for task in tasks if (outcome := self.load(task)) is not None}

    def load(self, task: Task) -> dict[str, Any] | None:
        """The outcome of a task that was found right before; None if it must run."""
        try:
            state = json.loads(self._path(task).read_text())
        except (OSError, ValueError):
            return None
        known = state["fingerprint"] == self._fingerprint and not state["outcome"]["faults"]
        return dict(state["outcome"]) if known else None

    def save(self, task: Task, outcome: dict[str, Any]) -> None:
        """Keep an outcome for the next run."""
        self._root.mkdir(parents=True, exist_ok=True)
        state = {"fingerprint": self._fingerprint, "outcome": outcome}
        self._path(task).write_text(json.dumps(state))


def fingerprint() -> str:
    """Digest of all that an outcome depends on."""
    run = [os.environ.get(name, "") for name in (MOST_SAMPLES, COMPILED)]
    digest = hashlib.sha256(repr([metadata.version("torch"), *run]).encode())
    tools = Path(__file__).parent
    judges = [tools / f"conformance_{part}.py" for part in ("check", "compare", "samples")]
    sources = [*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "csrc").iterdir()]
    for path in sorted([*sources, *judges]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class Progress:
    """Keeps outcomes, prints each fault, and now and then a line."""

    def __init__(self, states: States, known: Outcomes, total: int) -> None:
        self.outcomes = dict(known)
        self._states, self._total = states, total
        self.faults = 0

    def report(self, task: Task, outcome: dict[str, Any]) -> None:
        self.outcomes[task] = outcome
        self._states.save(task, outcome)
        for fault in outcome["faults"]:
            print(f"WRONG {task.op} {task.dtype}, {fault}", flush=True)
        self.faults += bool(outcome["faults"])
        done = len(self.outcomes)
        if done % 50 == 0 or done == self._total:
            print(f"{done} of {self._total} checked, {self.faults} wrong: {task.op}", flush=True)


def selected(options: argparse.Namespace) -> dict[str, list[str]]:
    """The operators that the command line asks for, and the dtypes of each."""
    found = database(options.dtype)
    if options.ops:
        names = options.ops.split(",")
        if unknown := [op for op in names if op not in found]:
            raise ChapterError(f"not in PyTorch's database: {', '.join(unknown)}")
        found = {op: found[op] for op in names}
    if options.sample:
        found = {op: of for op, of in found.items() if not zlib.crc32(op.encode()) % ONE_IN}
    return found


def record(ops: Iterable[str], outcomes: Outcomes) -> Record:
    """What the file keeps: by operator, and in it by dtype what is not the same for all of them."""
    entries: Record = {op: {"runs": {}} for op in sorted(ops)}
    for task, outcome in sorted(outcomes.items()):
        entry = entries[task.op]
        for key in ("runs", "samples", "refused", "unequal", "also_on_cpu"):
            if outcome.get(key):
                entry.setdefault(key, {})[task.dtype] = outcome[key]
        if 0 < outcome.get("fell_back", 0) < outcome["samples"]:
            entry.setdefault("partly", {})[task.dtype] = outcome["fell_back"]
        if outcome.get("why_unequal"):
            entry["why_unequal"] = outcome["why_unequal"]
        if outcome.get("on_cpu"):
            on_cpu = entry.get("on_cpu", {}) | outcome["on_cpu"]
            entry["on_cpu"] = dict(sorted(on_cpu.items()))
    return entries


def write(entries: Record, path: Path) -> None:
    """Write the file: a line for each operator."""
    compact = functools.partial(json.dumps, separators=(",", ":"))
    lines = [f"{compact(op)}:{compact(entry)}" for op, entry in sorted(entries.items())]
    torch = json.dumps(metadata.version("torch").split("+")[0])
    path.write_text(f'{{"torch":{torch},"ops":{{\n' + ",\n".join(lines) + "\n}}\n")


def differences(entries: Record, path: Path) -> list[str]:
    """How entries differ from those of the same operators in the file; nothing for other torch."""
    written = json.loads(path.read_text())
    if written["torch"] != metadata.version("torch").split("+")[0]:
        return []
    return [
        f"{op}: {path.name} says {written['ops'].get(op)}, now {entry}; run `make conformance`"
        for op, entry in entries.items()
        if written["ops"].get(op) != entry
    ]


def summary(entries: Record) -> str:
    """How many operators run how, in their first dtype."""
    counts = Counter(first_way(entry) for entry in entries.values())
    return ", ".join(f"{count} {way}" for way, count in counts.most_common())


def first_way(entry: dict[str, Any]) -> str:
    """How an operator runs in float32, or else in the first dtype that it has."""
    ways: dict[str, str] = entry["runs"]
    return ways.get("float32") or next(iter(ways.values()), "none")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Check the card against PyTorch's operators.")
    parser.add_argument("--ops", help="full names in PyTorch's database, with commas between them")
    parser.add_argument("--dtype", help="one dtype, for example float16; any that the CPU supports")
    parser.add_argument("--sample", action="store_true", help="a small fixed part of the operators")
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    parser.add_argument("--again", action="store_true", help="check also what was found right")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help="inputs an operator in float32; 0: all"
    )
    parser.add_argument(
        "--compiled",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run operators as card programs",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes at a time")
    options = parser.parse_args(arguments)
    if options.write and (options.sample or not is_of_record(options)):
        parser.error("--write is for a whole run: give neither operators, dtype, nor samples")
    return options


def is_of_record(options: argparse.Namespace) -> bool:
    """Whether what runs, if it is not all, runs as the record has it."""
    is_usual = options.compiled and options.samples == SAMPLES
    return bool(is_usual and not options.ops and not options.dtype)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse(arguments)
    os.environ[MOST_SAMPLES] = str(options.samples)
    os.environ[COMPILED] = "1" if options.compiled else ""
    ops = selected(options)
    tasks = [Task(op, dtype) for op, dtypes in ops.items() for dtype in dtypes]
    states = States(STATES)
    known = {} if options.again or options.ops else states.load_all(tasks)
    progress = Progress(states, known, len(tasks))
    check_all([task for task in tasks if task not in known], progress.report, options.workers)
    entries = record(ops, progress.outcomes)
    print(summary(entries))
    if progress.faults:
        return 1
    if options.write:
        write(entries, RECORD)
    elif is_of_record(options):
        for difference in (changes := differences(entries, RECORD)):
            print(f"CHANGED {difference}")
        return bool(changes)
    return 0


if __name__ == "__main__":
    run(main)
