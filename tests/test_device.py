"""Device identity: torch.device("spyre"), torch.spyre and torch.accelerator."""

from __future__ import annotations

import pytest
import torch


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert torch.spyre.is_available()
    device = torch.device("spyre")
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    y = x + 2
    print(y)
    assert "device='spyre:0'" in capsys.readouterr().out
    assert y.cpu().tolist() == [[3.0, 4.0], [5.0, 6.0]]


from tests.support import NUMBERS

def test_x():
    assert NUMBERS
