"""Operations prepared once and submitted many at a time: as if each were submitted by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.bench import Bench, broken, idle
from torch_spyre_ref.emulator.timeline import Record
from torch_spyre_ref.runtime import D2D, Fill, HostCallback, Operation, Queue
from torch_spyre_ref.runtime.lowering import again

KINDS: tuple[Callable[[Bench], Operation], ...] = (
    lambda bench: idle(40),
    lambda bench: idle(0),
    lambda bench: HostCallback(lambda: None),
    lambda bench: bench.h2d(3, 128),
    lambda bench: bench.h2d(5, 256, 1280),
    lambda bench: D2D(bench.at(0), bench.at(128)),
    lambda bench: Fill(bench.at(0, 640), b"\x07"),
    lambda bench: Fill(bench.at(128), b"\xff", free=True),
    lambda bench: broken(30),
)

batches = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, len(KINDS) - 1), max_size=5),
        st.sampled_from(("go on", "wait", "ask")),
    ),
    max_size=12,
)
Submit = Callable[[Queue, list[Operation]], None]


def one_by_one(queue: Queue, operations: list[Operation]) -> None:
    for operation in operations:
        queue.submit(operation, "batch")


def at_once(queue: Queue, operations: list[Operation]) -> None:
    if operations:
        queue.submit_prepared([queue.prepare(o) for o in operations], "batch")


def outcome(program: list[tuple[int, list[int], str]], submit: Submit, **settings: int) -> object:
    """Timeline, errors and memory after a program; each kind of operation is made once."""
    bench = Bench(**settings)
    queues = [bench.card.new_queue(priority) for priority in (0, 0, 1)]
    operations = [make(bench) for make in KINDS]
    errors: list[str] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            errors.append(repr(error))

    for number, kinds, then in program:
        queue = queues[number]
        attempt(partial(submit, queue, [operations[kind] for kind in kinds]))
        if then != "go on":
            attempt(queue.synchronize if then == "wait" else queue.query)
    for queue in queues:
        attempt(queue.synchronize)
    records: list[Record] = list(bench.runtime.timeline)
    return records, errors, bench.clock.now, bench.bytes[:2048].tolist()


@given(batches)
def test_a_batch_is_its_operations_one_by_one(program: list[tuple[int, list[int], str]]) -> None:
    assert outcome(program, at_once) == outcome(program, one_by_one)


@given(batches)
def test_a_batch_that_fills_the_queue_is_its_operations_one_by_one(
    program: list[tuple[int, list[int], str]],
) -> None:
    assert outcome(program, at_once, queue_depth=2) == outcome(program, one_by_one, queue_depth=2)


def test_a_callback_submitted_again_has_an_effect_of_its_own() -> None:
    bench, seen = Bench(), list[int]()
    operation, work = bench.queue.prepare(HostCallback(lambda: seen.append(0)))
    steps = [(operation, work), *(again(operation, work, partial(seen.append, n)) for n in (1, 2))]
    bench.queue.submit_prepared(steps)
    bench.queue.synchronize()
    assert seen == [0, 1, 2]
    assert {record.end - record.start for record in bench.runtime.timeline} == {7}
