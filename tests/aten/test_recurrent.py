"""LSTM and GRU, which core has no CPU kernel to fall back on: values and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from torch_spyre_ref.aten import fallback

CARD = torch.device("spyre", 0)
DTYPES = [torch.float32, torch.float64]


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in leaves(item)]


def moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, PackedSequence):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(item, device) for item in value)
    return value.detach().to(device).requires_grad_(value.requires_grad)


def agree(module: torch.nn.Module, *inputs: Any) -> None:
    """Outputs and all gradients of ``module`` agree between the CPU and the card."""
    results = []
    for device in ("cpu", CARD):
        here = copy.deepcopy(module).to(device)
        arguments = [moved(value, device) for value in inputs]
        outputs = leaves(here(*arguments))
        weights = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t) for t in outputs]
        torch.autograd.backward(outputs, weights)
        grads = [t.grad for t in (*leaves(tuple(arguments)), *here.parameters())]
        results.append([*outputs, *(grad for grad in grads if grad is not None)])
    on_cpu, on_card = results
    assert len(on_cpu) == len(on_card)
    for wanted, got in zip(on_cpu, on_card, strict=True):
        assert got.device == CARD
        torch.testing.assert_close(got.detach().cpu(), wanted.detach())


def made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "batch first, no bias": {"batch_first": True, "bias": False},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_layer_agrees_with_the_cpu(
    kind: type[torch.nn.Module], name: str, dtype: torch.dtype
) -> None:
    agree(kind(3, 5, dtype=dtype, **OPTIONS[name]), made(4, 2, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_initial_states_get_their_gradients(dtype: torch.dtype) -> None:
    x, h, c = (made(*shape, dtype=dtype) for shape in ((4, 2, 3), (1, 2, 5), (1, 2, 5)))
    agree(torch.nn.LSTM(3, 5, dtype=dtype), x, (h, c))
    agree(torch.nn.GRU(3, 5, dtype=dtype), x, h)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_agrees_with_the_cpu() -> None:
    agree(torch.nn.LSTM(3, 5, proj_size=2), made(4, 2, 3, dtype=torch.float32))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_single_cells_agree_with_the_cpu(dtype: torch.dtype, bias: bool) -> None:
    x, h, c = (made(*shape, dtype=dtype) for shape in ((2, 3), (2, 5), (2, 5)))
    agree(torch.nn.LSTMCell(3, 5, bias=bias, dtype=dtype), x, (h, c))
    agree(torch.nn.GRUCell(3, 5, bias=bias, dtype=dtype), x, h)
    agree(torch.nn.LSTMCell(3, 5, bias=bias, dtype=dtype), x)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_packed_sequences_agree_with_the_cpu(kind: type[torch.nn.Module]) -> None:
    padded = made(5, 3, 3, dtype=torch.float32).detach()
    packed = pack_padded_sequence(padded, torch.tensor([5, 2, 4]), enforce_sorted=False)
    agree(kind(3, 5, bidirectional=True), packed)


@pytest.mark.parametrize("which", [0, 1])
def test_a_gradient_through_one_of_the_two_states_alone_agrees_with_the_cpu(which: int) -> None:
    cell = torch.nn.LSTMCell(3, 5)

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state: torch.Tensor = self.cell(x)[which]
            return state

    agree(One(), made(2, 3, dtype=torch.float32))


def test_an_empty_batch_agrees_with_the_cpu() -> None:
    agree(torch.nn.LSTMCell(3, 5), made(0, 3, dtype=torch.float32))
    agree(torch.nn.GRUCell(3, 5), made(0, 3, dtype=torch.float32))


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_the_second_derivative_agrees_with_the_cpu(kind: type[torch.nn.Module]) -> None:
    cell = kind(3, 5, dtype=torch.float64)

    class Curvature(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = self.cell(x)
            y = (state if isinstance(state, torch.Tensor) else state[0]).pow(2).sum()
            (slope,) = torch.autograd.grad(y, x, create_graph=True)
            return slope.pow(2).sum()

    agree(Curvature(), made(2, 3, dtype=torch.float64))


def test_each_cell_is_counted_with_its_reason() -> None:
    fallback.reset_fallback_report()
    torch.nn.LSTMCell(3, 5).to(CARD)(torch.ones(2, 3, device=CARD))
    torch.nn.GRUCell(3, 5).to(CARD)(torch.ones(2, 3, device=CARD))
    counted = {row.op for row in fallback.fallback_report() if row.reason != fallback.NO_PROGRAM}
    assert counted == {"aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell"}
