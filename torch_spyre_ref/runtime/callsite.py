"""Who enqueued this: the Python line outside this package that a sanitizer report points at."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from typing import NamedTuple

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


class CallSite(NamedTuple):
    """A line of the user's program. Its text names no directory, so that it reads the same
    everywhere; a notebook's line is called a cell's, since its file name changes with each run."""

    file: str
    line: int

    def __str__(self) -> str:
        name = "cell" if "ipykernel" in self.file else Path(self.file).name
        source = linecache.getline(self.file, self.line).strip()
        return f"{name}:{self.line}: {source}" if source else f"{name}:{self.line}"


def call_site() -> CallSite:
    """The innermost line of the calling stack that is not in this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return CallSite(frame.f_code.co_filename, frame.f_lineno)
