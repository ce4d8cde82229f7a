"""The streams of a card: their numbers, their priorities, and which one is handed out next.

A card has its default stream, number 0, and 32 further ones of each priority. They are handed out
in turn and never given back: the 33rd ``torch.Stream`` is the first once more, as with CUDA.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

STREAMS: Final = 32
"""Streams of one priority."""

PRIORITIES: Final = (0, -1)
"""What a stream's priority can be; the lower number gets a contended pipeline first."""

DEFAULT: Final = 0
_LAST: Final = STREAMS * len(PRIORITIES)


def priority_of(stream: int) -> int:
    """The priority of a card's stream. Raises ``ValueError`` for a number that no stream has."""
    if not 0 <= stream <= _LAST:
        raise ValueError(f"a card has no stream {stream}: its streams are 0 to {_LAST}")
    return PRIORITIES[max(stream - 1, 0) // STREAMS]


class StreamPool:
    """Hands out the streams of one card in turn, each priority for itself. Thread-safe."""

    def __init__(self) -> None:
        self._turns = [itertools.cycle(range(STREAMS)) for _ in PRIORITIES]

    def take(self, priority: int, is_good: Callable[[int], bool]) -> int:
        """The next good stream; a priority out of range means the nearest one there is.

        Raises:
            RuntimeError: an error has poisoned every stream of the priority.
        """
        level = PRIORITIES.index(min(max(priority, PRIORITIES[-1]), PRIORITIES[0]))
        for _ in range(STREAMS):
            stream = 1 + level * STREAMS + next(self._turns[level])
            if is_good(stream):
                return stream
        raise RuntimeError(
            f"errors have poisoned all {STREAMS} streams of priority {PRIORITIES[level]}: make "
            "them good again with torch.spyre.reset()"
        )
