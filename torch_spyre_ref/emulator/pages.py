"""The stuff memory is made of here: anonymous pages of the host, committed when first touched.

Card memory and pinned host memory are both such pages. A card of 16 GiB costs nothing until bytes
are written to it.
"""

from __future__ import annotations

import mmap
import platform
import sys

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Python names this flag only from 3.13 on; 0x4000 is its value on the usual Linux machines.
_LINUX_NORESERVE = 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0
_NORESERVE = getattr(mmap, "MAP_NORESERVE", _LINUX_NORESERVE if sys.platform == "linux" else 0)


class Pages(mmap.mmap):
    """``nbytes`` zeroed bytes, private to this process, huge pages advised where they exist.

    Weakly referenceable: owners that must know when the last view has gone attach a callback.
    Raises ``OSError`` when the host refuses.
    """

    def __new__(cls, nbytes: int) -> Pages:
        if sys.platform == "win32":
            return super().__new__(cls, -1, nbytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        pages = super().__new__(cls, -1, nbytes, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return pages

    def bytes(self) -> Bytes:
        """All of the pages as one array; it keeps them alive."""
        return np.frombuffer(self, np.uint8)
