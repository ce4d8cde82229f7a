"""An op falls back where the card has no program; where the compiler failed, the reason says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor

from torch_spyre_ref import eager
from torch_spyre_ref.compiled import build, refusal
from torch_spyre_ref.inductor.scheduling import SpyreScheduling


@pytest.fixture(autouse=True)
def nothing_from_disk() -> Iterator[None]:
    """What Inductor has cached would run no code generation."""
    with inductor.patch(fx_graph_cache=False):
        yield


def _raising(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _reasons() -> list[str]:
    return [row.reason for row in torch.spyre.fallback_report()]


@pytest.mark.compiler_fails
def test_a_defect_in_code_generation_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 5, device="spyre")
    monkeypatch.setattr(SpyreScheduling, "codegen_node", _raising(KeyError("buf7")))
    assert x.sum().item() == 15
    assert _reasons() == ["the compiler failed (KeyError: 'buf7')"]
    assert "on the CPU: the compiler failed" in repr(torch.spyre.eager_cache())


@pytest.mark.compiler_fails
def test_a_defect_anywhere_else_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 5, device="spyre")
    monkeypatch.setattr(build, "trace", _raising(AttributeError("no such thing")))
    assert x.sum().item() == 15
    assert _reasons() == ["the compiler failed (AttributeError: no such thing)"]


def test_what_the_card_cannot_do_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 5, device="spyre")
    error = NotImplementedError("the card has no instruction for it")
    monkeypatch.setattr(SpyreScheduling, "codegen_node", _raising(error))
    assert x.sum().item() == 15
    assert _reasons() == ["NotImplementedError: the card has no instruction for it"]


def test_what_the_cpu_refuses_too_is_no_defect() -> None:
    x = torch.ones(3, 5, device="spyre")
    with pytest.raises(RuntimeError):
        x.mm(x)
    assert not refusal.take_defects()


@pytest.mark.compiler_fails
def test_a_defect_is_kept_with_its_traceback_until_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(4, device="spyre")
    monkeypatch.setattr(SpyreScheduling, "codegen_node", _raising(KeyError("buf7")))
    for _ in range(3):
        x.exp()
    defect, *rest = refusal.take_defects()
    assert [defect.op, *(each.op for each in rest)] == ["aten::exp", "aten::exp.out"]
    assert "in codegen" in defect.traceback and "KeyError: 'buf7'" in defect.traceback
    assert not refusal.take_defects()
    eager.clear_eager_cache()
    x.exp()
