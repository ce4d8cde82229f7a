"""Keeping the garbage collector and Ctrl-C out while something is half changed."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator

import pytest

from torch_spyre_ref.emulator import Clock
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)
    gc.enable()


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_inside_comes_when_the_outermost_block_ends() -> None:
    clock, reached = Clock(), []
    with pytest.raises(KeyboardInterrupt), UNDISTURBED:
        with clock:
            ctrl_c()
        reached.append(1)
        with UNDISTURBED:
            ctrl_c()
        reached.append(2)
    assert reached == [1, 2]
    assert not UNDISTURBED.interrupted
    with UNDISTURBED:
        pass


def test_an_error_inside_is_the_context_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, UNDISTURBED:
        ctrl_c()
        raise ZeroDivisionError
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_the_handler_is_the_programs_own_before_and_after() -> None:
    calls: list[int] = []
    for handler in (lambda number, frame: calls.append(number), signal.SIG_IGN):
        signal.signal(signal.SIGINT, handler)
        with UNDISTURBED:
            ctrl_c()
            before = list(calls)
        assert signal.getsignal(signal.SIGINT) is handler
        assert before in ([], [signal.SIGINT])
    assert calls == [signal.SIGINT]


def test_another_thread_holds_nothing_back_from_the_main_one() -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with UNDISTURBED:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(10)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with UNDISTURBED, UNDISTURBED:
        assert not gc.isenabled()
    assert not gc.isenabled()
