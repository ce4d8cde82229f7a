"""``import torch`` with the backend installed and without."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.measure import Figure, interleaved, ratio


def _import(autoload: str) -> None:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)


def figures() -> list[Figure]:
    """Whole processes, so that the interpreter's own start is on both sides."""
    ours, theirs = interleaved(lambda: _import("1"), lambda: _import("0"), rounds=9, warm_up=1)
    return [ratio("import torch, with the backend / without", ours, theirs, "s", 1.2)]
