"""The ladder of launch paths: the same bytes on every rung, and every switch really on."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from benchmarks.decode_page import section
from benchmarks.decoding import Decoding
from benchmarks.graph_launcher import Counts, HostCosts, graph_mediated
from benchmarks.ladder import RUNGS, Run, Rung, observed, on
from benchmarks.ladder_figure import figure
from benchmarks.residency import Around, copied_around, resident
from examples import decoder as example
from torch_spyre_ref import backend
from torch_spyre_ref.streams import TwoQueues
from torch_spyre_ref.submission import OneQueue, Submission

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what torch has deprecated in itself
    import torch._inductor.compile_fx

CONFIG = example.Config(window=16, layers=1, width=32, heads=2, groups=1, hidden=48)
TOKENS = 3


def small(device: str) -> example.Decoder:
    torch.manual_seed(0)
    return example.Decoder(CONFIG).to(device).eval()


@pytest.fixture(scope="module")
def step() -> Iterator[Any]:
    """Compiled once for this file; nothing of it is left afterwards."""
    torch._dynamo.reset()
    yield torch.compile(example.step, fullgraph=True)
    torch.accelerator.synchronize()
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def runs(step: Any) -> list[tuple[Run, Counts, dict[Any, torch.Tensor]]]:
    """What each rung did for some tokens, what its graphs took, and what lies on the card then."""
    found = []
    for rung in RUNGS:
        decoding = Decoding(small("spyre"), step)
        with on(rung) as counts:
            run = observed(partial(decoding.decode, TOKENS))
            counts = Counts(**vars(counts))
        tensors = dict(enumerate(tree_leaves(list(vars(decoding.cache).values()))))
        tensors |= {"next": decoding.decode(1)}
        kept = {name: t.cpu() for name, t in tensors.items() if isinstance(t, torch.Tensor)}
        found.append((run, counts, kept))
    return found


def test_there_is_one_switch_from_each_rung_to_the_next() -> None:
    for before, after in itertools.pairwise(RUNGS):
        assert sum(a != b for a, b in zip(before[1:], after[1:], strict=True)) == 1


def test_every_rung_leaves_the_same_bytes(runs: Any) -> None:
    (_, _, expected), *rest = runs
    assert len(expected) > 3
    for _, _, tensors in rest:
        torch.testing.assert_close(tensors, expected, rtol=0, atol=0)


def test_every_rung_enqueues_the_same_operations(runs: Any) -> None:
    """The same programs, patches and copies in the same order; only queues and times differ."""

    def done(run: Run, kind: str) -> list[tuple[str, int]]:
        return [(r.label, r.nbytes) for r in run.records if r.kind == kind]

    kinds = {record.kind for record in runs[0][0].records}
    assert kinds >= {"H2D", "HostCallback", "Execute"}
    for run, _, _ in runs:
        assert {record.kind for record in run.records} == kinds
        for kind in kinds - {"H2D"}:
            assert done(run, kind) == done(runs[0][0], kind)
        # A patch on a queue of its own overtakes a token.
        assert sorted(done(run, "H2D")) == sorted(done(runs[0][0], "H2D"))


def test_graphs_are_read_and_made_on_the_rungs_that_say_so(runs: Any) -> None:
    launches = runs[0][0].launches
    assert launches > 10
    for rung, (_, counts, _) in zip(RUNGS, runs, strict=True):
        assert counts.launches == counts.graphs_read == launches * rung.launches_by_graph
        assert counts.copies == TOKENS * rung.copies_by_graph
        assert bool(counts.bytes_read) == rung.launches_by_graph


def test_only_the_last_rung_prepares_on_a_queue_of_its_own(runs: Any) -> None:
    for rung, (run, _, _) in zip(RUNGS, runs, strict=True):
        queues = {record.queue for record in run.records if record.kind == "HostCallback"}
        assert any(queue.endswith("preparation") for queue in queues) == rung.own_queue


def test_each_rung_is_no_slower_in_virtual_time_than_the_one_before(runs: Any) -> None:
    spans = [run.makespan for run, _, _ in runs]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > 3 * spans[2]


def test_graphs_cost_the_host_what_is_said() -> None:
    tensor = torch.arange(4.0).pin_memory()

    def spent(costs: HostCosts) -> int:
        clock = backend.current().runtime.clock
        with graph_mediated(costs=costs) as launcher:
            before = clock.now
            tensor.to("spyre:0", non_blocking=True)
            took = clock.now - before
        torch.accelerator.synchronize(0)
        assert (launcher.counts.nodes, launcher.counts.edges) == (4, 3)
        return took

    assert spent(HostCosts(item=500)) - spent(HostCosts()) == 7 * 500


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_is_left_as_it_was_found(rung: Rung) -> None:
    before: Submission = backend.current().submission
    with pytest.raises(KeyError), on(rung):
        raise KeyError
    assert backend.current().submission is before


def test_what_is_below_a_rung_is_what_it_says() -> None:
    for rung, kind in zip(RUNGS[2:], (OneQueue, TwoQueues), strict=True):
        with on(rung):
            assert type(backend.current().submission) is kind


def test_a_run_is_counted_from_the_call_to_its_end(step: Any) -> None:
    run = observed(partial(Decoding(small("spyre"), step).decode, 1))
    submit = backend.current().runtime.spec.submit_time
    asked = [record for record in run.records if record.kind != "Fill"]  # no poison, that is
    assert min(record.submitted for record in asked) == submit
    assert max(record.end for record in run.records) == run.makespan
    assert 0 < run.idle < 1
    assert run.busy("compute") + round(run.idle * run.makespan) == run.makespan


def test_a_run_includes_what_the_host_does_before_it_submits() -> None:
    source, target = torch.arange(4.0).pin_memory(), torch.empty(4, device="spyre")

    def span(costs: HostCosts) -> int:
        with graph_mediated(costs=costs):
            return observed(lambda: target.copy_(source, non_blocking=True)).makespan

    assert span(HostCosts(item=500)) - span(HostCosts()) == 7 * 500


def test_what_stays_on_the_card_does_not_cross_the_link(step: Any) -> None:
    around, weights = (copied_around(small, weights_stay=stay) for stay in (False, True))
    by_op, compiled = resident(small, example.step), resident(small, step)
    sent = [run.link_bytes["to the card"] for run in (around, weights, by_op, compiled)]
    assert sent[0] > sent[1] > sent[2] == sent[3] == 8
    assert [run.link_bytes["from the card"] for run in (by_op, compiled)] == [8, 8]
    bytes_of_weights = sum(p.nbytes for p in small("cpu").parameters())
    assert sent[0] - sent[1] >= bytes_of_weights


def test_copying_around_every_op_computes_the_same(step: Any) -> None:
    expected, decoder = Decoding(small("cpu")).talk(4), small("cpu")
    with sdpa_kernel(SDPBackend.MATH), Around("spyre") as around:
        assert Decoding(decoder).talk(4) == expected
    assert around.ops > 100
    assert Decoding(small("spyre"), step).talk(4) == expected


def test_the_figure_shows_every_rung(runs: Any) -> None:
    by_name = {rung.name: run for rung, (run, _, _) in zip(RUNGS, runs, strict=True)}
    svg = figure(by_name, "Four rungs").svg()
    for name in by_name:
        assert name in svg
    bars = sum(r.pipeline in ("h2d", "compute") for run in by_name.values() for r in run.records)
    assert svg.count("<rect") == bars


def test_the_page_has_a_row_for_every_rung_and_what_is_reported_elsewhere(runs: Any) -> None:
    made = [run for run, _, _ in runs]
    phases = {"prompt": made, "token": made, "tokens": made}
    host = {"prompt": [4e-3, 3e-3, 2e-3, 1e-3], "token": [8e-3, 6e-3, 2e-3, 1e-3]}
    models = {"as trained": phases, "wide": phases}
    text = section(SimpleNamespace(launches={"prompt": 9, "token": 10}, host=host, runs=models))
    for number, rung in enumerate(RUNGS, 1):
        assert text.count(f"| {number} · {rung.name} |") == 2
    assert "| 1.7× | 2.4× | 2.00× | 4.00× |" in text
    assert "{" not in text.replace(text[text.index("<svg") : text.index("</svg>")], "")
