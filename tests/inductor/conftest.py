"""Loads Inductor before any test: on the way torch warns of what is deprecated in itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._dynamo.testing
    import torch._inductor.compile_fx
    from torch._inductor.codecache import PyCodeCache


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    """A test compiles for itself, and lets go of what is prepared on the cards."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    for card in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(card)
    torch._dynamo.reset()
    for module in PyCodeCache.modules:
        sys.modules.pop(module.__name__, None)
    PyCodeCache.cache_clear()
