"""What the whole suite stands on: small poisoned cards, and nothing left alive after a test."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

# Before anything imports torch. Poison makes fresh memory NaN, so that no test passes by luck;
# small cards make it cheap to fill one, and give large tensors several chunks.
os.environ["TORCH_SPYRE_REF_POISON"] = "1"
os.environ["TORCH_SPYRE_REF_FALLBACK"] = "silent"
os.environ.setdefault("TORCH_SPYRE_REF_MEMORY", "256M")

# A shell makes what it starts in the background ignore Ctrl-C, which several tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

Run = Callable[..., str]


def _live_blocks() -> list[int]:
    if "torch" not in sys.modules:
        return []
    from torch_spyre_ref import backend

    if backend._current is None or not backend.current().started:
        return []
    from tests.support import take_programs_off

    take_programs_off()
    memory = backend.current().memory
    cards = range(backend.current().settings.devices)
    return [memory.statistics(card)["allocation"]["current"] for card in cards]


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left_alive(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every block of card memory that a test takes is free again after it, unless it failed."""
    before = sum(_live_blocks())
    yield
    if request.node.stash.get(_FAILED, False):
        return
    for generation in range(3):
        if sum(_live_blocks()) <= before:
            return
        gc.collect(generation)
    # An autograd thread lets go of its graph after backward() has returned.
    deadline = time.monotonic() + 2
    while sum(_live_blocks()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(_live_blocks()) <= before, "the test left tensors on a card"


@pytest.fixture(autouse=True)
def nothing_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under TORCH_SPYRE_REF_SANITIZE=1, a test fails for a fault that it does not expect.

    It expects those of ``torch.spyre.sanitizer.expect`` and those that ``pytest.mark.finds`` names.
    """
    yield
    if "torch" not in sys.modules:
        return
    from torch_spyre_ref import backend

    if backend._current is None or not backend.current().started:
        return
    runtime = backend.current().runtime
    for card in runtime.cards if runtime.sanitizer.on else ():
        card.settle()
    reports = runtime.sanitizer.reports[:]
    runtime.sanitizer.reports.clear()
    marker = request.node.get_closest_marker("finds")
    expected = marker.args if marker is not None and runtime.sanitizer.on else ()
    found = [str(report) for report in reports if report.kind not in expected]
    if found and not request.node.stash.get(_FAILED, False):
        pytest.fail(f"the sanitizer found {len(found)} faults:\n" + "\n".join(found))
    missing = set(expected) - {report.kind for report in reports}
    assert not missing, f"the sanitizer was to find {missing}"


@pytest.fixture(autouse=True)
def no_compiler_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test fails if an op fell back because of an exception of the compiler that nobody foresaw.

    Unless it says so, with ``pytest.mark.compiler_fails``.
    """
    yield
    refusal = sys.modules.get("torch_spyre_ref.compiled.refusal")
    defects = refusal.take_defects() if refusal is not None else []
    if defects and request.node.get_closest_marker("compiler_fails") is None:
        texts = [f"{defect.op}:\n{defect.traceback}" for defect in defects]
        pytest.fail(f"the compiler failed {len(defects)} times:\n" + "\n".join(texts))


@pytest.fixture
def run_python() -> Run:
    """Run a piece of Python in a process of its own, and return what it printed.

    ``environment`` entries are added, or taken away where the value is None. The process must end
    with ``status`` and print nothing to stderr unless ``stderr`` holds what it must contain.
    """

    def run(code: str, *, status: int = 0, stderr: str = "", **environment: str | None) -> str:
        merged = {**os.environ, **environment}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            env={name: value for name, value in merged.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, f"ended with {done.returncode}:\n{done.stderr}"
        if stderr:
            assert stderr in done.stderr
        else:
            assert done.stderr == ""
        return done.stdout

    return run


@pytest.fixture
def region_bytes() -> int:
    """Bytes in one region of a card, which is the most that one chunk can have."""
    from torch_spyre_ref import backend

    region: int = backend.current().runtime.spec.region
    return region


@pytest.fixture
def no_derivation() -> Iterator[None]:
    """Only explicit events order one queue after another; else tests of events prove little."""
    from torch_spyre_ref import backend

    with backend.current().runtime.deriving(False):
        yield
