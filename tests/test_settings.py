"""Environment variables: every one is read, and nonsense in one is named before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Run
from torch_spyre_ref.settings import GIB, Settings

VALID = [
    ("DEVICES", "3", {"devices": 3}),
    ("MODE", "PF", {"mode": "pf"}),
    ("MEMORY", "64M", {"memory": 64 << 20}),
    ("MEMORY", "1gib", {"memory": GIB}),
    ("MEMORY", " 128G ", {"memory": 128 * GIB}),
    ("MEMORY", str(1 << 30), {"memory": 1 << 30}),
    ("DOMAINS", "8", {"domains": 8}),
    ("FALLBACK", "Error", {"fallback": "error"}),
    ("POISON", "true", {"poison": True}),
    ("SANITIZE", "1", {"sanitize": True, "poison": True}),
    ("DERIVE_EDGES", "0", {"derive_edges": False}),
    ("DEVICES", "", {}),
]

NONSENSE = [
    ("DEVICES", "0"),
    ("DEVICES", "two"),
    ("DEVICES", "1.5"),
    ("DEVICES", "1000000"),
    ("MODE", "xf"),
    ("MEMORY", "16X"),
    ("MEMORY", "lots"),
    ("MEMORY", "-1G"),
    ("MEMORY", "1K"),
    ("MEMORY", "129G"),
    ("MEMORY", "33M"),
    ("DOMAINS", "3"),
    ("FALLBACK", "loud"),
    ("SANITIZE", "yes please"),
    ("POISON", "2"),
    ("DERIVE_EDGES", "maybe"),
]


@pytest.mark.parametrize(("name", "text", "expected"), VALID, ids=str)
def test_a_variable_is_understood(name: str, text: str, expected: dict[str, Any]) -> None:
    found = Settings.from_environment({f"TORCH_SPYRE_REF_{name}": text})
    assert found == Settings(**expected)


@pytest.mark.parametrize(("name", "text"), NONSENSE, ids=str)
def test_nonsense_is_named_with_its_variable(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"TORCH_SPYRE_REF_{name}\b") as caught:
        Settings.from_environment({f"TORCH_SPYRE_REF_{name}": text})
    if text != "33M":
        assert repr(text) in str(caught.value) and "must be" in str(caught.value)


def test_sanitize_turns_poison_on_unless_told_otherwise() -> None:
    told = {"TORCH_SPYRE_REF_SANITIZE": "1", "TORCH_SPYRE_REF_POISON": "0"}
    assert not Settings.from_environment(told).poison


def test_nonsense_is_reported_by_the_first_use_and_not_by_the_import(run_python: Run) -> None:
    out = run_python(
        """
        import torch
        assert not torch.spyre.is_initialized()
        for use in (
            lambda: torch.ones(2, device="spyre"),
            lambda: torch.ones(2).to("spyre"),
            torch.spyre.is_available,
            torch.spyre.device_count,
            lambda: torch.accelerator.set_device_index(0),
        ):
            try:
                use()
            except ValueError as error:
                print(error)
        assert torch.ones(2).add(1).tolist() == [2.0, 2.0]
        """,
        TORCH_SPYRE_REF_DEVICES="many",
    )
    lines = out.splitlines()
    assert len(lines) == 5
    assert all("TORCH_SPYRE_REF_DEVICES is 'many', but must be" in line for line in lines)


def test_settings_reach_the_cards(run_python: Run) -> None:
    out = run_python(
        """
        import torch
        print(torch.spyre.device_count(), torch.accelerator.device_count())
        properties = torch.spyre.get_device_properties(2)
        print(properties.mode, properties.total_memory >> 20, properties.domains)
        with torch.spyre.placement("interleave"):
            x = torch.full((20000,), 3.0, device="spyre:2")
        print(len(torch.spyre.memory_map(2).regions), x.sum().item())
        print(torch.empty(3, dtype=torch.int8, device="spyre").tolist())
        print(torch.spyre.get_fallback_policy())
        """,
        TORCH_SPYRE_REF_DEVICES="3",
        TORCH_SPYRE_REF_MODE="pf",
        TORCH_SPYRE_REF_MEMORY="64M",
        TORCH_SPYRE_REF_DOMAINS="2",
        TORCH_SPYRE_REF_POISON="0",
    )
    assert out.split("\n") == ["3 3", "pf 64 2", "2 60000.0", "[0, 0, 0]", "silent", ""]
