"""Random programs from several threads: the bytes of a sequential run, and no race."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.streaming import busy, pinned, settle, write_scale
from torch_spyre_ref import backend
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel

N, THREADS, SHARED = 256, 3, 3


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact: out = x * factor + shift."""
    return write_scale(tmp_path_factory.mktemp("artifacts") / "scale", N)


@pytest.fixture(autouse=True)
def derivation() -> Iterator[None]:
    """These tests need derived edges."""
    with backend.current().runtime.deriving(True):
        yield
    settle()


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    """Threads take turns far more often than they would by themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


STEP = st.tuples(
    st.sampled_from(["new", "in", "out", "copy", "fill", "launch", "launch", "busy", "wait"]),
    st.booleans(),  # whether it is about a shared tensor, and not one of the thread's own
    st.integers(0, SHARED - 1),  # which one
    st.integers(0, SHARED - 1),  # which other one
)


class Tensors:
    """Tensors full of one number each, and the numbers that a sequential run leaves in them."""

    def __init__(self) -> None:
        self.cards = [torch.zeros(N, device="spyre:0") for _ in range(SHARED)]
        self.model = [0.0] * SHARED
        self.seen: list[tuple[torch.Tensor, float]] = []

    def do(self, kind: str, one: int, other: int, number: float, plan: JobPlan) -> None:
        """Enqueue one step on the current stream."""
        cards, model = self.cards, self.model
        if kind == "new":
            cards[one] = torch.empty(N, device="spyre:0").fill_(number)
        elif kind == "fill":
            cards[one].fill_(number)
        elif kind == "in":
            cards[one].copy_(pinned(N, number), non_blocking=True)
        elif kind == "copy":
            cards[one].copy_(cards[other])
        elif kind == "launch":
            launch_jobplan(plan, [cards[other], cards[one]], [1.0, int(number)])
        elif kind == "out":
            self.seen.append((pinned(N, 0).copy_(cards[one], non_blocking=True), model[one]))
            return
        was = model[other]
        model[one] = {"copy": was, "launch": was + number}.get(kind, number)

    def check(self) -> None:
        """Everything that was read, and all that is there, is as if done in turn."""
        assert [host.unique().tolist() for host, _ in self.seen] == [[v] for _, v in self.seen]
        assert [card.cpu().unique().tolist() for card in self.cards] == [[v] for v in self.model]


def run(program: list[Any], number: int, shared: Tensors, turn: Lock, plan: JobPlan) -> Tensors:
    """One thread's steps on two streams of its own; what is shared is used in turn."""
    own, streams = Tensors(), [torch.Stream("spyre:0") for _ in range(2)]
    for index, (kind, is_shared, one, other) in enumerate(program):
        stream, value = streams[index % 2], float(100 * number + index)
        with stream:
            if kind == "busy":
                busy(stream, 20_000)
            elif kind == "wait":
                stream.synchronize()
            elif kind == "launch" and one == other:
                continue
            elif is_shared:
                with turn:
                    shared.do(kind, one, other, value, plan)
            else:
                own.do(kind, one, other, value, plan)
    return own


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    programs=st.lists(st.lists(STEP, max_size=25), min_size=THREADS, max_size=THREADS),
    slots=st.integers(1, 2),
)
def test_threads_leave_what_a_sequential_run_leaves(
    scale: Path, programs: list[list[Any]], slots: int
) -> None:
    plan, turn = prepare_kernel(scale, 0, slots=slots), Lock()
    torch.spyre.synchronize(0)
    with torch.spyre.sanitizer(), ThreadPoolExecutor(THREADS) as pool:
        shared = Tensors()
        jobs = [
            pool.submit(run, program, number, shared, turn, plan)
            for number, program in enumerate(programs)
        ]
        owners = [shared, *(job.result() for job in jobs)]
        torch.spyre.synchronize(0)
        for tensors in owners:
            tensors.check()
