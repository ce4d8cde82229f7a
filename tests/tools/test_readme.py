"""Every Python snippet of the README runs as it stands there, and its commands are those of CI."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from literate import ROOT

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def test_the_readme_opens_with_a_snippet() -> None:
    assert 'torch.device("spyre")' in SNIPPETS[0]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[f"snippet-{n}" for n in range(len(SNIPPETS))])
def test_a_snippet_runs(snippet: str) -> None:
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_two_commands_are_enough() -> None:
    commands = [line.partition("#")[0].strip() for line in BLOCKS[0].splitlines()]
    assert commands == ["make site", "make test"]
    assert (ROOT / ".ci/run").read_text().splitlines()[-1].removeprefix("exec ") in commands


def test_every_make_command_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.M))
    assert {"site", "test", "chapters", "serve"} <= named <= TARGETS


def test_every_script_and_module_of_the_commands_exists() -> None:
    lines = "\n".join(BLOCKS)
    scripts = re.findall(r"python (\S+\.py)", lines)
    modules = re.findall(r"python -m (\w+)", lines)
    assert scripts
    assert modules
    assert all((ROOT / script).is_file() for script in scripts)
    assert all((ROOT / module / "__main__.py").is_file() for module in modules)
