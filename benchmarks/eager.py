"""A warm eager op, to its end: beside the boxed fallback, the CPU, and a thousand others."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measure import Figure, in_turns, interleaved, ratio
from torch_spyre_ref import backend
from torch_spyre_ref.aten.fallback import fallback_policy
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.ops import Op
from torch_spyre_ref.compiled.refusal import Refusal
from torch_spyre_ref.eager import EagerCache, Entry, eager_mode

MICRO = 1e6
CALLS = 500
SIGNATURES = 1_000


def figures() -> list[Figure]:
    """``a + b`` of 64 elements, compiled before it is measured."""
    host = torch.ones(64), torch.full((64,), 2.0)
    card = [tensor.to("spyre:0") for tensor in host]
    warm = partial(_to_completion, *card)
    assert warm().tolist() == [3] * 64
    return [_against_fallback(warm), _against_cpu(warm, *host), _among_many()]


def _to_completion(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = torch.add(a, b)
    backend.current().queue(0).synchronize()
    return result


def _timed(side: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        side()
    return (time.perf_counter() - start) / CALLS


def _against_fallback(warm: Callable[[], object]) -> Figure:
    def on_cpu() -> float:
        with eager_mode("fallback"):
            return _timed(warm)

    with fallback_policy("silent"):
        compiled, boxed = in_turns(partial(_timed, warm), on_cpu)
    what = "warm eager add of 64 elements, to completion / by the boxed CPU fallback"
    return ratio(what, compiled * MICRO, boxed * MICRO, "µs", 0.7)


def _against_cpu(warm: Callable[[], object], a: torch.Tensor, b: torch.Tensor) -> Figure:
    ours, theirs = interleaved(warm, lambda: torch.add(a, b), calls=CALLS)
    what = "warm eager add of 64 elements, to completion / torch CPU"
    return ratio(what, ours * MICRO, theirs * MICRO, "µs", 20)


def _entry(call: Call) -> tuple[object, Entry]:
    return call.key, Entry(call, Refusal("it is only looked up"))


def _among_many() -> Figure:
    """Looking an op up: its key, and the entry of the key. No program is needed for that."""
    op = Op("aten::add.Tensor")
    tensors = [torch.empty(size, device="spyre:0") for size in range(1, SIGNATURES + 1)]
    calls = [Call(op, (tensor, tensor), {}) for tensor in tensors]
    few, many = EagerCache(), EagerCache()
    for call in calls:
        many.put(*_entry(call))
    middle = tensors[SIGNATURES // 2]
    few.put(*_entry(calls[SIGNATURES // 2]))

    def find(cache: EagerCache) -> None:
        assert cache.find(Call(op, (middle, middle), {}).key) is not None

    crowd, alone = interleaved(partial(find, many), partial(find, few), calls=CALLS)
    what = f"looking up an eager op among {SIGNATURES:,} signatures / alone"
    return ratio(what, crowd * MICRO, alone * MICRO, "µs", 1.2)
