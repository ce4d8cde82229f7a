"""The examples do on the card what they do on the CPU."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize("conv", [False, True], ids=["mlp", "conv"])
def test_nothing_falls_back_while_digits_are_learned_and_read(conv: bool) -> None:
    """Training one op at a time, and the compiled network: forward, backward, optimizer."""
    module = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    torch.spyre.reset_fallback_report()
    run = module["train"]("spyre", conv, 1, progress=False)
    images = module["data"]()[1].tensors[0].to("spyre")
    with torch.no_grad(), torch.spyre.fallback_policy("error"):
        kernels = torch.spyre.explain(run.predict, images).kernels
    assert kernels
    assert not torch.spyre.fallback_report()


def test_the_example_says_what_ran_where(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    torch.spyre.reset_fallback_report()
    monkeypatch.setattr(sys, "argv", ["digits.py", "--epochs", "1"])
    runpy.run_path(str(ROOT / "examples" / "digits.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "Compiled, for 360 images" in said
    assert said.endswith("On the CPU instead of the card:\nno fallbacks\n")
