"""Every Python snippet of the README runs as it stands there, in an interpreter of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from literate import ROOT

SNIPPETS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def test_the_readme_opens_with_a_snippet() -> None:
    assert 'torch.device("spyre")' in SNIPPETS[0]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[f"snippet-{n}" for n in range(len(SNIPPETS))])
def test_a_snippet_runs(snippet: str) -> None:
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
