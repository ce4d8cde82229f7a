"""Why an op has no program: the card has none, or the compiler failed, which is a defect."""

from __future__ import annotations

import traceback
from collections import deque
from typing import Final, NamedTuple


class Refused(Exception):  # noqa: N818 (it is no error: the op then runs on the CPU)
    """The card has no program for a call; the message is what the fallback report says."""


class RefusedByCpu(Exception):  # noqa: N818 (its cause is the error)
    """The CPU's kernel refuses such a call as well; its error is the cause."""

    def take(self) -> BaseException:
        """The error, of which nothing here is left: raised again, it would hold what holds it."""
        cause, self.__cause__, self.__context__ = self.__cause__, None, None
        assert cause is not None
        return cause


class Refusal(NamedTuple):
    """The same, kept in place of a program."""

    reason: str


class Defect(NamedTuple):
    """An exception of the compiler that nobody foresaw, as text: it holds no tensor."""

    op: str
    traceback: str


_defects: Final[deque[Defect]] = deque(maxlen=100)


def note_defect(op: str, error: BaseException) -> str:
    """Keep an unforeseen exception, and return the reason with which its op falls back."""
    _defects.append(Defect(op, "".join(traceback.format_exception(error))))
    return f"the compiler failed ({type(error).__name__}: {first_line(error)})"


def take_defects() -> list[Defect]:
    """What the compiler has failed at since this was last asked; the latest hundred."""
    taken = []
    while _defects:
        taken.append(_defects.popleft())
    return taken


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
