"""Threads and finalisers: the card is used from everywhere at once, and nothing is lost or shared.

Invariants 5 and 10. A tensor that goes may go on any thread, and a finaliser that the garbage
collector runs in the middle of an allocation may allocate itself.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from tests.support import random_bits, same_bits, take_programs_off
from torch_spyre_ref import backend
from torch_spyre_ref.emulator.undisturbed import UNDISTURBED
from torch_spyre_ref.runtime import STAGING_BYTES


@contextmanager
def switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def at_once(threads: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)``, ``work(1)``, … on threads of their own; raises what one of them raised."""
    start = threading.Barrier(threads)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with switching_often(), ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run, number) for number in range(threads)]:
            done.result()


def live(device: int) -> int:
    take_programs_off()
    return torch.accelerator.memory_stats(device).get("allocation.all.current", 0)


def test_threads_allocate_write_and_free_at_once() -> None:
    before = [live(0), live(1)]

    def work(number: int) -> None:
        chance = random.Random(number)
        mine: list[tuple[torch.Tensor, int]] = []
        for step in range(120):
            value = number * 1000 + step
            size = chance.choice((1, 30, 100, 1000, 5000))
            device = f"spyre:{chance.randrange(2)}"
            mine.append((torch.full((size,), value, dtype=torch.int32, device=device), value))
            if len(mine) > 8:
                tensor, expected = mine.pop(chance.randrange(8))
                assert tensor.cpu().eq(expected).all()
        assert all(tensor.cpu().eq(expected).all() for tensor, expected in mine)

    at_once(6, work)
    assert [live(0), live(1)] == before


def test_threads_copy_at_once() -> None:
    """Staging buffers and queues are shared by all of them."""
    sizes = (7, 1000, STAGING_BYTES - 1, STAGING_BYTES + 1, 3 * STAGING_BYTES)

    def work(number: int) -> None:
        chance = random.Random(number)
        hosts = [random_bits((size,), torch.uint8, number + size) for size in sizes]
        for _ in range(12):
            host = chance.choice(hosts)
            host = host.pin_memory() if chance.random() < 0.3 else host
            card = host.to(f"spyre:{chance.randrange(2)}", non_blocking=True)
            other = card.to(f"spyre:{chance.randrange(2)}", copy=True)
            assert same_bits(card, host) and same_bits(other[3::2], host[3::2])

    at_once(4, work)


def test_a_tensor_made_on_one_thread_goes_on_another() -> None:
    before = live(0)
    boxes = [[torch.full((100,), n, device="spyre")] for n in range(64)]

    def work(number: int) -> None:
        for box in boxes[number::4]:
            assert box.pop().sum().item() % 100 == 0

    at_once(4, work)
    assert live(0) == before


def test_out_of_memory_on_several_threads(region_bytes: int) -> None:
    before = live(0)

    def work(number: int) -> None:
        for _ in range(3):
            try:
                held = [torch.empty(region_bytes, dtype=torch.int8, device="spyre")]
                held.append(torch.empty(4 * region_bytes, dtype=torch.int8, device="spyre"))
            except torch.OutOfMemoryError:
                pass

    at_once(4, work)
    assert live(0) == before
    torch.accelerator.empty_cache()


def test_each_thread_has_its_current_card() -> None:
    torch.accelerator.set_device_index(0)

    def work(number: int) -> None:
        assert torch.accelerator.current_device_index() == 0
        torch.accelerator.set_device_index(number % 2)
        for _ in range(20):
            assert torch.empty(1, device="spyre").device.index == number % 2

    at_once(4, work)
    assert torch.accelerator.current_device_index() == 0


def test_backward_runs_on_autograd_threads_of_both_cards() -> None:
    def work(number: int) -> None:
        device = f"spyre:{number % 2}"
        for _ in range(5):
            weight = torch.full((8, 8), 0.1, device=device, requires_grad=True)
            (weight @ weight).relu().sum().backward()
            assert weight.grad is not None and weight.grad.device == weight.device
            assert torch.allclose(weight.grad.cpu(), torch.full((8, 8), 1.6))

    at_once(4, work)


def test_a_gradient_flows_from_one_card_to_the_other() -> None:
    first = torch.ones(4, device="spyre:0", requires_grad=True)
    second = torch.ones(4, device="spyre:1", requires_grad=True)
    ((first * 3).to("spyre:1") * second).sum().backward()
    assert first.grad.device == first.device and first.grad.tolist() == [3.0] * 4
    assert second.grad.device == second.device and second.grad.tolist() == [3.0] * 4


def test_reports_while_others_allocate() -> None:
    before = live(0)

    def work(number: int) -> None:
        for _ in range(60):
            if number:
                kept = [torch.empty(n * 100, device="spyre") for n in range(1, 20, number)]
                del kept[::2]
                continue
            shown = torch.spyre.memory_map(0)
            assert all(sum(s.length for s in r.spans) == r.size for r in shown.regions)
            free, total = torch.accelerator.get_memory_info(0)
            assert 0 < free <= total
            assert "spyre:0" in torch.spyre.memory_summary(0)
            torch.accelerator.empty_cache()

    at_once(4, work)
    assert live(0) == before


class AllocatesWhenItGoes:
    """Garbage in a cycle, whose finaliser makes a tensor, uses it, and drops it."""

    finalised = 0

    def __init__(self) -> None:
        self.me = self
        self.tensor = torch.empty(100, device="spyre")

    def __del__(self) -> None:
        made = [torch.full((n,), 7, dtype=torch.int32, device="spyre") for n in (25, 33, 1000)]
        assert all(tensor.cpu().eq(7).all() for tensor in made)
        type(self).finalised += 1


def test_a_finaliser_allocates_while_the_collector_runs_inside_an_allocation() -> None:
    before, finalised = live(0), AllocatesWhenItGoes.finalised
    threshold = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:
        kept = []
        for step in range(300):
            AllocatesWhenItGoes()
            kept.append((torch.full((step,), step, dtype=torch.int32, device="spyre"), step))
            if step % 50 == 49:
                torch.accelerator.empty_cache()
                del kept[::2]
        assert all(tensor.cpu().eq(number).all() for tensor, number in kept)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert AllocatesWhenItGoes.finalised == finalised + 300
    del kept
    assert live(0) == before


def test_finalisers_and_threads_together() -> None:
    before = live(0)
    threshold = gc.get_threshold()
    gc.set_threshold(11, 2, 2)
    try:

        def work(number: int) -> None:
            for step in range(40):
                AllocatesWhenItGoes()
                value = number * 100 + step
                assert torch.full((50,), value, device="spyre").eq(value).all()

        at_once(4, work)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert live(0) == before


def test_the_collector_is_out_while_anybody_is_inside_and_back_afterwards() -> None:
    """The clock and the allocator both keep it out, under locks of their own."""
    clock = backend.current().runtime.clock
    until = time.monotonic() + 1
    let_in = 0

    def work(number: int) -> None:
        nonlocal let_in
        while time.monotonic() < until:
            with UNDISTURBED if number else clock:
                let_in += any(gc.isenabled() for _ in range(50))

    at_once(2, work)
    assert let_in == 0
    assert gc.isenabled()
