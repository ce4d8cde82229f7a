"""Preparing and launching programs on tensors: values, refusals, sharing, eviction, leaks."""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Literal, TypeAlias

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import dlpack

from torch_spyre_ref import backend
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import ProgramError, encode
from torch_spyre_ref.emulator.program.formats import FORMATS
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.runtime import D2H, Fill, Queue, QueueError
from torch_spyre_ref.spyrecode import (
    Argument,
    ArtifactError,
    DataTransfer,
    Dimension,
    LaunchMismatchError,
    LaunchSpec,
    Scalar,
    write_artifact,
)
from torch_spyre_ref.spyrecode.artifact import BINARY, DOCUMENT, after
from torch_spyre_ref.spyrecode.reader import content_digest
from torch_spyre_ref.spyrecode.schema import pretty, write
from torch_spyre_ref.spyrecode.writer import assembled
from torch_spyre_ref.submission import BoundLaunch, OneQueue, use

Role: TypeAlias = Literal["input", "output", "input_output"]

SIZES = [Dimension("rows", 0, 4096), Dimension("columns", 0, 4096)]
PITCHES = [Dimension(f"{side}{name}", 0, 1 << 20) for name in "abc" for side in "rc"]


def add_program(dtype: str = "float32") -> bytes:
    """c = a + b over rows and columns, each argument with strides of its own."""
    asm = Assembler("add")
    sizes = [asm.size_symbol() for _ in SIZES]
    pitches = [asm.size_symbol() for _ in PITCHES]
    rows, columns = asm.dimension("rows", sizes[0]), asm.dimension("columns", sizes[1])
    a, b, c = (asm.argument(name, dtype) for name in "abc")
    places = [{rows: pitches[2 * i], columns: pitches[2 * i + 1]} for i in range(3)]
    asm.store(c, places[2], asm.load(a, places[0]) + asm.load(b, places[1]))
    return encode(asm.assemble())


def add_spec(dtype: str = "float32") -> LaunchSpec:
    roles = {"a": "input", "b": "input", "c": "output"}
    return LaunchSpec.of(
        [
            Argument(name, role, dtype, ("rows", "columns"), (f"r{name}", f"c{name}"))  # type: ignore[arg-type]
            for name, role in roles.items()
        ],
        [*SIZES, *PITCHES],
    )


def scale_program() -> bytes:
    """out = x * factor + shift, 64 elements of float32."""
    asm = Assembler("scale")
    n = asm.dimension("n", 64)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    factor, shift = asm.float_symbol(), asm.size_symbol()
    asm.store(out, {n: 1}, asm.load(x, {n: 1}) * factor + shift)
    return encode(asm.assemble())


SCALE = LaunchSpec.of(
    [
        Argument("x", "input", "float32", (64,), (1,)),
        Argument("out", "output", "float32", (64,), (1,)),
    ],
    [],
    [Scalar("factor", "float"), Scalar("shift", "integer")],
)


def sum_program() -> bytes:
    """out = sum of x over rows, by way of the job's own memory."""
    asm = Assembler("sum")
    size = asm.size_symbol()
    n = asm.dimension("n", size)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    own = asm.job_memory("own", "float32", 256)
    asm.store(own, {n: 1}, asm.load(x, {n: 1}) * 2.0)
    asm.stage()
    m = asm.dimension("m", size)
    with asm.stream(m):
        total = asm.reduce("sum", asm.load(own, {m: 1}))
    asm.store(out, {}, total)
    return encode(asm.assemble())


SUM = LaunchSpec.of(
    [
        Argument("x", "input", "float32", ("n",), (1,)),
        Argument("out", "output", "float32", (), ()),
    ],
    [Dimension("n", 0, 1024)],
)


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    """What is pending keeps its program on the card."""
    yield
    for card in range(2):
        torch.accelerator.synchronize(card)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    """An artifact. A fixture cannot be the plan: pytest would keep it past the end of the test."""
    write_artifact(tmp_path / "add", add_program(), add_spec(), name="add")
    return tmp_path / "add"


def on_card(tensor: torch.Tensor) -> torch.Tensor:
    """The same view, offset and strides included, of a copy of its whole storage."""
    base = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return base.to("spyre:0").as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def allocated(card: int = 0) -> int:
    return int(torch.accelerator.memory_stats(card)["allocated_bytes.all.current"])


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda t: t,
    "offset": lambda t: t[3:, 5:],
    "transposed": lambda t: t.t()[:40, :40].t(),
    "every other": lambda t: t[::2, 1::3],
    "one row for all": lambda t: t[4:5].expand(9, -1),
    "no rows": lambda t: t[7:7],
    "no columns": lambda t: t[:, 3:3],
    "one element": lambda t: t[8:9, 9:10],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_launch_computes_on_any_view(add: Path, view: str) -> None:
    plan = prepare_kernel(add, 0)
    a, b = (VIEWS[view](torch.randn(60, 50)) for _ in range(2))
    c = torch.zeros(a.shape).t().contiguous().t()
    args = [on_card(a), on_card(b), on_card(c)]
    launch_jobplan(plan, args)
    torch.testing.assert_close(args[2].cpu(), a + b)


def test_a_launch_writes_only_its_view(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    base = torch.randn(20, 30)
    card = base.to("spyre:0")
    a, b = torch.randn(2, 5, 7).to("spyre:0")
    launch_jobplan(plan, [a, b, card[2:12:2, 4:25:3]])
    base[2:12:2, 4:25:3] = (a + b).cpu()
    torch.testing.assert_close(card.cpu(), base)


def test_a_launch_computes_on_interleaved_tensors(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    a, b = torch.randn(2, 100, 64)
    with torch.spyre.placement("interleave"):
        card = [a.to("spyre:0"), b.to("spyre:0"), torch.empty(100, 64, device="spyre:0")]
    launch_jobplan(plan, card)
    torch.testing.assert_close(card[2].cpu(), a + b)
    launch_jobplan(plan, [x[3:90:2, 1:] for x in (card[2], card[1], card[0])])
    expected = a.clone()
    expected[3:90:2, 1:] = (a + b + b)[3:90:2, 1:]
    torch.testing.assert_close(card[0].cpu(), expected)


def test_one_artifact_serves_every_size(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    for shape in [(1, 1), (33, 65), (0, 4), (128, 2)]:
        a, b = torch.randn(2, *shape)
        c = torch.empty(shape, device="spyre:0")
        launch_jobplan(plan, [a.to("spyre:0"), b.to("spyre:0"), c])
        torch.testing.assert_close(c.cpu(), a + b)


def test_many_launches_without_waiting(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    a, b = torch.randn(2, 8, 8)
    card_a, card_b = a.to("spyre:0"), b.to("spyre:0")
    results = []
    for _ in range(50):
        results.append(torch.empty(8, 8, device="spyre:0"))
        launch_jobplan(plan, [card_a, card_b, results[-1]])
        card_a = results[-1]
    expected = a
    for result in results:
        expected = expected + b
        torch.testing.assert_close(result.cpu(), expected)


def test_scalars_are_symbols(tmp_path: Path) -> None:
    write_artifact(tmp_path / "scale", scale_program(), SCALE)
    plan = prepare_kernel(tmp_path / "scale", 0)
    x = torch.randn(64)
    card, out = x.to("spyre:0"), torch.empty(64, device="spyre:0")
    for factor, shift in [(0.5, 3), (-0.0, 0), (2.0, -7)]:
        launch_jobplan(plan, [card, out], [factor, shift])
        torch.testing.assert_close(out.cpu(), x * factor + shift)
    for scalars in [(1, 1), (1.0, 1.0), (1.0, True), (1.0,), (1.0, 1 << 63), (1.0, -(1 << 63) - 1)]:
        with pytest.raises(LaunchMismatchError):
            launch_jobplan(plan, [card, out], scalars)


def test_the_job_has_memory_of_its_own(tmp_path: Path) -> None:
    write_artifact(tmp_path / "sum", sum_program(), SUM, memory=256 + 4 * 1024)
    plan = prepare_kernel(tmp_path / "sum", 0)
    for count in (1000, 0, 7):
        x = torch.randn(count)
        out = torch.empty((), device="spyre:0")
        launch_jobplan(plan, [x.to("spyre:0"), out])
        torch.testing.assert_close(out.cpu(), (2 * x).sum(), rtol=1e-5, atol=1e-4)


def dtype_program(dtype: str) -> bytes:
    """out = a op b, 64 elements: the sum, and for bool the exclusive or."""
    asm = Assembler("dtype")
    n = asm.dimension("n", 64)
    a, b, out = (asm.argument(name, dtype) for name in ("a", "b", "out"))
    x, y = asm.load(a, {n: 1}), asm.load(b, {n: 1})
    asm.store(out, {n: 1}, asm.apply("logical_xor", x, y) if dtype == "bool" else x + y)
    return encode(asm.assemble())


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_launch_computes_on_every_dtype(tmp_path: Path, dtype: str) -> None:
    roles = {"a": "input", "b": "input", "out": "output"}
    spec = LaunchSpec.of([Argument(k, r, dtype, (64,), (1,)) for k, r in roles.items()])  # type: ignore[arg-type]
    write_artifact(tmp_path / "dtype", dtype_program(dtype), spec)
    plan = prepare_kernel(tmp_path / "dtype", 0)
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        a, b = (x.to(kind) for x in torch.randn(2, 64))
    elif kind is torch.bool:
        a, b = torch.rand(2, 64) < 0.5
    else:
        a, b = (x.view(kind)[:64] for x in torch.randint(0, 256, (2, 512), dtype=torch.uint8))
    out = torch.zeros(64, dtype=kind, device="spyre:0")
    launch_jobplan(plan, [a.to("spyre:0"), b.to("spyre:0"), out])
    signed = getattr(torch, dtype.removeprefix("u"))  # the host adds few unsigned kinds
    expected = a ^ b if kind is torch.bool else (a.view(signed) + b.view(signed)).view(kind)
    assert torch.equal(out.cpu().view(torch.uint8), expected.view(torch.uint8))


def test_a_step_may_bring_the_memory_of_the_job_to_the_host(tmp_path: Path) -> None:
    artifact = assembled(sum_program(), SUM, name="sum", memory=256 + 4 * 1024)
    own = after(artifact.binary)
    out = DataTransfer("D2H", 1, own + 256, 4 * 64)
    artifact = replace(artifact, execution=(*artifact.execution, out))
    artifact = replace(artifact, digest=content_digest(write(artifact)))
    root = tmp_path / "sum"
    root.mkdir()
    (root / BINARY).write_bytes(artifact.program)
    (root / DOCUMENT).write_text(pretty(write(artifact)))
    brought: list[Any] = []

    class Watching(OneQueue):
        def launch(self, queue: Queue, bound: BoundLaunch) -> int:
            brought.append(bound.compute[-1][0])
            return super().launch(queue, bound)

    plan = prepare_kernel(root, 0)
    with use(Watching()):
        for start in (0.0, 7.0):
            x = torch.arange(start, start + 64)
            total = torch.empty((), device="spyre:0")
            launch_jobplan(plan, [x.to("spyre:0"), total])
            torch.testing.assert_close(total.cpu(), 2 * x.sum())
            step = brought.pop()
            assert isinstance(step, D2H)
            assert step.target.view("float32").tolist() == (2 * x).tolist()


def test_both_cards_have_programs_of_their_own(tmp_path: Path) -> None:
    write_artifact(tmp_path / "add", add_program(), add_spec())
    plans = [prepare_kernel(tmp_path / "add", card) for card in (0, 1)]
    for card, plan in enumerate(plans):
        a, b = torch.randn(2, 3, 4)
        c = torch.empty(3, 4, device=f"spyre:{card}")
        launch_jobplan(plan, [a.to(c.device), b.to(c.device), c])
        torch.testing.assert_close(c.cpu(), a + b)
    with pytest.raises(LaunchMismatchError, match="card 1"):
        launch_jobplan(plans[0], [c, c, c])


def good() -> list[torch.Tensor]:
    return [torch.ones(4, 6, device="spyre:0") for _ in range(3)]


BAD: dict[str, Callable[[list[Any]], Sequence[Any]]] = {
    "dtype": lambda t: [t[0].to(torch.float16), t[1], t[2]],
    "shape": lambda t: [t[0][:2], t[1], t[2]],
    "rank": lambda t: [t[0][0], t[1], t[2]],
    "host": lambda t: [t[0].cpu(), t[1], t[2]],
    "fewer": lambda t: t[:2],
    "more": lambda t: [*t, t[0]],
    "no tensor": lambda t: [t[0], 3, t[2]],
    "negated": lambda t: [t[0]._neg_view(), t[1], t[2]],
}


@pytest.mark.parametrize("what", BAD)
def test_a_mismatch_is_refused_before_anything_is_enqueued(add: Path, what: str) -> None:
    plan = prepare_kernel(add, 0)
    args = BAD[what](good())
    torch.accelerator.synchronize(0)
    done, memory = len(list(backend.current().runtime.timeline)), allocated()
    with pytest.raises(LaunchMismatchError):
        launch_jobplan(plan, args)
    queue = backend.current().queue(0)
    assert not queue.pending()
    assert (len(list(backend.current().runtime.timeline)), allocated()) == (done, memory)
    args = good()
    launch_jobplan(plan, args)
    assert args[2].cpu().unique().tolist() == [2]


class Plain(torch.Tensor):
    """A subclass that has nothing of its own."""


class Answering(torch.Tensor):
    """A tensor for which Python answers, over a storage of its own."""

    @classmethod
    def __torch_dispatch__(cls, *call: Any) -> Any:
        raise AssertionError("nobody asked")


TAKEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "parameter": torch.nn.Parameter,
    "subclass": lambda t: t.as_subclass(Plain),
    "subclass with a dispatcher": lambda t: torch.Tensor._make_subclass(Answering, t),
    "from DLPack": lambda t: dlpack.from_dlpack(dlpack.to_dlpack(t)),
}


@pytest.mark.parametrize("what", TAKEN)
def test_what_has_a_tensor_s_memory_is_taken(add: Path, what: str) -> None:
    plan = prepare_kernel(add, 0)
    for _ in range(2):
        a, b, c = good()
        launch_jobplan(plan, [TAKEN[what](a), TAKEN[what](b[:, :]), c])
        assert c.cpu().unique().tolist() == [2]


def without_storage() -> torch.Tensor:
    tensor = torch.ones(4, 6, device="spyre:0")
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(4, 6, device="spyre:0")


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "None": (lambda: None, LaunchMismatchError, "None was given where a tensor belongs"),
    "text": (lambda: "x", LaunchMismatchError, "'x' was given where a tensor belongs"),
    "sparse": (lambda: torch.eye(4).to_sparse(), LaunchMismatchError, "device cpu was given"),
    "meta": (lambda: torch.empty(4, 6, device="meta"), LaunchMismatchError, "device meta"),
    "no element": (lambda: torch.ones(0, 6, device="spyre:0"), LaunchMismatchError, r"\(0, 6\)"),
    "no storage": (without_storage, RuntimeError, "has no memory"),
    "fake": (fake, RuntimeError, "has no memory"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
def test_what_has_no_memory_of_its_own_is_refused_also_after_what_has(add: Path, what: str) -> None:
    make, error, message = REFUSED[what]
    plan, (a, b, c) = prepare_kernel(add, 0), good()
    for _ in range(2):
        with pytest.raises(error, match=message):
            launch_jobplan(plan, [a, make(), c])  # type: ignore[list-item]
        launch_jobplan(plan, [a, b, c])
    assert c.cpu().unique().tolist() == [2]


def test_a_tensor_of_a_functional_transform_is_refused(add: Path) -> None:
    plan, (a, b, c) = prepare_kernel(add, 0), good()

    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(NotImplementedError, match="Cannot access storage"):
            launch_jobplan(plan, [a, x, c])
        return x.sum()

    torch.func.vmap(inside)(torch.ones(2, 4, 6, device="spyre:0"))
    torch.func.grad(inside)(b)


def test_arguments_in_another_order_are_refused(tmp_path: Path) -> None:
    write_artifact(tmp_path / "sum", sum_program(), SUM, memory=256 + 4 * 1024)
    plan = prepare_kernel(tmp_path / "sum", 0)
    x, out = torch.ones(8, device="spyre:0"), torch.zeros((), device="spyre:0")
    with pytest.raises(LaunchMismatchError, match="argument 0, input 'x': shape"):
        launch_jobplan(plan, [out, x])


def test_a_refused_launch_on_a_poisoned_queue_changes_nothing(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    args, queue = good(), backend.current().runtime.cards[0].new_queue()
    torch.accelerator.synchronize(0)
    launch_jobplan(plan, args, queue=queue)
    queue.close()
    before = allocated()
    with pytest.raises(QueueError, match="is closed"):
        launch_jobplan(plan, args, queue=queue)
    assert (queue.pending(), allocated()) == ([], before)
    launch_jobplan(plan, args)
    assert args[2].cpu().unique().tolist() == [2]


def test_threads_launch_one_program_at_once(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    a, b, _ = good()
    results = [torch.zeros(4, 6, device="spyre:0") for _ in range(32)]

    def work(part: int) -> None:
        for result in results[part::4]:
            launch_jobplan(plan, [a, b, result])

    threads = [Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.stack([result.cpu() for result in results]).unique().tolist() == [2]


def test_a_result_that_overlaps_itself_is_refused(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    a, b, c = good()
    with pytest.raises(RuntimeError, match="single memory location"):
        launch_jobplan(plan, [a, b, c[:1].expand(4, 6)])


def test_programs_give_way_to_programs(tmp_path: Path, region_bytes: int) -> None:
    torch.accelerator.empty_cache()
    plans = []
    for index in range(9):  # a card has room for eight, and for seven beside other tensors
        memory = region_bytes - (64 << 10) + 128 * index
        write_artifact(tmp_path / f"{index}", add_program(), add_spec(), memory=memory)
        plans.append(prepare_kernel(tmp_path / f"{index}", 0))
    loaded = [plan.job.memory is not None for plan in plans]
    assert loaded in ([False] * 1 + [True] * 8, [False] * 2 + [True] * 7)
    args = good()
    for plan in plans:
        launch_jobplan(plan, args)
        assert args[2].cpu().unique().tolist() == [2]
    assert plans[0].job.memory is None
    assert plans[-1].job.memory is not None


def square() -> torch.Tensor:
    return torch.ones(8, 8, device="spyre:0")


OVERLAPS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "one row further": lambda t: [t[:4], square()[:4], t[1:5]],
    "the other input": lambda t: [square()[:4], t[:4], t[1:5]],
    "transposed": lambda t: [t, square(), t.t()],
    "one row for all": lambda t: [t[:1].expand(8, 8), square(), t],
    "columns that meet": lambda t: [t[:, :5], square()[:, :5], t[:, 3:]],
}


@pytest.mark.parametrize("what", OVERLAPS)
def test_a_result_that_overlaps_an_operand_in_part_is_refused(add: Path, what: str) -> None:
    plan = prepare_kernel(add, 0)
    args = OVERLAPS[what](square())
    torch.accelerator.synchronize(0)
    done = len(backend.current().runtime.timeline)
    with pytest.raises(LaunchMismatchError, match=r"output 'c'.*some of the same elements"):
        launch_jobplan(plan, args)
    assert not backend.current().queue(0).pending()
    assert len(backend.current().runtime.timeline) == done


BESIDE: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "in place": lambda t: [t, square(), t],
    "twice in place": lambda t: [t, t, t],
    "inputs that overlap": lambda t: [t[:4], t[1:5], square()[:4]],
    "other rows": lambda t: [t[:4], square()[:4], t[4:]],
    "other columns": lambda t: [t[:, ::2], square()[:, ::2], t[:, 1::2]],
    "no elements": lambda t: [t[:0], t[3:3], t[2:2]],
}


@pytest.mark.parametrize("what", BESIDE)
def test_a_result_beside_or_exactly_on_its_operands_is_taken(add: Path, what: str) -> None:
    plan = prepare_kernel(add, 0)
    args = BESIDE[what](square())
    launch_jobplan(plan, args)
    torch.testing.assert_close(args[2].cpu(), torch.full(args[2].shape, 2.0))


def test_two_results_in_one_place_are_refused(tmp_path: Path) -> None:
    asm = Assembler("two")
    n = asm.dimension("n", 64)
    x, y, z = (asm.argument(name, "float32") for name in "xyz")
    asm.store(y, {n: 1}, asm.load(x, {n: 1}))
    asm.store(z, {n: 1}, asm.load(x, {n: 1}) + 1.0)
    roles = {"x": "input", "y": "output", "z": "input_output"}
    spec = LaunchSpec.of([Argument(k, r, "float32", (64,), (1,)) for k, r in roles.items()])  # type: ignore[arg-type]
    write_artifact(tmp_path / "two", encode(asm.assemble()), spec)
    plan = prepare_kernel(tmp_path / "two", 0)
    x, y = torch.ones(64).to("spyre:0"), torch.zeros(64).to("spyre:0")
    with pytest.raises(LaunchMismatchError, match="output 'y' and input_output 'z'"):
        launch_jobplan(plan, [x, y, y])


def test_a_tensor_whose_storage_went_is_refused(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    a, b, c = good()
    launch_jobplan(plan, [a, b, c])
    b.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="resized to 0 bytes"):
        launch_jobplan(plan, [a, b, c])


@pytest.mark.parametrize(
    ("program", "spec"),
    [
        (add_program(), SCALE),
        (scale_program(), add_spec()),
        (add_program("float16"), add_spec()),
        (
            scale_program(),
            LaunchSpec.of(
                SCALE.arguments, [], [Scalar("factor", "integer"), Scalar("shift", "float")]
            ),
        ),
    ],
)
def test_a_program_with_another_slot_is_refused(
    tmp_path: Path, program: bytes, spec: LaunchSpec
) -> None:
    write_artifact(tmp_path / "odd", program, spec)
    before = allocated()
    with pytest.raises(ArtifactError, match="asks for"):
        prepare_kernel(tmp_path / "odd", 0)
    assert allocated() == before


def test_equal_programs_are_there_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_artifact(tmp_path / name, add_program(), add_spec(), name="add")
    before = allocated()
    first = prepare_kernel(tmp_path / "one", 0)
    taken = allocated() - before
    second = prepare_kernel(tmp_path / "two", 0)
    assert taken > 0
    assert allocated() - before == taken
    assert first.job is second.job
    del first, second
    gc.collect()
    assert allocated() == before


def test_a_plan_that_goes_leaves_its_launches_whole(tmp_path: Path) -> None:
    write_artifact(tmp_path / "add", add_program(), add_spec())
    before = allocated()
    plan = prepare_kernel(tmp_path / "add", 0)
    args = good()
    queue = backend.current().runtime.cards[0].new_queue()
    torch.accelerator.synchronize(0)
    launch_jobplan(plan, args, queue=queue)
    del plan
    gc.collect()
    noise = [torch.full((64,), 7.0).to("spyre:0") for _ in range(64)]
    queue.synchronize()
    assert args[2].cpu().unique().tolist() == [2]
    del noise, args
    torch.accelerator.synchronize(0)
    assert allocated() == before


def test_emptying_the_cache_leaves_programs_where_they_are(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    args = good()
    launch_jobplan(plan, args)
    torch.accelerator.synchronize(0)
    torch.accelerator.empty_cache()
    assert plan.job.memory is not None
    launch_jobplan(plan, args)
    assert args[2].cpu().unique().tolist() == [2]


def test_programs_give_way_one_by_one_the_longest_unused_first(
    tmp_path: Path, region_bytes: int
) -> None:
    memory = region_bytes // 2
    plans = []
    for index in range(3):
        write_artifact(
            tmp_path / f"{index}", add_program(), add_spec(), memory=memory + 128 * index
        )
        plans.append(prepare_kernel(tmp_path / f"{index}", 0))
    args = good()
    launch_jobplan(plans[1], args)
    launch_jobplan(plans[0], args)
    launch_jobplan(plans[2], args)
    torch.accelerator.synchronize(0)
    fill, there = [], [1, 0, 2]
    while there:
        loaded = [index for index, plan in enumerate(plans) if plan.job.memory is not None]
        if loaded != sorted(there):
            del there[0]
            assert loaded == sorted(there)
        fill.append(torch.empty(region_bytes // 8, dtype=torch.uint8, device="spyre:0"))
    launched = good()
    del fill
    launch_jobplan(plans[1], launched)
    assert launched[2].cpu().unique().tolist() == [2]


def test_a_full_card_takes_the_memory_of_programs(add: Path, region_bytes: int) -> None:
    plan = prepare_kernel(add, 0)
    fill = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            fill.append(torch.empty(region_bytes // 4, dtype=torch.uint8, device="spyre:0"))
    assert plan.job.memory is None
    del fill[-1]
    args = good()
    launch_jobplan(plan, args)
    assert args[2].cpu().unique().tolist() == [2]


def test_two_queues_take_turns_at_the_slots(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    card = backend.current().runtime.cards[0]
    queues = [card.new_queue(), card.new_queue()]
    a, b, _ = good()
    results = [torch.zeros(4, 6, device="spyre:0") for _ in range(12)]
    torch.accelerator.synchronize(0)
    for index, result in enumerate(results):
        launch_jobplan(plan, [a, b, result], queue=queues[index // 2 % 2])
    torch.accelerator.synchronize(0)
    assert [result.cpu().unique().tolist() for result in results] == [[2.0]] * 12


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.finds("race")
def test_without_the_barrier_the_result_lands_in_an_earlier_launch(
    tmp_path: Path, slots: int
) -> None:
    write_artifact(tmp_path / "add", add_program(), add_spec())
    plan = prepare_kernel(tmp_path / "add", 0, slots=slots)
    a, b, _ = good()
    results = [torch.zeros(4, 6, device="spyre:0") for _ in range(2 * slots)]
    for result in results[:slots]:
        launch_jobplan(plan, [a, b, result])
        torch.accelerator.synchronize(0)
    for index in range(slots):
        results[index].zero_()
        launch_jobplan(plan, [a, b, results[slots + index]], barrier=False)
        torch.accelerator.synchronize(0)
    assert [r.cpu().unique().tolist() for r in results] == [[2.0]] * slots + [[0.0]] * slots


@pytest.mark.finds("race")
def test_without_the_barrier_the_first_launch_runs_unpatched(tmp_path: Path) -> None:
    write_artifact(tmp_path / "add", add_program(), add_spec())
    plan = prepare_kernel(tmp_path / "add", 0)
    args = good()
    launch_jobplan(plan, args, barrier=False)
    with pytest.raises(ProgramError, match="was the slot patched before it was fetched"):
        torch.accelerator.synchronize(0)
    backend.current().queue(0).reset()
    assert args[2].cpu().unique().tolist() == [1]


def test_launching_costs_the_same_beside_many_programs(tmp_path: Path) -> None:
    """The work of a launch, counted: wall time is for ``python -m benchmarks``."""

    def calls(plan: JobPlan, args: list[torch.Tensor]) -> int:
        count = 0

        def seen(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(seen)
        launch_jobplan(plan, args)
        torch.accelerator.synchronize(0)
        sys.setprofile(None)
        return count

    write_artifact(tmp_path / "add", add_program(), add_spec(), name="add")
    plan, args = prepare_kernel(tmp_path / "add", 0), good()
    for _ in range(4):
        launch_jobplan(plan, args)
    # The least of three, and a tenth more: the sanitizer searches and tidies what it knows.
    alone = min(calls(plan, args) for _ in range(3))
    others = []
    for index in range(40):
        write_artifact(tmp_path / "other", add_program(), add_spec(), name=f"add {index}")
        others.append(prepare_kernel(tmp_path / "other", 0))
    assert min(calls(plan, args) for _ in range(3)) <= 1.1 * alone


def test_what_is_no_plan_is_refused_by_name(add: Path) -> None:
    with pytest.raises(TypeError, match=r"PosixPath was given; expected a JobPlan.*prepare_kernel"):
        launch_jobplan(add, good())  # type: ignore[arg-type]


def test_a_program_that_is_not_patched_is_named(tmp_path: Path) -> None:
    write_artifact(tmp_path / "add", add_program(), add_spec())
    plan = prepare_kernel(tmp_path / "add", 0)
    with torch.spyre.sanitizer.expect("race"):
        launch_jobplan(plan, good(), barrier=False)
        with pytest.raises(ProgramError, match=r"address symbol 0 .* of program 'add'") as caught:
            torch.accelerator.synchronize(0)
    assert caught.value.__context__ is None, "whose frames would keep a caller's tensors"
    backend.current().queue(0).reset()


def refused(root: Path, program: bytes, spec: LaunchSpec, memory: int = 0) -> str:
    """Why an artifact is not prepared."""
    write_artifact(root / "refused", program, spec, name="refused", memory=memory)
    with pytest.raises(ArtifactError) as caught:
        prepare_kernel(root / "refused", 0)
    return str(caught.value)


def of(*roles: Role, shape: tuple[int, ...] = (64,), strides: tuple[int, ...] = (1,)) -> LaunchSpec:
    return LaunchSpec.of(
        [Argument(f"t{n}", role, "float32", shape, strides) for n, role in enumerate(roles)]
    )


def test_memory_that_a_program_needs_and_an_artifact_lacks_is_asked_for(tmp_path: Path) -> None:
    for memory in (0, 256):  # which is where the memory that is used begins
        text = refused(tmp_path, sum_program(), SUM, memory)
        assert f"{memory} bytes of memory of the job's own" in text
        assert "'own'" in text
        assert "memory=260" in text
    asm = Assembler("known")
    n, m = asm.dimension("n", 64), asm.dimension("m", 2)
    own, out = asm.job_memory("own", "float32", 128), asm.argument("out", "float32")
    asm.store(own, {n: 1, m: 64}, 1.0)
    asm.stage()
    n = asm.dimension("n", 64)
    asm.store(out, {n: 1}, asm.load(own, {n: 1}))
    program = encode(asm.assemble())
    assert "memory=640" in refused(tmp_path, program, of("output"), 512)
    write_artifact(tmp_path / "enough", program, of("output"), memory=640)
    prepare_kernel(tmp_path / "enough", 0)


def copy_program(size: int = 64, stride: int = 1, start: int = 0) -> bytes:
    """t1 = t0."""
    asm = Assembler("copy")
    n = asm.dimension("n", size)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    asm.store(out, {n: stride}, asm.load(x, {n: stride}, start), start)
    return encode(asm.assemble())


def test_a_program_that_stores_to_an_input_is_not_prepared(tmp_path: Path) -> None:
    text = refused(tmp_path, copy_program(), of("input", "input"))
    assert "LaunchSpec.arguments[1].role" in text
    assert "program 'copy' stores to it" in text


@pytest.mark.parametrize("role", ["output", "input_output"])
def test_a_result_that_no_program_stores_is_not_prepared(tmp_path: Path, role: Role) -> None:
    text = refused(tmp_path, copy_program(), of(role, "output"))
    assert "LaunchSpec.arguments[0].role" in text
    assert "never stores to it" in text


def test_an_output_that_is_read_before_it_is_written_is_an_input_too(tmp_path: Path) -> None:
    asm = Assembler("add to")
    n = asm.dimension("n", 64)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    asm.store(y, {n: 1}, asm.load(x, {n: 1}) + asm.load(y, {n: 1}))
    program = encode(asm.assemble())
    text = refused(tmp_path, program, of("input", "output"))
    assert "LaunchSpec.arguments[1].role" in text
    assert "input_output" in text
    write_artifact(tmp_path / "both", program, of("input", "input_output"))
    prepare_kernel(tmp_path / "both", 0)


def test_an_output_that_is_added_to_is_an_input_too(tmp_path: Path) -> None:
    asm = Assembler("count")
    n = asm.dimension("n", 64)
    y = asm.argument("y", "float32")
    asm.store(y, {n: 1}, 1.0, add=True)
    assert "input_output" in refused(tmp_path, encode(asm.assemble()), of("output"))


def test_an_output_may_be_read_after_it_is_written(tmp_path: Path) -> None:
    asm = Assembler("twice")
    n = asm.dimension("n", 64)
    y = asm.argument("y", "float32")
    asm.store(y, {n: 1}, 2.0)
    asm.stage()
    n = asm.dimension("n", 64)
    asm.store(y, {n: 1}, asm.load(y, {n: 1}) * 2.0)
    write_artifact(tmp_path / "twice", encode(asm.assemble()), of("output"))
    plan, y_there = prepare_kernel(tmp_path / "twice", 0), torch.empty(64, device="spyre:0")
    launch_jobplan(plan, [y_there])
    assert y_there.cpu().unique().tolist() == [4]


OUTSIDE = {
    "further": (copy_program(128), "element 127", (64,), (1,)),
    "wider": (copy_program(64, 2), "element 126", (64,), (1,)),
    "before": (copy_program(64, -1), "element -63", (64,), (1,)),
    "behind": (copy_program(64, 1, 1), "element 64", (64,), (1,)),
    "nothing": (copy_program(), "element 63", (64, 0), (1, 1)),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_a_program_that_leaves_a_tensor_of_known_size_is_not_prepared(
    tmp_path: Path, what: str
) -> None:
    program, element, shape, strides = OUTSIDE[what]
    text = refused(tmp_path, program, of("input", "output", shape=shape, strides=strides))
    assert "LaunchSpec.arguments[0].shape" in text
    assert f"reaches {element}" in text


@pytest.mark.parametrize(
    ("program", "shape", "strides"),
    [
        (copy_program(64, -1, 63), (64,), (1,)),
        (copy_program(0), (64,), (1,)),
        (copy_program(0), (0,), (1,)),
        (copy_program(64, 2), (64,), (2,)),
        (copy_program(), (8, 8), (8, 1)),
        (copy_program(16), (64,), (1,)),
    ],
)
def test_a_program_that_stays_in_its_tensors_is_prepared(
    tmp_path: Path, program: bytes, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    spec = of("input", "output", shape=shape, strides=strides)
    write_artifact(tmp_path / "copy", program, spec)
    prepare_kernel(tmp_path / "copy", 0)


def test_what_is_masked_may_reach_anywhere(tmp_path: Path) -> None:
    asm = Assembler("pad")
    n = asm.dimension("n", 128)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    is_in = asm.apply("less", asm.index(n), 64)
    asm.store(out, {n: 1}, asm.load(x, {n: 1}, mask=is_in), mask=is_in)
    write_artifact(tmp_path / "pad", encode(asm.assemble()), of("input", "output"))
    prepare_kernel(tmp_path / "pad", 0)


def test_a_fetch_that_fails_keeps_nobody_s_tensors(tmp_path: Path) -> None:
    """Also when what is wrong with the slot was found by way of another error."""
    write_artifact(tmp_path / "add", add_program(), add_spec())
    plan = prepare_kernel(tmp_path / "add", 0, slots=1)
    queue = backend.current().queue(0)
    memory = plan.job.loaded()
    uneven = struct.pack("<IIQQQ6Q", 2, 0, 128, 0, 0, 0, 0, 128, 0, 512, 1024)
    queue.submit(Fill(memory.at(0, 768), uneven.ljust(256, b"\0")))
    with torch.spyre.sanitizer.expect("race"):
        launch_jobplan(plan, good(), barrier=False)
        with pytest.raises(ProgramError, match="address symbol 0") as caught:
            torch.accelerator.synchronize(0)
    queue.reset()
    assert caught.value.__context__ is None
