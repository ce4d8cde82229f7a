"""A whole model on the ladder of launch paths, and what its residency and compilation come to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import decode_compile
from benchmarks.decode_page import section as written
from benchmarks.decoding import Decoding, trained, wide
from benchmarks.ladder import RUNGS, Run, Rung, observed, on
from benchmarks.measure import Figure, bound, in_turns, interleaved, ratio, told
from benchmarks.residency import copied_around, resident
from examples import decoder as example
from torch_spyre_ref import backend
from torch_spyre_ref.runtime import Compute

BUSY = 1 << 40  # virtual ns: longer than the host needs for all that is submitted meanwhile
PENDING = 900  # operations, fewer than a queue holds
TOKENS = 8
ROUNDS = 11
MODELS = {"as trained": trained, "wide": wide}


@dataclass(frozen=True)
class Measured:
    """What the figures and the page's section are made of; host times in seconds."""

    launches: dict[str, int]
    host: dict[str, list[float]]  # by phase, of each rung: one prompt, or one token
    runs: dict[str, dict[str, list[Run]]]  # by model and phase, of each rung


_measured: list[Measured] = []


def figures() -> list[Figure]:
    """The ladder, the residency, and the whole model beside the CPU's."""
    torch._dynamo.reset()
    step = torch.compile(example.step, fullgraph=True, dynamic=False)
    small = Decoding(trained(), step)
    runs = {"as trained": _runs(small), "wide": _runs(Decoding(wide(), step))}
    launches = {phase: runs["as trained"][phase][0].launches for phase in ("prompt", "token")}
    host = {
        phase: in_turns(
            *(partial(_host, rung, do, launches[phase]) for rung in RUNGS), rounds=ROUNDS
        )
        for phase, do in (("prompt", small.prefill), ("token", partial(small.decode, 1)))
    }
    _measured[:] = [Measured(launches, host, runs)]
    as_one = example.compiled_step()
    return [
        *_ladder(_measured[0]),
        *_virtual(runs),
        *_residency(as_one),
        *_wall(small, Decoding(trained(), as_one)),
        *_compile(),
    ]


def section() -> str:
    """The page's text about the ladder."""
    return written(_measured[0])


def _host(rung: Rung, work: Callable[[], object], launches: int) -> float:
    """Host seconds of some work up to its last operation enqueued: the card is busy meanwhile."""
    queue, times = backend.current().queue(0), PENDING // (3 * launches + 1)
    with on(rung):
        work()  # the programs' graphs are written once, not at each launch
        torch.accelerator.synchronize()
        queue.submit(Compute(BUSY, lambda memory: None))
        start = time.perf_counter()
        for _ in range(times):
            work()
        seconds = (time.perf_counter() - start) / times
        torch.accelerator.synchronize()
    return seconds


def _runs(decoding: Decoding) -> dict[str, list[Run]]:
    """What the card does on each rung for a prompt, for some tokens, and for one."""
    work: dict[str, Callable[[], object]] = {
        "prompt": decoding.prefill,
        "tokens": partial(decoding.decode, TOKENS),
        "token": partial(decoding.decode, 1),
    }
    runs: dict[str, list[Run]] = {name: [] for name in work}
    for rung in RUNGS:
        with on(rung):
            decoding.decode(1)
            decoding.prefill()
            for name, do in work.items():
                runs[name].append(observed(do))
    return runs


def _ladder(measured: Measured) -> list[Figure]:
    made = []
    for phase in ("token", "prompt"):
        times = [seconds * 1e6 for seconds in measured.host[phase]]
        for first, second, goal in ((1, 3, 3.0 if phase == "token" else None), (1, 2, None)):
            ours, theirs = times[first - 1], times[second - 1]
            what = f"host time of a {phase}, rung {first} / rung {second} of the ladder"
            made.append(Figure(what, ours, theirs, "µs", ours / theirs, goal, at_least=True))
    return made


def _virtual(runs: dict[str, dict[str, list[Run]]]) -> list[Figure]:
    """How full the last rung is: beside computing alone where that takes longest."""
    last, small = runs["wide"]["tokens"][-1], runs["as trained"]["tokens"][-1]
    submitting = len(small.records) * backend.current().runtime.spec.submit_time
    what = f"{TOKENS} tokens on the last rung, makespan /"
    return [
        ratio(
            f"{what} computing, a wide model",
            last.makespan / 1e3, last.busy("compute") / 1e3, "virtual µs", 1.1,
        ),
        ratio(
            f"{what} submitting, the trained model, which computes less than that",
            small.makespan / 1e3, submitting / 1e3, "virtual µs", 1.1,
        ),
    ]  # fmt: skip


def _residency(step: Callable[..., torch.Tensor]) -> list[Figure]:
    """Bytes over the link for a token, of whatever stays on the card between ops."""
    found = []
    for model, make in MODELS.items():
        around, weights = (copied_around(make, weights_stay=stay) for stay in (False, True))
        stays = resident(make, step)
        what = f"link bytes of a token, {model}:"
        for name, run, goal in (("everything", stays, 0.01), ("weights", weights, None)):
            ours, theirs = run.link_total / 1e3, around.link_total / 1e3
            words = f"{what} {name} resident / copies around every op"
            found.append(Figure(words, ours, theirs, "kB", ours / theirs, goal))
        patches = stays.link_bytes["patches"]
        found.append(
            told(f"{what} tensors, with everything resident", stays.link_total - patches, "B")
        )
    return found


def _wall(small: Decoding, as_one: Decoding) -> list[Figure]:
    """The whole model to completion, the emulator's computing included, beside the CPU."""
    eager, host = Decoding(trained()), Decoding(trained("cpu"))
    sides = [partial(decoding.talk, TOKENS) for decoding in (as_one, small, eager, host)]
    joined, compiled, by_op, cpu = (
        seconds * 1e3 / TOKENS for seconds in interleaved(*sides, calls=5, rounds=ROUNDS)
    )
    return [
        ratio("a token, compiled as one launch / torch's CPU, eager", joined, cpu, "ms", 4),
        told("the same, a launch for each kernel", compiled / cpu, "x"),
        ratio("a token, eager on the card / torch's CPU, eager", by_op, cpu, "ms", 15),
    ]


def _compile() -> list[Figure]:
    """What is compiled, for how long, and how often."""
    found = decode_compile.measured()
    growth = f"allocated bytes that {decode_compile.TOKENS:,} tokens add"
    return [
        told("compiling prompt and token, sizes fixed", found["fixed"], "s"),
        told("compiling prompt and token, sizes as symbols", found["symbols"], "s"),
        told("graphs compiled up to the second token", found["compilations"], ""),
        bound("graphs compiled after the second token", found["later compilations"], "", 0),
        bound("graph breaks", found["graph breaks"], "", 0),
        bound(growth, found["growth"], "", 0),
    ]
