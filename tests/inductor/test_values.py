"""Compiled functions give on a card what they give on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inductor.cases import FALLBACKS, PLACES, POINTWISE, PRODUCTS, REDUCTIONS, Case, real
from tests.inductor.compiled import check, on_card

ALL = {
    **{f"pointwise: {name}": case for name, case in POINTWISE.items()},
    **{f"reduction: {name}": case for name, case in REDUCTIONS.items()},
    **{f"product: {name}": case for name, case in PRODUCTS.items()},
    **{f"place: {name}": case for name, case in PLACES.items()},
}


def run(case: Case, dynamic: bool, device: str = "spyre") -> None:
    function, arguments = case
    check(function, *arguments(), dynamic=dynamic, device=device)


@pytest.mark.parametrize("name", ALL)
def test_values_are_those_of_the_cpu(name: str) -> None:
    run(ALL[name], dynamic=False)


@pytest.mark.parametrize("name", list(ALL)[::2])
def test_values_are_those_of_the_cpu_where_sizes_are_symbols(name: str) -> None:
    run(ALL[name], dynamic=True)


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("name", FALLBACKS)
def test_what_the_card_cannot_compute_falls_back_inside_a_graph(name: str) -> None:
    run(FALLBACKS[name], dynamic=False)


@pytest.mark.parametrize("name", ["reduction: softmax", "product: two layers", "place: gather"])
def test_a_graph_on_the_second_card_stays_there(name: str) -> None:
    run(ALL[name], dynamic=False, device="spyre:1")


def test_a_second_card_does_not_get_the_first_ones_result() -> None:
    double = torch.compile(lambda x: x + x)
    for index in (0, 1, 0, 1):
        x = real(5)
        card = double(x.to(f"spyre:{index}"))
        assert card.device.index == index
        assert torch.equal(card.cpu(), x + x)


@pytest.mark.parametrize("length", [300_000, 3_000_000])
def test_rows_that_no_scratchpad_holds_are_streamed_again(length: int) -> None:
    check(lambda x: x.softmax(-1), real(2, length))
    check(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), real(2, length))


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@settings(max_examples=15, deadline=None)
@given(shape=shapes, data=st.data())
def test_any_chain_of_views_and_loops_gives_the_cpus_values(
    shape: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    step = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(0, len(shape) - 1))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.permute(order)
        flat = turned.reshape(-1)[::step]
        return (turned * 2).sum(axis), flat.flip(0) + 1, turned.contiguous() - turned.amax()

    check(function, real(*shape))


def test_numbers_of_the_host_are_brought_to_the_card_whatever_their_order() -> None:
    number, x = torch.tensor(2.5), real(4, 5)
    got = torch.compile(lambda n, x: (n * x, x * n))(number, on_card(x))
    for side in got:
        torch.testing.assert_close(side.cpu(), x * number)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_small_integers_convert_as_on_the_cpu(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (9, 7), dtype=dtype)
    check(lambda x: (x.float() * 3).to(torch.int64) + x, x)
    check(lambda x: torch.where(x > 0, x, x.new_zeros(())), x)
