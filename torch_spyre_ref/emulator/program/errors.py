"""What a program can be refused for."""

from __future__ import annotations


class ProgramError(ValueError):
    """Bytes that are no program, or a program that the card cannot run as it was patched."""


class ScratchpadError(ProgramError):
    """A program whose tiles do not fit a core's scratchpad; the message shows the arithmetic."""


class IndexFaultError(ProgramError):
    """An index, met while running, outside the limit that the program states."""
