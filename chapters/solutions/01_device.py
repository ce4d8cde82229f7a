"""Answers to the exercises of chapter 1.

1. Predict. The current card belongs to a thread, and a new thread begins with card 0, whatever its
   maker is doing. In the block it is card 1; the end of the block puts card 0 back.
"""

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from torch_spyre_ref import _bridge, backend

PREDICTION = {"in another thread": 0, "in the block": 1, "after the block": 0}


# 2. Extend. `max` keeps the first of equals; `device` restores, also after an error.
@contextmanager
def roomiest():
    """Make the card with the most free memory current, and give its index."""
    cards = range(torch.spyre.device_count())
    index = max(cards, key=lambda card: torch.spyre.mem_get_info(card)[0])
    with torch.spyre.device(index):
        yield index


# 3. Open. A training step asks for memory and gives it back with every result, and announces every
# fallback; everything else is rare. (Once a process has pinned memory, as the chapter's notebook
# has, `is_pinned` comes with every copy, most of which the fallbacks make.) On a real card the
# fallbacks would be kernels, and two questions would remain: allocate and free. So one would keep
# lists of free blocks in C++ and ask Python only when they are empty; device and stream are answered
# in C++ already.
def questions(action):
    """How often the bridge asks its driver each question while ``action`` runs."""
    counts = Counter()

    def counted(name, method):
        def ask(*arguments):
            counts[name] += 1
            return method(*arguments)

        return ask

    driver = backend.current().driver
    methods = {name: method for name, method in vars(driver).items() if callable(method)}
    _bridge.install(SimpleNamespace(**{name: counted(name, m) for name, m in methods.items()}))
    try:
        action()
    finally:
        _bridge.install(driver)
    return counts
