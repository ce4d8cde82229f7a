"""Seeds and random states: the functions of ``torch.spyre`` that torch's own random module calls.

Every card has one default generator, a Philox stream (`emulator.philox`) of which it keeps
a seed and the number of words drawn so far. ``torch.manual_seed`` calls `manual_seed_all`, and
``torch.random.fork_rng(device_type="spyre")`` calls `get_rng_state` and `set_rng_state`. None of
them starts the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import torch

from torch_spyre_ref import _bridge
from torch_spyre_ref.device import device_count, index_of

Device: TypeAlias = torch.device | int | str | None


def default_generator(device: Device = None) -> torch.Generator:
    """Return the generator that a card draws from when no ``generator=`` is given.

    Args:
        device: the card; None is the current one.

    Raises:
        ValueError: another kind of device, or a card that does not exist.
    """
    return _bridge.default_generator(index_of(device))


def manual_seed(seed: int) -> None:
    """Seed the current card's generator and begin its stream anew.

    Args:
        seed: ``-2**63`` to ``2**64 - 1``; a negative one counts down from ``2**64``.
    """
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every card's generator with the same seed: they then draw the same numbers."""
    for generator in _all_generators():
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current card's generator from the operating system, and return the seed."""
    return default_generator().seed()


def seed_all() -> int:
    """Seed every card's generator with one number from the operating system, and return it."""
    number = seed()
    manual_seed_all(number)
    return number


def initial_seed() -> int:
    """Return the seed of the current card's generator."""
    return default_generator().initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Return a card's random state: 16 bytes on the CPU, seed and offset.

    Args:
        device: the card; None is the current one.
    """
    return default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Resume a card's stream exactly where `get_rng_state` returned ``new_state``.

    Args:
        new_state: 16 bytes on the CPU.
        device: the card; None is the current one.
    """
    default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random state of every card, in the order of their indices."""
    return [generator.get_state() for generator in _all_generators()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the random state of every card, one state a card in the order of their indices.

    Raises:
        ValueError: there are more or fewer states than cards; nothing is set then.
    """
    states = list(new_states)
    if len(states) != device_count():
        raise ValueError(
            f"set_rng_state_all: got {len(states)} states for {device_count()} cards; give one "
            f"state a card, as get_rng_state_all() returns them"
        )
    for generator, state in zip(_all_generators(), states, strict=True):
        generator.set_state(state)


def _all_generators() -> list[torch.Generator]:
    return [default_generator(index) for index in range(device_count())]


EXPORTS: Final[tuple[Callable[..., Any], ...]] = (
    default_generator,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    initial_seed,
    get_rng_state,
    set_rng_state,
    get_rng_state_all,
    set_rng_state_all,
)
