"""Sizes and scalars are symbols: one program serves many, and a growing loop compiles once."""

from __future__ import annotations

import torch

from tests.inductor.compiled import counted


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v


def test_a_decode_loop_that_grows_compiles_once_for_all_lengths() -> None:
    function, counter = counted(attention, dynamic=True)
    for length in range(5, 40, 3):
        q, k, v = torch.randn(2, 1, 8), torch.randn(2, length, 8), torch.randn(2, length, 8)
        got = function(q.to("spyre"), k.to("spyre"), v.to("spyre"))
        torch.testing.assert_close(got.cpu(), attention(q, k, v))
    assert counter.frame_count == 1


def test_one_program_serves_rows_that_are_held_and_rows_that_are_too_long_for_that() -> None:
    function, counter = counted(lambda x: x.softmax(-1), dynamic=True)
    for shape in ((20, 33), (3, 100_000), (1_000, 17), (2, 4_096), (2, 4_097)):
        x = torch.randn(shape)
        torch.testing.assert_close(function(x.to("spyre")).cpu(), x.softmax(-1))
    assert counter.frame_count == 1


def test_a_marked_dimension_is_a_symbol_from_the_first_call() -> None:
    function, counter = counted(lambda x: (x * 2).sum(1))
    first = torch.ones(6, 5, device="spyre")
    torch._dynamo.mark_dynamic(first, 0)
    assert function(first).shape == (6,)
    for rows in (3, 9, 100):
        got = function(torch.ones(rows, 5, device="spyre"))
        assert torch.equal(got.cpu(), torch.full((rows,), 10.0))
    assert counter.frame_count == 1


def test_numbers_become_symbols_and_not_constants() -> None:
    function, counter = counted(lambda x, s: x * s + 1, dynamic=True)
    x = torch.randn(4, 5)
    for number in (2, 3, 5, 7):
        torch.testing.assert_close(function(x.to("spyre"), number).cpu(), x * number + 1)
    assert counter.frame_count == 1
    function, counter = counted(lambda x, s: x * s + 1)
    for fraction in (1.5, 2.5, 3.5, 4.25):
        torch.testing.assert_close(function(x.to("spyre"), fraction).cpu(), x * fraction + 1)
    assert counter.frame_count <= 2


def test_sizes_that_are_computed_from_symbols_are_right() -> None:
    function, counter = counted(
        lambda x: torch.cat([x[1:], x[: x.shape[0] // 2]]).reshape(-1, 2).sum(1), dynamic=True
    )
    for rows in (6, 10, 50):
        x = torch.randn(rows, 4)
        want = torch.cat([x[1:], x[: rows // 2]]).reshape(-1, 2).sum(1)
        torch.testing.assert_close(function(x.to("spyre")).cpu(), want)
    assert counter.frame_count == 1
