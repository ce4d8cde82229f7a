"""An error lets go of the tensors of the call that it is about."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_spyre_ref.aten import fallback


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("policy", ["silent", "error"])
@pytest.mark.parametrize(
    "work",
    [
        lambda t: torch.mm(t, t[:2]),
        lambda t: t.add_(torch.ones(3, 3, device=t.device)),
        lambda t: torch.add(t, t, out=torch.empty(4, 4, dtype=torch.int32, device=t.device)),
    ],
)
def test_no_reference_cycle_keeps_them(work: Callable[[torch.Tensor], object], policy: str) -> None:
    tensor = torch.ones(4, 4, device="spyre")
    seen = weakref.ref(tensor)
    with fallback.fallback_policy(policy):
        try:
            work(tensor)
        except Exception:
            pass
        else:
            pytest.fail("it was not refused")
    del tensor
    assert seen() is None
