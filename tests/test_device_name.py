"""PyTorch has one name to give away: what happens when another backend was there first."""

from __future__ import annotations

from collections.abc import Callable


def test_a_name_that_is_taken_is_said_to_be_taken(run_python: Callable[..., str]) -> None:
    said = run_python(
        """
        import torch, torch_spyre_ref

        torch.utils.rename_privateuse1_backend("other")
        for attempt in range(2):
            try:
                torch_spyre_ref.register()
            except RuntimeError as error:
                print(error)
        print(hasattr(torch, "spyre"))
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    first, second, published = said.splitlines()
    assert first == second
    assert "already belongs to other" in first and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in first
    assert published == "False"


def test_registering_twice_changes_nothing(run_python: Callable[..., str]) -> None:
    said = run_python(
        """
        import torch, torch_spyre_ref

        for attempt in range(2):
            torch_spyre_ref.register()
        print(torch.device("spyre", 1), torch.ones(1, device="spyre").spyre(1).device)
        """,
    )
    assert said == "spyre:1 spyre:1\n"
