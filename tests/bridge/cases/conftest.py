"""One fake driver a process, and a clean record of its calls for each test."""

from __future__ import annotations

import fake_driver
import pytest
import torch

DRIVER = fake_driver.start()


@pytest.fixture
def driver() -> fake_driver.FakeDriver:
    torch.accelerator.set_device_index(0)
    DRIVER.calls.clear()
    DRIVER.fallbacks.clear()
    return DRIVER
