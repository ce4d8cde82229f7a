"""Random numbers on the card: reproducible, its own, and judged like the CPU's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_spyre_ref.emulator import philox

CARD = torch.device("spyre", 0)
OTHER = torch.device("spyre", 1)
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ALL_DTYPES = [
    *FLOATS,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
]

Draw = Callable[[torch.Tensor, Any], torch.Tensor]

# Name, in-place draw, and the words an element takes in float32.
IN_PLACE: dict[str, tuple[Draw, int]] = {
    "uniform_": (lambda x, g: x.uniform_(-1, 3, generator=g), 1),
    "normal_": (lambda x, g: x.normal_(1, 2, generator=g), 2),
    "log_normal_": (lambda x, g: x.log_normal_(0, 0.25, generator=g), 2),
    "exponential_": (lambda x, g: x.exponential_(2, generator=g), 1),
    "cauchy_": (lambda x, g: x.cauchy_(1, 2, generator=g), 1),
    "geometric_": (lambda x, g: x.geometric_(0.25, generator=g), 1),
    "random_": (lambda x, g: x.random_(generator=g), 2),
    "random_to": (lambda x, g: x.random_(100, generator=g), 2),
    "random_from": (lambda x, g: x.random_(-20, 100, generator=g), 2),
    "bernoulli_float": (lambda x, g: x.bernoulli_(0.25, generator=g), 1),
    "bernoulli_tensor": (
        lambda x, g: x.bernoulli_(torch.tensor(0.25, device=x.device), generator=g),
        1,
    ),
}


def state(generator: torch.Generator) -> tuple[int, int]:
    seed, offset = np.frombuffer(bytes(generator.get_state().tolist()), dtype=np.uint64).tolist()
    return seed, offset


def card_generator(seed: int, device: torch.device = CARD) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_draw_takes_a_fixed_number_of_words_an_element(name: str) -> None:
    draw, words = IN_PLACE[name]
    generator = card_generator(3)
    draw(torch.empty(5, 7, device=CARD), generator)
    assert state(generator) == (3, 35 * words)


@pytest.mark.parametrize("name", IN_PLACE)
def test_zero_elements_draw_nothing(name: str) -> None:
    generator = card_generator(3)
    empty = torch.empty(4, 0, device=CARD)
    assert IN_PLACE[name][0](empty, generator) is empty
    assert state(generator) == (3, 0)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_saved_state_resumes_exactly(name: str) -> None:
    draw = IN_PLACE[name][0]
    generator = card_generator(11)
    draw(torch.empty(3, device=CARD), generator)
    saved = generator.get_state()
    first = draw(torch.empty(70_001, device=CARD), generator).cpu()
    generator.set_state(saved)
    head = draw(torch.empty(70_000, device=CARD), generator).cpu()
    tail = draw(torch.empty(1, device=CARD), generator).cpu()
    assert torch.equal(first, torch.cat((head, tail)))


@pytest.mark.parametrize("name", IN_PLACE)
def test_the_same_seed_gives_the_same_numbers_on_every_card(name: str) -> None:
    draw = IN_PLACE[name][0]
    torch.manual_seed(5)
    here, there = (draw(torch.empty(9, device=card), None).cpu() for card in (CARD, OTHER))
    assert torch.equal(here, there)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_draw_leaves_the_cpu_and_the_other_card_alone(name: str) -> None:
    torch.manual_seed(5)
    cpu, other = torch.get_rng_state(), torch.spyre.get_rng_state(1)
    IN_PLACE[name][0](torch.empty(9, device=CARD), None)
    assert torch.equal(torch.get_rng_state(), cpu)
    assert torch.equal(torch.spyre.get_rng_state(1), other)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_generator_of_another_device_is_refused(name: str) -> None:
    draw = IN_PLACE[name][0]
    with pytest.raises(
        RuntimeError, match=r"Expected a 'spyre' device type for generator but .*cpu"
    ):
        draw(torch.empty(3, device=CARD), torch.Generator())
    with pytest.raises(RuntimeError, match=r"Expected a 'spyre:0' generator device but .*spyre:1"):
        draw(torch.empty(3, device=CARD), card_generator(0, OTHER))
    with pytest.raises(
        RuntimeError, match=r"Expected a 'cpu' device type for generator but .*spyre"
    ):
        draw(torch.empty(3), card_generator(0))


def outcome(draw: Draw, tensor: torch.Tensor) -> tuple[str, str] | None:
    try:
        draw(tensor, None)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return None


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_dtypes_are_accepted_and_refused_as_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    draw = IN_PLACE[name][0]
    for size in (0, 3):
        on_cpu = outcome(draw, torch.empty(size, dtype=dtype))
        assert outcome(draw, torch.empty(size, dtype=dtype, device=CARD)) == on_cpu


BAD_ARGUMENTS: dict[str, Draw] = {
    "uniform_ reversed": lambda x, _: x.uniform_(3, 1),
    "normal_ negative std": lambda x, _: x.normal_(0, -1),
    "log_normal_ negative std": lambda x, _: x.log_normal_(0, -1),
    "exponential_ negative rate": lambda x, _: x.exponential_(-1),
    "cauchy_ negative sigma": lambda x, _: x.cauchy_(0, -1),
    "geometric_ of zero": lambda x, _: x.geometric_(0),
    "random_ reversed": lambda x, _: x.random_(3, 1),
    "random_ nothing": lambda x, _: x.random_(0),
    "random_ too large": lambda x, _: x.to(torch.int8).random_(0, 1000),
    "bernoulli_ above one": lambda x, _: x.bernoulli_(1.5),
    "bernoulli_ tensor above one": lambda x, _: x.bernoulli_(torch.tensor(1.5, device=x.device)),
    "bernoulli_ tensor of NaN": lambda x, _: x.bernoulli_(
        torch.tensor(float("nan"), device=x.device)
    ),
    "bernoulli_ integer probabilities": lambda x, _: x.bernoulli_(torch.tensor(1, device=x.device)),
    "bernoulli_ wrong shape": lambda x, _: x.bernoulli_(torch.ones(2, device=x.device)),
    "bernoulli of integers": lambda x, _: torch.bernoulli(x.long()),
    "overlapping target": lambda x, _: x[:1].expand(4).uniform_(),
    "randperm negative": lambda x, _: torch.randperm(-1, device=x.device),
    "randperm too long for its dtype": lambda x, _: torch.randperm(
        3000, dtype=torch.float16, device=x.device
    ),
    "randperm of bool": lambda x, _: torch.randperm(2, dtype=torch.bool, device=x.device),
    "normal tensor, negative std": lambda x, _: torch.normal(torch.zeros_like(x), -1.0),
    "normal tensor, negative stds": lambda x, _: torch.normal(0.0, -torch.ones_like(x)),
    "normal tensors that do not match": lambda x, _: torch.normal(
        torch.zeros(2, device=x.device), torch.ones_like(x)
    ),
    "normal of integers": lambda x, _: torch.normal(torch.zeros_like(x).long(), 1.0),
}


@pytest.mark.parametrize("name", [name for name in BAD_ARGUMENTS if "match" not in name])
def test_bad_arguments_raise_what_the_cpu_raises_and_draw_nothing(name: str) -> None:
    on_cpu = outcome(BAD_ARGUMENTS[name], torch.zeros(3))
    before = torch.spyre.get_rng_state(0)
    assert on_cpu is not None
    assert outcome(BAD_ARGUMENTS[name], torch.zeros(3, device=CARD)) == on_cpu
    assert torch.equal(torch.spyre.get_rng_state(0), before)


def test_normal_of_tensors_that_do_not_match_is_refused() -> None:
    assert outcome(BAD_ARGUMENTS["normal tensors that do not match"], torch.zeros(3, device=CARD))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_numbers_are_those_of_the_philox_stream(dtype: torch.dtype) -> None:
    torch.spyre.manual_seed(42)
    digits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}[dtype]
    itemsize = max(4, dtype.itemsize)
    words = philox.UNIFORM_WORDS[itemsize]
    uniforms = torch.rand(10, dtype=dtype, device=CARD)
    expected = philox.uniform(philox.random_bits(42, 0, 10 * words), digits)
    assert torch.equal(uniforms.cpu(), torch.from_numpy(expected).to(dtype))
    normals = torch.randn(10, dtype=dtype, device=CARD)
    bits = philox.random_bits(42, 10 * words, 10 * philox.NORMAL_WORDS[itemsize])
    assert torch.equal(normals.cpu(), torch.from_numpy(philox.normal(bits, itemsize)).to(dtype))


# Mean and variance of what IN_PLACE draws; None where there is none.
MOMENTS = {
    "uniform_": (1.0, 16 / 12),
    "normal_": (1.0, 4.0),
    "log_normal_": (np.exp(1 / 32), (np.exp(1 / 16) - 1) * np.exp(1 / 16)),
    "exponential_": (0.5, 0.25),
    "geometric_": (4.0, 12.0),
    "random_to": (49.5, 833.25),
    "random_from": (39.5, 1199.9),
    "bernoulli_float": (0.25, 0.1875),
    "bernoulli_tensor": (0.25, 0.1875),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_those_of_the_distribution(name: str, dtype: torch.dtype) -> None:
    mean, variance = MOMENTS[name]
    count = 100_000
    drawn = IN_PLACE[name][0](torch.empty(count, dtype=dtype, device=CARD), card_generator(1))
    values = drawn.cpu().double()
    assert abs(values.mean().item() - mean) < 5 * (variance / count) ** 0.5 + 4e-3 * mean
    assert abs(values.var().item() / variance - 1) < 0.06


def test_cauchy_quartiles_are_those_of_the_distribution() -> None:
    values = torch.empty(100_000, device=CARD).cauchy_(1, 2, generator=card_generator(1)).cpu()
    quartiles = values.quantile(torch.tensor([0.25, 0.5, 0.75]))
    assert torch.allclose(quartiles, torch.tensor([-1.0, 1.0, 3.0]), atol=0.05)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_open_ends_are_never_reached(dtype: torch.dtype) -> None:
    count = 200_000
    uniforms = torch.rand(count, dtype=dtype, device=CARD).cpu()
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    scaled = torch.empty(count, dtype=dtype, device=CARD).uniform_(3, 3.5).cpu()
    assert scaled.min() >= 3
    assert scaled.max() < 3.5
    assert torch.empty(count, dtype=dtype, device=CARD).exponential_().cpu().min() > 0


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.int8, 0, 127),
        (torch.uint8, 0, 255),
        (torch.bool, 0, 1),
        (torch.bfloat16, 0, 256),
        (torch.float16, 0, 2048),
    ],
    ids=str,
)
def test_random_covers_the_whole_range_of_its_dtype(
    dtype: torch.dtype, low: int, high: int
) -> None:
    drawn = torch.empty(100_000, dtype=dtype, device=CARD).random_(generator=card_generator(1))
    values = drawn.cpu().double()
    assert (values.min().item(), values.max().item()) == (low, high)
    assert len(values.unique()) == high - low + 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint32], ids=str)
def test_random_from_without_an_end_reaches_the_greatest_values(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    values = torch.empty(1000, dtype=dtype, device=CARD).random_(info.min, None).cpu()
    middle = (info.max + info.min) / 2
    assert 400 < (values.double() > middle).sum() < 600


def test_random_in_a_half_format_rounds_to_no_value_outside_its_range() -> None:
    target = torch.empty(50_000, dtype=torch.float16, device=CARD)
    with pytest.warns(UserWarning, match="out of bounds"):
        values = target.random_(2047, 2051).cpu()
    assert values.min() >= 2047
    assert values.max() < 2051


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_draws_fill_both_parts_independently(dtype: torch.dtype) -> None:
    values = torch.randn(50_000, dtype=dtype, device=CARD).cpu()
    assert abs(values.real.var().item() - 0.5) < 0.02
    assert abs(values.imag.var().item() - 0.5) < 0.02
    assert abs((values.real * values.imag).mean().item()) < 0.01
    uniforms = torch.rand(50_000, dtype=dtype, device=CARD).cpu()
    assert abs(uniforms.imag.mean().item() - 0.5) < 0.01


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_view_gets_the_numbers_in_its_own_order_and_nothing_else_changes(name: str) -> None:
    draw = IN_PLACE[name][0]
    base = torch.full((6, 8), 99.0, device=CARD)
    view = base[1:5, ::2].t()
    assert draw(view, card_generator(2)) is view
    expected = draw(torch.empty(4, 4, device=CARD), card_generator(2)).cpu()
    whole = torch.full((6, 8), 99.0)
    whole[1:5, ::2] = expected.t()
    assert torch.equal(base.cpu(), whole)


def test_a_draw_under_a_default_device_of_the_card_lands_there() -> None:
    with CARD:
        assert torch.rand(3).device == CARD
        torch.bernoulli(torch.full((4,), 0.5))
        torch.randperm(5, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32], ids=str)
def test_randperm_is_a_permutation(dtype: torch.dtype) -> None:
    drawn = torch.randperm(100, dtype=dtype, device=CARD, generator=card_generator(4))
    assert drawn.dtype is dtype
    assert drawn.cpu().sort().values.tolist() == list(range(100))
    assert drawn.tolist() != list(range(100))
    assert torch.randperm(0, device=CARD).shape == (0,)
    out = torch.empty(7, dtype=torch.int64, device=CARD)
    assert torch.randperm(7, out=out) is out
    assert sorted(out.tolist()) == list(range(7))


def test_permutations_are_equally_frequent() -> None:
    generator = card_generator(9)
    seen = [
        tuple(torch.randperm(3, device=CARD, generator=generator).tolist()) for _ in range(1200)
    ]
    counts = [seen.count(order) for order in set(seen)]
    assert len(counts) == 6
    assert all(140 < count < 260 for count in counts)


def test_bernoulli_follows_its_probabilities_elementwise() -> None:
    p = torch.tensor([[0.0], [1.0], [0.5]], device=CARD)
    drawn = torch.empty(3, 10_000, device=CARD).bernoulli_(p).cpu()
    assert drawn[0].sum() == 0
    assert drawn[1].sum() == 10_000
    assert 4700 < drawn[2].sum() < 5300
    assert torch.bernoulli(p.expand(3, 4)).cpu()[:2].tolist() == [[0.0] * 4, [1.0] * 4]
    out = torch.empty(0, dtype=torch.int32, device=CARD)
    assert torch.bernoulli(p, out=out) is out
    assert out.shape == (3, 1)


def test_normal_with_tensors_scales_and_shifts_elementwise() -> None:
    mean = torch.tensor([[-100.0], [100.0]], device=CARD)
    std = torch.tensor([0.0, 1.0, 2.0], device=CARD)
    drawn = torch.normal(mean, std, generator=card_generator(8)).cpu()
    unit = torch.empty(2, 3, device=CARD).normal_(generator=card_generator(8)).cpu()
    assert torch.equal(drawn, unit * std.cpu() + mean.cpu())
    assert torch.normal(mean, 0.0).tolist() == mean.tolist()
    assert torch.normal(3.0, torch.zeros(2, device=CARD)).tolist() == [3.0, 3.0]
    assert torch.normal(torch.zeros(2, dtype=torch.float64, device=CARD)).dtype is torch.float64


def test_normal_writes_into_out_even_where_out_is_an_input() -> None:
    mean = torch.tensor([10.0, 20.0], device=CARD)
    assert torch.normal(mean, torch.zeros(2, device=CARD), out=mean) is mean
    assert mean.tolist() == [10.0, 20.0]
    out = torch.empty(0, device=CARD)
    torch.normal(mean, 0.0, out=out)
    assert out.tolist() == [10.0, 20.0]


def test_dropout_scales_what_it_keeps_and_its_gradient_is_its_mask() -> None:
    x = torch.full((100, 100), 2.0, device=CARD, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    kept = y.detach().cpu() != 0
    assert 7300 < kept.sum() < 7700
    assert torch.allclose(y.detach().cpu()[kept], torch.tensor(2.0 / 0.75))
    y.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad.cpu(), kept * (1 / 0.75))


@pytest.mark.parametrize("train", [True, False, None])
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_native_dropout_at_its_ends_is_the_cpus(p: float, train: bool | None) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    on_cpu = torch.native_dropout(x, p, train)
    on_card = torch.native_dropout(x.to(CARD), p, train)
    for wanted, got in zip(on_cpu, on_card, strict=True):
        assert torch.equal(got.cpu(), wanted)


SEEDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multinomial": lambda x: torch.multinomial(x, 5, replacement=True),
    "poisson": torch.poisson,
    "binomial": lambda x: torch.binomial(x.ceil() * 10, torch.full_like(x, 0.5)),
    "gamma": lambda x: torch._standard_gamma(x + 1),
    "dirichlet": lambda x: torch._sample_dirichlet(x + 1),
    "rrelu": lambda x: torch.nn.functional.rrelu(-x, training=True),
    "dropout2d": lambda x: torch.nn.functional.dropout2d(x.reshape(1, 10, 1, 10)),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x, training=True),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 1000),
    "gumbel_softmax": torch.nn.functional.gumbel_softmax,
}


# The CPU's rrelu is handed its noise buffer as it is: fresh.
READS_FRESH = pytest.param("rrelu", marks=pytest.mark.finds("uninitialised"))


@pytest.mark.parametrize("name", [*sorted({*SEEDED} - {"rrelu"}), READS_FRESH])
def test_every_random_op_follows_the_cards_seed_and_leaves_the_others_alone(name: str) -> None:
    def draw(card: torch.device) -> torch.Tensor:
        return SEEDED[name]((torch.arange(100.0) / 50).reshape(10, 10).to(card)).cpu()

    torch.manual_seed(17)
    cpu = torch.get_rng_state()
    first, second = draw(CARD), draw(CARD)
    assert not torch.equal(first, second)
    assert torch.equal(draw(OTHER), first)
    torch.spyre.manual_seed_all(17)
    assert torch.equal(draw(CARD), first)
    assert torch.equal(torch.get_rng_state(), cpu)


def test_factories_take_a_generator_of_the_card() -> None:
    for make in (torch.rand, torch.randn):
        first, second = (make(4, device=CARD, generator=card_generator(6)) for _ in range(2))
        assert torch.equal(first.cpu(), second.cpu())
    drawn = torch.randint(0, 9, (4,), device=CARD, generator=card_generator(6))
    assert drawn.device == CARD
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.randn(3, device=CARD, generator=torch.Generator())


def test_threads_that_share_a_generator_never_draw_the_same_words() -> None:
    generator = card_generator(1)
    parts: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(50):
            drawn = torch.empty(10, dtype=torch.int64, device=CARD).random_(generator=generator)
            parts.append(drawn.cpu())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(torch.cat(parts).unique()) == 2000
    assert state(generator) == (1, 4000)
