"""The half-precision converters: the same bytes whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from torch_spyre_ref.emulator.program.halves import half_converter


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("stride", [1, 3])
def test_one_thread_converts_as_several_do(half: str, stride: int) -> None:
    random = np.random.default_rng(0)
    wide = random.normal(0, 100, (300, 400)).astype(np.float32)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        narrow = np.zeros((300, 400 * stride), np.uint16 if half == "bfloat16" else np.float16)
        back = np.zeros_like(wide)
        there = half_converter(wide, narrow[:, ::stride], half)
        there()
        half_converter(narrow[:, ::stride], back, half)()
        results += [narrow.tobytes(), back.tobytes()]
    assert results[:2] == results[2:]
    expected = torch.from_numpy(wide).to(getattr(torch, half)).float()
    np.testing.assert_array_equal(back, expected.numpy())
