"""The card's generator, and random ops that run on the CPU with its numbers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from fake_driver import FakeDriver
from torch import Tensor

from torch_spyre_ref import _bridge

DEFAULT_SEED = 67280421310721


def test_default_generators_are_one_a_card_and_seeded_alike(driver: FakeDriver) -> None:
    first, second = _bridge.default_generator(0), _bridge.default_generator(1)
    assert first is _bridge.default_generator(0)
    assert first is not second
    assert (first.device, second.device) == (torch.device("spyre:0"), torch.device("spyre:1"))
    assert torch.Generator(device="spyre").initial_seed() == DEFAULT_SEED


def test_state_is_sixteen_bytes_and_resumes_exactly(driver: FakeDriver) -> None:
    generator = torch.Generator(device="spyre:1").manual_seed(5)
    assert _bridge.generator_reserve(generator, 10) == (5, 0)
    state = generator.get_state()
    assert (state.dtype, state.shape, state.device) == (torch.uint8, (16,), torch.device("cpu"))
    assert state.view(torch.int64).tolist() == [5, 10]
    assert _bridge.generator_reserve(generator, 1) == (5, 10)
    generator.set_state(state)
    assert _bridge.generator_reserve(generator, 2**40) == (5, 10)
    assert _bridge.generator_reserve(generator, 0) == (5, 10 + 2**40)
    generator.manual_seed(-1)
    assert _bridge.generator_reserve(generator, 1) == (2**64 - 1, 0)
    assert generator.seed() == generator.initial_seed()
    assert generator.clone_state().get_state().equal(generator.get_state())


@pytest.mark.parametrize(
    "state",
    [
        torch.zeros(15, dtype=torch.uint8),
        torch.zeros(32, dtype=torch.uint8)[::2],
        torch.get_rng_state(),
    ],
)
def test_a_state_of_something_else_is_refused(driver: FakeDriver, state: Tensor) -> None:
    generator = torch.Generator(device="spyre").manual_seed(3)
    with pytest.raises(RuntimeError, match="contiguous CPU tensor of 16 bytes"):
        generator.set_state(state)
    assert generator.initial_seed() == 3


def test_reserve_takes_only_the_card_s_generators(driver: FakeDriver) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'spyre' device type for generator"):
        _bridge.generator_reserve(torch.Generator(), 1)
    with pytest.raises(TypeError):
        _bridge.generator_reserve(3, 1)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        _bridge.generator_reserve(_bridge.default_generator(0), -1)


def test_reserve_is_atomic(driver: FakeDriver) -> None:
    generator = torch.Generator(device="spyre")
    taken: list[int] = []

    def work() -> None:
        taken.extend(_bridge.generator_reserve(generator, 1)[1] for _ in range(2000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(8000))


DRAWS: dict[str, Callable[..., Tensor]] = {
    "uniform_": lambda device, g: torch.empty(50, device=device).uniform_(generator=g),
    "randn": lambda device, g: torch.randn(50, device=device, generator=g),
    "randint": lambda device, g: torch.randint(99, (50,), device=device, generator=g),
    "randperm": lambda device, g: torch.randperm(50, device=device, generator=g),
    "multinomial": lambda device, g: torch.multinomial(
        torch.ones(50, device=device), 20, generator=g
    ),
    "bernoulli": lambda device, g: torch.bernoulli(
        torch.full((50,), 0.5, device=device), generator=g
    ),
    "normal": lambda device, g: torch.normal(
        torch.zeros(50, device=device), torch.ones(50, device=device), generator=g
    ),
    "poisson": lambda device, g: torch.poisson(torch.full((50,), 4.0, device=device), g),
    "dropout": lambda device, g: torch.nn.functional.dropout(torch.ones(50, device=device), 0.5),
    "native_dropout": lambda device, g: torch.native_dropout(torch.ones(50).to(device), 0.5, True)[
        0
    ],
    "rand_like": lambda device, g: torch.rand_like(torch.empty(50, device=device)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_come_from_the_card_s_default_generator(driver: FakeDriver, name: str) -> None:
    draw = DRAWS[name]
    cpu_state = torch.get_rng_state()
    torch.manual_seed(7)
    torch.set_rng_state(cpu_state)
    first = draw("spyre:0", None).tolist()
    second = draw("spyre:0", None).tolist()
    assert first != second
    assert draw("spyre:1", None).tolist() == first
    state = _bridge.default_generator(0).get_state()
    third = draw("spyre:0", None).tolist()
    _bridge.default_generator(0).set_state(state)
    assert draw("spyre:0", None).tolist() == third
    assert torch.get_rng_state().equal(cpu_state)


@pytest.mark.parametrize(
    "name", [name for name in DRAWS if name not in ("dropout", "native_dropout", "rand_like")]
)
def test_draws_from_a_generator_of_one_s_own(driver: FakeDriver, name: str) -> None:
    draw = DRAWS[name]
    default_state = _bridge.default_generator(0).get_state()
    first = draw("spyre:0", torch.Generator(device="spyre:0").manual_seed(3)).tolist()
    again = torch.Generator(device="spyre:0").manual_seed(3)
    assert draw("spyre:0", again).tolist() == first
    assert draw("spyre:0", again).tolist() != first
    assert _bridge.default_generator(0).get_state().equal(default_state)


def test_generators_of_other_devices_are_refused(driver: FakeDriver) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'spyre' device type for generator"):
        torch.multinomial(torch.ones(3, device="spyre"), 1, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="generator of spyre:0 but found one of spyre:1"):
        torch.empty(3, device="spyre:0").uniform_(generator=torch.Generator(device="spyre:1"))


def test_fork_rng(driver: FakeDriver) -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0, 1], device_type="spyre"):
        inside = torch.randn(3, device="spyre:0").tolist()
    assert torch.randn(3, device="spyre:0").tolist() == inside


def test_the_cpu_generator_survives_an_op_that_fails(driver: FakeDriver) -> None:
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        torch.native_dropout(torch.ones(3, device="spyre"), -1.0, True)
    assert torch.get_rng_state().equal(state)


def test_threads_that_draw_without_a_generator_leave_the_cpu_s_alone(driver: FakeDriver) -> None:
    state = torch.get_rng_state()

    def work() -> None:
        for _ in range(50):
            torch.native_dropout(torch.ones(64, device="spyre"), 0.5, True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.get_rng_state().equal(state)


def test_deepcopy_of_a_generator(driver: FakeDriver) -> None:
    generator = torch.Generator(device="spyre:1").manual_seed(4)
    _bridge.generator_reserve(generator, 6)
    duplicate = generator.clone_state()
    assert _bridge.generator_reserve(duplicate, 1) == (4, 6)
    assert _bridge.generator_reserve(generator, 1) == (4, 6)
    assert copy.copy(generator.device) == torch.device("spyre:1")
