"""The examples do on the card what they do on the CPU."""

from __future__ import annotations

import runpy

import pytest

from literate import ROOT


@pytest.mark.parametrize("conv", [False, True], ids=["mlp", "conv"])
def test_digits_are_learned_as_well_as_on_the_cpu(conv: bool) -> None:
    """The same weights and batches: the same losses but for rounding, accuracy within a point."""
    train = runpy.run_path(str(ROOT / "examples" / "digits.py"))["train"]
    epochs = 3 if conv else 12
    card, host = (train(device, conv, epochs, progress=False) for device in ("spyre", "cpu"))
    assert card.losses == pytest.approx(host.losses, rel=0.02)
    assert abs(card.accuracy - host.accuracy) <= 0.01
    assert card.accuracy > (0.9 if conv else 0.95)
