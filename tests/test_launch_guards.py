"""What nobody sees while it holds: each of these fails when one line of the launch path, or of
what is checked before it, goes."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from tests.runtime.test_fetch import Programmed
from tests.spyrecode.samples import SPEC, tensors
from tests.test_launch import add_program, add_spec, good, of
from torch_spyre_ref import backend
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.jobs.aliasing import _share_memory
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import D2H, Compute, EventSignal, EventWait, Queue
from torch_spyre_ref.spyrecode import (
    Argument,
    ArtifactError,
    LaunchMismatchError,
    LaunchSpec,
    write_artifact,
)
from torch_spyre_ref.spyrecode.reader import content_digest
from torch_spyre_ref.submission import BoundLaunch, OneQueue, use

N = 64


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    """What is pending keeps its program on the card."""
    yield
    torch.accelerator.synchronize(0)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    """An artifact: c = a + b."""
    write_artifact(tmp_path / "add", add_program(), add_spec(), name="add")
    return tmp_path / "add"


def new_queue() -> Queue:
    return backend.current().runtime.cards[0].new_queue()


def long(queue: Queue) -> None:
    queue.submit(Compute(1_000_000, lambda memory: None))


def read(tensor: torch.Tensor, queue: Queue) -> list[float]:
    """The different values of a float32 tensor, brought by a queue that nothing orders."""
    there = backend.current().runtime.pinned.allocate(tensor.nbytes).array
    queue.submit(D2H(device_range(tensor), there))
    queue.synchronize()
    return sorted({float(value) for value in there.view(np.float32)})


def test_launches_of_a_card_s_programs_go_one_at_a_time(add: Path) -> None:
    plan, args, free = prepare_kernel(add, 0), good(), list[bool]()

    class Watching(OneQueue):
        def launch(self, queue: Queue, bound: BoundLaunch) -> int:
            lock = bound.job.programs.lock
            other = Thread(target=lambda: free.append(lock.acquire(blocking=False)))
            other.start()
            other.join()
            return super().launch(queue, bound)

    with use(Watching()):
        launch_jobplan(plan, args)
    assert free == [False]


def test_a_launch_keeps_its_program_s_memory_without_derivation_too(add: Path) -> None:
    with backend.current().runtime.deriving(False):
        plan, args, queue = prepare_kernel(add, 0), good(), new_queue()
        memory = plan.job.loaded().allocation.nbytes
        torch.accelerator.synchronize(0)
        long(queue)
        launch_jobplan(plan, args, queue=queue)
        del plan
        gc.collect()
        noise = [torch.full((memory // 4,), 7.0, device="spyre:0") for _ in range(4)]
        queue.synchronize()
        assert args[2].cpu().unique().tolist() == [2]
        del noise


def incrementing_bytes() -> bytes:
    asm = Assembler("increment")
    n = asm.dimension("n", N)
    x = asm.argument("x", "float32")
    asm.store(x, {n: 1}, asm.load(x, {n: 1}) + 1.0)
    return encode(asm.assemble())


def incrementing(root: Path) -> Path:
    write_artifact(root / "increment", incrementing_bytes(), of("input_output"))
    return root / "increment"


def test_what_a_launch_updates_counts_as_written(tmp_path: Path) -> None:
    plan, x = prepare_kernel(incrementing(tmp_path), 0), torch.zeros(N, device="spyre:0")
    with backend.current().runtime.deriving(True):
        first, second = new_queue(), new_queue()
        long(first)
        launch_jobplan(plan, [x], queue=first)
        assert read(x, second) == [1]


def test_each_launch_touches_its_own_tensors_and_not_those_of_one_like_it(tmp_path: Path) -> None:
    plan = prepare_kernel(incrementing(tmp_path), 0)
    tensors = [torch.zeros(N, device="spyre:0") for _ in range(3)]
    with backend.current().runtime.deriving(True):
        for tensor in tensors:
            first, second = new_queue(), new_queue()
            long(first)
            launch_jobplan(plan, [tensor], queue=first)
            assert read(tensor, second) == [1]


def test_a_slot_waits_for_its_reader_on_another_queue_without_derivation_too(add: Path) -> None:
    with backend.current().runtime.deriving(False), use(OneQueue()):
        plan, (a, b, _) = prepare_kernel(add, 0, slots=1), good()
        busy, queues = new_queue(), [new_queue(), new_queue()]
        outs = [torch.zeros(4, 6, device="spyre:0") for _ in range(4)]
        torch.accelerator.synchronize(0)
        long(busy)
        for index, out in enumerate(outs):
            launch_jobplan(plan, [a, b, out], queue=queues[index % 2])
        torch.accelerator.synchronize(0)
        assert [out.cpu().unique().tolist() for out in outs] == [[2]] * 4


HARD = [
    *(295572, 216091, 378621, 272337, 390403, 225293, 381259, 403921, 160159, 278350, 403897),
    *(188073, 526825, 446026, 357925, 172934, 322578, 171489, 480738, 368351, 146713, 222418),
]
"""Strides of two views, 11 each: whether these have an element in common takes long to tell."""


def test_an_overlap_that_is_too_hard_to_tell_counts_as_one() -> None:
    base = torch.empty(sum(HARD[:11]) + 4, device="spyre:0")
    one = base.as_strided((2,) * 11, HARD[:11])
    other = base.as_strided((2,) * 11, HARD[11:], 1)
    assert _share_memory(one, other)
    assert not _share_memory(one[0], one[1])


def test_a_size_below_its_least_is_refused() -> None:
    with pytest.raises(LaunchMismatchError, match="columns of 1 to 512"):
        SPEC.check(tensors(columns=0), (0.5, 7), card=0)


def test_a_slot_of_another_size_is_refused_though_its_entries_fit(tmp_path: Path) -> None:
    asm = Assembler("unused")
    n = asm.dimension("n", N)
    out = asm.argument("out", "float32")
    asm.store(out, {n: 1}, 1.0)
    program = replace(asm.assemble(), symbols=1)  # nothing uses it: any entry will do
    write_artifact(tmp_path / "unused", encode(program), of("output", "input"))
    with pytest.raises(ArtifactError, match="asks for, 384 bytes"):
        prepare_kernel(tmp_path / "unused", 0)


def test_a_program_that_runs_ahead_comes_after_what_the_one_before_it_waited_for() -> None:
    bench = Programmed()
    bench.launch(0, barrier=True)
    bench.results()
    bench.runtime.sanitizer.switch_on([bench.card.card.memory])
    assert bench.runtime.memcheck is not None
    bench.runtime.memcheck.handed_out(0, bench.address)
    preparation, patched = bench.card.new_queue(), EventSignal()
    preparation.submit(bench.transfer(1, slot=1))
    preparation.submit(patched)
    bench.queue.submit(EventWait(patched))
    bench.queue.submit(bench.run(slot=0, barrier=True))
    bench.queue.submit(bench.run(slot=1, barrier=False))
    assert bench.results() == [2, 4, 0]
    assert bench.runtime.sanitizer.reports == []


@pytest.mark.parametrize("way", ["mask", "index"])
def test_what_a_program_stores_by_mask_or_index_is_fresh_no_more(tmp_path: Path, way: str) -> None:
    asm = Assembler("half")
    n = asm.dimension("n", N if way == "mask" else N // 2)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    place, value = asm.index(n), asm.load(x, {n: 1})
    if way == "mask":
        asm.store(out, {n: 1}, value, mask=asm.apply("less", place, N // 2))
    else:
        asm.store(out, {}, value, indices=[(place, 1, N)])
    write_artifact(tmp_path / "half", encode(asm.assemble()), of("input", "output"))
    plan, x_there = prepare_kernel(tmp_path / "half", 0), torch.ones(N).to("spyre:0")
    with torch.spyre.sanitizer():
        result = torch.empty(N, device="spyre:0")
        launch_jobplan(plan, [x_there, result])
        assert result[: N // 2].cpu().eq(1).all()
    with torch.spyre.sanitizer.expect("uninitialised"):
        result = torch.empty(N, device="spyre:0")
        launch_jobplan(plan, [x_there, result])
        result[N // 2 :].cpu()


def with_plan(root: Path, *steps: object) -> None:
    """Put other steps in front of the run of an artifact."""
    file = root / "spyrecode.json"
    document = json.loads(file.read_text())
    document["JobExecPlan"][-1:-1] = steps
    document["digest"] = content_digest(document)
    file.write_text(json.dumps(document))


def move(direction: str, handle: int, start: int, size: int) -> dict[str, object]:
    properties = {"dirn": direction, "host_handle": handle, "dev_ptr": start, "size": size}
    return {"command": "DataTransfer", "properties": properties}


def test_host_buffers_of_a_plan_have_a_bound_in_all(tmp_path: Path) -> None:
    write_artifact(tmp_path / "copy", incrementing_bytes(), of("input_output"), memory=30 << 20)
    with_plan(tmp_path / "copy", *(move("D2H", handle, 0, 30 << 20) for handle in (5, 6, 5)))
    prepare_kernel(tmp_path / "copy", 0)
    with_plan(tmp_path / "copy", move("D2H", 7, 0, 30 << 20))
    with pytest.raises(ArtifactError, match=r"94[0-9]* bytes; expected at most 67108864 in all"):
        prepare_kernel(tmp_path / "copy", 0)


@pytest.mark.parametrize("handle", [0, 7])
def test_a_slot_that_is_overwritten_by_something_else_is_filled_no_more(
    tmp_path: Path, handle: int
) -> None:
    write_artifact(tmp_path / "copy", incrementing_bytes(), of("input_output"))
    with_plan(tmp_path / "copy", move("D2H", handle, 256, 256), move("H2D", handle, 0, 256))
    with pytest.raises(ArtifactError, match="a slot at 0, which no transfer before has filled"):
        prepare_kernel(tmp_path / "copy", 0)


def test_a_space_that_no_launch_can_run_is_not_prepared(tmp_path: Path) -> None:
    asm = Assembler("huge")
    n = asm.dimension("n", 1 << 62)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    asm.store(out, {n: 0}, asm.load(x, {n: 0}))
    spec = LaunchSpec.of(
        [
            Argument("x", "input", "float32", (N,), (1,)),
            Argument("out", "output", "float32", (N,), (1,)),
        ]
    )
    write_artifact(tmp_path / "huge", encode(asm.assemble()), spec)
    with pytest.raises(ArtifactError, match="use larger tiles"):
        prepare_kernel(tmp_path / "huge", 0)
