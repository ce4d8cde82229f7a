"""Small staging buffers for correction slots, cut from a few pinned blocks: a host has only so many
mappings, and there may be thousands of programs."""

from __future__ import annotations

from typing import Final

import numpy as np

from torch_spyre_ref.emulator.pages import Bytes
from torch_spyre_ref.runtime import PinnedMemory

BLOCK: Final = 64 << 10


class SlotStaging:
    """Hands out pieces of the present block. A block goes when its last piece has gone."""

    def __init__(self, pinned: PinnedMemory) -> None:
        self._pinned = pinned
        self._rest: Bytes = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """``nbytes`` pinned bytes that nobody else has."""
        if nbytes > BLOCK:
            return self._pinned.allocate(nbytes).array
        if nbytes > self._rest.size:
            self._rest = self._pinned.allocate(BLOCK).array
        piece, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return piece
