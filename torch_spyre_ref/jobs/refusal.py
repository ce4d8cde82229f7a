"""What may not be launched on: a queue of another card, or one that takes no work."""

from __future__ import annotations

import torch

from torch_spyre_ref.runtime import Queue


def require_good(queue: object, card: int) -> None:
    """Raise unless ``queue`` is a queue of ``card`` that takes work.

    Raises ``TypeError`` or ``ValueError`` for what is none, ``QueueError`` when it is poisoned or
    closed.
    """
    if isinstance(queue, Queue) and queue.device == card:
        if queue.failures.is_bad:
            queue.failures.refuse()
        return
    if isinstance(queue, torch.Stream):
        raise TypeError("queue is a torch.Stream; launch within `with stream:`, and give no queue")
    if not isinstance(queue, Queue):
        raise TypeError(
            f"queue is a {type(queue).__name__}; expected a Queue of the runtime, or none"
        )
    raise ValueError(
        f"queue {queue.name} of card {queue.device} was given for a program on card {card}; "
        f"prepare the program on card {queue.device}, or give a queue of card {card}"
    )
