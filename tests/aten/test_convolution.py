"""Convolution: values and gradients of every kind, by programs of the card alone.

Where there is no program, core has no CPU kernel to fall back on either.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional

from torch_spyre_ref.aten import fallback

CARD = torch.device("spyre", 0)
REASON = "eager compilation is off"
LOOSE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-7}


@pytest.fixture(autouse=True)
def nothing_fallen_back() -> None:
    fallback.reset_fallback_report()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2, "padding": 2},
    "grouped": {"groups": 2},
    "depthwise": {"groups": 4},
    "same": {"padding": "same"},
    "wide": {"padding": 3},
    "steps that do not fit": {"stride": 3},
}
TRANSPOSED: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1, "output_padding": 1},
    "dilated": {"dilation": 2},
    "grouped": {"groups": 2},
    "cut": {"padding": 3, "stride": 3},
    "with more room than steps": {"dilation": 3, "output_padding": 2, "padding": 1},
}


def both(function: Any, *tensors: torch.Tensor | None, **options: Any) -> None:
    """Values and gradients of ``function`` agree between the CPU and the card."""
    results = []
    for device in ("cpu", CARD):
        inputs = [
            None if t is None else t.detach().to(device).requires_grad_(t.requires_grad)
            for t in tensors
        ]
        output = function(*inputs, **options)
        assert output.device.type == torch.device(device).type
        output.backward(torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output))
        grads = [None if t is None or t.grad is None else t.grad.cpu() for t in inputs]
        results.append((output.detach().cpu(), *grads))
    for wanted, got in zip(*results, strict=True):
        assert (wanted is None) == (got is None)
        if wanted is not None and got is not None:
            assert got.stride() == wanted.stride()
            loose = LOOSE[wanted.dtype]
            torch.testing.assert_close(got, wanted, rtol=loose, atol=loose * 10)


def runs_on_the_card() -> None:
    assert not fallback.fallback_report()


def operand(*shape: int, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, requires_grad=True, **options)


@pytest.mark.parametrize(("dims", "with_bias"), [(1, True), (2, True), (2, False), (3, False)])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_convolution_agrees_with_the_cpu(dims: int, name: str, with_bias: bool) -> None:
    options = OPTIONS[name]
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[dims - 1]
    weight = operand(8, 4 // options.get("groups", 1), *[3] * dims)
    bias = operand(8) if with_bias else None
    both(convolve, operand(2, 4, *[7] * dims), weight, bias, **options)
    runs_on_the_card()


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_transposed_convolution_agrees_with_the_cpu(dims: int, name: str) -> None:
    options = TRANSPOSED[name]
    convolve = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )[dims - 1]
    weight = operand(4, 6, *[3] * dims)
    bias = operand(6 * options.get("groups", 1))
    both(convolve, operand(2, 4, *[4] * dims), weight, bias, **options)
    runs_on_the_card()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_float_formats_agree_with_the_cpu(dtype: torch.dtype) -> None:
    both(functional.conv2d, operand(2, 3, 5, 5, dtype=dtype), operand(4, 3, 3, 3, dtype=dtype))


def test_an_unbatched_input_and_an_empty_batch_agree_with_the_cpu() -> None:
    weight, bias = operand(4, 3, 3, 3), operand(4)
    both(functional.conv2d, operand(3, 5, 5), weight, bias)
    both(functional.conv2d, operand(0, 3, 5, 5), weight, bias)
    both(functional.conv_transpose2d, operand(0, 4, 5, 5), weight)


def test_a_channels_last_input_gives_a_channels_last_output() -> None:
    x = operand(2, 3, 6, 6).detach().to(memory_format=torch.channels_last).requires_grad_()
    both(functional.conv2d, x, operand(4, 3, 3, 3))


@pytest.mark.parametrize(
    "wanted", [w for w in itertools.product([True, False], repeat=3) if any(w)], ids=str
)
def test_only_the_gradients_that_are_asked_for_are_made(wanted: tuple[bool, ...]) -> None:
    x, weight, bias = operand(2, 3, 5, 5), operand(4, 3, 3, 3), operand(4)
    for tensor, needs in zip((x, weight, bias), wanted, strict=True):
        tensor.requires_grad_(needs)
    both(functional.conv2d, x, weight, bias)


def test_the_second_derivative_agrees_with_the_cpu() -> None:
    def curvature(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = functional.conv2d(x, weight).pow(2).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return slope.pow(2).sum().reshape(1)

    both(curvature, operand(1, 2, 4, 4), operand(3, 2, 3, 3))


def test_a_convolution_that_is_not_compiled_is_counted_with_its_reason() -> None:
    x, weight = operand(1, 2, 4, 4).detach().to(CARD), operand(3, 2, 3, 3).detach().to(CARD)
    with torch.spyre.eager_mode("fallback"):
        functional.conv2d(x, weight)
    (row,) = fallback.fallback_report()
    assert (row.op, row.calls, row.reason) == ("aten::convolution_overrideable", 1, REASON)


def test_a_refused_convolution_does_not_run() -> None:
    x, weight = operand(1, 2, 4, 4).detach().to(CARD), operand(3, 2, 3, 3).detach().to(CARD)
    refused = pytest.raises(RuntimeError, match="convolution")
    with torch.spyre.eager_mode("fallback"), fallback.fallback_policy("error"), refused:
        functional.conv2d(x, weight)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_compiled_layer_has_the_gradients_of_the_cpu(dims: int, dynamic: bool) -> None:
    torch._dynamo.reset()
    kind = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    layer = kind(4, 6, 3, stride=2, padding=1, groups=2)
    compiled = torch.compile(copy.deepcopy(layer).to(CARD), dynamic=dynamic, fullgraph=True)
    for images in (2, 3):
        x = operand(images, 4, *[6] * dims)
        mine = x.detach().to(CARD).requires_grad_()
        layer.zero_grad()
        compiled.zero_grad()
        layer(x).relu().sum().backward()
        compiled(mine).relu().sum().backward()
        for parameter, wanted in zip(compiled.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.cpu(), wanted.grad, rtol=2e-5, atol=2e-4)
        torch.testing.assert_close(mine.grad.cpu(), x.grad, rtol=2e-5, atol=2e-4)
    runs_on_the_card()


def test_operands_on_two_devices_are_refused_by_name() -> None:
    x, weight = operand(1, 2, 4, 4).detach(), operand(3, 2, 3, 3).detach()
    with pytest.raises(RuntimeError, match=r"same device.*spyre:0 and spyre:1"):
        functional.conv2d(x.to(CARD), weight.to("spyre:1"))
    with pytest.raises(RuntimeError, match=r"spyre:0|same device"):
        functional.conv2d(x.to(CARD), weight)


def test_the_result_lies_on_the_operands_card_whatever_card_is_current() -> None:
    x, weight = operand(1, 2, 4, 4).detach(), operand(3, 2, 3, 3).detach()
    assert functional.conv2d(x.to("spyre:1"), weight.to("spyre:1")).device.index == 1


def test_autocast_of_the_cpu_does_not_reach_the_cards_convolution() -> None:
    x, weight = operand(1, 2, 4, 4).detach(), operand(3, 2, 3, 3).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = functional.conv2d(x.to(CARD), weight.to(CARD))
    torch.testing.assert_close(got.cpu(), functional.conv2d(x, weight))


def test_a_convolution_in_a_default_device_of_the_card_trains() -> None:
    with CARD:
        layer = torch.nn.Conv2d(2, 3, 3)
        layer(torch.ones(1, 2, 4, 4)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == CARD
