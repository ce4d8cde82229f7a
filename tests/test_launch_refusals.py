"""What a launch refuses, and that a refused one leaves no trace: also of programs off the card."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_launch import add_program, add_spec, copy_program, good, of
from torch_spyre_ref import backend
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import HostCallback, Queue, QueueError
from torch_spyre_ref.spyrecode import (
    Argument,
    Dimension,
    LaunchMismatchError,
    LaunchSpec,
    write_artifact,
)


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    """What is pending keeps its program on the card."""
    yield
    for card in range(2):
        torch.accelerator.synchronize(card)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    """An artifact: c = a + b."""
    write_artifact(tmp_path / "add", add_program(), add_spec(), name="add")
    return tmp_path / "add"


def fail() -> None:
    raise ValueError("unit 7")


def closed() -> Queue:
    queue = backend.current().runtime.cards[0].new_queue()
    queue.close()
    return queue


def poisoned() -> Queue:
    queue = backend.current().runtime.cards[0].new_queue()
    queue.submit(HostCallback(fail))
    queue.settle()
    return queue


def without_storage(args: list[torch.Tensor]) -> list[torch.Tensor]:
    args[1].untyped_storage().resize_(0)
    return args


def overlapping(args: list[torch.Tensor]) -> list[torch.Tensor]:
    base = torch.ones(8, 6, device="spyre:0")
    return [base[:4], args[1], base[1:5]]


WRONG_ARGUMENTS: dict[str, Callable[[list[torch.Tensor]], list[Any]]] = {
    "overlap": overlapping,
    "no storage": without_storage,
    "shape": lambda args: [args[0][:2], *args[1:]],
}
WRONG_QUEUES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "closed": (closed, QueueError, "is closed"),
    "poisoned": (poisoned, QueueError, "is poisoned"),
    "other card": (
        lambda: backend.current().runtime.cards[1].default_queue,
        ValueError,
        r"queue 1\.0 of card 1 .* program on card 0",
    ),
    "stream": (lambda: torch.Stream("spyre:0"), TypeError, "with stream:"),
    "number": (lambda: 0, TypeError, "int; expected a Queue"),
}


def traces() -> list[Any]:
    """All that a launch could leave behind."""
    gc.collect()
    runtime = backend.current().runtime
    queues = [queue for card in runtime.cards for queue in card.queues]
    return [
        len(runtime.timeline),
        [(len(queue.pending()), queue.done) for queue in queues],
        [torch.accelerator.memory_stats(card) for card in (0, 1)],
    ]


def off_the_card(plan: JobPlan) -> None:
    while plan.job.memory is not None:
        assert backend.current().programs(0).evict()
    gc.collect()
    torch.accelerator.synchronize(0)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("what", WRONG_ARGUMENTS)
def test_wrong_arguments_leave_no_trace(add: Path, what: str, is_there: bool) -> None:
    plan = prepare_kernel(add, 0)
    args = WRONG_ARGUMENTS[what](good())
    torch.accelerator.synchronize(0)
    if not is_there:
        off_the_card(plan)
    before = traces()
    with pytest.raises(RuntimeError if what == "no storage" else LaunchMismatchError):
        launch_jobplan(plan, args)
    assert traces() == before


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("what", WRONG_QUEUES)
def test_a_wrong_queue_leaves_no_trace(add: Path, what: str, is_there: bool) -> None:
    make, error, message = WRONG_QUEUES[what]
    plan, args, queue = prepare_kernel(add, 0), good(), make()
    torch.accelerator.synchronize(1)
    other = torch.full((4, 6), 7.0, device="spyre:1")
    backend.current().queue(0).settle()
    backend.current().queue(1).settle()
    if not is_there:
        off_the_card_of(plan)
    before = traces()
    with pytest.raises(error, match=message):
        launch_jobplan(plan, args, queue=queue)
    assert traces() == before
    assert other.cpu().unique().tolist() == [7]
    if isinstance(queue, Queue):
        queue.reset()


def off_the_card_of(plan: JobPlan) -> None:
    """As ``off_the_card``, while a queue is poisoned."""
    while plan.job.memory is not None:
        assert backend.current().programs(0).evict()
    gc.collect()
    backend.current().queue(0).settle()


N = 64
FLAT = of("input", "output")
SQUARE = LaunchSpec.of(
    [Argument(k, r, "float32", (N, N), (N, 1)) for k, r in (("x", "input"), ("y", "output"))]  # type: ignore[arg-type]
)


def transposing() -> bytes:
    """y = x.t()."""
    asm = Assembler("transpose")
    i, j = asm.dimension("i", N), asm.dimension("j", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {i: 1, j: N}, asm.load(x, {i: N, j: 1}))
    return encode(asm.assemble())


def flipping() -> bytes:
    """y = x.flip(0)."""
    asm = Assembler("flip")
    n = asm.dimension("n", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {n: 1}, asm.load(x, {n: -1}, N - 1))
    return encode(asm.assemble())


def squaring() -> bytes:
    """y = x @ x."""
    asm = Assembler("square")
    i, j, k = (asm.dimension(name, N) for name in "ijk")
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    with asm.stream(k):
        product = asm.matmul(asm.load(x, {i: N, k: 1}), asm.load(x, {k: N, j: 1}))
    asm.store(y, {i: N, j: 1}, product)
    return encode(asm.assemble())


def gathering() -> bytes:
    """y = x[index], and the index is 0, 1, ...: a launch knows, and nobody else."""
    asm = Assembler("gather")
    n = asm.dimension("n", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {n: 1}, asm.load(x, {}, indices=[(asm.index(n), 1, N)]))
    return encode(asm.assemble())


def reading_again() -> bytes:
    """y = x, and then y = x + y: by then x is gone."""
    asm = Assembler("again")
    n = asm.dimension("n", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {n: 1}, asm.load(x, {n: 1}))
    asm.stage()
    n = asm.dimension("n", N)
    asm.store(y, {n: 1}, asm.load(x, {n: 1}) + asm.load(y, {n: 1}))
    return encode(asm.assemble())


def not_needing_it() -> bytes:
    """y = the sum of x in every element, which a later pass computes."""
    asm = Assembler("needless")
    n = asm.dimension("n", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {n: 1}, 2.0)
    asm.stage()
    n = asm.dimension("n", N)
    asm.store(y, {n: 1}, asm.load(x, {n: 1}) * 3.0)
    return encode(asm.assemble())


def scaling_rows() -> bytes:
    """y = x / x.sum(1, keepdim=True): a pass for the sum, and one that loads x again."""
    asm = Assembler("rows")
    i, j = asm.dimension("i", N), asm.dimension("j", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    with asm.stream(j):
        total = asm.reduce("sum", asm.load(x, {i: N, j: 1}))
    with asm.stream(j):
        asm.store(y, {i: N, j: 1}, asm.load(x, {i: N, j: 1}) / total)
    return encode(asm.assemble())


def by_own_memory() -> bytes:
    """y = x.t(), by way of the job's own memory: one stage loads all, and the next stores."""
    asm = Assembler("own")
    i, j = asm.dimension("i", N), asm.dimension("j", N)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    own = asm.job_memory("own", "float32", 128)
    asm.store(own, {i: 1, j: N}, asm.load(x, {i: N, j: 1}))
    asm.stage()
    i, j = asm.dimension("i", N), asm.dimension("j", N)
    asm.store(y, {i: N, j: 1}, asm.load(own, {i: N, j: 1}))
    return encode(asm.assemble())


NEVER: dict[str, tuple[Callable[[], bytes], LaunchSpec]] = {
    "transposing": (transposing, SQUARE),
    "flipping": (flipping, FLAT),
    "matmul": (squaring, SQUARE),
    "gathering": (gathering, FLAT),
    "reading again": (reading_again, FLAT),
    "storing before": (not_needing_it, FLAT),
}
IN_PLACE: dict[str, tuple[Callable[[], bytes], LaunchSpec]] = {
    "copying": (copy_program, FLAT),
    "rows": (scaling_rows, SQUARE),
    "own memory": (by_own_memory, SQUARE),
}


def prepared(root: Path, make: Callable[[], bytes], spec: LaunchSpec) -> JobPlan:
    write_artifact(root / "program", make(), spec, name="program", memory=256 + 4 * N * N)
    return prepare_kernel(root / "program", 0)


def apart(plan: JobPlan, x: torch.Tensor) -> torch.Tensor:
    """The result, in memory of its own."""
    y = torch.empty(x.shape, device="spyre:0")
    launch_jobplan(plan, [x.to("spyre:0"), y])
    return y.cpu()


@pytest.mark.parametrize("what", NEVER)
def test_a_program_that_would_read_what_it_wrote_is_refused_in_place(
    tmp_path: Path, what: str
) -> None:
    plan = prepared(tmp_path, *NEVER[what])
    x = torch.randn(plan.spec.arguments[0].shape)
    there = x.to("spyre:0")
    with pytest.raises(LaunchMismatchError, match=r"the same elements, and program 'program' may"):
        launch_jobplan(plan, [there, there])
    assert torch.equal(there.cpu(), x)
    apart(plan, x)


@pytest.mark.parametrize("what", IN_PLACE)
def test_a_program_that_loads_before_it_stores_may_work_in_place(tmp_path: Path, what: str) -> None:
    plan = prepared(tmp_path, *IN_PLACE[what])
    x = torch.randn(plan.spec.arguments[0].shape)
    there, expected = x.to("spyre:0"), apart(plan, x)
    launch_jobplan(plan, [there, there])
    assert torch.equal(there.cpu(), expected)


def test_strides_that_only_a_launch_knows_are_the_same_of_the_same_tensor(tmp_path: Path) -> None:
    asm = Assembler("symbols")
    size, one, other = asm.size_symbol(), asm.size_symbol(), asm.size_symbol()
    n = asm.dimension("n", size)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {n: other}, asm.load(x, {n: one}) * 2.0)
    spec = LaunchSpec.of(
        [
            Argument("x", "input", "float32", ("n",), ("one",)),
            Argument("y", "output", "float32", ("n",), ("other",)),
        ],
        [Dimension("n", 0, 4096), Dimension("one", 1, 64), Dimension("other", 1, 64)],
    )
    write_artifact(tmp_path / "symbols", encode(asm.assemble()), spec)
    plan, base = prepare_kernel(tmp_path / "symbols", 0), torch.ones(1000, device="spyre:0")
    launch_jobplan(plan, [base[::3], base[::3]])
    assert base.cpu()[::3].eq(2).all()
    assert base.cpu().sum() == 1000 + 334


def test_a_store_that_does_not_wait_for_a_load_is_refused_in_place(tmp_path: Path) -> None:
    asm = Assembler("two")
    n = asm.dimension("n", N)
    x, y, z = (asm.argument(name, "float32") for name in "xyz")
    asm.store(y, {n: 1}, 1.0)
    asm.store(z, {n: 1}, asm.load(x, {n: 1}))
    write_artifact(tmp_path / "two", encode(asm.assemble()), of("input", "output", "output"))
    plan = prepare_kernel(tmp_path / "two", 0)
    x, y, z = (torch.full((N,), float(value)).to("spyre:0") for value in (7, 0, 0))
    with pytest.raises(LaunchMismatchError, match="may store to one before"):
        launch_jobplan(plan, [x, x, z])
    launch_jobplan(plan, [x, y, x])
    assert (x.cpu().unique().tolist(), y.cpu().unique().tolist()) == ([7], [1])


@pytest.mark.parametrize("slots", [True, 2.5, "2", None, 0, -1])
def test_slots_are_a_whole_number(add: Path, slots: Any) -> None:
    with pytest.raises(ValueError, match="correction slots asked for; expected a whole number"):
        prepare_kernel(add, 0, slots=slots)
