"""Compiling the decoder, in a process of its own with an empty cache, and then decoding for long.

python -m benchmarks.decode_compile      prints what it measured as JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks.decoding import Decoding, trained
from examples import decoder as example

TOKENS = 1_000


def measured() -> dict[str, float]:
    """Seconds to compile prompt and token with sizes fixed and as symbols; what came after."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-m", "benchmarks.decode_compile"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure() -> dict[str, float]:
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    decoder = trained()
    torch.exp(torch.ones(2, device="spyre"))  # loads Inductor
    found = {}
    for name, dynamic in (("symbols", True), ("fixed", False)):
        torch._dynamo.reset()
        torch._inductor.codecache.FxGraphCache.clear()
        step = torch.compile(example.step, fullgraph=True, dynamic=dynamic)
        start = time.perf_counter()
        Decoding(decoder, step)
        torch.accelerator.synchronize()
        found[name] = time.perf_counter() - start
    torch._dynamo.reset()
    counters.clear()
    decoding = Decoding(
        decoder, torch.compile(example.step)
    )  # else a break is an error, not a count
    found["compilations"] = counters["stats"]["unique_graphs"]
    before = torch.accelerator.memory_allocated()
    decoding.talk(TOKENS)
    found["growth"] = torch.accelerator.memory_allocated() - before
    found["later compilations"] = counters["stats"]["unique_graphs"] - found["compilations"]
    found["graph breaks"] = sum(counters["graph_break"].values())
    return found


if __name__ == "__main__":
    print(json.dumps(_measure()))
