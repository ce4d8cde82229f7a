"""Launches on two queues: the same bytes as on one, sooner, in the right order by events alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import streams as benchmark
from tests.conftest import Run
from tests.streaming import LONG, busy, pinned, queue_of, recorded, settle, write_scale
from torch_spyre_ref import backend, submission
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import IndexFaultError, encode
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import HostCallback, Queue, QueueError
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, write_artifact
from torch_spyre_ref.streams import TwoQueues, preparation_queue
from torch_spyre_ref.submission import BoundLaunch, OneQueue

pytestmark = pytest.mark.usefixtures("no_derivation")
N = 64


class UnitFailedError(Exception):
    """What goes wrong in these tests."""


@pytest.fixture(autouse=True)
def good_again() -> Iterator[None]:
    yield
    settle()
    for card in (0, 1):
        torch.spyre.reset(card)


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact: out = x * factor + shift."""
    return write_scale(tmp_path_factory.mktemp("artifacts") / "scale", N)


def test_a_decode_loop_keeps_the_busiest_pipeline_busy() -> None:
    assert all(figure.met for figure in benchmark.virtual())


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_every_program_finds_its_own_patch_in_its_slot(slots: int) -> None:
    for streams in (OneQueue(), None):
        loop = benchmark.Loop(slots, derive_edges=False)
        loop.run(streams or TwoQueues(loop.card.companion), steps=20)
        assert loop.seen == list(range(20))


def test_with_one_slot_packing_overlaps_and_with_two_the_transfer_does_too() -> None:
    busy, packed, moved = benchmark.COMPUTE, benchmark.PREPARATION, benchmark.TRANSFER
    steps = {
        n: benchmark.makespan(2, slots=n, derive_edges=False) / benchmark.STEPS for n in (1, 2)
    }
    assert steps[1] == pytest.approx(busy + moved, rel=0.02)
    assert steps[2] == pytest.approx(busy, rel=0.02)
    assert benchmark.makespan(1) / benchmark.STEPS == pytest.approx(busy + packed + moved, rel=0.02)


def test_preparation_and_compute_go_to_a_queue_each(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    out, stream = torch.empty_like(x), torch.Stream("spyre:0")
    name = queue_of(stream).name
    for two, expected in ((True, f"{name} preparation"), (False, name)):
        with recorded() as done, torch.spyre.preparation_stream(two), stream:
            busy(stream)
            launch_jobplan(plan, [x, out], [2.0, 1])
        assert [(r.kind, r.queue) for r in done] == [("H2D", expected), ("Execute", name)]
        assert out.eq(3).all()


def test_a_launch_on_an_idle_stream_stays_on_its_queue(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    out, stream = torch.empty_like(x), torch.Stream("spyre:0")
    torch.spyre.synchronize(0)
    with recorded() as done, stream:
        for _ in range(3):
            launch_jobplan(plan, [x, out], [2.0, 1])
            stream.synchronize()
    assert {r.queue for r in done} == {queue_of(stream).name}


def test_a_launch_on_two_queues_is_three_operations(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    out, stream = torch.empty_like(x), torch.Stream("spyre:0")
    timeline = backend.current().runtime.timeline
    torch.spyre.synchronize(0)
    timeline.clear()
    with stream:
        busy(stream)
        launch_jobplan(plan, [x, out], [2.0, 1])
        stream.synchronize()
    kinds = [record.kind for record in sorted(timeline)]
    assert kinds == ["HostCallback", "HostCallback", "H2D", "Execute"], "the first is not its own"


STEP = st.tuples(
    st.integers(0, 2),  # the stream
    st.integers(0, 1),  # the plan
    st.integers(0, 3),  # what it reads
    st.integers(0, 3),  # what it writes
    st.integers(-2, 2),  # its scalars
    st.sampled_from(["launch", "launch", "launch", "busy", "switch"]),
)


def run(steps: list[Any], plans: list[JobPlan], two: bool, switch: bool = False) -> torch.Tensor:
    """Launches over three streams, each waiting for the one before; what is there at the end."""
    streams = [torch.Stream("spyre:0") for _ in range(3)]
    rows = list(torch.arange(4.0 * N).view(4, N).to("spyre:0"))
    torch.spyre.synchronize(0)
    kinds, before = [OneQueue(), TwoQueues()], streams[0]
    with submission.use(kinds[two]) as used:
        for number, plan, source, target, scalar, kind in steps:
            stream = streams[number]
            stream.wait_stream(before)
            before = stream
            if kind == "switch" and switch:
                used = kinds[kinds.index(used) - 1]
                backend.current().submission = used
            if kind == "busy":
                busy(stream, 20_000)
                continue
            with stream:
                args = [rows[source], rows[target]]
                launch_jobplan(plans[plan], args, [scalar / 2, scalar])
        torch.spyre.synchronize(0)
    return torch.stack(rows).cpu()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=25), slots=st.integers(1, 3))
def test_random_launches_leave_the_same_bytes_on_one_queue_and_on_two(
    scale: Path, steps: list[Any], slots: int
) -> None:
    plans = [prepare_kernel(scale, 0, slots=slots), prepare_kernel(scale, 0, slots=slots % 3 + 1)]
    one = run(steps, plans, two=False)
    assert torch.equal(run(steps, plans, two=True), one)
    assert torch.equal(run(steps, plans, two=True, switch=True), one)


def test_parts_say_how_launches_are_submitted(run_python: Run, scale: Path) -> None:
    out = run_python(
        f"""
        import torch, torch_spyre_ref
        from torch_spyre_ref import backend
        from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
        from torch_spyre_ref.parts import Parts
        from torch_spyre_ref.streams import EventDriver, StreamDriver, TwoQueues

        class Mine(StreamDriver): pass
        class Events(EventDriver): pass

        mine = Parts(submission=TwoQueues, stream_driver=Mine, event_driver=Events)
        torch_spyre_ref.register(parts=mine)
        plan = prepare_kernel("{scale}", 0)
        with torch.Stream("spyre"):
            x = torch.ones({N}, device="spyre")
            launch_jobplan(plan, [x, x], [2.0, 1])
            print(x[0].item(), type(backend.current().streams).__name__)
        print(*(queue.name for queue in backend.current().runtime.cards[0].queues), sep=", ")
        """
    )
    assert out.splitlines() == ["3.0 Mine", "0.0, 0.1, 0.1 preparation"]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_stream_changes_from_one_queue_to_two_and_back(scale: Path, slots: int) -> None:
    plan, x = prepare_kernel(scale, 0, slots=slots), torch.ones(N, device="spyre:0")
    outs = [torch.zeros(N, device="spyre:0") for _ in range(12)]
    torch.spyre.synchronize(0)
    kinds = OneQueue(), TwoQueues()
    with torch.Stream("spyre:0"):
        busy(torch.spyre.current_stream(), 200_000)
        for index, out in enumerate(outs):
            with submission.use(kinds[index // 3 % 2]):
                launch_jobplan(plan, [x, out], [1.0, index])
        settle()
    assert [out.unique().tolist() for out in outs] == [[index + 1] for index in range(12)]


@pytest.mark.parametrize("slots", [1, 2])
def test_streams_that_change_their_submission_in_flight_spoil_no_patch(
    scale: Path, slots: int
) -> None:
    plan, x = prepare_kernel(scale, 0, slots=slots), torch.ones(N, device="spyre:0")
    outs = [torch.zeros(N, device="spyre:0") for _ in range(24)]
    streams = [torch.Stream("spyre:0") for _ in range(3)]
    torch.spyre.synchronize(0)
    kinds = OneQueue(), TwoQueues()
    for stream in streams:
        busy(stream, 100_000)
    for index, out in enumerate(outs):
        with streams[index % 3], submission.use(kinds[index // 4 % 2]):
            launch_jobplan(plan, [x, out], [1.0, index])
    settle()
    assert [out.unique().tolist() for out in outs] == [[index + 1] for index in range(24)]


class HalfWay(TwoQueues):
    """Enqueues the preparation of the first launch and then refuses to go on."""

    refused = False

    def _launch(self, first: Queue, queue: Queue, bound: BoundLaunch) -> int:
        if self.refused:
            return super()._launch(first, queue, bound)
        self.refused = True
        first.submit_prepared(bound.preparation)
        raise RuntimeError("half way")


@pytest.mark.parametrize("first", [10_000, 100_000])
def test_a_launch_that_fails_half_way_spoils_no_patch_of_the_next(scale: Path, first: int) -> None:
    plan, x = prepare_kernel(scale, 0, slots=1), torch.ones(N, device="spyre:0")
    failing, good = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    outs = [torch.zeros(N, device="spyre:0") for _ in range(2)]
    torch.spyre.synchronize(0)
    with submission.use(HalfWay()):
        busy(failing, 1_000_000)
        preparation_queue(queue_of(failing)).submit(HostCallback(lambda: None, first))
        preparation_queue(queue_of(good)).submit(HostCallback(lambda: None, 9_000))
        busy(good, 120_000)
        with failing, pytest.raises(RuntimeError, match="half way"):
            launch_jobplan(plan, [x, outs[0]], [9.0, 9])
        with good:
            launch_jobplan(plan, [x, outs[1]], [2.0, 1])
        settle()
    assert [out.unique().tolist() for out in outs] == [[0], [3]]


def test_streams_share_a_slot_in_turn(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0, slots=1), torch.ones(N, device="spyre:0")
    streams = [torch.Stream("spyre:0") for _ in range(3)]
    outs = [torch.zeros(N, device="spyre:0") for _ in range(12)]
    torch.spyre.synchronize(0)
    with torch.spyre.preparation_stream():
        busy(streams[0])
        for index, out in enumerate(outs):
            with streams[index % 3]:
                launch_jobplan(plan, [x, out], [1.0, index])
        torch.spyre.synchronize(0)
    assert [out.unique().tolist() for out in outs] == [[index + 1] for index in range(12)]


def test_threads_launch_on_streams_of_their_own(scale: Path) -> None:
    plan = prepare_kernel(scale, 0)

    def work(seed: int) -> bool:
        with torch.Stream("spyre:0"):
            x, out = torch.ones(N).to("spyre:0"), torch.zeros(N, device="spyre:0")
            for step in range(10):
                launch_jobplan(plan, [x, out], [1.0, seed + step])
                x, out = out, x
            return x.cpu().eq(1 + 10 * seed + 45).all().item() is True

    with torch.spyre.preparation_stream(), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


class Failing(TwoQueues):
    """A host that cannot pack the first patch, and notices it soon or late."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.failed, self.after = False, after

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        def fail() -> None:
            raise UnitFailedError("no patch")

        if not self.failed:
            self.failed = True
            step = queue.prepare(HostCallback(fail, self.after))
            bound = bound._replace(preparation=[step, *bound.preparation])
        return super().launch(queue, bound)


@pytest.mark.parametrize("wait", ["stream", "card"])
@pytest.mark.parametrize("after", [50_000, 0])
def test_what_fails_in_preparation_is_raised_once_by_the_stream(
    scale: Path, wait: str, after: int
) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    stream, out = torch.Stream("spyre:0"), torch.zeros(N, device="spyre:0")
    torch.spyre.synchronize(0)
    synchronize = stream.synchronize if wait == "stream" else torch.accelerator.synchronize
    with submission.use(Failing(after)), stream:
        with nullcontext() if after else pytest.raises(QueueError, match="no patch"):
            for _ in range(4):
                launch_jobplan(plan, [x, out], [2.0, 0])
        with pytest.raises((QueueError, UnitFailedError), match="no patch") as caught:
            synchronize()
        assert UnitFailedError in (type(caught.value), type(caught.value.__cause__))
        synchronize()
        with pytest.raises(QueueError, match=r"poisoned .*no patch"):
            launch_jobplan(plan, [x, out], [2.0, 0])
        torch.spyre.reset(0)
        launch_jobplan(plan, [x, out], [5.0, 0])
        assert out.cpu().eq(5).all()


def test_what_fails_in_compute_is_raised_once_and_a_new_stream_recovers(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    stream, out = torch.Stream("spyre:0"), torch.zeros(N, device="spyre:0")
    torch.spyre.synchronize(0)
    queue = queue_of(stream)

    def fail() -> None:
        raise UnitFailedError("unit 7")

    with torch.spyre.preparation_stream():
        with stream:
            launch_jobplan(plan, [x, out], [2.0, 0])
            queue.submit(HostCallback(fail, 50_000))
            for _ in range(4):
                launch_jobplan(plan, [x, out], [3.0, 0])
        with pytest.raises(UnitFailedError, match="unit 7"):
            torch.accelerator.synchronize(0)
        torch.accelerator.synchronize(0)
        assert out.cpu().eq(2).all()
        with torch.Stream("spyre:0"):
            for _ in range(4):
                launch_jobplan(plan, [x, out], [7.0, 0])
            assert out.cpu().eq(7).all()


def test_a_launch_on_a_poisoned_stream_is_refused_whole(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    stream, out = torch.Stream("spyre:0"), torch.zeros(N, device="spyre:0")
    with torch.spyre.preparation_stream(), stream:
        launch_jobplan(plan, [x, out], [2.0, 0])
        queue_of(stream).submit(HostCallback(_raise, 50_000))
        settle()
        with recorded() as done, pytest.raises(QueueError, match="poisoned"):
            launch_jobplan(plan, [x, out], [2.0, 0])
    assert done == []


def _raise() -> None:
    raise UnitFailedError("unit 7")


def test_a_full_preparation_queue_makes_the_host_wait(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    stream, out = torch.Stream("spyre:0"), torch.zeros(N, device="spyre:0")
    with torch.spyre.preparation_stream(), stream:
        busy(stream, 100_000_000)
        for step in range(600):
            launch_jobplan(plan, [x, out], [1.0, step])
        assert out.cpu().eq(600).all()


def test_copies_and_launches_of_a_stream_keep_their_order(scale: Path) -> None:
    plan, hosts = prepare_kernel(scale, 0), [pinned(N, value) for value in range(6)]
    x, out = torch.zeros(N, device="spyre:0"), torch.zeros(N, device="spyre:0")
    back, long = [pinned(N, 0) for _ in hosts], torch.empty(LONG, device="spyre:0")
    with torch.spyre.preparation_stream(), torch.Stream("spyre:0"):
        for host, there in zip(hosts, back, strict=True):
            long.fill_(1)
            x.copy_(host, non_blocking=True)
            launch_jobplan(plan, [x, out], [10.0, 1])
            there.copy_(out, non_blocking=True)
        torch.spyre.current_stream().synchronize()
    assert [there[0].item() for there in back] == [10 * value + 1 for value in range(6)]


def fail_soon(stream: torch.Stream, after: int) -> None:
    queue_of(stream).submit(HostCallback(_raise, after))


@pytest.mark.parametrize("derive", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("after", [500, 1500, 2500, 3500, 20_000])
def test_a_dropped_launch_whose_preparation_is_late_spoils_no_other(
    scale: Path, after: int, slots: int, derive: bool
) -> None:
    plan, x = prepare_kernel(scale, 0, slots=slots), torch.ones(N, device="spyre:0")
    failing, good = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    lost, between, out = (torch.zeros(N, device="spyre:0") for _ in range(3))
    torch.spyre.synchronize(0)
    for _ in range(2 * slots):  # the lanes and the companions are there
        with failing:
            launch_jobplan(plan, [x, between], [1.0, 0])
        torch.spyre.synchronize(0)
    with backend.current().runtime.deriving(derive):
        preparation_queue(queue_of(failing)).submit(HostCallback(lambda: None, 60_000))
        fail_soon(failing, after)
        with failing, suppress(QueueError):
            launch_jobplan(plan, [x, lost], [9.0, 9])
        with good:
            for _ in range(slots - 1):
                launch_jobplan(plan, [x, between], [1.0, 0])
            launch_jobplan(plan, [x, out], [2.0, 1])
        good.synchronize()
        settle()
        torch.spyre.reset(0)
        assert [t.unique().tolist() for t in (lost, out)] == [[0], [3]]


@pytest.mark.parametrize("derive", [False, True])
def test_a_patch_that_is_late_for_a_dropped_launch_is_waited_for(scale: Path, derive: bool) -> None:
    plan, x = prepare_kernel(scale, 0, slots=1), torch.ones(N, device="spyre:0")
    failing, good = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    lost, out = (torch.zeros(N, device="spyre:0") for _ in range(2))
    launch_jobplan(plan, [x, out], [1.0, 0])  # it is loaded now
    torch.spyre.synchronize(0)
    with backend.current().runtime.deriving(derive):
        preparation_queue(queue_of(failing)).submit(HostCallback(lambda: None, 60_000))
        fail_soon(failing, 10_000)
        with failing:
            launch_jobplan(plan, [x, lost], [9.0, 9])
        while queue_of(failing).error is None:
            queue_of(good).completed(0)
        assert preparation_queue(queue_of(failing)).is_busy
        busy(good, 200_000)
        with good:
            launch_jobplan(plan, [x, out], [2.0, 1])
        good.synchronize()
        torch.spyre.reset(0)
        assert [t.unique().tolist() for t in (lost, out)] == [[0], [3]]


def test_a_patch_on_its_way_keeps_the_memory_of_a_program_that_is_gone(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0, slots=1), torch.ones(N, device="spyre:0")
    failing, out = torch.Stream("spyre:0"), torch.zeros(N, device="spyre:0")
    launch_jobplan(plan, [x, out], [1.0, 0])
    torch.spyre.synchronize(0)
    preparation_queue(queue_of(failing)).submit(HostCallback(lambda: None, 60_000))
    fail_soon(failing, 10_000)
    with failing:
        launch_jobplan(plan, [x, out], [9.0, 9])
    while queue_of(failing).error is None:
        queue_of(failing).completed(0)
    allocated = torch.spyre.memory_allocated(0)
    plan.job.evict()
    assert preparation_queue(queue_of(failing)).is_busy
    assert torch.spyre.memory_allocated(0) == allocated
    settle()
    assert torch.spyre.memory_allocated(0) < allocated


def test_a_launch_on_what_was_not_written_is_refused_before_it_is_prepared(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0), torch.ones(N, device="spyre:0")
    failing, good = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    lost, out = (torch.zeros(N, device="spyre:0") for _ in range(2))
    torch.spyre.synchronize(0)
    with backend.current().runtime.deriving(True):
        fail_soon(failing, 50_000)
        with failing:
            launch_jobplan(plan, [x, lost], [9.0, 9])
        settle()
        busy(good), preparation_queue(queue_of(good))
        queues = backend.current().runtime.cards[0].queues
        before = [(queue, queue.last) for queue in queues]
        with good, pytest.raises(QueueError, match="did not write"):
            launch_jobplan(plan, [lost, out], [2.0, 1])
        assert [(queue, queue.last) for queue in queues] == before
        with good:
            launch_jobplan(plan, [x, out], [2.0, 1])
        good.synchronize()
        assert out.unique().tolist() == [3]


def test_a_launch_that_a_closed_queue_refuses_leaves_nothing_to_be_prepared(scale: Path) -> None:
    plan, x = prepare_kernel(scale, 0, slots=1), torch.ones(N, device="spyre:0")
    queue = backend.current().runtime.cards[0].new_queue()
    lost, out = (torch.zeros(N, device="spyre:0") for _ in range(2))
    torch.spyre.synchronize(0)
    launch_jobplan(plan, [x, out], [1.0, 0], queue=queue)
    torch.spyre.synchronize(0)
    late = preparation_queue(queue)
    late.submit(HostCallback(lambda: None, 50_000))
    queue.close()
    with pytest.raises(QueueError, match="closed"):
        launch_jobplan(plan, [x, lost], [9.0, 9], queue=queue)
    assert [type(entry.operation) for entry in late.pending()] == [HostCallback]
    launch_jobplan(plan, [x, out], [2.0, 1])
    assert [t.cpu().unique().tolist() for t in (lost, out)] == [[0], [3]]


def write_scratch(directory: Path) -> Path:
    """An artifact: out = x[index], by way of the job's own memory."""
    asm = Assembler("gather")
    n = asm.dimension("n", N)
    index, x, out = (
        asm.argument("index", "int64"),
        asm.argument("x", "float32"),
        asm.argument("out", "float32"),
    )
    own = asm.job_memory("own", "float32", 256)
    asm.store(own, {n: 1}, asm.load(x, {}, indices=[(asm.load(index, {n: 1}), 1, N)]))
    asm.stage()
    n = asm.dimension("n", N)
    asm.store(out, {n: 1}, asm.load(own, {n: 1}))
    roles = {"index": "input", "x": "input", "out": "output"}
    spec = LaunchSpec.of(
        [
            Argument(name, role, "int64" if name == "index" else "float32", (N,), (1,))  # type: ignore[arg-type]
            for name, role in roles.items()
        ]
    )
    write_artifact(directory, encode(asm.assemble()), spec, memory=256 + 4 * N)
    return directory


@pytest.mark.parametrize("derive", [False, True])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_program_that_fails_on_one_stream_leaves_the_others_alone(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    slots: int,
    two: bool,
    derive: bool,
    dropped: bool,
) -> None:
    if slots == 2 and not derive:  # one slot orders the launches, which share the job's memory
        request.node.add_marker(pytest.mark.finds("race"))
    plan = prepare_kernel(write_scratch(tmp_path / "gather"), 0, slots=slots)
    x, wrong = torch.ones(N, device="spyre:0"), torch.full((N,), N).to("spyre:0")
    right = torch.zeros(N, dtype=torch.int64, device="spyre:0")
    outs = [torch.zeros(N, device="spyre:0") for _ in range(3)]
    failing, good = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    torch.spyre.synchronize(0)
    with submission.use([OneQueue(), TwoQueues()][two]), backend.current().runtime.deriving(derive):
        if dropped:
            fail_soon(failing, 50_000)
        else:
            busy(failing)
        with failing:
            launch_jobplan(plan, [wrong, x, outs[0]])
        with good:
            for out in outs[1:]:
                launch_jobplan(plan, [right, x, out])
        good.synchronize()
        with pytest.raises(UnitFailedError if dropped else IndexFaultError):
            failing.synchronize()
        with good:
            assert [out.cpu().unique().tolist() for out in outs[1:]] == [[1], [1]]
            launch_jobplan(plan, [right, x, outs[1]])
        good.synchronize()


def test_who_reads_what_a_failing_program_was_to_write_still_fails(tmp_path: Path) -> None:
    """Also when it shares a slot with it, and so waits for its end anyway."""
    plan = prepare_kernel(write_scratch(tmp_path / "gather"), 0, slots=1)
    x, wrong = torch.ones(N, device="spyre:0"), torch.full((N,), N).to("spyre:0")
    right = torch.zeros(N, dtype=torch.int64, device="spyre:0")
    lost, out = torch.zeros(N, device="spyre:0"), torch.full((N,), 7.0).to("spyre:0")
    failing, reading = torch.Stream("spyre:0"), torch.Stream("spyre:0")
    torch.spyre.synchronize(0)
    with backend.current().runtime.deriving(True):
        busy(failing)
        with failing:
            launch_jobplan(plan, [wrong, x, lost])
        with reading:
            launch_jobplan(plan, [right, lost, out])
        with pytest.raises(QueueError, match="ended before it fired"):
            reading.synchronize()
        settle()
        torch.spyre.reset(0)
    assert out.cpu().unique().tolist() == [7]
