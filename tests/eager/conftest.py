"""Loads Inductor before any test, and gives each test a cache without entries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_spyre_ref import eager

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx


@pytest.fixture(autouse=True)
def an_empty_cache() -> Iterator[None]:
    """A test compiles for itself, and starts with nothing fallen back."""
    eager.clear_eager_cache()
    torch.spyre.reset_fallback_report()
    torch.manual_seed(0)
    yield
    for card in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(card)
    eager.clear_eager_cache()


@pytest.fixture
def compiled() -> Callable[[], int]:
    """How many programs have been built in this test."""
    return lambda: torch.spyre.eager_cache().compiled
