"""Why an op has no program."""

from __future__ import annotations

from typing import NamedTuple


class Refused(Exception):  # noqa: N818 (it is no error: the op then runs on the CPU)
    """The card has no program for a call; the message is what the fallback report says."""


class Refusal(NamedTuple):
    """The same, kept in place of a program."""

    reason: str
