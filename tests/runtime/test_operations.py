"""The typed operations: what they refuse, what they say they touch, how they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from torch_spyre_ref.runtime import (
    D2D,
    D2H,
    H2D,
    Chunk,
    CompositeAddress,
    Compute,
    DeviceRange,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
)

ADDRESS = CompositeAddress((Chunk(2, 128, 1024),))
HERE, THERE = (DeviceRange.contiguous(ADDRESS, offset, 64) for offset in (0, 512))
HOST = np.zeros(64, np.uint8)


def nothing() -> None:
    pass


def test_every_operation_names_what_it_reads_and_writes() -> None:
    compute = Compute(5, lambda memory: None, (HERE,), (THERE,))
    touched = {
        H2D(HOST, HERE): ((), (HERE,)),
        D2H(HERE, HOST): ((HERE,), ()),
        D2D(HERE, THERE): ((HERE,), (THERE,)),
        Fill(HERE, b"\0"): ((), (HERE,)),
        compute: ((HERE,), (THERE,)),
        HostCallback(nothing): ((), ()),
        EventSignal(): ((), ()),
    }
    for operation, expected in touched.items():
        assert (operation.reads, operation.writes) == expected


def test_operations_read_the_same_in_every_run() -> None:
    signal = EventSignal()
    where = "DeviceRange(CompositeAddress(r2[128:1152]) + 0, 64 bytes)"
    assert repr(H2D(HOST, HERE)) == f"H2D(host -> {where})"
    assert repr(D2H(HERE, HOST)) == f"D2H({where} -> host)"
    assert repr(D2D(HERE, HERE)) == f"D2D({where} -> {where})"
    assert repr(Fill(HERE, b"\xff", free=True)) == f"Fill({where}, ff, free)"
    assert repr(HostCallback(nothing)) == "HostCallback(nothing)"
    assert repr(Compute(5, lambda memory: None, (HERE,))) == "Compute(5 ns, 1 in, 0 out)"
    assert repr(EventWait(signal)) == "EventWait(Event(not enqueued))"
    strided = DeviceRange(ADDRESS, 4, (2, 3), (4, 8), 4)
    assert repr(strided) == (
        "DeviceRange(CompositeAddress(r2[128:1152]) + 4, shape=(2, 3), strides=(4, 8), itemsize=4)"
    )


def test_operations_do_not_change() -> None:
    for operation in (H2D(HOST, HERE), Fill(HERE, b"\0"), EventSignal()):
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            operation.target = THERE  # type: ignore[union-attr, misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: H2D(np.zeros(63, np.uint8), HERE), "63 bytes, the card range 64"),
        (lambda: D2H(HERE, np.zeros(65, np.uint8)), "65 bytes, the card range 64"),
        (lambda: H2D(np.zeros((8, 8), np.uint8), HERE), r"shape \(8, 8\)"),
        (lambda: H2D(np.zeros(16, np.float32), HERE), "dtype float32"),
        (lambda: H2D(np.zeros(128, np.uint8)[::2], HERE), "dense one-dimensional"),
        (lambda: D2H(HERE, np.frombuffer(bytes(64), np.uint8)), "read-only"),
        (
            lambda: D2D(HERE, DeviceRange.contiguous(ADDRESS, 0, 63)),
            "64 bytes cannot be moved to 63",
        ),
        (lambda: Fill(HERE, b"abc"), "3 bytes does not fill 64 bytes"),
        (lambda: Fill(HERE, b""), "0 bytes does not fill"),
        (lambda: Compute(-1, lambda memory: None), "-1 ns"),
        (lambda: HostCallback(nothing, -1), "-1 ns"),
    ],
)
def test_operands_that_do_not_fit_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
