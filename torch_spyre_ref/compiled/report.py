"""What ``torch.spyre.eager_cache()`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One signature of one op, how often it was found, and what is there for it."""

    op: str
    signature: str
    hits: int
    program: Any

    @property
    def kernels(self) -> int:
        """How many kernels a call launches; 0 where it runs on the CPU."""
        return getattr(self.program, "kernels", 0)

    @property
    def what(self) -> str:
        """What a call does, in a few words."""
        if hasattr(self.program, "kernels"):
            return f"{self.kernels} kernel{'s' * (self.kernels != 1)}"
        reason = getattr(self.program, "reason", None)
        return f"on the CPU: {reason}" if reason else "out= is given room"


@dataclass(frozen=True, slots=True, repr=False)
class CacheReport:
    """Rows, the latest used last; ``compiled`` programs were built for them, ``limit`` are kept."""

    rows: tuple[CacheRow, ...]
    compiled: int
    limit: int

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[CacheRow]:
        return iter(self.rows)

    def __repr__(self) -> str:
        lines = [f"{len(self.rows)} of at most {self.limit} signatures, {self.compiled} programs"]
        for row in self.rows:
            lines.append(f"{row.signature}  {row.hits} hits  {row.what}")
        return "\n".join(lines)
