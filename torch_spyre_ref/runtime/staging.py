"""The staging pool: pinned buffers that carry pageable memory to and from the card.

A buffer may be used again only when the operation that reads or writes it is over. That is its
guard, and the only one: host buffers have no footprint on the card. They are small, so that a copy
through one stays in the host's cache.
"""

from __future__ import annotations

from collections import deque

from torch_spyre_ref.runtime.pinned import PinnedBuffer, PinnedMemory
from torch_spyre_ref.runtime.queues import Queue

STAGING_BYTES = 512 << 10
"""Bytes in one staging buffer; larger transfers go through in pieces. Half a megabyte stays in the
second-level cache of most hosts between the two copies that a byte makes."""


class StagingPool:
    """``buffers`` staging buffers, made when first needed. Thread-safe."""

    def __init__(self, pinned: PinnedMemory, buffers: int = 2) -> None:
        self._pinned, self._buffers, self._made = pinned, buffers, 0
        self._free: list[PinnedBuffer] = []
        self._in_flight: deque[tuple[Queue, int, PinnedBuffer]] = deque()

    def acquire(self, nbytes: int) -> PinnedBuffer:
        """A buffer of ``STAGING_BYTES`` bytes that nothing uses; ``nbytes`` is what is needed.

        When all are in flight, the host waits for the oldest; when all are held by callers, there
        is one more. Raises ``ValueError`` for more than ``STAGING_BYTES``.
        """
        if not 0 < nbytes <= STAGING_BYTES:
            raise ValueError(
                f"a staging buffer for {nbytes} bytes asked for; one holds 1 to {STAGING_BYTES} "
                "bytes, so transfer in pieces"
            )
        # Single steps of a list and a deque are atomic: no lock, which costs more than the rest.
        try:
            return self._free.pop()
        except IndexError:
            pass
        if self._made < self._buffers:
            self._made += 1
            return self._pinned.allocate(STAGING_BYTES)
        try:
            queue, ticket, buffer = self._in_flight.popleft()
        except IndexError:
            return self._pinned.allocate(STAGING_BYTES)
        queue.settle(ticket)
        return buffer

    def release_after(self, buffer: PinnedBuffer, queue: Queue, ticket: int) -> None:
        """Give ``buffer`` back, to be used again when operation ``ticket`` of ``queue`` is over."""
        self._in_flight.append((queue, ticket, buffer))

    def release(self, buffer: PinnedBuffer) -> None:
        """Give ``buffer`` back at once: no operation uses it."""
        self._free.append(buffer)
