"""``python -m torch_spyre_ref``: card, memory, versions, build, and a self-check."""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Callable

import numpy as np
import torch

import torch_spyre_ref

torch_spyre_ref.register()

from torch_spyre_ref import backend, build_check, device  # noqa: E402
from torch_spyre_ref.aten.fallback import fallback_policy  # noqa: E402
from torch_spyre_ref.memory.api import memory_allocated  # noqa: E402
from torch_spyre_ref.memory.map import size_text  # noqa: E402


def describe() -> None:
    """Print versions, build, cards and settings."""
    card = device.get_device_properties(0)
    print(f"torch_spyre_ref  {torch_spyre_ref.__version__}")
    print(f"Python           {platform.python_version()}")
    print(f"torch            {torch.__version__}, bridge built for {build_check.built_for()}")
    print(f"NumPy            {np.__version__}")
    print(
        f"cards            {device.device_count()} x {card.name}, "
        f"{card.multi_processor_count} cores with {size_text(card.scratchpad_bytes)} of scratchpad"
    )
    print(
        f"memory           {size_text(card.total_memory)} a card in {card.domains} domains, "
        f"{card.mode.upper()} mode, {card.stick_bytes}-byte sticks"
    )
    chosen = dataclasses.asdict(backend.current().settings)
    print("settings         " + ", ".join(f"{name}={value}" for name, value in chosen.items()))


def _round_trip() -> bool:
    host = torch.arange(24.0).reshape(2, 3, 4)
    card = host.to("spyre")
    return torch.equal(card.cpu(), host) and torch.equal(card[:, ::2].cpu(), host[:, ::2])


def _memory_returns() -> bool:
    before = memory_allocated()
    tensor = torch.empty(1000, device="spyre")
    grown = memory_allocated() - before
    del tensor
    return grown == 4096 and memory_allocated() == before


def _training_step() -> bool:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    data = torch.randn(8, 4)
    layer(data).square().mean().backward()
    twin = torch.nn.Linear(4, 2).to("spyre")
    twin.load_state_dict(layer.state_dict())
    twin(data.to("spyre")).square().mean().backward()
    return all(
        theirs.grad is not None and torch.allclose(theirs.grad, ours.grad.cpu())
        for theirs, ours in zip(layer.parameters(), twin.parameters(), strict=True)
        if ours.grad is not None
    )


def _between_cards() -> bool:
    host = torch.arange(10)
    last = f"spyre:{device.device_count() - 1}"
    return torch.equal(host.to("spyre:0").to(last).cpu(), host)


CHECKS: dict[str, Callable[[], bool]] = {
    "tensors go to the card and come back, views too": _round_trip,
    "freed memory returns": _memory_returns,
    "a training step has the gradients of the CPU": _training_step,
    "tensors go from the first card to the last": _between_cards,
}


def main() -> int:
    """Describe, check, and return how many checks failed."""
    describe()
    failed = 0
    with fallback_policy("silent"):
        for claim, check in CHECKS.items():
            good = check()
            failed += not good
            print(f"{'ok' if good else 'FAILED':<16} {claim}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
