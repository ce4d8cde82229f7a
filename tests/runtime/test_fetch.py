"""When the card fetches a program and its correction slot, shown by what it then computes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.bench import SPEC, Bench, idle
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import Location, ProgramError, encode, pack_slot
from torch_spyre_ref.runtime import H2D, EventSignal, EventWait, Execute, Queue

COUNT, NBYTES = 32, 128
PROGRAM, SLOTS, DATA = 0, 8_192, 16_384


def doubling() -> bytes:
    """out = x + x over 32 int32."""
    asm = Assembler("double")
    n = asm.dimension("n", COUNT)
    x, out = asm.argument("x", "int32"), asm.argument("out", "int32")
    value = asm.load(x, {n: 1})
    asm.store(out, {n: 1}, value + value)
    return encode(asm.assemble())


class Programmed(Bench):
    """A bench with the doubling program on the card, tensors 1, 2, 3, ... and empty results."""

    def __init__(self, link_latency: int = 500) -> None:
        # A patch is still on its way when the host submits the program, as on any real link.
        super().__init__(replace(SPEC, link_latency=link_latency))
        code = np.frombuffer(doubling(), np.uint8)
        self.bytes[PROGRAM : PROGRAM + code.size] = code
        self.program = self.at(PROGRAM, code.size)
        for index in range(8):
            self.tensor(index)[:] = index + 1
            self.tensor(index + 8)[:] = 0

    def tensor(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        start = DATA + index * NBYTES
        return self.bytes[start : start + NBYTES].view(np.int32)

    def patch(self, x: int) -> bytes:
        """What sends ``x`` doubled to result ``x``."""
        places = (DATA + x * NBYTES, DATA + (x + 8) * NBYTES)
        return pack_slot([Location(self.address, start) for start in places])

    def transfer(self, x: int, slot: int = 0) -> H2D:
        data = self.patch(x)
        buffer = self.runtime.pinned.allocate(len(data))
        buffer.array[:] = np.frombuffer(data, np.uint8)
        return H2D(buffer.array, self.at(SLOTS + slot * 512, len(data)))

    def run(self, slot: int = 0, *, barrier: bool) -> Execute:
        return Execute(self.program, self.at(SLOTS + slot * 512, 512), barrier)

    def launch(self, x: int, queue: Queue | None = None, slot: int = 0, *, barrier: bool) -> None:
        queue = queue or self.queue
        queue.submit(self.transfer(x, slot))
        queue.submit(self.run(slot, barrier=barrier))

    def results(self, count: int = 3) -> list[int]:
        self.runtime.synchronize(0)
        return [int(self.tensor(8 + index)[0]) for index in range(count)]


def test_the_barrier_makes_each_launch_see_its_own_patch() -> None:
    bench = Programmed()
    for x in range(3):
        bench.launch(x, barrier=True)
    assert bench.results() == [2, 4, 6]


def test_without_it_the_result_lands_in_the_tensor_of_the_launch_before() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.launch(1, barrier=False)
    bench.tensor(0)[:] = 50
    assert bench.results() == [100, 0, 0]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_with_several_slots_it_lands_in_that_of_so_many_launches_before(slots: int) -> None:
    bench = Programmed()
    for x in range(slots):
        bench.launch(x, slot=x, barrier=True)
    bench.results()
    for x in range(slots, 2 * slots):
        bench.tensor(x - slots)[:] = 10 * (x + 1)
        bench.launch(x, slot=x % slots, barrier=False)
        bench.runtime.synchronize(0)
    stale = [20 * (x + slots + 1) for x in range(slots)]
    assert bench.results(2 * slots) == stale + [0] * slots


def test_a_slot_that_was_never_patched_is_no_address() -> None:
    bench = Programmed()
    bench.launch(0, barrier=False)
    with pytest.raises(ProgramError, match="was the slot patched before it was fetched"):
        bench.runtime.synchronize(0)
    assert bench.tensor(8)[0] == 0


def test_an_error_at_fetch_keeps_nothing_of_whoever_submitted_the_program() -> None:
    bench = Programmed()

    class Tensor:
        pass

    def launch() -> weakref.ref[Tensor]:
        tensor = Tensor()
        bench.launch(0, barrier=False)
        return weakref.ref(tensor)

    tensor = launch()
    with pytest.raises(ProgramError) as caught:
        bench.runtime.synchronize(0)
    assert tensor() is None
    assert caught.value.__traceback__ is not None


def test_an_event_orders_the_queues_and_not_the_fetch() -> None:
    outcome = []
    for barrier in (True, False):
        bench = Programmed()
        bench.launch(0, barrier=True)
        bench.results()
        preparation, patched = bench.card.new_queue(), EventSignal()
        preparation.submit(bench.transfer(1))
        preparation.submit(patched)
        bench.queue.submit(EventWait(patched))
        bench.queue.submit(bench.run(barrier=barrier))
        outcome.append(bench.results())
    assert outcome == [[2, 4, 0], [2, 0, 0]]


def test_without_the_event_the_barrier_alone_does_not_wait_for_the_patch() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.results()
    preparation = bench.card.new_queue()
    preparation.submit(bench.transfer(1))
    bench.queue.submit(bench.run(barrier=True))
    assert bench.results() == [2, 0, 0]


def outcome(order: Sequence[str], slots: int) -> list[int]:
    """Two launches, patches from one queue and programs from another, submitted in ``order``.

    Each program waits for its own patch, and holds its fetch back.
    """
    bench = Programmed()
    preparation = bench.card.new_queue()
    patched = {"a": EventSignal(), "b": EventSignal()}
    for step in order:
        x, slot = "ab".index(step[0]), "ab".index(step[0]) % slots
        if step[1] == "p":
            preparation.submit(bench.transfer(x, slot))
            preparation.submit(patched[step[0]])
        else:
            bench.queue.submit(EventWait(patched[step[0]]))
            bench.queue.submit(idle(10_000))
            bench.queue.submit(bench.run(slot, barrier=True))
    return bench.results(2)


ORDERS = [
    ["ap", "ar", "bp", "br"],
    ["ap", "bp", "ar", "br"],
    ["bp", "ap", "ar", "br"],
    ["ap", "bp", "br", "ar"],
    ["bp", "ap", "br", "ar"],
    ["bp", "br", "ap", "ar"],
]


@pytest.mark.parametrize("order", ORDERS)
def test_two_slots_keep_two_launches_apart_in_every_interleaving(order: list[str]) -> None:
    assert outcome(order, slots=2) == [2, 4]


@pytest.mark.parametrize("order", ORDERS)
def test_one_slot_is_overwritten_while_the_program_before_has_not_read_it(
    order: list[str],
) -> None:
    assert outcome(order, slots=1) in ([0, 4], [2, 0])


def test_one_slot_is_enough_when_an_event_says_that_it_was_read() -> None:
    bench = Programmed()
    preparation = bench.card.new_queue()
    for x in range(3):
        patched, read = EventSignal(), EventSignal()
        preparation.submit(bench.transfer(x))
        preparation.submit(patched)
        bench.queue.submit(EventWait(patched))
        bench.queue.submit(bench.run(barrier=True))
        bench.queue.submit(read)
        preparation.submit(EventWait(read))
    assert bench.results() == [2, 4, 6]


def test_a_program_is_fetched_when_the_one_before_it_starts() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.results()
    bench.queue.submit(idle(1_000))
    bench.launch(1, barrier=True)
    last = bench.run(barrier=False)
    bench.queue.submit(last)
    pending = [entry.work.dispatch for entry in bench.queue.pending()]
    assert [run.is_fetched for run in pending if run is not None] == [False, False]
    assert bench.results() == [2, 4, 0]


def test_a_fetched_program_does_not_see_its_slot_change() -> None:
    bench = Programmed()
    bench.queue.submit(bench.transfer(0))
    bench.results()
    bench.queue.submit(idle(1_000))
    bench.queue.submit(bench.run(barrier=False))
    other = bench.card.new_queue()
    other.wait(other.submit(bench.transfer(1)))
    assert bench.results() == [2, 0, 0]


def test_a_dropped_program_makes_room_in_the_buffer() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.results()
    bench.queue.submit(idle(100))
    bench.queue.submit(bench.run(barrier=True))
    other = bench.card.new_queue()
    other.submit(run := bench.run(barrier=False))
    assert run.slot is not None
    bench.queue.reset()
    assert bench.results() == [2, 0, 0]


def test_the_duration_is_that_of_the_tiles_and_the_timeline_shows_it() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.results()
    record = list(bench.runtime.timeline)[-1]
    assert record.kind == "Execute"
    assert record.end - record.start > 0


def test_what_is_no_program_poisons_the_queue_and_not_the_caller() -> None:
    bench = Programmed()
    bench.bytes[:64] = 0
    bench.launch(0, barrier=True)
    with pytest.raises(ProgramError):
        bench.runtime.synchronize(0)
    bench.queue.reset()


def running() -> Programmed:
    """A bench on which the program is in the middle of doubling tensor 0."""
    bench = Programmed(link_latency=1)
    bench.launch(0, barrier=True)
    bench.results()
    bench.tensor(8)[:] = 0
    bench.queue.submit(bench.run(barrier=True))
    assert bench.queue.pending()[0].work.dispatch is not None
    return bench


def test_an_operand_written_while_the_program_runs_is_poison() -> None:
    bench = running()
    other = bench.card.new_queue()
    other.wait(other.submit(bench.h2d(7, DATA, 64)))
    assert bench.queue.pending()[0].work.dispatch is not None
    assert bench.results(1) == [-2]
    assert bench.tensor(0).tolist() == [-1] * 16 + [1] * 16
    assert bench.tensor(8).tolist() == [-2] * 16 + [2] * 16


def test_a_result_written_while_the_program_runs_is_poison() -> None:
    bench = running()
    other = bench.card.new_queue()
    other.wait(other.submit(bench.h2d(7, DATA + 8 * NBYTES + 64, 64)))
    bench.results()
    assert bench.tensor(8).tolist() == [2] * 16 + [-1] * 16


def test_neighbours_of_an_operand_may_be_written_meanwhile() -> None:
    bench = running()
    other = bench.card.new_queue()
    other.wait(other.submit(bench.h2d(7, DATA + NBYTES)))
    assert bench.results(2) == [2, 0]
    assert set(bench.tensor(1).tolist()) == {0x07070707}


def test_a_result_read_while_the_program_runs_is_the_old_one() -> None:
    bench = running()
    assert bench.read(DATA + 8 * NBYTES, queue=bench.card.new_queue()) == [0]
    assert bench.results(1) == [2]


def test_a_region_that_is_given_back_is_forgotten() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.results()
    number = bench.address.chunks[0].region
    region = weakref.ref(bench.card.card.memory.region(number))
    del bench.bytes
    bench.card.card.regions.release(number)
    gc.collect()
    assert region() is None
