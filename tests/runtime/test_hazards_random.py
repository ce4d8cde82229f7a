"""Derived edges of random programs: just those that are needed, and enough of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.emulator import strategies as emulated
from tests.runtime.bench import SPEC
from tests.runtime.test_values import Machine
from torch_spyre_ref.runtime import (
    Chunk,
    CompositeAddress,
    EventSignal,
    EventWait,
    Operation,
    Queue,
)
from torch_spyre_ref.runtime.hazards import Edge, Hazards

QUEUES = 3

Step = tuple[str, int, Any]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Operations on few addresses, so that they meet, with events and waits between them."""
    ranges = st.sampled_from([draw(emulated.addresses()) for _ in range(2)]).flatmap(
        lambda address: emulated.ranges(address).filter(lambda span: span.runs <= 32)
    )
    kinds = st.sampled_from(["h2d", "d2h", "d2d", "fill", "poison"])
    queues = st.integers(0, QUEUES - 1)
    change = st.tuples(kinds, ranges, ranges, st.integers(0, 255))
    step = st.one_of(
        *[st.tuples(st.just("do"), queues, change)] * 4,
        st.tuples(st.just("event"), queues, queues),
        st.tuples(st.just("wait"), queues, st.none()),
    )
    return draw(st.lists(step, min_size=6, max_size=25))


@dataclass
class Done:
    """An operation as the oracle sees it: what it touches byte by byte, and who comes before."""

    ticket: int
    queue: Queue
    reads: set[emulated.Place]
    writes: set[emulated.Place]
    before: set[int]

    def conflicts(self, other: Done) -> bool:
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


class Oracle:
    """Which edges are needed, by looking at every pair of operations and at all paths.

    ``sees`` says whether work that is over needs none; otherwise the host must know that it is.
    """

    def __init__(self, sees: bool) -> None:
        self.sees = sees
        self.ops: list[Done] = []
        self.host: set[int] = set()
        self.edges: list[tuple[int, int]] = []

    def add(self, queue: Queue, ticket: int, operation: Operation | None, after: set[int]) -> None:
        """Take in an operation that was just submitted; ``after`` is what it waits for."""
        reads = spots(operation.reads if operation else ())
        writes = spots(operation.writes if operation else ())
        mine = [op for op in self.ops if op.queue is queue]
        before = self.up_to(mine[-1].ticket) if mine else set()
        new = Done(ticket, queue, reads, writes, before | after | self.host)
        for op in reversed(self.ops):
            over = self.sees and op.ticket <= op.queue.done
            if not over and op.ticket not in new.before and new.conflicts(op):
                self.edges.append((op.ticket, ticket))
                new.before |= self.up_to(op.ticket)
        self.ops.append(new)

    def up_to(self, ticket: int) -> set[int]:
        """What is over when an operation is."""
        op = next(op for op in self.ops if op.ticket == ticket)
        return op.before | {ticket}

    def waited(self, queue: Queue) -> None:
        """The host has waited for all that a queue had."""
        for op in self.ops:
            if op.queue is queue:
                self.host |= self.up_to(op.ticket)


def spots(spans: Sequence[emulated.DeviceRange]) -> set[emulated.Place]:
    return {place for span in spans for place in emulated.touched(span)}


SLOW = replace(SPEC, link_latency=150, move_latency=170)
"""Operations pile up: each takes as long as the host needs to submit several."""


def run(program: list[Step], machine: Machine, *, sees: bool) -> Oracle:
    oracle = Oracle(sees)
    lines = [machine.bench.queue, *(machine.bench.card.new_queue() for _ in range(QUEUES - 1))]
    for kind, number, what in program:
        queue = lines[number]
        if kind == "wait":
            queue.synchronize()
            oracle.waited(queue)
        elif kind == "event":
            signal, other = EventSignal(), lines[what]
            ticket = queue.submit(signal)
            oracle.add(queue, ticket, None, set())
            oracle.add(other, other.submit(EventWait(signal)), None, oracle.up_to(ticket))
        else:
            operation = machine.ask(what)
            oracle.add(queue, queue.submit(operation), operation, set())
    return oracle


@settings(max_examples=150, deadline=None)
@given(programs())
def test_edges_are_exactly_those_that_are_needed(program: list[Step]) -> None:
    machine = Machine(spec=SLOW, derive_edges=True)
    oracle = run(program, machine, sees=True)
    derived = [(edge.after, edge.ticket) for edge in machine.bench.card.hazards.edges]
    assert derived == oracle.edges
    event(f"edges: {len(derived)}")
    machine.bench.runtime.synchronize(0)
    machine.check()


def races(machine: Machine) -> list[str]:
    reports = machine.bench.runtime.sanitizer.reports
    return [str(report) for report in reports if report.kind == "race"]


def owned(**options: Any) -> Machine:
    """A machine under the sanitizer, all of its memory handed out."""
    machine = Machine(spec=SLOW, sanitize=True, **options)
    memcheck = machine.bench.runtime.memcheck
    assert memcheck is not None
    for region in machine.bench.card.card.regions.live():
        memcheck.handed_out(0, CompositeAddress((Chunk(region.id, 0, region.size),)))
    return machine


@settings(max_examples=100, deadline=None)
@given(programs())
def test_derived_edges_leave_no_race(program: list[Step]) -> None:
    machine = owned(derive_edges=True)
    run(program, machine, sees=True)
    machine.bench.runtime.synchronize(0)
    assert races(machine) == []


@settings(max_examples=150, deadline=None)
@given(programs())
def test_races_are_exactly_the_edges_that_are_missing(program: list[Step]) -> None:
    machine = owned()
    oracle = run(program, machine, sees=False)
    assert len(races(machine)) == len(oracle.edges)
    event(f"races: {len(oracle.edges)}")


class LeavingOut(Hazards):
    """Leaves out edge number ``missing``."""

    missing = 0

    def accepts(self, edge: Edge) -> bool:
        self.missing -= 1
        return self.missing != -1


@settings(max_examples=100, deadline=None)
@given(programs(), st.integers(0, 5))
def test_without_any_one_edge_there_is_a_race(program: list[Step], missing: int) -> None:
    whole = owned(derive_edges=True)
    run(program, whole, sees=True)
    hazards = type("Without", (LeavingOut,), {"missing": missing})
    machine = owned(derive_edges=True, hazards=hazards)
    run(program, machine, sees=True)
    machine.bench.runtime.synchronize(0)
    assert (races(machine) != []) == (missing < whole.bench.card.hazards.count)
