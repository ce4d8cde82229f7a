"""Invariant 1, views: whatever the offset and strides, a copy moves the view's elements only.

Each case is run on the CPU and on the card, on storages that hold the same random bits, and the
whole storages are compared afterwards, so that the bytes around the view are guards.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import random_bits, same_bits

# One of each item size: what a copy does depends on nothing else of the dtype.
DTYPES = (torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex128)


class View(NamedTuple):
    """A strided view of a storage that ends ``guard`` elements after the view's last one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    guard: int

    @property
    def storage(self) -> int:
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + (last + 1 if 0 not in self.shape else 0) + self.guard

    def of(self, base: torch.Tensor) -> torch.Tensor:
        return base.as_strided(self.shape, self.strides, self.offset)

    @property
    def writable(self) -> bool:
        """No two elements share a byte."""
        reach = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1:
                if stride < reach:
                    return False
                reach = stride * size if stride >= reach else 0
        return True


@st.composite
def spaced_views(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> View:
    """A view whose elements do not overlap: any order of dimensions, any gaps."""
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = [0] * len(shape)
    step = 1
    for dim in draw(st.permutations(range(len(shape)))):
        step *= draw(st.sampled_from((1, 1, 1, 2, 3)))
        step += draw(st.sampled_from((0, 0, 0, 1, 129)))
        strides[dim] = step
        step *= max(shape[dim], 1)
    return View(shape, tuple(strides), draw(st.integers(0, 200)), draw(st.integers(0, 200)))


@st.composite
def any_views(draw: st.DrawFn) -> View:
    """A view that may also repeat or overlap its elements."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = tuple(draw(st.sampled_from((0, 1, 2, 3, 5, 64, 1000))) for _ in shape)
    return View(shape, strides, draw(st.integers(0, 200)), draw(st.integers(0, 200)))


dtypes = st.sampled_from(DTYPES)
placements = st.sampled_from(("bind", "interleave"))
devices = st.sampled_from(("spyre:0", "spyre:1"))


def on_card(host: torch.Tensor, placement: str, device: str = "spyre:0") -> torch.Tensor:
    with torch.spyre.placement(placement):
        card = torch.empty(host.shape, dtype=host.dtype, device=device)
    return card.copy_(host)


@given(any_views() | spaced_views(), dtypes, placements)
@settings(max_examples=300, deadline=None)
def test_a_view_is_read(view: View, dtype: torch.dtype, placement: str) -> None:
    host = random_bits((view.storage,), dtype)
    assert same_bits(view.of(on_card(host, placement)), view.of(host))


@given(st.data(), dtypes, placements, st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_view_is_written_and_nothing_around_it(
    data: st.DataObject, dtype: torch.dtype, placement: str, pinned: bool
) -> None:
    target = data.draw(spaced_views())
    source = data.draw(spaced_views(target.shape))
    host, news = random_bits((target.storage,), dtype, 1), random_bits((source.storage,), dtype, 2)
    card = on_card(host, placement)
    if pinned:
        news = news.pin_memory()
    target.of(card).copy_(source.of(news))
    target.of(host).copy_(source.of(news))
    assert same_bits(card, host)


@given(st.data(), dtypes, devices, placements, placements)
@settings(max_examples=300, deadline=None)
def test_a_view_is_copied_between_cards_and_within_one(
    data: st.DataObject, dtype: torch.dtype, device: str, here: str, there: str
) -> None:
    target = data.draw(spaced_views())
    source = data.draw(spaced_views(target.shape))
    host, news = random_bits((target.storage,), dtype, 1), random_bits((source.storage,), dtype, 2)
    card = on_card(host, here)
    target.of(card).copy_(source.of(on_card(news, there, device)))
    target.of(host).copy_(source.of(news))
    assert same_bits(card, host)


@given(st.data(), dtypes, placements)
@settings(max_examples=200, deadline=None)
def test_a_copy_onto_an_overlapping_view_is_refused_as_on_the_cpu_or_reads_everything_first(
    data: st.DataObject, dtype: torch.dtype, placement: str
) -> None:
    target = data.draw(spaced_views())
    source = data.draw(spaced_views(target.shape))
    host = random_bits((max(target.storage, source.storage),), dtype)
    card = on_card(host, placement)
    try:
        trial = host.clone()
        target.of(trial).copy_(source.of(trial))
    except RuntimeError as refusal:
        with pytest.raises(RuntimeError, match=re.escape(str(refusal))):
            target.of(card).copy_(source.of(card))
    else:
        target.of(card).copy_(source.of(card))
        target.of(host).copy_(source.of(host).clone())
    assert same_bits(card, host)


@given(st.data(), dtypes, placements)
@settings(max_examples=200, deadline=None)
def test_a_view_is_filled_and_nothing_around_it(
    data: st.DataObject, dtype: torch.dtype, placement: str
) -> None:
    view = data.draw(spaced_views())
    host = random_bits((view.storage,), dtype)
    card = on_card(host, placement)
    for base in (card, host):
        view.of(base).fill_(1)
    assert same_bits(card, host)


@given(any_views(), dtypes)
@settings(max_examples=200, deadline=None)
def test_a_broadcast_source_is_spread(view: View, dtype: torch.dtype) -> None:
    """``copy_`` of a source with fewer or single dimensions, repeated ones included."""
    host = random_bits((view.storage,), dtype)
    source = view.of(host)
    target = torch.empty((2, *(3 if n == 1 else n for n in view.shape)), dtype=dtype)
    card = torch.empty_like(target, device="spyre")
    assert same_bits(card.copy_(source), target.copy_(source))
    assert same_bits(card.copy_(view.of(host.to("spyre"))), target)


def test_a_view_that_repeats_elements_is_not_copied_to() -> None:
    base = torch.zeros(4, device="spyre")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        base.expand(3, 4).copy_(torch.ones(3, 4))
    assert base.tolist() == [0.0] * 4
