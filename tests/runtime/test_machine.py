"""The machine as a whole."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.bench import SPEC, Bench, idle
from torch_spyre_ref.runtime import Chunk, CompositeAddress, DeviceRange, Runtime, operations


def test_two_cards_share_the_clock_and_nothing_else() -> None:
    bench = Bench()
    other = bench.runtime.cards[1]
    region = other.card.regions.acquire(SPEC.region, 0)
    bench.queue.submit(idle(500))
    other.default_queue.submit(idle(500))
    bench.queue.wait(bench.queue.submit(bench.h2d(7)))
    assert bench.clock.now < 600, "both computed at once"
    assert bench.bytes[0] == 7
    assert not other.card.memory.region(region.id).any()
    bench.runtime.synchronize(1)
    assert {record.card for record in bench.runtime.timeline} == {0, 1}


@pytest.mark.parametrize("mode", ["pf", "vf"])
def test_both_modes_serve_the_same_calls(mode: Any) -> None:
    bench = Bench(mode=mode)
    bench.queue.submit(bench.h2d(3))
    assert bench.read() == [3]


def test_memory_and_domains_replace_those_of_the_spec() -> None:
    runtime = Runtime(memory=64 << 20, domains=2, devices=3)
    assert (runtime.spec.memory, runtime.spec.domains, len(runtime.cards)) == (64 << 20, 2, 3)
    assert runtime.spec.region == 8 << 20


def test_a_card_is_16_gib_and_costs_nothing_until_it_is_used() -> None:
    runtime = Runtime()
    regions = runtime.cards[0].card.regions
    acquired = [regions.acquire(runtime.spec.region, number // 2) for number in range(8)]
    memory = runtime.cards[0].card.memory
    assert sum(memory.region(region.id).size for region in acquired) == 16 << 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"queue_depth": 0}, "queue_depth is 0"),
        ({"mode": "mf"}, "mode is 'mf'; it must be one of"),
        ({"memory": 1 << 40}, "at most"),
        ({"domains": 3}, "use a multiple of"),
        ({"timeline": 0}, "0 records"),
        ({"staging_buffers": 0}, "staging_buffers is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Runtime(**settings)


def test_a_runtime_takes_the_operations_it_was_given_and_no_others() -> None:
    class Fill(operations.Fill):
        __slots__ = ()

    runtime = Runtime(SPEC, devices=1, operations=SimpleNamespace(Fill=Fill))
    region = runtime.cards[0].card.regions.acquire(SPEC.region, 0)
    span = DeviceRange.contiguous(CompositeAddress((Chunk(region.id, 0, 128),)), 0, 128)
    queue = runtime.cards[0].default_queue
    queue.wait(queue.submit(Fill(span, b"\x07")))
    assert runtime.cards[0].card.memory.read(span)[0] == 7
    assert [record.kind for record in runtime.timeline] == ["Fill"]
    with pytest.raises(TypeError, match=r"it takes Fill$"):
        queue.submit(operations.Fill(span, b"\x08"))


def test_queues_are_named_by_card_and_number_and_never_share_a_name() -> None:
    bench = Bench()
    queues = [bench.card.new_queue() for _ in range(2)]
    assert [queue.name for queue in [bench.queue, *queues]] == ["0.0", "0.1", "0.2"]
    assert repr(bench.queue) == "Queue(0.0, 0 pending, good)"


def test_the_card_and_its_runtime_load_no_torch() -> None:
    code = "import sys, torch_spyre_ref.runtime; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
