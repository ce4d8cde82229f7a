"""The whole test command, as continuous integration calls it, from an installed environment."""

from __future__ import annotations

import subprocess
import time

from benchmarks.measure import Figure, bound


def figures() -> list[Figure]:
    """The time of ``make test``, whose output is shown only where it fails."""
    subprocess.run(["make", "setup"], check=True, capture_output=True)
    start = time.perf_counter()
    done = subprocess.run(["make", "test"], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"make test failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return [bound("the whole test command", seconds / 60, "min", 15)]
