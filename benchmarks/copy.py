"""``copy_`` from the host to the card: the small transfer's overhead, the large one's rate."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.measure import Figure, difference, interleaved, ratio

LARGE = 64 << 20


def figures() -> list[Figure]:
    """A copy of 64 elements against the CPU's; 64 MB, pinned and pageable, against NumPy's."""
    host, card, other = torch.zeros(64), torch.empty(64, device="spyre:0"), torch.zeros(64)
    ours, theirs = interleaved(lambda: card.copy_(host), lambda: other.copy_(host), calls=500)
    small = difference("copy_ of 64 elements, host to card", ours * 1e6, theirs * 1e6, "µs", 25)

    target = torch.zeros(LARGE, dtype=torch.uint8, device="spyre:0")
    pageable = torch.ones(LARGE, dtype=torch.uint8)
    pinned = torch.ones(LARGE, dtype=torch.uint8).pin_memory()
    source, numpy_target = np.ones(LARGE, np.uint8), np.zeros(LARGE, np.uint8)
    from_pinned, from_pageable, numpy_copy = interleaved(
        lambda: target.copy_(pinned),
        lambda: (target.copy_(pageable), torch.spyre.synchronize(0)),
        lambda: np.copyto(numpy_target, source),
        rounds=15,
    )
    milli = 1e3
    return [
        small,
        ratio("copy_ of 64 MB, pinned / NumPy", from_pinned * milli, numpy_copy * milli, "ms", 1.3),
        ratio(
            "copy_ of 64 MB, pageable / NumPy", from_pageable * milli, numpy_copy * milli, "ms", 1.8
        ),
    ]
