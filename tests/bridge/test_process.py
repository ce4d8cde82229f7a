"""Beginnings and ends of a process that uses the bridge: each script in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
START = "import fake_driver, sys, threading, time, os, atexit, gc\n"
BEGIN = START + "driver = fake_driver.start()\nimport torch\nfrom torch_spyre_ref import _bridge\n"


def run(script: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script with the fake driver at hand."""
    environment = os.environ | {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
    }
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def check(script: str, output: str = "") -> None:
    """Expect a script to end well, with this output and nothing on stderr."""
    result = run(script)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == output


def test_a_process_without_a_driver_says_what_to_do() -> None:
    result = run("import torch\nfrom torch_spyre_ref import _bridge\n_bridge.device_count()")
    assert result.returncode == 1
    assert "no driver is installed: call torch_spyre_ref.register() first" in result.stderr


def test_importing_the_bridge_alone_changes_nothing() -> None:
    check(
        "import torch\nimport torch_spyre_ref._bridge\n"
        "print(torch.accelerator.is_available(), torch._C._get_privateuse1_backend_name())",
        "False privateuseone",
    )


def test_ending_with_everything_alive() -> None:
    check(
        BEGIN
        + """
kept = [torch.ones(8, device="spyre:1"), torch.ones(8).pin_memory(), torch.Event(device="spyre")]
kept[2].record()
kept.append(kept)
torch.hidden = torch.ones(4, device="spyre", requires_grad=True)
torch.hidden.graph = (torch.hidden * 2).sum()
generator = torch.Generator(device="spyre")
local = threading.local()
local.tensor = torch.ones(2, device="spyre")
threading.main_thread().tensor = torch.ones(2, device="spyre")
print("end")
""",
        "end",
    )


def test_after_shutdown_memory_is_leaked_and_the_card_is_out_of_reach() -> None:
    check(
        START
        + """
def late():
    calls = len(driver.calls)
    del kept[0]
    assert len(driver.calls) == calls, driver.calls[calls:]
    for use in (
        lambda: torch.empty(1, device="spyre"),
        lambda: kept[0] + 1,
        lambda: kept[0].cpu(),
        lambda: torch.ones(2).pin_memory(),
        lambda: torch.accelerator.synchronize(),
        lambda: torch.Stream(device="spyre"),
    ):
        try:
            use()
            print("no error")
        except RuntimeError as error:
            assert "the interpreter is ending" in str(error), error
    assert torch.empty(0, device="spyre").device.type == "spyre"
    assert torch.accelerator.device_count() == 2
    assert not torch.ones(2).is_pinned()
    print("late")

atexit.register(late)
driver = fake_driver.start()
import torch
kept = [torch.ones(4, device="spyre"), torch.ones(4, device="spyre")]
""",
        "late",
    )


IN_KERNELS = """
lock = threading.Lock()
lock.acquire()
inside = threading.Barrier(4)
def compute():
    while True: pass
def sleep():
    while True: time.sleep(0.01)
def kernel_that(waits):
    def kernel(self):
        inside.wait()
        waits()
    return kernel
library = torch.library.Library("aten", "IMPL")
tensor = torch.ones(4, device="spyre")
for name, waits in (("erfinv", compute), ("digamma", sleep), ("lgamma", lock.acquire)):
    library.impl(name, {wrap}(kernel_that(waits)), "PrivateUse1")
    threading.Thread(target=getattr(torch, name), args=(tensor,), daemon=True).start()
inside.wait()
time.sleep(0.05)
"""


def test_ending_with_daemon_threads_inside_kernels() -> None:
    check(BEGIN + IN_KERNELS.format(wrap="_bridge.shield"))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="CPython holds such threads itself")
def test_without_the_shield_that_aborts() -> None:
    assert run(BEGIN + IN_KERNELS.format(wrap="")).returncode != 0


def test_ending_with_daemon_threads_that_never_stop_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch waits this many seconds for its autograd threads at exit; one of them will be held.
    monkeypatch.setenv("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0.2")
    check(
        BEGIN
        + """
def loop():
    x = torch.ones(64, device="spyre", requires_grad=True)
    while True:
        y = (x * 2 + 1).sum()
        y.backward()
        x.detach().cpu()

for _ in range(3):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.3)
"""
    )


def test_ending_with_a_daemon_thread_that_pins() -> None:
    check(
        BEGIN
        + """
def loop():
    while True:
        torch.ones(64).pin_memory()

threading.Thread(target=loop, daemon=True).start()
time.sleep(0.2)
"""
    )


def test_a_forked_child_can_end_and_meets_the_driver_s_error() -> None:
    check(
        BEGIN
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
class Forked(fake_driver.FakeDriver):
    def allocate(self, nbytes, device, stream):
        if os.getpid() != parent:
            raise RuntimeError("Cannot use spyre in a forked subprocess")
        return super().allocate(nbytes, device, stream)

parent = os.getpid()
driver = Forked()
_bridge.install(driver)
stop = False
def churn():
    while not stop:
        torch.empty(16, device="spyre")
        _bridge.default_generator(0).manual_seed(1)
        torch.native_dropout(torch.ones(4, device="spyre"), 0.5, True)
threads = [threading.Thread(target=churn) for _ in range(2)]
for thread in threads: thread.start()
kept = torch.ones(4, device="spyre")
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            torch.empty(1, device="spyre")
            os._exit(1)
        except RuntimeError as error:
            assert "forked" in str(error)
        assert torch.empty(0, device="spyre").numel() == 0
        torch.accelerator.set_device_index(1)
        _bridge.default_generator(1)
        del kept
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads: thread.join()
"""
    )


def test_a_shield_is_transparent() -> None:
    check(
        BEGIN
        + """
def kernel(a, *rest, b=0, **names):
    "what it does"
    if a is None:
        raise KeyError("a")
    return a, rest, b, names

shield = _bridge.shield(kernel)
assert shield(1, 2, b=3, c=4) == (1, (2,), 3, {"c": 4})
assert shield.__wrapped__ is kernel
assert "kernel" in repr(shield)
try:
    shield(None)
except KeyError as error:
    assert error.__traceback__.tb_next.tb_frame.f_code is kernel.__code__
cycle = [shield]
holder = _bridge.shield(lambda: cycle)
cycle.append(holder)
import weakref
class Probe: pass
probe = Probe()
cycle.append(probe)
dead = weakref.ref(probe)
del cycle, holder, probe
gc.collect()
assert dead() is None
for wrong in ([], [1, 2]):
    try:
        _bridge.shield(*wrong)
    except TypeError:
        pass
"""
    )
