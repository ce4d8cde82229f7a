"""LSTM and GRU cells: on a private device core calls fused cells, which have no CPU kernel.

The gates arrive as two products, of the input and of the hidden state with their weights; a cell
adds them and the biases, applies the nonlinearities, and keeps what its backward needs in a
workspace, whose layout is the backend's own. Shapes: gates ``(batch, 4 hidden)`` for LSTM and
``(batch, 3 hidden)`` for GRU, in core's order (input, forget, cell, output; reset, update, new);
states ``(batch, hidden)``. The functions here compute on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch

from torch_spyre_ref.aten import on_cpu

Maybe: TypeAlias = torch.Tensor | None


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the new hidden state, the new cell state, and the activated gates as workspace."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), dim=1)


def lstm_cell_backward(
    grad_hy: Maybe,
    grad_cy: Maybe,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[Maybe, Maybe, Maybe]:
    """Return the gradients of the gates, of the old cell state, and of either bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, dim=1)
    tanh_cy = cy.tanh()
    grad_o = torch.zeros_like(o)
    grad_c = torch.zeros_like(cy) if grad_cy is None else grad_cy
    if grad_hy is not None:
        grad_o = grad_hy * tanh_cy
        grad_c = grad_c + grad_hy * o * (1 - tanh_cy * tanh_cy)
    grad_gates = torch.cat(
        (
            _through_sigmoid(grad_c * g, i),
            _through_sigmoid(grad_c * cx, f),
            _through_tanh(grad_c * i, g),
            _through_sigmoid(grad_o, o),
        ),
        dim=1,
    )
    return grad_gates, grad_c * f, grad_gates.sum(dim=0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new hidden state, and (reset, update, new, hx, hidden's new gate) as workspace."""
    input_r, input_z, input_n = _with_bias(input_gates, input_bias).chunk(3, dim=1)
    hidden_r, hidden_z, hidden_n = _with_bias(hidden_gates, hidden_bias).chunk(3, dim=1)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hidden_n), dim=1)


def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Maybe, Maybe]:
    """Return the gradients of both gates, of the old hidden state, and of both biases."""
    r, z, n, hx, hidden_n = workspace.chunk(5, dim=1)
    grad_n = _through_tanh(grad_hy * (1 - z), n)
    grad_r = _through_sigmoid(grad_n * hidden_n, r)
    grad_z = _through_sigmoid(grad_hy * (hx - n), z)
    grad_input = torch.cat((grad_r, grad_z, grad_n), dim=1)
    grad_hidden = torch.cat((grad_r, grad_z, grad_n * r), dim=1)
    if not has_bias:
        return grad_input, grad_hidden, grad_hy * z, None, None
    return grad_input, grad_hidden, grad_hy * z, grad_input.sum(dim=0), grad_hidden.sum(dim=0)


def _with_bias(gates: torch.Tensor, bias: Maybe) -> torch.Tensor:
    return gates if bias is None else gates + bias


def _through_sigmoid(grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return grad * value * (1 - value)


def _through_tanh(grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return grad * (1 - value * value)


KERNELS: Final[Mapping[str, Callable[..., Any]]] = on_cpu.kernels(
    {
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_cell_backward,
    }
)
