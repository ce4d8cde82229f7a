"""The first call of an op by itself: traced, compiled by Inductor, prepared, and launched.

Measured in a process of its own, with an empty cache on disk: so every program is compiled. The
first of all calls also imports Inductor, and is told apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

from benchmarks.measure import Figure, bound, told

GOAL = 60
Shapes = tuple[tuple[int, ...], ...]
Op = tuple[Callable[..., Any], Shapes]
ONE: Shapes = ((64, 128),)
TWO: Shapes = ((64, 128), (64, 128))


def _named(module: Any, names: str, shapes: Shapes) -> list[Op]:
    return [(getattr(module, name), shapes) for name in names.split()]


OPS: list[Op] = [
    *_named(torch, "exp tanh relu sigmoid rsqrt isnan erf", ONE),
    *_named(F, "gelu silu mish softplus leaky_relu", ONE),
    *_named(torch, "add sub mul div maximum lt hypot", TWO),
    (lambda a: a + 2, ONE),
    (lambda a: a.pow(3), ONE),
    (lambda a: a.clamp(-0.5, 0.75), ONE),
    (lambda a, b: torch.lerp(a, b, 0.25), TWO),
    (lambda a, b: torch.addcmul(a, a, b, value=0.5), TWO),
    (lambda a: a.half(), ONE),
    (lambda a: a.sum(), ONE),
    (lambda a: a.mean(1), ONE),
    (lambda a: a.prod(0), ONE),
    (lambda a: a.max(1), ONE),
    (lambda a: a.argmin(), ONE),
    (lambda a: a.var(1), ONE),
    (lambda a: a.logsumexp(1), ONE),
    (lambda a: torch.softmax(a, 1), ONE),
    (lambda a: torch.log_softmax(a, 0), ONE),
    (torch.mm, ((64, 128), (128, 32))),
    (torch.bmm, ((4, 16, 32), (4, 32, 16))),
    (F.linear, ((64, 128), (32, 128), (32,))),
    (lambda a, w, b: F.layer_norm(a, (128,), w, b), ((64, 128), (128,), (128,))),
    (lambda a, w, b: F.group_norm(a, 4, w, b), ((8, 16, 8), (16,), (16,))),
    (F.scaled_dot_product_attention, ((2, 4, 16, 32),) * 3),
    (F.mse_loss, TWO),
    (lambda a, b: torch.cat((a, b), 1), TWO),
    (lambda a: F.pad(a, (1, 2, 3, 0)), ONE),
    (lambda a: a.flip(0), ONE),
    (lambda a: a.roll(3, 1), ONE),
    (lambda a: a.tril(), ONE),
    (lambda a: F.max_pool2d(a, 2), ((2, 4, 16, 16),)),
]


def figures() -> list[Figure]:
    """Wall milliseconds of the median op, its processor time, and the very first call."""
    first, *rest = _in_a_process()
    wall, processor = (statistics.median(times) for times in zip(*rest, strict=True))
    return [
        bound(f"first eager call of an op, median of {len(rest)}", wall, "ms", GOAL),
        bound("the same in processor time", processor, "ms", GOAL),
        told("the first op of a process, which imports Inductor", first[0] / 1e3, "s"),
    ]


def _in_a_process() -> list[list[float]]:
    """Milliseconds of each op, the clock's and the processor's."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-m", "benchmarks.first_call"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    times: list[list[float]] = json.loads(done.stdout)
    return times


def _first_call(function: Callable[..., Any], tensors: list[torch.Tensor]) -> tuple[float, float]:
    """Milliseconds, to the end of the launch, of a call that compiles one program."""
    compiled = torch.spyre.eager_cache().compiled
    start, processor = time.perf_counter(), time.process_time()
    function(*tensors)
    torch.spyre.synchronize(0)
    times = time.perf_counter() - start, time.process_time() - processor
    assert torch.spyre.eager_cache().compiled == compiled + 1
    return times[0] * 1e3, times[1] * 1e3


def _measure() -> list[tuple[float, float]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calls = [(f, [torch.rand(shape).to("spyre:0") for shape in shapes]) for f, shapes in OPS]
    with torch.spyre.fallback_policy("error"):
        return [_first_call(function, tensors) for function, tensors in calls]


if __name__ == "__main__":
    print(json.dumps(_measure()))
