"""The graph-mediated launcher: the prepared path's operations and results, by way of graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.graph_launcher import BINARY, GRAPH, GraphLauncher, graph_mediated
from benchmarks.runtime_graph import (
    Graph,
    GraphError,
    deserialised,
    of_program,
    scheduled,
    serialised,
    stitch,
)
from torch_spyre_ref import backend
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.launch import JobPlan, launch_jobplan, prepare_kernel
from torch_spyre_ref.spyrecode import (
    Argument,
    Dimension,
    LaunchMismatchError,
    LaunchSpec,
    Scalar,
    write_artifact,
)

Given = tuple[list[torch.Tensor], list[int | float]]


def scaled_sum_program() -> bytes:
    """total += factor * x over any number of rows of 16, by way of the job's own memory."""
    asm = Assembler("scaled_sum")
    size, pitch = asm.size_symbol(), asm.size_symbol()
    factor, shift = asm.float_symbol(), asm.size_symbol()
    rows, columns = asm.dimension("rows", size), asm.dimension("columns", 16)
    x, total = asm.argument("x", "float16"), asm.argument("total", "float32")
    own = asm.job_memory("own", "float32", 128)
    asm.store(own, {rows: 16, columns: 1}, asm.load(x, {rows: pitch, columns: 1}) * factor + shift)
    asm.stage()
    rows, columns = asm.dimension("rows", size), asm.dimension("columns", 16)
    with asm.stream(rows):
        summed = asm.reduce("sum", asm.load(own, {rows: 16, columns: 1}))
    asm.store(total, {columns: 1}, asm.load(total, {columns: 1}) + summed)
    return encode(asm.assemble())


SCALED_SUM = LaunchSpec.of(
    [
        Argument("x", "input", "float16", ("rows", 16), ("pitch", 1)),
        Argument("total", "input_output", "float32", (16,), (1,)),
    ],
    [Dimension("rows", 0, 64), Dimension("pitch", 0, 1 << 16)],
    [Scalar("factor", "float"), Scalar("shift", "integer")],
)


def add_program() -> bytes:
    asm = Assembler("add")
    n = asm.dimension("n", 64)
    a, b, c = (asm.argument(name, "float32") for name in "abc")
    asm.store(c, {n: 1}, asm.load(a, {n: 1}) + asm.load(b, {n: 1}))
    return encode(asm.assemble())


ROLES = {"a": "input", "b": "input", "c": "output"}
ADD = LaunchSpec.of(
    [Argument(name, role, "float32", (64,), (1,)) for name, role in ROLES.items()]  # type: ignore[arg-type]
)


def random_program() -> bytes:
    """No tensor goes in, one comes out."""
    asm = Assembler("ramp")
    n = asm.dimension("n", 32)
    out = asm.argument("out", "int64")
    asm.store(out, {n: 1}, asm.index(n))
    return encode(asm.assemble())


RAMP = LaunchSpec.of([Argument("out", "output", "int64", (32,), (1,))])


def add_args(card: int) -> Given:
    return [torch.arange(64.0).to(f"spyre:{card}") for _ in range(3)], []


def sum_args(rows: int, card: int) -> Given:
    x = torch.arange(rows * 20.0).view(rows, 20).half()
    return [x.to(f"spyre:{card}")[:, 3:19], torch.ones(16).to(f"spyre:{card}")], [0.5, -3]


PROGRAMS: dict[str, tuple[Callable[[], bytes], LaunchSpec, Callable[[int], Given]]] = {
    "addresses": (add_program, ADD, add_args),
    "dimensions and scalars": (scaled_sum_program, SCALED_SUM, lambda card: sum_args(7, card)),
    "no rows": (scaled_sum_program, SCALED_SUM, lambda card: sum_args(0, card)),
    "one row": (scaled_sum_program, SCALED_SUM, lambda card: sum_args(1, card)),
    "outputs only": (
        random_program,
        RAMP,
        lambda card: ([torch.zeros(32, dtype=torch.int64).to(f"spyre:{card}")], []),
    ),
}


@pytest.fixture(autouse=True)
def all_done() -> Iterator[None]:
    yield
    for card in range(2):
        torch.accelerator.synchronize(card)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "add", add_program(), ADD, name="add")
    return tmp_path / "add"


def history(work: Callable[[], object]) -> list[tuple[Any, ...]]:
    """What the cards do, with times from the first submission on."""
    timeline = backend.current().runtime.timeline
    for _ in range(2):  # in the first turn staging buffers may not be there yet
        for card in range(2):
            torch.accelerator.synchronize(card)
        timeline.clear()
        work()
    for card in range(2):
        torch.accelerator.synchronize(card)
    records = list(timeline)
    zero, first = records[0].submitted, min(record.ticket for record in records)
    return [
        record._replace(
            ticket=record.ticket - first,
            submitted=record.submitted - zero,
            start=record.start - zero,
            end=record.end - zero,
        )
        for record in records
    ]


@pytest.mark.parametrize("card", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_and_results_are_those_of_the_prepared_path(
    tmp_path: Path, name: str, card: int
) -> None:
    program, spec, give = PROGRAMS[name]
    write_artifact(tmp_path / "program", program(), spec, memory=128 + 64 * 16 * 4)
    plan = prepare_kernel(tmp_path / "program", card)

    def launches() -> list[torch.Tensor]:
        args, scalars = give(card)
        for _ in range(3):
            launch_jobplan(plan, args, scalars)
        return args

    prepared = history(launches)
    expected = [tensor.cpu() for tensor in launches()]
    with graph_mediated() as launcher:
        by_graph = history(launches)
        results = [tensor.cpu() for tensor in launches()]
    assert by_graph == prepared
    torch.testing.assert_close(results, expected, rtol=0, atol=0)
    assert launcher.counts.launches == launcher.counts.graphs_read == 9


def test_launches_wait_for_slots_on_several_queues_as_ever(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    card = backend.current().runtime.cards[0]
    queues = [card.new_queue(), card.new_queue()]
    args, _ = add_args(0)
    results = [torch.zeros(64, device="spyre:0") for _ in range(8)]
    torch.accelerator.synchronize(0)
    with graph_mediated():
        for index, result in enumerate(results):
            launch_jobplan(plan, [*args[:2], result], queue=queues[index // 2 % 2])
        torch.accelerator.synchronize(0)
    assert [r.cpu().tolist() for r in results] == [torch.arange(0.0, 128, 2).tolist()] * 8


COPIES: dict[str, Callable[[], torch.Tensor]] = {
    "pageable": lambda: torch.arange(100.0).to("spyre:0"),
    "pinned": lambda: torch.arange(100.0).pin_memory().to("spyre:0", non_blocking=True),
    "in pieces": lambda: torch.arange(300_000.0).to("spyre:0"),
    "strided": lambda: torch.zeros(9, 9, device="spyre:0")[2:5, ::2].copy_(torch.ones(3, 5)),
    "to the other card": lambda: torch.arange(9.0).to("spyre:0").to("spyre:1"),
}


def use_all_staging_buffers() -> None:
    """Whoever copies next finds none that is free at once, whatever was copied before."""
    torch.arange(1_000_000.0).to("spyre:0")


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_those_of_the_plain_path(name: str) -> None:
    expected = COPIES[name]().cpu()
    use_all_staging_buffers()
    plain = history(COPIES[name])
    use_all_staging_buffers()
    with graph_mediated() as launcher:
        by_graph = history(COPIES[name])
        result = COPIES[name]().cpu()
    assert by_graph == plain
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    sent = sum(record[4] == "H2D" for record in plain)
    counts = launcher.counts
    assert (counts.copies, counts.nodes, counts.edges) == (3 * sent, 12 * sent, 9 * sent)
    assert (counts.graphs_read, counts.bytes_read) == (0, 0)


@pytest.mark.parametrize("launches", [True, False])
@pytest.mark.parametrize("copies", [True, False])
def test_launches_and_copies_are_switched_apart(add: Path, launches: bool, copies: bool) -> None:
    plan = prepare_kernel(add, 0)
    with graph_mediated(launches=launches, copies=copies) as launcher:
        args, _ = add_args(0)
        launch_jobplan(plan, args)
    assert (launcher.counts.launches, launcher.counts.copies) == (launches, 3 * copies)


def test_every_launch_reads_its_graph_again(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    args, _ = add_args(0)
    with graph_mediated() as launcher:
        launch_jobplan(plan, args)
        one = vars(launcher.counts).copy()
        for _ in range(9):
            launch_jobplan(plan, args)
    artifact = plan.job.artifact
    assert one["bytes_read"] == len(artifact.program) + len(serialised(of_program(artifact)))
    assert one["nodes"] == 3 + 3 + 1 + 3 + 1  # arguments, steps, a result, tensors, one stored
    assert vars(launcher.counts) == {name: 10 * count for name, count in one.items()}


def test_nothing_is_left_behind(add: Path) -> None:
    plan, before = prepare_kernel(add, 0), backend.current().submission
    args, _ = add_args(0)
    with pytest.raises(KeyError), graph_mediated() as launcher:
        launch_jobplan(plan, args)
        root = folder(launcher, plan).parent
        assert root.is_dir()
        raise KeyError
    assert not root.exists()
    assert backend.current().submission is before


def folder(launcher: GraphLauncher, plan: JobPlan) -> Path:
    return launcher.store.folder(plan.job.artifact)


def test_a_mismatch_is_refused_as_ever_and_reads_nothing(add: Path) -> None:
    plan = prepare_kernel(add, 0)
    args, _ = add_args(0)
    with graph_mediated() as launcher:
        before = vars(launcher.counts).copy()
        with pytest.raises(LaunchMismatchError, match="argument 1, input 'b': shape"):
            launch_jobplan(plan, [args[0], args[1][:8], args[2]])
        assert vars(launcher.counts) == before


def edited(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return edit


def attributes(document: Any, name: str) -> Any:
    return next(node[2] for node in document["nodes"] if node[0] == name)


PATCH = ["step:1", "step:2", "patch", 768]
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "is no runtime graph"),
    "cut off": (lambda content: content[:-40], "is no runtime graph"),
    "a list": (lambda content: b"[]", "is no runtime graph"),
    "another version": (edited(lambda d: d.update(version=2)), "of version 2, not 1"),
    "another program": (edited(lambda d: d.update(program="0" * 64)), "is not the program that"),
    "an unknown node": (
        edited(lambda d: d["nodes"].append(["x", "Magic", {}])),
        "node 'x', Magic",
    ),
    "an edge to nowhere": (
        edited(lambda d: d["edges"].append(["step:0", "step:9", "patch", 0])),
        "from 'step:0' to 'step:9'",
    ),
    "a cycle": (
        edited(lambda d: d["edges"].append(["step:2", "step:0", "order", 0])),
        "has a cycle through 'step:0'",
    ),
    "a step too few": (
        edited(lambda d: attributes(d, "step:2").update(step=7)),
        "the steps are numbered",
    ),
    "other bytes": (
        edited(lambda d: attributes(d, "step:1").update(bytes=128)),
        "step:1 takes 128 bytes; step:0 gives it 768",
    ),
    "another patch": (
        edited(lambda d: d["edges"][d["edges"].index(PATCH)].__setitem__(3, 512)),
        "does not send the 768 bytes",
    ),
    "another shape": (
        edited(lambda d: attributes(d, "argument:b").update(shape=[32])),
        "argument:b is float32 of shape",
    ),
    "a transfer that nobody sends": (
        edited(lambda d: d["edges"].remove(["step:0", "step:1", "buffer", 768])),
        "step:0 fills a host buffer that nobody reads",
    ),
    "a result too few": (
        edited(lambda d: attributes(d, "argument:a").update(role="output")),
        "has no 'result:a'",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_graph_is_refused_before_anything_is_enqueued(add: Path, what: str) -> None:
    damage, message = DAMAGE[what]
    plan = prepare_kernel(add, 0)
    args, _ = add_args(0)
    queue = backend.current().queue(0)
    with graph_mediated() as launcher:
        file = folder(launcher, plan) / GRAPH
        whole = file.read_bytes()
        file.write_bytes(damage(whole))
        torch.accelerator.synchronize(0)
        done = len(backend.current().runtime.timeline)
        with pytest.raises(GraphError, match=message):
            launch_jobplan(plan, args)
        assert not queue.pending()
        assert len(backend.current().runtime.timeline) == done
        file.write_bytes(whole)
        launch_jobplan(plan, args)
    assert args[2].cpu().tolist() == torch.arange(0.0, 128, 2).tolist()


@pytest.mark.parametrize("name", [GRAPH, BINARY])
def test_a_graph_that_is_not_there_is_named(add: Path, name: str) -> None:
    plan, (args, _) = prepare_kernel(add, 0), add_args(0)
    with graph_mediated(copies=False) as launcher:
        launch_jobplan(plan, args)
        (folder(launcher, plan) / name).unlink()
        with pytest.raises(GraphError, match=f"{name}: No such file or directory; a launch"):
            launch_jobplan(plan, args)
    launch_jobplan(plan, args)


def test_a_graph_survives_its_file(add: Path) -> None:
    graph = of_program(prepare_kernel(add, 0).job.artifact)
    content = serialised(graph)
    assert serialised(deserialised(content, "file")) == content
    assert len(graph.edges) == 3 + 2 + 2 + 1  # addresses, buffer and patch, inputs, the result


def nodes(steps: Sequence[Any]) -> list[str]:
    return [step.name for step in steps]


def test_a_schedule_follows_the_edges_and_not_the_file(add: Path) -> None:
    graph = of_program(prepare_kernel(add, 0).job.artifact)
    turned = Graph(graph.name, graph.program, dict(reversed(graph.nodes.items())), graph.edges)
    args, _ = add_args(0)
    stitch(turned, list(reversed(args)), [], 0)
    assert nodes(scheduled(turned, 0)) == ["step:0", "step:1", "step:2"]


def test_a_host_buffer_is_not_filled_while_it_is_needed() -> None:
    graph = Graph("two")
    for index in range(2):
        graph.add(f"step:{index}", "ComputeOnHost", step=index, handle=0, bytes=128)
        send = {"direction": "H2D", "handle": 0, "bytes": 128}
        graph.add(f"step:{index + 2}", "DataTransfer", step=index + 2, **send)
        graph.join(f"step:{index}", f"step:{index + 2}", "buffer", 128)
    with pytest.raises(GraphError, match="step:1 fills host buffer 0 while it is needed"):
        scheduled(graph, 0)
    graph.join("step:2", "step:1", "order")
    assert nodes(scheduled(graph, 0)) == ["step:0", "step:2", "step:1", "step:3"]
