"""The number formats of the card: how each is stored in memory, and what it is computed in.

Half-precision floats widen to float32 on their way into a core and are rounded once, to nearest
even, on their way out. Every other format is computed in itself; integers wrap.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Format(NamedTuple):
    """One line of the table. ``stored`` and ``computed`` are the host's names for the bytes."""

    name: str
    stored: np.dtype[Any]
    computed: str
    kind: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """What values of this format are computed in."""
        return FORMATS[self.computed].stored

    @property
    def itemsize(self) -> int:
        """Bytes of an element in memory."""
        return self.stored.itemsize


def _formats(*lines: tuple[str, str, str, str]) -> dict[str, Format]:
    return {
        name: Format(name, np.dtype(stored).newbyteorder("<"), computed, kind)
        for name, stored, computed, kind in lines
    }


FORMATS: Final = _formats(
    ("bool", "bool", "bool", "bool"),
    ("uint8", "uint8", "uint8", "integer"),
    ("int8", "int8", "int8", "integer"),
    ("uint16", "uint16", "uint16", "integer"),
    ("int16", "int16", "int16", "integer"),
    ("uint32", "uint32", "uint32", "integer"),
    ("int32", "int32", "int32", "integer"),
    ("uint64", "uint64", "uint64", "integer"),
    ("int64", "int64", "int64", "integer"),
    ("float16", "float16", "float32", "half"),
    ("bfloat16", "uint16", "float32", "half"),
    ("float32", "float32", "float32", "float"),
    ("float64", "float64", "float64", "float"),
)
"""By name, in the order of their codes in a program."""

CODES: Final = {name: code for code, name in enumerate(FORMATS)}
NAMES: Final = tuple(FORMATS)
