"""What can go wrong below PyTorch, other than an operation's own error."""

from __future__ import annotations


class QueueError(RuntimeError):
    """A queue that no longer works: poisoned by a failed operation, or closed.

    ``__cause__`` is the error that started it, if there was one.
    """


class NotPinnedError(ValueError):
    """A host buffer that the DMA engines cannot see."""
