"""Bytes after random programs, against doing one thing after another in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator import strategies as emulated
from tests.runtime.bench import Bench
from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    H2D,
    DeviceRange,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
    Operation,
    Queue,
)

Change = tuple[str, DeviceRange, DeviceRange, int]

changes = st.lists(
    st.tuples(
        st.sampled_from(["h2d", "d2h", "d2d", "fill", "poison", "callback"]),
        emulated.ranges(),
        emulated.ranges(),
        st.integers(0, 255),
    ),
    max_size=10,
)


class Machine:
    """A card whose memory is the emulator tests' small one, and what it must come to hold."""

    def __init__(self, **settings: Any) -> None:
        self.bench = Bench(**settings)
        regions = self.bench.card.card.regions
        for number in range(emulated.REGIONS):
            if number:
                regions.acquire(emulated.REGION_BYTES, number)
            self.bench.card.card.memory.region(number)[:] = np.arange(
                self.bench.card.card.memory.region(number).size
            )
        self.expected = {
            (number, offset): int(byte)
            for number in range(emulated.REGIONS)
            for offset, byte in enumerate(
                self.bench.card.card.memory.region(number)[: emulated.REGION_BYTES]
            )
        }
        self.arrivals: list[tuple[np.ndarray, list[int]]] = []

    def ask(self, change: Change) -> Operation:
        """The operation for a change, after making it in the expected contents."""
        kind, first, second, value = change
        if kind in ("h2d", "d2d"):
            second = self.fit(second, first)
        match kind:
            case "h2d":
                data = self.host(first.nbytes)
                data[:] = value
                self.write(first, data.tolist())
                return H2D(data, first)
            case "d2h":
                data = self.host(first.nbytes)
                self.arrivals.append((data, emulated.read_slowly(self.expected, first)))
                return D2H(first, data)
            case "d2d":
                self.write(second, emulated.read_slowly(self.expected, first))
                return D2D(first, second)
            case "callback":
                return HostCallback(lambda: None, value)
            case _:
                self.write(first, [value] * first.nbytes)
                return Fill(first, bytes([value]), free=kind == "poison")

    def fit(self, span: DeviceRange, other: DeviceRange) -> DeviceRange:
        """``span`` itself, or one of its address of the size of ``other``, or ``other``."""
        if span.nbytes == other.nbytes:
            return span
        if span.address.length >= other.nbytes:
            return DeviceRange.contiguous(span.address, 0, other.nbytes)
        return other

    def host(self, nbytes: int) -> np.ndarray:
        return self.bench.pinned(nbytes=max(nbytes, 1)).array[:nbytes]

    def write(self, span: DeviceRange, data: list[int]) -> None:
        self.expected = emulated.write_slowly(self.expected, span, data)

    def check(self) -> None:
        memory = self.bench.card.card.memory
        assert self.expected == {
            (number, offset): int(byte)
            for number in range(emulated.REGIONS)
            for offset, byte in enumerate(memory.region(number)[: emulated.REGION_BYTES])
        }
        for array, expected in self.arrivals:
            assert array.tolist() == expected


def run(program: list[Change], queue_for: Callable[[Bench], list[Queue]], joined: bool) -> Machine:
    machine = Machine()
    queues = queue_for(machine.bench)
    for number, change in enumerate(program):
        queue = queues[number % len(queues)]
        queue.submit(machine.ask(change))
        if joined:
            signal = EventSignal()
            queue.submit(signal)
            queues[(number + 1) % len(queues)].submit(EventWait(signal))
    machine.bench.runtime.synchronize(0)
    return machine


@given(changes)
def test_one_queue_does_one_thing_after_another(program: list[Change]) -> None:
    run(program, lambda bench: [bench.queue], joined=False).check()


@settings(max_examples=50)
@given(changes)
def test_three_queues_joined_by_events_do_as_one(program: list[Change]) -> None:
    run(
        program,
        lambda bench: [bench.queue, *(bench.card.new_queue() for _ in range(2))],
        joined=True,
    ).check()


def test_three_queues_that_are_not_joined_do_not() -> None:
    """What the test above would miss if its events did nothing."""
    bench = Machine().bench
    span = bench.at(0, 128)
    slow = ("h2d", bench.at(0, 128 * 100), span, 1)
    quick = ("fill", span, span, 2)
    machine = run([slow, quick], lambda bench: [bench.queue, bench.card.new_queue()], joined=False)
    assert machine.bench.bytes[0] == 1
    joined = run([slow, quick], lambda bench: [bench.queue, bench.card.new_queue()], joined=True)
    assert joined.bench.bytes[0] == 2
