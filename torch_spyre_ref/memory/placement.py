"""Placement: bound to one memory domain, or interleaved over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


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


ANYWHERE = Placement()
current_placement: ContextVar[Placement] = ContextVar("placement", default=ANYWHERE)


@contextmanager
def placement(policy: str, domain: int | None = None) -> Iterator[None]:
    """Place every allocation made inside the block by ``policy``, "bind" or "interleave"."""
    token = current_placement.set(Placement(policy, domain))
    try:
        yield
    finally:
        current_placement.reset(token)
