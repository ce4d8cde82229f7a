"""Pinned memory: the host pages that the DMA engines can see.

A real host locks such pages and maps them for the card; here they are merely known. A buffer stays
pinned as long as anything refers to its bytes, and is forgotten when the last view has gone.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from torch_spyre_ref.emulator.pages import Bytes, Pages
from torch_spyre_ref.runtime.errors import NotPinnedError


class _PinnedPages(Pages):
    """Pages known to the DMA engines. A type of their own, so that a view's base tells."""


@dataclass(frozen=True, slots=True, eq=False)
class PinnedBuffer:
    """Pinned bytes: ``array`` is uint8, one-dimensional, and begins at host ``address``."""

    address: int
    array: Bytes


class _Watch(weakref.ref[_PinnedPages]):
    """Notices when pages go; ``start`` is their address."""

    __slots__ = ("start",)
    start: int


class _Block(NamedTuple):
    stop: int
    watch: _Watch
    number: int


class PinnedMemory:
    """All pinned memory of the process, by address. Thread-safe; finding takes O(log n)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._numbers = count(1)
        self._blocks: dict[int, _Block] = {}
        # Pages go when their last view goes, perhaps in the middle of a method below or of anything
        # else: so what is called then takes no lock, and is no Python that Ctrl-C could cut short.
        self._gone: deque[_Watch] = deque()

    def allocate(self, nbytes: int) -> PinnedBuffer:
        """``nbytes`` pinned bytes, page-aligned, zero at first.

        Raises ``ValueError`` below 1 byte, ``MemoryError`` when the host refuses.
        """
        if nbytes < 1:
            raise ValueError(f"{nbytes} pinned bytes asked for; ask for at least 1")
        try:
            pages = _PinnedPages(nbytes)
        except OSError as refusal:
            raise MemoryError(
                f"{nbytes} pinned bytes asked for, but the host refuses ({refusal}); "
                "ask for less, or free some"
            ) from None
        array = pages.bytes()
        start = int(array.__array_interface__["data"][0])
        watch = _Watch(pages, self._gone.append)
        watch.start = start
        with self._lock:
            self._forget_gone()
            known = start in self._blocks
            self._blocks[start] = _Block(start + nbytes, watch, next(self._numbers))
            if not known:
                insort(self._starts, start)
        return PinnedBuffer(start, array)

    def number_of(self, address: int) -> int:
        """A number that the buffer around host ``address`` has alone, also when that address
        belonged to another one before; 0 where nothing is pinned."""
        with self._lock:
            self._forget_gone()
            index = bisect_right(self._starts, address) - 1
            block = self._blocks[self._starts[index]] if index >= 0 else None
            return block.number if block is not None and address < block.stop else 0

    def is_pinned(self, address: int) -> bool:
        """Whether the byte at host ``address`` is pinned."""
        return self.pinned_from(address) > 0

    def pinned_from(self, address: int) -> int:
        """How many bytes from host ``address`` on are pinned in one buffer; 0 when none."""
        with self._lock:
            self._forget_gone()
            index = bisect_right(self._starts, address) - 1
            if index < 0:
                return 0
            return max(0, self._blocks[self._starts[index]].stop - address)

    def require(self, buffer: Bytes) -> None:
        """Raise ``NotPinnedError`` unless all of the dense array ``buffer`` is pinned."""
        # Our own arrays show it in their base; getting an address takes ten times as long.
        base = buffer.base.base if isinstance(buffer.base, np.ndarray) else buffer.base
        if isinstance(base, memoryview) and type(base.obj) is _PinnedPages:
            return
        address = int(buffer.__array_interface__["data"][0])
        if self.pinned_from(address) < buffer.size:
            raise NotPinnedError(
                f"a DMA of {buffer.size} bytes was given host memory that is not pinned; copy it "
                "to a pinned buffer first (tensor.pin_memory(), or the staging pool)"
            )

    def _forget_gone(self) -> None:
        while self._gone:
            watch = self._gone[0]
            block = self._blocks.get(watch.start)
            # The host may have given the same address to new pages before word came.
            if block is not None and block.watch is watch:
                index = bisect_left(self._starts, watch.start)
                if index < len(self._starts) and self._starts[index] == watch.start:
                    del self._starts[index]
                del self._blocks[watch.start]
            self._gone.popleft()
