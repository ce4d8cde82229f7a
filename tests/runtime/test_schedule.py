"""Start and end of every operation of random programs, against an independent oracle."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.bench import SPEC, Bench, idle
from tests.runtime.oracle import Op, simulate
from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    H2D,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
    Operation,
    Queue,
)


@dataclass(frozen=True)
class Step:
    """One call of the host."""

    kind: str
    queue: int
    size: int


KINDS = ("compute", "h2d", "d2h", "move", "fill", "callback", "signal", "wait", "sync", "query")

steps = st.builds(Step, st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 30))


class Program:
    """Runs steps on a machine and, with the same host times, in the oracle."""

    def __init__(self, priorities: list[int]) -> None:
        self.bench = Bench()
        self.queues = [self.bench.card.new_queue(priority) for priority in priorities]
        self.host = 0
        self.ops: list[Op] = []
        self.tickets: list[int] = []
        self.signals: list[tuple[EventSignal, Op]] = []

    def run(self, step: Step) -> None:
        queue = self.queues[step.queue]
        if step.kind == "sync":
            queue.synchronize()
            self.host += SPEC.query_time
            mine = [op for op in self.ops if op.queue == step.queue]
            if mine:
                simulate(self.ops)
                self.host = max(self.host, mine[-1].end or 0)
        elif step.kind == "query":
            done = queue.query()
            self.host += SPEC.query_time
            simulate(self.ops)
            assert done == all((op.end or 0) <= self.host for op in self.of(step.queue))
        else:
            operation, op = self.make(step, queue)
            self.tickets.append(queue.submit(operation))
            self.host += SPEC.submit_time
            op.submitted = self.host
            self.ops.append(op)
        assert self.bench.clock.now == self.host

    def of(self, queue: int) -> list[Op]:
        return [op for op in self.ops if op.queue == queue]

    def make(self, step: Step, queue: Queue) -> tuple[Operation, Op]:
        bench, size = self.bench, step.size
        nbytes = 128 * size
        link, move = 5 + size, 3 + size

        def op(pipeline: str | None, duration: int, after: Op | None = None) -> Op:
            return Op(step.queue, pipeline, duration, queue.priority, after)

        match step.kind:
            case "compute":
                return idle(size), op("compute", size)
            case "h2d":
                host = bench.pinned(nbytes=max(nbytes, 1)).array[:nbytes]
                return H2D(host, bench.at(0, nbytes)), op("h2d", link)
            case "d2h":
                host = bench.pinned(nbytes=max(nbytes, 1)).array[:nbytes]
                return D2H(bench.at(0, nbytes), host), op("d2h", link)
            case "move":
                return D2D(bench.at(0, nbytes), bench.at(128, nbytes)), op("move", move)
            case "fill":
                return Fill(bench.at(0, nbytes), b"\0"), op("move", move)
            case "callback":
                return HostCallback(lambda: None, size), op(None, size)
            case "wait" if self.signals:
                signal, signalled = self.signals[size % len(self.signals)]
                return EventWait(signal), op(None, 0, signalled)
            case _:
                signal, signalled = EventSignal(), op(None, 0)
                self.signals.append((signal, signalled))
                return signal, signalled


@settings(max_examples=400)
@given(st.lists(steps, max_size=25), st.lists(st.integers(-1, 1), min_size=3, max_size=3))
def test_operations_start_and_end_when_the_rules_say(
    program: list[Step], priorities: list[int]
) -> None:
    machine = Program(priorities)
    for step in program:
        machine.run(step)
    for queue in machine.queues:
        queue.synchronize()
    simulate(machine.ops)
    times = {record.ticket: (record.start, record.end) for record in machine.bench.runtime.timeline}
    assert [times[ticket] for ticket in machine.tickets] == [(o.start, o.end) for o in machine.ops]
    assert [s.time for s, _ in machine.signals] == [op.end for _, op in machine.signals]


@given(st.lists(steps, max_size=25), st.lists(st.integers(-1, 1), min_size=3, max_size=3))
def test_the_same_calls_give_the_same_timeline(program: list[Step], priorities: list[int]) -> None:
    traces = []
    for _ in range(2):
        machine = Program(priorities)
        for step in program:
            machine.run(step)
        machine.bench.runtime.synchronize(0)
        traces.append(machine.bench.runtime.timeline.to_chrome_trace())
    assert traces[0] == traces[1]


@given(st.lists(steps, max_size=25))
def test_effects_happen_in_order_of_time_then_submission(program: list[Step]) -> None:
    machine = Program([0, 0, 0])
    for step in program:
        machine.run(Step(step.kind, step.queue, step.size + 1))
    machine.bench.runtime.synchronize(0)
    records = [r for r in machine.bench.runtime.timeline if r.end > r.start]
    assert records == sorted(records, key=lambda r: (r.end, r.ticket))
