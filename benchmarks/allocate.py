"""``torch.empty`` and its release: on the card against the CPU, and as live tensors grow."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from benchmarks.measure import Figure, bound, interleaved, ratio

MICRO = 1e6
CARD = torch.device("spyre", 0)
CPU = torch.device("cpu")
FEW, MANY = 10**2, 10**5


def figures() -> list[Figure]:
    """The cost of one tensor, how it grows, and how many regions many tensors need."""
    return [_one_tensor(), _last_in_first_out(), _random_replacement(), _regions()]


def _one_tensor() -> Figure:
    def on(device: torch.device) -> Callable[[], object]:
        return lambda: torch.empty(64, device=device)

    ours, theirs = interleaved(on(CARD), on(CPU), calls=2000)
    return ratio("torch.empty(64) + free, card / CPU", ours * MICRO, theirs * MICRO, "µs", 2.5)


def _populations(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    few = [torch.empty(64, device=device) for _ in range(FEW)]
    return few, [torch.empty(64, device=device) for _ in range(MANY)]


def _stack(live: list[torch.Tensor]) -> Callable[[], object]:
    device = live[0].device

    def turn() -> None:
        live.pop()
        live.append(torch.empty(64, device=device))

    return turn


def _last_in_first_out() -> Figure:
    few, many = (_stack(live) for live in _populations(CARD))
    crowd, alone = interleaved(many, few, calls=2000)
    what = f"free and allocate the newest of {MANY:,} / {FEW} live tensors"
    return ratio(what, crowd * MICRO, alone * MICRO, "µs", 1.5)


def _replacement(live: list[torch.Tensor]) -> Callable[[], object]:
    device, places = live[0].device, random.Random(0)

    def turn() -> None:
        live[int(places.random() * len(live))] = torch.empty(64, device=device)

    return turn


def _random_replacement() -> Figure:
    sides = [_replacement(live) for device in (CARD, CPU) for live in _populations(device)]
    few, many, cpu_few, cpu_many = interleaved(*sides, calls=2000)
    what = f"replacing a random tensor, {MANY:,} against {FEW} live: the card's factor / the CPU's"
    return ratio(what, many / few, cpu_many / cpu_few, "×", 1.0)


def _regions() -> Figure:
    sizes = random.Random(0)
    live = [torch.empty(sizes.randrange(1, 16384), device=CARD) for _ in range(MANY)]
    regions = torch.spyre.memory_stats(0)["segment.all.current"]
    return bound(f"regions that {len(live):,} live tensors of mixed sizes need", regions, "", 8)
