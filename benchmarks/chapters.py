"""All chapters, executed from nothing."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.measure import Figure, bound


def figures() -> list[Figure]:
    """The time of ``tools/execute.py --force``, as ``make site`` runs it."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "tools/execute.py", "--force"], check=True)
    return [bound("all chapters executed", time.perf_counter() - start, "s", 180)]
