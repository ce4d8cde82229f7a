"""One staging buffer for one transfer, seen as a host tensor of the right dtype and shape."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from torch_spyre_ref import backend
from torch_spyre_ref.runtime import STAGING_BYTES, Queue


def seen_as(card: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Stored numbers as a card tensor with a conj or neg bit shows them."""
    stored = stored.conj() if card.is_conj() else stored
    return stored._neg_view() if card.is_neg() else stored


class Stage:
    """``array``: pinned bytes from the pool, or of their own where a pool's buffer is too small.

    Leaving the ``with`` block gives the buffer back, gated by the operation that was named last
    with ``busy``: it is used again only when that one is over.
    """

    __slots__ = ("_buffer", "_pool", "_queue", "_ticket", "array")

    def __init__(self, nbytes: int) -> None:
        runtime = backend.current().runtime
        self._pool = runtime.staging if nbytes <= STAGING_BYTES else None
        self._buffer = (self._pool.acquire if self._pool else runtime.pinned.allocate)(nbytes)
        self.array: np.ndarray[Any, np.dtype[np.uint8]] = self._buffer.array[:nbytes]
        self._queue: Queue | None = None
        self._ticket = 0

    def view(self, card: torch.Tensor) -> torch.Tensor:
        """The bytes as a dense host tensor of the dtype, shape, conj and neg bit of ``card``."""
        return seen_as(card, torch.frombuffer(self.array, dtype=card.dtype).view(card.shape))

    def busy(self, queue: Queue, ticket: int) -> None:
        """The buffer is in use until this operation is over."""
        self._queue, self._ticket = queue, ticket

    def wait(self) -> None:
        """Hold the host until that operation is over; raises its error."""
        if self._queue is not None:
            self._queue.wait(self._ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error nobody knows whether the operation was enqueued: Ctrl-C arrives as submit
        # returns. The buffer is then left to it, and the pool makes another.
        if self._pool is None or error is not None:
            return
        if self._queue is None:
            self._pool.release(self._buffer)
        else:
            self._pool.release_after(self._buffer, self._queue, self._ticket)
