"""How a stream learns of an error on its preparation queue when no event can tell it."""

from __future__ import annotations

from functools import partial

from torch_spyre_ref.runtime import HostCallback, Queue


def pass_on(preparation: Queue, queue: Queue) -> None:
    """Poison ``queue``, if it is good, with what poisoned its preparation queue, if anything did.

    A preparation that fails before its launch is enqueued leaves the stream with nothing to wait
    for: its ``synchronize`` would raise nothing.
    """
    if preparation.error is not None and queue.error is None:
        queue.submit(HostCallback(partial(_fail, preparation.error), 0))


def _fail(error: BaseException) -> None:
    raise error
