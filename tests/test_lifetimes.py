"""Storage lifetime: the card's memory is taken and given back exactly as PyTorch counts references.

Every tensor is filled with a number of its own, and must still hold it when it goes: if two ever
shared a byte, or one was handed out while somebody still read it, this is where it shows.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support import take_programs_off, values


def held(device: int) -> tuple[int, int]:
    take_programs_off()
    stats = torch.accelerator.memory_stats(device)  # nothing before the first tensor
    return stats.get("allocation.all.current", 0), stats.get("requested_bytes.all.current", 0)


def storages(tensors: list[torch.Tensor], device: int) -> tuple[int, int]:
    here = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors
        if t.device.index == device and t.untyped_storage().nbytes()
    }
    return len(here), sum(here.values())


class TensorsLiveAndDie(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.before = [held(device) for device in (0, 1)]
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[int] = []
        self.made = 0

    def keep(self, tensor: torch.Tensor, number: int) -> None:
        self.tensors.append(tensor)
        self.numbers.append(number)

    @rule(
        shape=st.lists(st.integers(0, 40), max_size=3),
        device=st.integers(0, 1),
        spread=st.booleans(),
    )
    def make(self, shape: list[int], device: int, spread: bool) -> None:
        self.made += 1
        with torch.spyre.placement("interleave" if spread else "bind"):
            tensor = torch.empty(shape, dtype=torch.int32, device=f"spyre:{device}")
        self.keep(tensor.fill_(self.made), self.made)

    @rule(place=st.integers(0, 20), device=st.integers(0, 1))
    def copy(self, place: int, device: int) -> None:
        if self.tensors:
            place %= len(self.tensors)
            copied = self.tensors[place].to(f"spyre:{device}", copy=True)
            self.keep(copied, self.numbers[place])

    @rule(place=st.integers(0, 20))
    def view(self, place: int) -> None:
        if self.tensors:
            place %= len(self.tensors)
            self.keep(self.tensors[place].reshape(-1)[::2], self.numbers[place])

    @rule(place=st.integers(0, 20), count=st.integers(1, 3))
    def drop(self, place: int, count: int) -> None:
        for _ in range(min(count, len(self.tensors))):
            place %= len(self.tensors)
            tensor, number = self.tensors.pop(place), self.numbers.pop(place)
            assert tensor.cpu().eq(number).all()

    @rule()
    def empty_cache(self) -> None:
        torch.accelerator.empty_cache()

    @invariant()
    def what_is_held_is_what_lives(self) -> None:
        for device, (blocks, nbytes) in enumerate(self.before):
            mine = storages(self.tensors, device)
            assert held(device) == (blocks + mine[0], nbytes + mine[1])

    def teardown(self) -> None:
        self.drop(0, len(self.tensors)) if self.tensors else None
        self.what_is_held_is_what_lives()


TestTensorsLiveAndDie = TensorsLiveAndDie.TestCase
TestTensorsLiveAndDie.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_memory_goes_back_with_the_last_reference() -> None:
    before = held(0)
    base = torch.empty(100, device="spyre")
    view = base[10:20].view(2, 5)
    assert held(0) == (before[0] + 1, before[1] + 400)
    del base
    assert held(0) == (before[0] + 1, before[1] + 400)
    del view
    assert held(0) == before


def test_autograd_keeps_what_backward_needs_and_no_longer() -> None:
    before = held(0)
    weight = torch.ones(50, 50, device="spyre", requires_grad=True)
    loss = (weight @ weight).tanh().sum()
    assert held(0)[0] > before[0] + 2
    loss.backward()
    del loss
    assert held(0)[0] == before[0] + 2  # the weight and its gradient
    del weight
    assert held(0) == before


def test_a_cycle_is_given_back_by_the_collector() -> None:
    before = held(0)
    cycle: list[object] = [torch.empty(100, device="spyre")]
    cycle.append(cycle)
    assert held(0)[0] == before[0] + 1
    del cycle
    gc.collect()
    assert held(0) == before


@pytest.mark.finds("uninitialised")
def test_a_deleter_may_run_inside_anything() -> None:
    """A tensor that goes while another goes, or while an exception is on its way."""
    before = held(0)
    dropped = [torch.empty(10, device="spyre")]
    watched = torch.empty(10, device="spyre")
    reference = weakref.ref(watched, lambda _: dropped.clear())
    del watched
    assert reference() is None and not dropped and held(0) == before
    try:
        torch.ones(3, device="spyre") @ torch.empty(5, device="spyre")
    except RuntimeError as error:
        assert "size" in str(error)
    assert held(0) == before


def test_tensors_without_bytes_take_no_block() -> None:
    """Invariant 2, zero elements: an empty tensor is on its card, with a null pointer."""
    before = held(1)
    empty = torch.empty(0, 7, device="spyre:1")
    assert empty.data_ptr() == 0 and empty.device == torch.device("spyre:1")
    assert empty.untyped_storage().device == torch.device("spyre:1")
    assert held(1) == before
    grown = empty.resize_(3).fill_(2)
    assert grown.device == torch.device("spyre:1") and grown.tolist() == [2.0] * 3
    del empty, grown


def test_addresses_are_never_used_twice() -> None:
    seen = set()
    for _ in range(50):
        tensor = torch.empty(10, device="spyre")
        assert tensor.data_ptr() not in seen
        seen.add(tensor.data_ptr())
        assert tensor[3:].data_ptr() == tensor.data_ptr() + 12


def test_values_survive_a_crowd() -> None:
    hosts = [values((n,), torch.float32, n) for n in range(1, 300, 7)]
    cards = [host.to(f"spyre:{n % 2}") for n, host in enumerate(hosts)]
    del cards[::3], hosts[::3]
    cards += [host.to("spyre") for host in hosts[:20]]
    hosts += hosts[:20]
    assert all(card.cpu().equal(host) for card, host in zip(cards, hosts, strict=True))
