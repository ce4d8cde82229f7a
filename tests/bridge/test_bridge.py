"""The C++ bridge against a fake driver: each file of ``cases/`` in a process of its own.

What torch is told about a device is told once a process, so a test that installs a fake driver must
not share one with the tests of the real package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The suite's own conftest stands on the real package.
OPTIONS = ["--rootdir", str(HERE), "--confcutdir", str(HERE / "cases")]
OPTIONS += ["-o", "addopts=", "-o", "python_files=case_*.py"]
CASES = sorted(path.name for path in (HERE / "cases").glob("case_*.py"))


@pytest.mark.parametrize("case", CASES)
def test_bridge(case: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *OPTIONS]
    command.append(str(HERE / "cases" / case))
    environment = os.environ | {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
    }
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
