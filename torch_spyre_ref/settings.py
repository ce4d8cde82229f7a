"""The environment variables of the backend: read once, at first use, and validated.

Every name starts with ``TORCH_SPYRE_REF_``. Nothing here imports torch, and importing the package
reads no variable: a wrong value is reported by the first call that needs the card.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["pf", "vf"]
PREFIX = "TORCH_SPYRE_REF_"
GIB = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": GIB, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": GIB}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says of the cards. Sizes are bytes a card."""

    devices: int = 2
    mode: Mode = "vf"
    memory: int = 16 * GIB
    domains: int = 4
    fallback: str = "warn"
    eager: str = "compile"
    sanitize: bool = False
    poison: bool = False
    derive_edges: bool = True

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read and validate every variable.

        Raises:
            ValueError: names the variable, its value, and what would be accepted.
        """
        values = {
            name: _parse(PREFIX + name.upper(), environ[PREFIX + name.upper()], parser)
            for name, parser in _PARSERS.items()
            if environ.get(PREFIX + name.upper(), "") != ""
        }
        if values.get("sanitize"):
            values.setdefault("poison", True)
        settings = cls(**values)
        if settings.memory % (8 * settings.domains * (1 << 20)):
            step = f"{8 * settings.domains} MiB"
            raise ValueError(
                f"{PREFIX}MEMORY gives a card {settings.memory} bytes, which {settings.domains} "
                f"domains and eight regions cannot share evenly: use a multiple of {step}."
            )
        return settings


def _parse(variable: str, text: str, parser: tuple[Callable[[str], Any], str]) -> Any:
    read, accepted = parser
    try:
        return read(text.strip())
    except (KeyError, ValueError):
        raise ValueError(
            f"{variable} is {text!r}, but must be {accepted}. Correct it or unset it."
        ) from None


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return read


def _choice(*allowed: str) -> Callable[[str], str]:
    return lambda text: {word: word for word in allowed}[text.lower()]


def _size(text: str) -> int:
    digits = text.rstrip("KMGiIbBkmg")
    unit = text[len(digits) :].upper()
    size = int(digits) * _UNITS[unit if unit != "B" else ""]
    if not 32 << 20 <= size <= 128 * GIB:
        raise ValueError
    return size


def _flag(text: str) -> bool:
    return {"1": True, "0": False, "true": True, "false": False}[text.lower()]


_FLAG = (_flag, "0 or 1")
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "devices": (_whole(1, 16), "a whole number of cards from 1 to 16"),
    "mode": (_choice("pf", "vf"), "'pf' (the card is yours) or 'vf' (the card is shared)"),
    "memory": (_size, "a size from 32M to 128G, such as 16G or 512M"),
    "domains": (lambda text: {"1": 1, "2": 2, "4": 4, "8": 8}[text], "1, 2, 4 or 8"),
    "fallback": (_choice("warn", "silent", "error"), "'warn', 'silent' or 'error'"),
    "eager": (_choice("compile", "fallback"), "'compile' or 'fallback'"),
    "sanitize": _FLAG,
    "poison": _FLAG,
    "derive_edges": _FLAG,
}
