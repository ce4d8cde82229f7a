"""The allocator against an oracle that knows nothing of free lists, caches or classes.

A small card takes random sequences of requests. After each one the oracle looks at what is handed
out: aligned, inside its regions, where the placement says, never two blocks on one byte, counted to
the byte; and a refusal must be one, which the oracle decides by looking for a gap itself.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator
from contextlib import nullcontext, suppress

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from torch_spyre_ref.allocator import Allocation, Allocator, CardMemory, RegionSpace, Space
from torch_spyre_ref.emulator.addresses import dealt
from torch_spyre_ref.emulator.regions import Region, RegionTable
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.memory.driver import MemoryDriver
from torch_spyre_ref.memory.placement import ANYWHERE, Placement, placement

STICK = 128
SPEC = CardSpec(memory=1 << 16, interleave_grain=256)  # eight regions of 8 KiB, four domains


class Store:
    """Memory that nobody looks at, which notices a region attached twice or detached twice."""

    def __init__(self) -> None:
        self.regions: dict[int, int] = {}

    def attach(self, region: int, size: int) -> None:
        assert region not in self.regions
        self.regions[region] = size

    def detach(self, region: int) -> None:
        del self.regions[region]


class SmallCard:
    """An allocator with one card of ``SPEC``, and what stands behind it."""

    def __init__(self, mode: str) -> None:
        self.store = Store()
        self.table = RegionTable(self.store, SPEC, mode)
        self.synchronized = 0
        self.card = CardMemory(0, Space(self.table, SPEC), self._synchronize)
        self.allocator = Allocator(lambda device: self.card)
        self.driver = MemoryDriver(self.allocator)

    def _synchronize(self) -> None:
        self.synchronized += 1

    def holes(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        for region, space in self.card.space.regions.items():
            yield region, space.holes()


@pytest.fixture(autouse=True)
def cheap_collections() -> Iterator[None]:
    """Out of memory means a garbage collection: let it look at this test's objects only."""
    gc.freeze()
    yield
    gc.unfreeze()


sizes = (
    st.sampled_from((1, 129, 1000))  # often the same ones, so that cached blocks are met again
    | st.sampled_from((127, 128, 8191, 8192, 8193, 20_000, 65_536, 65_537))
    | st.integers(1, 700)
    | st.integers(1, 1 << 17)
)
placements = st.sampled_from(
    (ANYWHERE, ANYWHERE, Placement("interleave"), *(Placement("bind", d) for d in range(4)))
)


class AllocatorAgainstOracle(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(("pf", "vf")))
    def start(self, mode: str) -> None:
        self.small = SmallCard(mode)
        self.live: list[Allocation] = []
        self.asked: dict[int, int] = {}
        self.highest_address = 0
        counts = dict.fromkeys(("allocation", "allocated_bytes", "requested_bytes"), 0)
        self.peaks, self.totals, self.freed = ({**counts} for _ in range(3))
        self.refused = 0

    def current(self) -> dict[str, int]:
        return {
            "allocation": len(self.live),
            "allocated_bytes": sum(block.size for block in self.live),
            "requested_bytes": sum(self.asked[block.address] for block in self.live),
        }

    @rule(nbytes=sizes, where=placements)
    def allocate(self, nbytes: int, where: Placement) -> None:
        before = self.current()
        try:
            asked = nullcontext() if where is ANYWHERE else placement(where.policy, where.domain)
            with asked:
                block = self.small.driver.allocate(nbytes, 0)
        except torch.OutOfMemoryError:
            self.refused += 1
            assert not self.would_fit(nbytes, where)
            assert self.current() == before
            return
        assert block.address > self.highest_address
        self.highest_address = block.address + nbytes
        self.live.append(block)
        self.asked[block.address] = nbytes
        for name, now in self.current().items():
            self.peaks[name] = max(self.peaks[name], now)
            self.totals[name] += now - before[name]
        assert block.size == -(-nbytes // STICK) * STICK == block.composite.length
        self.check_place(block, where)

    @rule(place=st.integers(0, 20))
    def free(self, place: int) -> None:
        self.give_back(self.live[place : place + 1] or self.live[:1])

    @rule()
    def free_every_other(self) -> None:
        self.give_back(self.live[::2])

    def give_back(self, blocks: list[Allocation]) -> None:
        before = self.current()
        for block in blocks:
            self.small.driver.free(block)
            self.live.remove(block)
        for name, now in self.current().items():
            self.freed[name] += before[name] - now

    @rule(requests=st.lists(st.integers(1, 3000), min_size=1, max_size=8))
    def allocate_and_free_without_a_report(self, requests: list[int]) -> None:
        """Peaks must be noted though nobody asks for them in between."""
        held = len(self.live)
        for nbytes in requests:
            self.allocate(nbytes, ANYWHERE)
        self.give_back(self.live[held:])
        self.allocate(STICK, ANYWHERE)

    @rule()
    def empty_cache(self) -> None:
        self.small.driver.empty_cache()
        in_use = {chunk.region for block in self.live for chunk in block.composite.chunks}
        assert set(self.small.store.regions) == in_use

    @rule()
    def reset_peak(self) -> None:
        self.small.driver.reset_peak(0)
        self.peaks = self.current()

    @rule()
    def reset_accumulated(self) -> None:
        self.small.driver.reset_accumulated(0)
        self.totals, self.freed = (dict.fromkeys(self.totals, 0) for _ in range(2))
        self.refused = 0

    def check_place(self, block: Allocation, where: Placement) -> None:
        chunks = block.composite.chunks
        domains = [self.small.card.space.regions[chunk.region].region.domain for chunk in chunks]
        if where.policy == "interleave":
            assert domains == list(range(len(chunks)))
            assert block.composite.grain == SPEC.interleave_grain
            assert len(chunks) == min(SPEC.domains, -(-block.size // SPEC.interleave_grain))
        elif where.domain is not None:
            assert set(domains) == {where.domain}
        if where.policy == "bind" and block.size <= SPEC.region:
            assert len(chunks) == 1

    def gaps(self) -> Iterator[tuple[int, int]]:
        """(domain, bytes) of each gap between live blocks, and of each region not yet open."""
        opened = self.small.table.live()
        for region in opened:
            taken = [
                (chunk.offset, chunk.offset + chunk.length)
                for block in self.live
                for chunk in block.composite.chunks
                if chunk.region == region.id
            ]
            edges = [0, *itertools.chain.from_iterable(sorted(taken)), region.size]
            for start, stop in zip(edges[::2], edges[1::2], strict=True):
                yield region.domain, stop - start
        for domain in range(SPEC.domains):
            here = sum(region.domain == domain for region in opened)
            for _ in range(SPEC.domain // SPEC.region - here):
                yield domain, SPEC.region

    def would_fit(self, nbytes: int, where: Placement) -> bool:
        size = -(-nbytes // STICK) * STICK
        gaps = list(self.gaps())
        if where.policy == "interleave":
            count = min(SPEC.domains, -(-size // SPEC.interleave_grain))
            parts = enumerate(dealt(size, count, SPEC.interleave_grain))
            return all(any(d == domain and g >= n for d, g in gaps) for domain, n in parts)
        wanted = where.domain
        usable = sorted(g for domain, g in gaps if wanted is None or domain == wanted)
        whole, rest = divmod(size, SPEC.region)
        empty = usable.count(SPEC.region)
        return empty > whole or (empty == whole and any(rest <= g < SPEC.region for g in usable))

    @invariant()
    def no_two_blocks_share_a_byte(self) -> None:
        spans = sorted(chunk for block in self.live for chunk in block.composite.chunks)
        for region, offset, length in spans:
            assert offset % STICK == 0 and length % STICK == 0 and length > 0
            assert offset + length <= self.small.store.regions[region]
        for one, two in itertools.pairwise(spans):
            assert one.region < two.region or one.offset + one.length <= two.offset

    @invariant()
    def statistics_are_exact(self) -> None:
        report = self.small.driver.statistics(0)
        now = self.current()
        for name in self.totals:
            assert report[name]["current"] == now[name]
            assert report[name]["peak"] == self.peaks[name]
            assert report[name]["allocated"] == self.totals[name]
            assert report[name]["freed"] == self.freed[name]
        assert report["reserved_bytes"]["current"] == sum(self.small.store.regions.values())
        assert report["segment"]["current"] == len(self.small.store.regions)
        assert report["num_ooms"] == self.refused <= report["num_alloc_retries"]
        free, total = self.small.driver.memory_info(0)
        assert (free, total) == (SPEC.memory - now["allocated_bytes"], SPEC.memory)

    def teardown(self) -> None:
        if not hasattr(self, "small"):
            return
        for block in self.live:
            self.small.driver.free(block)
        with self.small.driver.settled(0) as card:
            card.flush()
        assert all(holes == [(0, SPEC.region)] for _, holes in self.small.holes())
        self.small.driver.empty_cache()
        assert self.small.store.regions == {} and self.small.table.live() == []
        report = self.small.driver.statistics(0)
        assert all(report[name]["current"] == 0 for name in (*self.totals, "reserved_bytes"))


TestAllocatorAgainstOracle = AllocatorAgainstOracle.TestCase
TestAllocatorAgainstOracle.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None
)


@pytest.mark.parametrize("mode", ["pf", "vf"])
def test_many_small_blocks_lie_in_one_region(mode: str) -> None:
    small = SmallCard(mode)
    blocks = [small.driver.allocate(100, 0) for _ in range(64)]
    assert len(small.store.regions) == 1
    for block in blocks[::2]:
        small.driver.free(block)
    again = [small.driver.allocate(100, 0) for _ in range(32)]
    assert len(small.store.regions) == 1
    assert len({block.composite for block in (*again, *blocks[1::2])}) == 64


def test_a_gap_that_fits_exactly_is_found() -> None:
    for gap in range(STICK, SPEC.region, STICK):
        space = RegionSpace(Region(0, SPEC.region, 0, 0))
        start = space.take(gap)
        assert start is not None and space.take(SPEC.region - gap) is not None
        assert space.take(STICK) is None
        space.give(start, gap)
        assert space.take(gap + STICK) is None
        assert space.take(gap) == start


@pytest.mark.parametrize("mode", ["pf", "vf"])
def test_binding_exhausts_a_domain_and_says_so(mode: str) -> None:
    small = SmallCard(mode)
    with placement("bind", 2):
        held = [small.driver.allocate(SPEC.region, 0) for _ in range(2)]
        before = small.driver.statistics(0)
        with pytest.raises(torch.OutOfMemoryError, match="bound to domain 2"):
            small.driver.allocate(1, 0)
    after = small.driver.statistics(0)
    assert (after.pop("num_ooms"), after.pop("num_alloc_retries")) == (1, 1)
    assert after == {name: before[name] for name in after}
    held.append(small.driver.allocate(1, 0))  # there is room elsewhere
    assert small.card.space.regions[held[-1].composite.chunks[0].region].region.domain != 2


def test_an_exhausted_budget_of_handles_is_out_of_memory() -> None:
    """Somebody else on a shared card holds all but one of the handles."""
    small = SmallCard("vf")
    for domain in (0, 0, 0, 1, 1, 1, 2):
        small.table.acquire(STICK, domain)
    first = small.driver.allocate(SPEC.region, 0)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        small.driver.allocate(STICK, 0)
    assert "1 open region" in str(caught.value)
    small.driver.free(first)
    assert small.driver.allocate(SPEC.region, 0).size == SPEC.region


def test_a_region_is_released_only_after_its_work_is_done() -> None:
    small = SmallCard("vf")
    small.driver.free(small.driver.allocate(100, 0))
    small.driver.empty_cache()
    assert small.synchronized == 1 and small.store.regions == {}


def test_frees_wait_for_the_next_allocation_or_report() -> None:
    """The deleter may run in the middle of anything: it only leaves word."""
    small = SmallCard("vf")
    block = small.driver.allocate(100, 0)
    small.driver.free(block)
    assert len(small.card.live) == 1
    assert small.driver.statistics(0)["allocation"]["current"] == 0
    assert small.driver.allocate(100, 0).composite == block.composite


def test_a_request_that_no_card_can_hold_opens_nothing() -> None:
    small = SmallCard("vf")
    for nbytes in (SPEC.memory + 1, 1 << 60):
        with suppress(torch.OutOfMemoryError):
            small.driver.allocate(nbytes, 0)
    assert small.store.regions == {}
    assert small.driver.statistics(0)["num_ooms"] == 2


class Finaliser:
    """Garbage in a cycle that takes a block and gives it back when the collector finds it.

    It leaves more garbage of its kind, so that the next collection, a few lines further on in the
    allocator, finds some too.
    """

    def __init__(self, small: SmallCard, chance: random.Random, more: int) -> None:
        self.small, self.chance, self.more, self.me = small, chance, more, self

    def __del__(self) -> None:
        if self.more:
            Finaliser(self.small, self.chance, self.more - 1)
        with suppress(torch.OutOfMemoryError):
            block = self.small.driver.allocate(STICK * self.chance.choice((1, 2, 3, 30)), 0)
            self.small.driver.free(block)


@pytest.mark.parametrize("seed", range(3))
def test_a_collection_in_the_middle_of_an_allocation_may_allocate(seed: int) -> None:
    small, chance, live = SmallCard("vf"), random.Random(seed), []
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(400):
            Finaliser(small, chance, 12)
            if len(live) > 60 or (live and chance.random() < 0.4):
                small.driver.free(live.pop(chance.randrange(len(live))))
            else:
                with suppress(torch.OutOfMemoryError):
                    live.append(small.driver.allocate(STICK * chance.choice((1, 2, 3, 30)), 0))
            spans = sorted(chunk for block in live for chunk in block.composite.chunks)
            for one, two in itertools.pairwise(spans):
                assert one.region < two.region or one.offset + one.length <= two.offset
    finally:
        gc.set_threshold(*threshold)
    report = small.driver.statistics(0)
    assert report["allocation"]["current"] == len(live)
    assert report["allocated_bytes"]["current"] == sum(block.size for block in live)
    for block in live:
        small.driver.free(block)
    small.driver.empty_cache()
    assert small.store.regions == {}
