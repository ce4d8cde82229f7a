"""The clock and the pipelines, below any queue."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Any

import pytest

from torch_spyre_ref.emulator import Clock
from torch_spyre_ref.emulator.pipelines import Pipeline, Pipelines
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED


class Log:
    """Hears of every operation that ends: (token, pipeline, start, end)."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ended: list[tuple[str, str, int, int]] = []
        self.errors: list[BaseException] = []
        self.pipelines = Pipelines(self.clock, self.completed)

    def completed(
        self, token: Any, pipeline: Pipeline, start: int, error: BaseException | None
    ) -> None:
        self.ended.append((token, pipeline.name, start, self.clock.now))
        if error is not None:
            self.errors.append(error)


def test_pipelines_work_at_once_and_each_does_one_thing_at_a_time() -> None:
    log = Log()
    pipes = log.pipelines
    pipes.h2d.start(10, None, "a", 1)
    pipes.compute.start(4, None, "b", 2)
    pipes.h2d.start(5, None, "c", 3)
    pipes.d2h.start(1, None, "d", 4)
    pipes.move.start(1, None, "e", 5)
    log.clock.advance(100)
    assert log.ended == [
        ("d", "d2h", 0, 1),
        ("e", "move", 0, 1),
        ("b", "compute", 0, 4),
        ("a", "h2d", 0, 10),
        ("c", "h2d", 10, 15),
    ]


def test_what_needs_no_pipeline_never_waits_for_one() -> None:
    log = Log()
    for ticket, token in enumerate("abc"):
        log.pipelines.host.start(7, None, token, ticket)
        log.pipelines.control.start(0, None, token.upper(), ticket + 10)
    log.clock.advance(7)
    assert [(token, end) for token, _, _, end in log.ended] == [
        *(("A", 0), ("B", 0), ("C", 0)),
        *(("a", 7), ("b", 7), ("c", 7)),
    ]


def test_a_free_pipeline_goes_to_priority_then_to_who_waited_longest_then_to_the_ticket() -> None:
    log = Log()
    compute = log.pipelines.compute
    compute.start(10, None, "first", 1)
    compute.start(1, None, "ticket 9", 9)
    compute.start(1, None, "ticket 8", 8)
    log.clock.advance(5)
    compute.start(1, None, "later", 2)
    compute.start(1, None, "urgent", 99, priority=-1)
    log.clock.advance(50)
    assert [token for token, *_ in log.ended] == [
        "first",
        "urgent",
        "ticket 8",
        "ticket 9",
        "later",
    ]


def test_who_becomes_ready_at_one_instant_is_compared_only_when_all_have() -> None:
    """The first to end lets a high ticket ask for the idle pipeline, the second a low one."""
    log = Log()
    compute = log.pipelines.compute
    log.pipelines.h2d.start(10, lambda: compute.start(3, None, "high", 9), "x", 1)
    log.pipelines.d2h.start(10, lambda: compute.start(3, None, "low", 5), "y", 2)
    log.clock.advance(50)
    assert log.ended[2:] == [("low", "compute", 10, 13), ("high", "compute", 13, 16)]


def test_effects_happen_at_their_end_and_only_when_the_clock_moves() -> None:
    log = Log()
    seen: list[int] = []
    log.pipelines.h2d.start(10, lambda: seen.append(log.clock.now), "a", 1)
    log.clock.advance(9)
    assert seen == []
    log.clock.advance(30)
    assert (seen, log.clock.now) == ([10], 30)


def test_effects_at_one_moment_happen_in_submission_order() -> None:
    log = Log()
    seen: list[str] = []
    log.pipelines.d2h.start(6, lambda: seen.append("second"), "b", 2)
    log.pipelines.h2d.start(6, lambda: seen.append("first"), "a", 1)
    log.clock.advance(6)
    assert seen == ["first", "second"]


def test_an_effect_that_raises_is_handed_on_and_time_goes_on() -> None:
    log = Log()
    log.pipelines.h2d.start(1, lambda: 1 // 0, "a", 1)  # type: ignore[arg-type]
    log.pipelines.h2d.start(1, None, "b", 2)
    log.clock.advance(5)
    assert [type(error) for error in log.errors] == [ZeroDivisionError]
    assert log.ended[1] == ("b", "h2d", 1, 2)


def test_an_effect_may_not_call_back_into_the_clock() -> None:
    log = Log()

    def effect() -> None:
        with log.clock:
            pass

    log.pipelines.h2d.start(1, effect, "a", 1)
    with log.clock:
        log.clock.advance(1)
    assert "called the runtime" in str(log.errors[0])
    with log.clock:
        pass


def test_the_lock_may_be_taken_again_by_its_holder_and_keeps_others_out() -> None:
    clock = Clock()
    entered = threading.Event()

    def other() -> None:
        with clock:
            entered.set()

    thread = threading.Thread(target=other)
    with clock:
        with clock:
            thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


def test_the_collector_is_off_inside_and_as_before_outside() -> None:
    clock = Clock()
    assert gc.isenabled()
    with clock:
        assert not gc.isenabled()
        with clock:
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with clock:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_finished_work_held_is_dropped_after_the_lock() -> None:
    clock = Clock()
    dropped_while_locked: list[bool] = []

    class Held:
        def __del__(self) -> None:
            probe = threading.Thread(target=self.probe)
            probe.start()
            probe.join(1)
            dropped_while_locked.append(probe.is_alive())

        def probe(self) -> None:
            with clock:
                pass

    with clock:
        with clock:
            clock.retire(Held())
        assert dropped_while_locked == []
    assert dropped_while_locked == [False]


def test_an_interrupt_inside_comes_at_the_end() -> None:
    clock = Clock()
    reached = False
    with pytest.raises(KeyboardInterrupt), clock:
        signal.raise_signal(signal.SIGINT)
        with clock:
            pass
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with clock:
        assert not UNDISTURBED.interrupted


def test_the_programs_own_interrupt_handler_is_the_one_called() -> None:
    clock = Clock()
    calls: list[int] = []
    old = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with clock:
            signal.raise_signal(signal.SIGINT)
            assert calls == []
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, old)
