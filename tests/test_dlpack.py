"""DLPack: capsules in both directions, and the one form that torch itself does not allow."""

from __future__ import annotations

import pytest
import torch
from torch.utils import dlpack

from tests.support import same_bits, values

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["spyre:0", "spyre:1"])
def test_a_capsule_is_the_same_memory(device: str, dtype: torch.dtype) -> None:
    host = values((4, 6), dtype)
    card = host.to(device)
    view = card.t()[1:5:2]
    taken = dlpack.from_dlpack(dlpack.to_dlpack(view))
    assert taken.device == card.device and taken.dtype is dtype
    assert (taken.shape, taken.stride()) == (view.shape, view.stride())
    assert same_bits(taken, host.t()[1:5:2])
    taken.fill_(1)
    host.t()[1:5:2].fill_(1)
    assert same_bits(card, host)


def test_a_capsule_keeps_the_memory_alive() -> None:
    before = torch.accelerator.memory_allocated()
    card = torch.full((100,), 3.0, device="spyre")
    capsule = card.__dlpack__()
    del card
    taken = dlpack.from_dlpack(capsule)
    del capsule
    others = [torch.zeros(100, device="spyre") for _ in range(3)]
    assert taken.cpu().eq(3).all()
    assert taken.to("spyre:1").cpu().eq(3).all()
    del taken, others
    assert torch.accelerator.memory_allocated() == before


def test_a_capsule_that_nobody_takes_gives_its_memory_back() -> None:
    before = torch.accelerator.memory_allocated()
    capsule = dlpack.to_dlpack(torch.ones(100, device="spyre"))
    assert torch.accelerator.memory_allocated() > before
    del capsule
    assert torch.accelerator.memory_allocated() == before


def test_from_dlpack_of_a_card_tensor_is_a_known_limit_of_torch() -> None:
    """``Tensor.__dlpack_device__`` knows the device by the name it had before it got its own."""
    with pytest.raises(ValueError, match="Unknown device type spyre for Dlpack"):
        torch.from_dlpack(torch.ones(2, device="spyre"))
