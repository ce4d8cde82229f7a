"""Pinned memory: known by address as long as anything refers to it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_spyre_ref.runtime import NotPinnedError, PinnedBuffer, PinnedMemory


def test_a_buffer_is_pinned_from_its_first_byte_to_its_last() -> None:
    pinned = PinnedMemory()
    buffer = pinned.allocate(5000)
    assert buffer.array.shape == (5000,)
    assert buffer.address == buffer.array.ctypes.data
    assert [pinned.is_pinned(buffer.address + offset) for offset in (-1, 0, 4999, 5000)] == [
        False,
        True,
        True,
        False,
    ]


def test_it_stays_pinned_as_long_as_a_view_lives() -> None:
    pinned = PinnedMemory()
    buffer = pinned.allocate(4096)
    address, view = buffer.address, buffer.array[10:20][2:4]
    del buffer
    assert pinned.is_pinned(address)
    del view
    assert not pinned.is_pinned(address)


@pytest.mark.parametrize("nbytes", [0, -5])
def test_there_is_no_empty_buffer(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"{nbytes} pinned bytes"):
        PinnedMemory().allocate(nbytes)


def test_more_than_the_host_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="the host refuses"):
        PinnedMemory().allocate(1 << 60)


def test_a_transfer_needs_all_of_its_bytes_pinned() -> None:
    pinned = PinnedMemory()
    array = pinned.allocate(256).array
    foreign = np.frombuffer(array, np.uint8)
    for view in (array, array[3:7], array[100:][:50], foreign, foreign[1:]):
        pinned.require(view)
    pinned.require(np.lib.stride_tricks.as_strided(array, (256,)))
    overlong = np.lib.stride_tricks.as_strided(foreign.view(), (300,))
    for other in (np.zeros(256, np.uint8), overlong):
        with pytest.raises(NotPinnedError, match=f"{other.size} bytes"):
            pinned.require(other)


def test_late_word_of_old_pages_does_not_unpin_new_ones_at_their_address() -> None:
    pinned = PinnedMemory()
    buffer = pinned.allocate(4096)
    old = pinned._blocks[buffer.address].watch
    del buffer
    assert list(pinned._gone) == [old]
    pinned._gone.clear()
    new = next(b for b in iter(lambda: pinned.allocate(4096), None) if b.address == old.start)
    pinned._gone.append(old)
    assert pinned.is_pinned(new.address)
    assert pinned._starts.count(new.address) == 1


@given(st.lists(st.integers(-1, 5), max_size=40))
def test_finding_agrees_with_a_list_of_what_is_alive(steps: list[int]) -> None:
    """Non-negative: let go of that one; otherwise: one more."""
    pinned = PinnedMemory()
    alive: list[PinnedBuffer] = []
    known: dict[int, int] = {}
    for step in steps:
        if step < 0 or step >= len(alive):
            buffer = pinned.allocate(4096 * (len(known) % 3 + 1))
            known[buffer.address] = buffer.array.size
            alive.append(buffer)
            del buffer
        else:
            del alive[step]
        spans = [(b.address, b.address + b.array.size) for b in alive]
        for address, size in known.items():
            for probe in (address, address + size - 1):
                assert pinned.is_pinned(probe) == any(a <= probe < b for a, b in spans)


def test_threads_allocate_and_let_go_at_once() -> None:
    pinned = PinnedMemory()
    failures: list[int] = []

    def work() -> None:
        for turn in range(300):
            buffer = pinned.allocate(4096)
            if not pinned.is_pinned(buffer.address):
                failures.append(turn)
            pinned.require(np.frombuffer(buffer.array, np.uint8))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pinned.pinned_from(0) == 0
    assert pinned._starts == []
