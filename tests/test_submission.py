"""The submission seam: all that reaches the queues goes through it, and it can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from torch_spyre_ref import backend, submission
from torch_spyre_ref.aten.copies import device_range
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import (
    D2H,
    H2D,
    EventSignal,
    EventWait,
    Execute,
    Fill,
    HostCallback,
    Operation,
    Queue,
)
from torch_spyre_ref.spyrecode import Argument, LaunchSpec, write_artifact
from torch_spyre_ref.submission import BoundLaunch, OneQueue, Slot


class Recorder(OneQueue):
    """Writes down what goes by, and forwards it."""

    def __init__(self) -> None:
        self.transfers: list[tuple[str, str]] = []
        self.launches: list[tuple[str, int, list[type], list[type]]] = []

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        self.transfers.append((type(operation).__name__, label))
        return super().transfer(queue, operation, label)

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        kinds = [[type(operation) for operation, _ in part] for part in bound[-2:]]
        self.launches.append((bound.label, bound.slot.number, *kinds))
        return super().launch(queue, bound)


class Imagined:
    """A card without queues: everything happens at once, in dictionaries on the host."""

    def __init__(self) -> None:
        self.values: dict[int, torch.Tensor] = {}
        self.tickets = 0

    def _ticket(self) -> int:
        self.tickets += 1
        return 0  # of any queue: over before the first operation

    def transfer(self, queue: Queue, operation: Operation, label: str = "") -> int:
        match operation:
            case H2D(source, target):
                self.values[self._place(target)] = torch.from_numpy(source.copy())
            case D2H(source, target):
                target[:] = self.values[self._place(source)].numpy()
            case Fill(target, pattern):
                whole = np.frombuffer(pattern * (target.nbytes // len(pattern)), np.uint8)
                self.values[self._place(target)] = torch.from_numpy(whole.copy())
        return self._ticket()

    def prepares_on(self, queue: Queue) -> Queue:
        return queue

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        a, b, out = (self._place(device_range(tensor)) for tensor in bound.args)
        total = self.values[a].view(torch.float32) + self.values[b].view(torch.float32)
        self.values[out] = total.view(torch.uint8)
        return self._ticket()

    @staticmethod
    def _place(span: Any) -> int:
        chunk = span.address.chunks[0]
        return int(chunk.region << 40 | chunk.offset + span.offset)


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    yield
    for card in range(2):
        torch.accelerator.synchronize(card)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    """An artifact: c = a + b, 64 elements of float32."""
    asm = Assembler("add")
    n = asm.dimension("n", 64)
    a, b, c = (asm.argument(name, "float32") for name in "abc")
    asm.store(c, {n: 1}, asm.load(a, {n: 1}) + asm.load(b, {n: 1}))
    roles = {"a": "input", "b": "input", "c": "output"}
    spec = LaunchSpec.of(
        [Argument(name, role, "float32", (64,), (1,)) for name, role in roles.items()],  # type: ignore[arg-type]
        [],
    )
    write_artifact(tmp_path / "add", encode(asm.assemble()), spec, name="add")
    return tmp_path / "add"


def test_every_kind_of_copy_goes_through_the_submission_in_use() -> None:
    with submission.use(Recorder()) as recorder:
        x = torch.arange(8.0).to("spyre:0")
        y = torch.empty_like(x)
        y.copy_(x)
        y.t().fill_(3)
        x.zero_()
        x.to("spyre:1").cpu()
        torch.arange(8.0).pin_memory().to("spyre:0", non_blocking=True)
        torch.zeros(4, device="spyre:0").untyped_storage().resize_(64)
        pinned = torch.empty(8).pin_memory()
        pinned.copy_(y)
    assert [kind for kind, _ in recorder.transfers] == [
        *("H2D", "D2D", "Fill", "Fill"),
        *("D2H", "EventSignal", "EventWait", "H2D", "D2H"),
        *("H2D", "Fill", "D2D", "D2H"),
    ]
    assert pinned.tolist() == [3] * 8


def test_a_launch_goes_through_it_whole(add: Path) -> None:
    with submission.use(Recorder()) as recorder:
        plan = prepare_kernel(add, 0)
        assert recorder.transfers == [("Fill", "unpatched"), ("H2D", "load program")]
        a, b = torch.ones(64).to("spyre:0"), torch.full((64,), 4.0).to("spyre:0")
        c = torch.zeros(64, device="spyre:0")
        for _ in range(3):
            launch_jobplan(plan, [a, b, c])
        assert c.cpu().unique().tolist() == [5]
    parts = [HostCallback, H2D], [Execute]
    assert recorder.launches == [("add", slot, *parts) for slot in (0, 1, 0)]


def test_a_bound_launch_tells_what_its_patch_was_packed_from(add: Path) -> None:
    seen: list[tuple[bytes, list[Any], Any]] = []

    class Curious(OneQueue):
        def launch(self, queue: Queue, bound: BoundLaunch) -> int:
            spans = [device_range(tensor) for tensor in bound.args]
            seen.append((bound.patch, spans, bound.job.artifact.spec))
            return super().launch(queue, bound)

    plan = prepare_kernel(add, 0)
    args = [torch.ones(64, device="spyre:0") for _ in range(3)]
    with submission.use(Curious()):
        launch_jobplan(plan, args)
    ((patch, spans, spec),) = seen
    assert patch == plan.patch(args, ())
    assert [span.nbytes for span in spans] == [256] * 3
    assert spec == plan.spec


def test_what_lies_below_can_be_replaced(add: Path) -> None:
    """Without the real queue: no operation reaches it, and the values come from elsewhere."""
    timeline = backend.current().runtime.timeline
    torch.accelerator.synchronize(0)
    before = [record for record in timeline if record.label != "poison"]
    with submission.use(Imagined()) as imagined:
        plan = prepare_kernel(add, 0)
        a, b = torch.arange(64.0).to("spyre:0"), torch.full((64,), 2.0, device="spyre:0")
        c = torch.empty(64, device="spyre:0")
        launch_jobplan(plan, [a, b, c])
        result = c.cpu()
    torch.testing.assert_close(result, torch.arange(64.0) + 2)
    assert imagined.tickets == 6
    torch.accelerator.synchronize(0)
    assert [record for record in timeline if record.label != "poison"] == before


class TwoQueues(OneQueue):
    """Preparation on a companion of the caller's queue, an event, compute on the queue itself."""

    def __init__(self) -> None:
        self.companions: dict[Queue, Queue] = {}

    def prepares_on(self, queue: Queue) -> Queue:
        if queue not in self.companions:
            card = backend.current().runtime.cards[queue.device]
            self.companions[queue] = card.new_queue()
        return self.companions[queue]

    def launch(self, queue: Queue, bound: BoundLaunch) -> int:
        patched, companion, reader = EventSignal(), bound.prepared_on, bound.slot.reader()
        companion.submit_prepared(bound.preparation, bound.label, after=reader)
        companion.submit(patched)
        queue.submit(EventWait(patched))
        return queue.submit_prepared(bound.compute, bound.label)


def test_a_topology_of_two_queues_is_another_submission(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    a, b = torch.ones(64).to("spyre:0"), torch.full((64,), 1.0).to("spyre:0")
    results = [torch.zeros(64, device="spyre:0") for _ in range(8)]
    torch.accelerator.synchronize(0)
    timeline = backend.current().runtime.timeline
    with submission.use(TwoQueues()):
        timeline.clear()
        for result in results:
            launch_jobplan(plan, [a, b, result])
            a = result
        torch.accelerator.synchronize(0)
        records = list(timeline)
    assert [r.cpu().unique().tolist() for r in results] == [[n + 2.0] for n in range(8)]
    used = {kind: {r.queue for r in records if r.kind == kind} for kind in ("H2D", "Execute")}
    assert used["H2D"].isdisjoint(used["Execute"])


def test_a_submission_that_refuses_leaves_the_slot_to_the_next(add: Path) -> None:
    class Refusing(OneQueue):
        def launch(self, queue: Queue, bound: BoundLaunch) -> int:
            raise RuntimeError("not today")

    plan = prepare_kernel(add, 0)
    args = [torch.ones(64, device="spyre:0") for _ in range(3)]
    with pytest.raises(RuntimeError, match="not today"), submission.use(Refusing()):
        launch_jobplan(plan, args)
    launch_jobplan(plan, args)
    assert args[2].cpu().unique().tolist() == [2]


def test_blocks_nest_and_end_with_what_was_there() -> None:
    before = backend.current().submission
    with submission.use(Recorder()) as outer:
        with submission.use(Recorder()) as inner:
            assert backend.current().submission is inner
        assert backend.current().submission is outer
    assert backend.current().submission is before


def test_other_threads_use_it_too() -> None:
    with submission.use(Recorder()) as recorder:
        thread = Thread(target=lambda: torch.zeros(4, device="spyre:0"))
        thread.start()
        thread.join()
    assert recorder.transfers == [("Fill", "")]


def test_a_slot_has_a_reader_until_that_is_over() -> None:
    queue = backend.current().runtime.cards[0].new_queue()
    slot = Slot(0)
    assert slot.reader() is None
    slot.queue, slot.ticket = queue, queue.submit(HostCallback(lambda: None))
    assert slot.reader() == (queue, slot.ticket)
    queue.synchronize()
    assert slot.reader() is None
    queue.close()


def test_a_slot_whose_reader_is_over_may_still_be_patched() -> None:
    card, slot = backend.current().runtime.cards[0], Slot(0)
    queue, preparing = card.new_queue(), card.new_queue()
    run = queue.submit(HostCallback(lambda: None, 5000))
    patch = preparing.submit(HostCallback(lambda: None, 50_000))
    slot.used((queue, preparing), (run, patch))
    assert slot.reader() == (queue, run)
    queue.synchronize()
    assert slot.reader() == (preparing, patch)
    preparing.synchronize()
    assert slot.reader() is None
    queue.close(), preparing.close()
