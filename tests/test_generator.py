"""Seeds and random states of the cards, through torch's own functions."""

from __future__ import annotations

import warnings

import pytest
import torch

CARD = torch.device("spyre", 0)
OTHER = torch.device("spyre", 1)


def numbers(card: torch.device = CARD) -> list[float]:
    drawn: list[float] = torch.rand(4, device=card).tolist()
    return drawn


def test_manual_seed_of_torch_seeds_every_card() -> None:
    torch.manual_seed(3)
    first = numbers(CARD), numbers(OTHER)
    torch.manual_seed(3)
    assert (numbers(CARD), numbers(OTHER)) == first
    assert first[0] == first[1]
    torch.manual_seed(4)
    assert numbers(CARD) != first[0]


def test_manual_seed_of_the_device_seeds_the_current_card_only() -> None:
    torch.manual_seed(3)
    before = torch.spyre.get_rng_state(0)
    with torch.spyre.device(1):
        torch.spyre.manual_seed(99)
        assert torch.spyre.initial_seed() == 99
    assert torch.equal(torch.spyre.get_rng_state(0), before)
    assert torch.spyre.default_generator(1).initial_seed() == 99


def test_a_negative_seed_means_what_it_means_to_torch() -> None:
    torch.manual_seed(-1)
    assert torch.spyre.initial_seed() == torch.initial_seed()


def test_a_seed_out_of_range_is_refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match=r"[Oo]verflow"):
        torch.spyre.manual_seed(2**64)


def test_seed_and_seed_all_draw_a_fresh_seed_and_return_it() -> None:
    first, second = torch.spyre.seed(), torch.spyre.seed()
    assert first != second
    assert torch.spyre.initial_seed() == second
    shared = torch.spyre.seed_all()
    assert torch.spyre.default_generator(0).initial_seed() == shared
    assert torch.spyre.default_generator(1).initial_seed() == shared


def test_a_state_resumes_on_any_card() -> None:
    torch.manual_seed(3)
    numbers()
    saved = torch.spyre.get_rng_state()
    assert saved.device.type == "cpu"
    assert (saved.dtype, saved.shape) == (torch.uint8, (16,))
    expected = numbers()
    for card in (0, "spyre:0", CARD):
        torch.spyre.set_rng_state(saved, card)
        assert numbers() == expected
    torch.spyre.set_rng_state(saved, 1)
    assert numbers(OTHER) == expected


def test_all_states_are_saved_and_put_back_together() -> None:
    torch.manual_seed(3)
    numbers(OTHER)
    states = torch.spyre.get_rng_state_all()
    assert len(states) == torch.spyre.device_count()
    expected = numbers(CARD), numbers(OTHER)
    torch.spyre.set_rng_state_all(states)
    assert (numbers(CARD), numbers(OTHER)) == expected
    with pytest.raises(ValueError, match="1 states for 2 cards"):
        torch.spyre.set_rng_state_all(states[:1])
    with pytest.raises(RuntimeError):
        torch.spyre.set_rng_state(torch.zeros(3, dtype=torch.uint8))


@pytest.mark.parametrize("device", ["cpu", "spyre:7", -2])
def test_a_device_that_is_no_card_is_refused(device: str | int) -> None:
    with pytest.raises(ValueError, match="spyre"):
        torch.spyre.get_rng_state(device)


def test_fork_rng_puts_every_card_back() -> None:
    torch.manual_seed(3)
    numbers(OTHER)
    before = torch.spyre.get_rng_state_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.random.fork_rng(device_type="spyre"):
            numbers(CARD)
            torch.manual_seed(77)
    after = torch.spyre.get_rng_state_all()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_generator_of_the_card_is_its_own() -> None:
    generator = torch.Generator(device="spyre:1")
    assert generator.device == OTHER
    generator.manual_seed(5)
    before = torch.spyre.get_rng_state_all()
    first = torch.rand(4, device=OTHER, generator=generator).tolist()
    copy = torch.Generator(device="spyre:1")
    copy.set_state(generator.get_state())
    again = torch.rand(4, device=OTHER, generator=generator).tolist()
    assert torch.rand(4, device=OTHER, generator=copy).tolist() == again != first
    after = torch.spyre.get_rng_state_all()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_checkpointing_replays_the_same_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device=CARD, requires_grad=True)
    y = checkpoint(torch.nn.functional.dropout, x, 0.5, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu() != 0, y.detach().cpu() != 0)
