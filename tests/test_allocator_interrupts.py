"""Ctrl-C while memory is handed out or taken back: every byte and every block is still accounted
for."""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import FrameType, TracebackType

import pytest
import torch

from tests.test_allocator import SPEC, STICK, SmallCard
from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.memory.placement import ANYWHERE, Placement, placement


class CtrlC:
    """Presses it once inside, at the moment ``number`` of those at which Python looks for signals.

    That is where a function of Python begins and where one in C has returned. Nothing of the test's
    own is stopped.
    """

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> None:
        sys.setprofile(self._press)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _press(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)


class Owner:
    """Who has blocks of a small card, and goes on after Ctrl-C."""

    def __init__(self, press: CtrlC) -> None:
        self.small, self.press = SmallCard("vf"), press
        self.live: list[Allocation] = []
        self.interrupts = 0

    def allocate(self, nbytes: int, where: Placement = ANYWHERE) -> None:
        asked = nullcontext() if where is ANYWHERE else placement(where.policy, where.domain)
        with asked, suppress(torch.OutOfMemoryError):
            try:
                with self.press:
                    block = self.small.driver.allocate(nbytes, 0)
                self.live.append(block)
            except KeyboardInterrupt:
                self.interrupts += 1

    def free(self, index: int) -> None:
        self.small.driver.free(self.live.pop(index))

    def report(self) -> None:
        with suppress(KeyboardInterrupt), self.press:
            self.small.driver.statistics(0)

    def empty_cache(self) -> None:
        with suppress(KeyboardInterrupt), self.press:
            self.small.driver.empty_cache()

    def audit(self) -> None:
        """All that a card counts, and every byte of it, by way of what this owner has."""
        report, card = self.small.driver.statistics(0), self.small.card
        assert set(card.live.values()) == set(self.live)
        cached = [block for bucket in card.cache.values() for block in bucket]
        assert card.carved == len(self.live) + len(cached)
        sizes, asked = [b.size for b in self.live], [b.nbytes for b in self.live]
        counts = ("allocation", "allocated_bytes", "requested_bytes", "segment")
        current = [report[count]["current"] for count in counts]  # type: ignore[index]
        assert current == [len(self.live), sum(sizes), sum(asked), len(self.small.store.regions)]
        assert set(card.space.regions) == set(self.small.store.regions)
        for region, holes in self.small.holes():
            taken = [c for b in (*self.live, *cached) for c in b.composite.chunks]
            spans = holes + [(offset, length) for r, offset, length in taken if r == region]
            end = 0
            for start, length in sorted(spans):
                assert start == end, f"bytes {end} to {start} of region {region}"
                end += length
            assert end == SPEC.region


def interrupted_everywhere(story: int) -> Iterator[Owner]:
    """Owners who went through the same story, each interrupted at another moment of it."""
    number = 1
    while True:
        owner, chance = Owner(CtrlC(number)), random.Random(story)
        for _ in range(14):
            step = chance.random()
            if owner.live and step < 0.4:
                owner.free(chance.randrange(len(owner.live)))
            elif step < 0.48:
                owner.report()
            elif step < 0.54:
                owner.empty_cache()
            else:
                where = chance.choice((ANYWHERE, ANYWHERE, Placement("interleave")))
                owner.allocate(chance.choice((1, 3 * STICK, 5000, 30_000, 1 << 15)), where)
        if owner.press.left > 0:
            return
        yield owner
        number += 1


@pytest.fixture(autouse=True)
def quiet_collector() -> Iterator[None]:
    """What the collector calls would be interrupted too, and only print the error."""
    hooks = gc.callbacks[:]
    gc.callbacks.clear()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.callbacks[:] = hooks


@pytest.mark.parametrize("story", range(3))
def test_ctrl_c_at_any_moment_loses_no_block_and_no_byte(story: int) -> None:
    interrupts = moments = 0
    for owner in interrupted_everywhere(story):
        owner.audit()
        moments, interrupts = moments + 1, interrupts + owner.interrupts
        while owner.live:
            owner.free(0)
        owner.small.driver.empty_cache()
        assert owner.small.store.regions == {}
        assert gc.isenabled()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert moments > 300 and interrupts > 100
