"""The workflow is valid, and does nothing that a reader could not do with make."""

from __future__ import annotations

import subprocess
import sys

import yaml

from literate import ROOT

WORKFLOW = ROOT / ".github/workflows/ci.yml"


def test_the_workflow_follows_its_schema() -> None:
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run([*check, str(WORKFLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_only_calls_make() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands == ["make test TORCH=${{ matrix.torch }}"]


def test_ci_calls_make_test() -> None:
    script = (ROOT / ".ci/run").read_text().splitlines()
    assert script[0] == "#!/usr/bin/env bash"
    assert script[-1] == "exec make test"
