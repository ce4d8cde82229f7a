"""Placement: bound to one memory domain, or interleaved over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch_spyre_ref.emulator.addresses import dealt
from torch_spyre_ref.emulator.spec import CardSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an allocation may lie: bound to one memory domain, or spread over all of them."""

    policy: str = "bind"
    domain: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in ("bind", "interleave"):
            raise ValueError(f"placement {self.policy!r} is unknown: use 'bind' or 'interleave'")
        if self.policy == "interleave" and self.domain is not None:
            raise ValueError("an interleaved allocation uses every domain: leave domain out")

    # --8<-- [start:cut]
    def cut(self, size: int, spec: CardSpec) -> list[tuple[int, int | None]]:
        """The (length, domain) of every chunk that ``size`` bytes make; None is any domain.

        A chunk lies in one region; interleaved bytes have one in every domain that they reach.
        """
        if self.policy == "interleave":
            grain = spec.interleave_grain
            domains = range(min(spec.domains, -(-size // grain)))
            return list(zip(dealt(size, len(domains), grain), domains, strict=True))
        whole, rest = divmod(size, spec.region)
        return [(length, self.domain) for length in [spec.region] * whole + [rest] * (rest > 0)]

    # --8<-- [end:cut]

    def grain(self, spec: CardSpec) -> int:
        """Bytes that lie in one chunk before the next chunk's turn; 0 when none takes turns."""
        return spec.interleave_grain if self.policy == "interleave" else 0


ANYWHERE = Placement()
current_placement: ContextVar[Placement] = ContextVar("placement", default=ANYWHERE)
asked_for: set[Placement] = set()
"""Every placement that a block ever asked for. While there is none, an allocation need not look at
its context, which would be a tenth of its time."""


@contextmanager
def placement(policy: str, domain: int | None = None) -> Iterator[None]:
    """Place every allocation made inside the block by ``policy``, "bind" or "interleave"."""
    wanted = Placement(policy, domain)
    wanted = ANYWHERE if wanted == ANYWHERE else wanted
    asked_for.add(wanted)
    token = current_placement.set(wanted)
    try:
        yield
    finally:
        current_placement.reset(token)
