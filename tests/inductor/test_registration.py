"""Inductor is told of the device by its own calls, and only when it compiles for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_spyre_ref
from tests.conftest import Run

ROOT = Path(torch_spyre_ref.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))


def targets(tree: ast.AST) -> Iterator[ast.expr]:
    """Everything that a module assigns to, or deletes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target


def root_of(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def imported(tree: ast.AST) -> set[str]:
    """The names under which a module knows torch, or something of it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (a.asname or a.name.split(".")[0])
                for a in node.names
                if a.name.split(".")[0] == "torch"
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {a.asname or a.name for a in node.names}
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_assigned_into_torch(path: Path) -> None:
    tree = ast.parse(path.read_text())
    known = imported(tree)
    for target in targets(tree):
        if isinstance(target, ast.Attribute | ast.Subscript):
            assert root_of(target) not in known, ast.unparse(target)


def test_compiling_leaves_inductors_configuration_as_it_was() -> None:
    from torch._inductor import config

    before = config.get_config_copy()
    torch._dynamo.reset()
    x = torch.randn(20, 33, device="spyre")
    torch.compile(lambda x: x.softmax(-1) @ x.t())(x)
    assert config.get_config_copy() == before


def test_importing_torch_loads_neither_inductor_nor_dynamo(run_python: Run) -> None:
    run_python("""
        import sys
        import torch
        torch.ones(3, device="spyre")
        loaded = [name for name in ("torch._inductor", "torch._dynamo", "sympy")
                  if name in sys.modules]
        assert not loaded, loaded
        assert "torch_spyre_ref.inductor.registration" not in sys.modules
    """)


def test_compiling_starts_no_card_before_the_first_launch(run_python: Run) -> None:
    run_python(
        """
        import torch
        from torch._inductor.codegen.common import (
            get_scheduling_for_device, init_backend_registration,
        )
        init_backend_registration()
        assert get_scheduling_for_device("spyre") is not None
        assert not torch.spyre.is_initialized()
        """
    )
