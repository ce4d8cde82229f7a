"""Two cards: nothing lands on the wrong one, and an op that mixes them is refused (invariant 8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support import same_bits, values

OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "matmul": lambda a, b: a @ b.t(),
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "stack": lambda a, b: torch.stack([a, b]),
    "out": lambda a, b: torch.add(a, 1, out=b),
    "in place": lambda a, b: a.mul_(b),
    "addmm": lambda a, b: torch.addmm(a[:, :2], a, b.t()),
    "loss": torch.nn.functional.mse_loss,
    "set_": lambda a, b: a.set_(b),
    "lerp": lambda a, b: torch.lerp(a, a, b),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("other", ["spyre:1", "cpu"])
def test_an_op_on_two_devices_is_refused_and_changes_neither(
    op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], other: str
) -> None:
    first, second = values((2, 3), torch.float32).to("spyre:0"), torch.ones(2, 3, device=other)
    with pytest.raises(RuntimeError, match="device") as caught:
        op(first, second)
    message = str(caught.value)
    assert "spyre:0" in message and other in message
    assert same_bits(first, values((2, 3), torch.float32))
    assert second.eq(1).all()


def test_indices_lie_on_the_tensors_card_or_on_the_cpu() -> None:
    card = values((4, 3), torch.float32).to("spyre:0")
    rows = torch.tensor([3, 0])
    for index in (rows, rows.to("spyre:0")):
        assert same_bits(card[index], values((4, 3), torch.float32)[rows])
        card[index] = torch.zeros(3, device="spyre:0")
        card.copy_(values((4, 3), torch.float32))
    with pytest.raises(RuntimeError, match="spyre:0"):
        card[rows.to("spyre:1")]
    with pytest.raises(RuntimeError, match="spyre:1"):
        card[rows.to("spyre:1")] = 0


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", ["spyre:0", "spyre:1"])
def test_results_lie_where_the_operands_lie(device: str, current: int) -> None:
    with torch.spyre.device(current):
        a = torch.arange(12.0, device=device).view(3, 4)
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.GELU())
        module.to(device)
        results = [
            a + 1,
            2 - a,
            a.sum(),
            a @ a.t(),
            a.max(0).values,
            a.nonzero(),
            a[a > 3],
            a.topk(2).indices,
            torch.cat([a, a]),
            torch.zeros_like(a),
            a.new_empty(2),
            a.clone(),
            a.half(),
            torch.randn_like(a),
            module(a),
            torch.nn.functional.conv1d(a[None], torch.ones(3, 3, 2, device=device)),
            torch.ones(2, 0, device=device) @ torch.ones(0, 2, device=device),
            a.resize_(2, 2),
            torch.empty(0, device=device).set_(a.untyped_storage()),
        ]
        assert {str(result.device) for result in results} == {device}
        assert {str(result.untyped_storage().device) for result in results} == {device}


def test_memory_is_counted_on_the_card_that_holds_it() -> None:
    before = [torch.accelerator.memory_allocated(card) for card in (0, 1)]
    with torch.spyre.device(0):
        tensor = torch.ones(1000, device="spyre:1")
        tensor.resize_(2000)
    held = [torch.accelerator.memory_allocated(card) - before[card] for card in (0, 1)]
    assert held == [0, 8064]
    del tensor


def test_the_same_work_on_both_cards_gives_the_same_bits() -> None:
    def work(device: str) -> torch.Tensor:
        x = values((8, 16), torch.float32).to(device)
        for _ in range(3):
            x = (x @ x.t() / 100).softmax(-1) @ x + x[:, 3:4]
        return x

    results = [work(device) for device in ("spyre:0", "spyre:1", "spyre:0")]
    assert {str(r.device) for r in results} == {"spyre:0", "spyre:1"}
    assert all(same_bits(result, results[0].cpu()) for result in results)


def test_copies_between_cards_leave_the_source_and_the_current_card() -> None:
    source = values((3, 4), torch.float32).to("spyre:0")
    with torch.spyre.device(0):
        moved = source.to("spyre:1")
        moved.fill_(0)
        assert same_bits(torch.empty_like(moved).copy_(source), source.cpu())
        assert torch.spyre.current_device() == 0
    assert same_bits(source, values((3, 4), torch.float32))
    assert moved.device.index == 1 and moved.eq(0).all()
    assert source.to("spyre:0") is source and source.to("spyre") is source


def test_what_is_enqueued_on_one_card_does_not_wait_for_the_other() -> None:
    from torch_spyre_ref import backend

    held = torch.ones(1 << 20).pin_memory()
    card = torch.empty(1 << 20, device="spyre:1").copy_(held, non_blocking=True)
    torch.accelerator.synchronize("spyre:0")
    assert backend.current().queue(1).pending()
    torch.accelerator.synchronize("spyre:1")
    assert not backend.current().queue(1).pending()
    assert card[-1].item() == 1
