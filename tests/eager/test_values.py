"""Every op against the CPU: dtypes, odd sizes, offsets and strides, with no fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.eager.cases import FLOATS, INTEGERS, Case

Layout = Callable[[torch.Tensor], torch.Tensor]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a larger, transposed block, from its second element on."""
    shape = tuple(size + 1 for size in reversed(tensor.shape))
    block = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    view = block[(slice(1, None),) * tensor.dim()].permute(*reversed(range(tensor.dim())))
    return view.copy_(tensor)


def check(case: Case, dtype: torch.dtype, layout: Layout, tolerance: float) -> None:
    numbers = [torch.randn(shape) for shape in case.shapes]
    if not dtype.is_floating_point:
        numbers = [(number * 20).round() for number in numbers]
    numbers = [number.to(dtype) for number in numbers]
    wanted = case.function(*[number.clone() for number in numbers])
    inputs = [layout(number.to("spyre")) for number in numbers]
    untouched = [tensor.cpu() for tensor in inputs]
    found = case.function(*inputs)
    report = torch.spyre.fallback_report()
    assert not len(report), report
    _compare(found, wanted, tolerance)
    for tensor, before in zip(inputs, untouched, strict=True):
        assert torch.equal(tensor.cpu(), before)


def _compare(found: Any, wanted: Any, tolerance: float) -> None:
    if isinstance(wanted, (list, tuple)):
        for one, other in zip(found, wanted, strict=True):
            _compare(one, other, tolerance)
        return
    assert found.device.type == "spyre"
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(
        found.cpu(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
    )


@pytest.mark.parametrize("layout", [_plain, _strided])
@pytest.mark.parametrize("case", FLOATS, ids=lambda case: case.name)
def test_float32(case: Case, layout: Layout) -> None:
    check(case, torch.float32, layout, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", FLOATS, ids=lambda case: case.name)
def test_halves(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype, _strided, 4e-3 if dtype == torch.float16 else 4e-2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("case", INTEGERS, ids=lambda case: case.name)
def test_whole_numbers(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype, _strided, 1e-6)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,), (), (1, 1, 5)])
def test_sizes_of_zero_and_one(shape: tuple[int, ...]) -> None:
    numbers = torch.randn(shape)
    card = numbers.to("spyre")
    for function in (lambda a: a + a, lambda a: a.sum(), lambda a: a * 2 - 1, torch.exp):
        torch.testing.assert_close(function(card).cpu(), function(numbers))
    assert not len(torch.spyre.fallback_report())


def test_ranges() -> None:
    for size in (0, 1, 5, 1000):
        assert torch.equal(torch.arange(size, device="spyre").cpu(), torch.arange(size))
        torch.testing.assert_close(
            torch.linspace(-1, 2, size, device="spyre").cpu(), torch.linspace(-1, 2, size)
        )
    assert torch.equal(torch.arange(9, -4, -3, device="spyre").cpu(), torch.arange(9, -4, -3))
    assert torch.equal(torch.eye(3, 5, device="spyre").cpu(), torch.eye(3, 5))
    assert not len(torch.spyre.fallback_report())


def test_a_number_of_the_host_is_taken_as_it_is_at_the_call() -> None:
    card = torch.ones(3, device="spyre")
    number = torch.tensor(2.0)
    sums = []
    for _ in range(3):
        sums.append(card + number)
        number += 1
    assert [each[0].item() for each in sums] == [3.0, 4.0, 5.0]
    assert (
        torch.ones(3, dtype=torch.int32, device="spyre") + torch.tensor(1, dtype=torch.int64)
    ).dtype == torch.int32


@pytest.mark.parametrize(
    ("product", "shapes"),
    [
        (torch.addbmm, ((2, 2), (3, 2, 2), (3, 2, 2))),
        (torch.baddbmm, ((3, 2, 2), (3, 2, 2), (3, 2, 2))),
        (torch.addmm, ((2, 2), (2, 2), (2, 2))),
        (torch.addmv, ((2,), (2, 2), (2,))),
    ],
)
def test_factors_of_a_product(product: Callable[..., Any], shapes: Any) -> None:
    torch.spyre.clear_eager_cache()

    def scaled(beta: float, alpha: float) -> Callable[..., Any]:
        return lambda *sides: product(*sides, beta=beta, alpha=alpha)

    def of_nothing(self: torch.Tensor, *factors: torch.Tensor) -> Any:
        return product(self * torch.nan, *factors, beta=0)

    check(Case("factor 0, the first of all", of_nothing, shapes), torch.float32, _plain, 1e-5)
    for beta, alpha in ((1.6, 2.7), (-1.6, 2), (1, 1.5), (0.6, 0.2), (0, 1.5)):
        check(Case("factors", scaled(beta, alpha), shapes), torch.int64, _plain, 0)
    check(Case("factors", scaled(1.6, -2.5), shapes), torch.float32, _plain, 1e-5)


@pytest.mark.parametrize("weights", [None, torch.float16, torch.float32])
def test_statistics_have_the_dtype_of_the_input_or_of_other_weights(
    weights: torch.dtype | None,
) -> None:
    def statistics(x: torch.Tensor) -> list[torch.Tensor]:
        scale = None if weights is None else x.new_ones(4, dtype=weights)
        rows = torch.native_layer_norm(x.transpose(1, 2), [4], scale, scale, 1e-5)
        groups = torch.native_group_norm(x, scale, scale, 3, 4, 6, 2, 1e-5)
        batch = torch.native_batch_norm(x, scale, scale, None, None, True, 0.1, 1e-5)
        return [*rows[1:], *groups[1:], *batch[1:]]

    check(Case("statistics", statistics, ((3, 4, 6),)), torch.float16, _plain, 4e-3)


def test_a_norm_that_is_given_statistics_returns_none() -> None:
    def norms(x: torch.Tensor) -> list[torch.Tensor]:
        given = x.new_zeros(4), x.new_ones(4)
        return [
            *torch.native_batch_norm(x, None, None, *given, False, 0.1, 1e-5),
            *torch.native_batch_norm(x, None, None, *given, training=True, momentum=0.1, eps=1e-5),
        ]

    for dtype in (torch.float32, torch.float16):
        check(Case("norms", norms, ((3, 4, 6),)), dtype, _plain, 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("compiled", [False, True])
def test_quotients_of_floats_are_floored_as_python_floors_them(
    dtype: torch.dtype, compiled: bool
) -> None:
    above = torch.tensor([1, 5, -1, 7, -7, 0, 3], dtype=dtype)
    below = torch.tensor([0.125, 0.1, 0.1, -0.7, 2, -1, 0])
    if dtype.is_floating_point:
        above, below = torch.cat([above, torch.tensor([torch.inf])]), torch.cat([below, below[4:5]])
    below = below.to(dtype if dtype.is_floating_point else torch.float32)

    def floored(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a // b, torch.div(a, b, rounding_mode="floor"), a // 0.1, 0.7 // b, a.sign() // 0.1

    on_card = torch.compile(floored) if compiled else floored
    found = [quotient.cpu() for quotient in on_card(above.to("spyre"), below.to("spyre"))]
    torch.testing.assert_close(found, list(floored(above, below)), equal_nan=True)


@pytest.mark.parametrize("number", [0, 1, 2, 0.5, True])
def test_a_number_among_truth_values(number: float) -> None:
    def work(x: torch.Tensor) -> list[torch.Tensor]:
        places = torch.tensor([2, 0], device=x.device)
        return [
            torch.nn.functional.pad(x, [2, 1], value=number),
            x.masked_fill(~x, number),
            x.index_fill(1, places, number),
            x.scatter(1, places[None], number),
            torch.full_like(x, number),
            x.eq(number),
        ]

    x = torch.tensor([[True, False, True, False]])
    for found, wanted in zip(work(x.to("spyre")), work(x), strict=True):
        assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_bytes_between_bytes(mode: str) -> None:
    x = torch.randint(0, 255, (2, 3, 4, 4), dtype=torch.uint8)
    found = torch.nn.functional.interpolate(x.to("spyre"), scale_factor=1.7, mode=mode)
    assert torch.equal(found.cpu(), torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode))
    rows = [(row.op, row.reason) for row in torch.spyre.fallback_report()]
    assert bool(rows) == (mode != "nearest")
    assert all("whole numbers" in reason for _, reason in rows)
