"""How a figure is measured: both sides in interleaved rounds, the median of each, one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Figure:
    """One line of a report: what was measured, both sides, and the goal for ``value``.

    The value should be no more than the goal, or no less where ``at_least`` says so. Without a goal
    the line is there to be known.
    """

    what: str
    ours: float
    theirs: float | None
    unit: str
    value: float
    goal: float | None
    kind: str = "ratio"
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is within its goal, or has none."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def cells(self) -> tuple[str, ...]:
        """What, ours, theirs, value, goal and verdict, as text."""
        theirs = "" if self.theirs is None else f"{_digits(self.theirs)} {self.unit}"
        mark = "×" if self.kind == "ratio" else f" {self.unit}"
        sign = "≥" if self.at_least else "≤"
        goal = "" if self.goal is None else f"{sign} {_digits(self.goal)}{mark}"
        verdict = "" if self.goal is None else "met" if self.met else "MISSED"
        ours, value = f"{_digits(self.ours)} {self.unit}", f"{_digits(self.value)}{mark}"
        return (self.what, ours, theirs, value, goal, verdict)


def _digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def ratio(what: str, ours: float, theirs: float, unit: str, goal: float) -> Figure:
    """A figure whose value is ours divided by theirs."""
    return Figure(what, ours, theirs, unit, ours / theirs, goal)


def difference(what: str, ours: float, theirs: float, unit: str, goal: float) -> Figure:
    """A figure whose value is ours minus theirs."""
    return Figure(what, ours, theirs, unit, ours - theirs, goal, kind="difference")


def bound(what: str, ours: float, unit: str, goal: float) -> Figure:
    """A figure that is compared with its goal alone."""
    return Figure(what, ours, None, unit, ours, goal, kind="bound")


def told(what: str, ours: float, unit: str) -> Figure:
    """A figure without a goal."""
    return Figure(what, ours, None, unit, ours, None, kind="bound")


def interleaved(
    *sides: Callable[[], object], calls: int = 1, rounds: int = 21, warm_up: int = 2
) -> list[float]:
    """Seconds a call of each side: the median over rounds in which the sides take turns."""

    def timed(side: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            side()
        return (time.perf_counter() - start) / calls

    return in_turns(*(partial(timed, side) for side in sides), rounds=rounds, warm_up=warm_up)


def in_turns(*sides: Callable[[], float], rounds: int = 21, warm_up: int = 2) -> list[float]:
    """The median of what each side measures of itself, over rounds in which they take turns."""
    samples: list[list[float]] = [[] for _ in sides]
    for round_number in range(rounds + warm_up):
        for side, times in zip(sides, samples, strict=True):
            seconds = side()
            if round_number >= warm_up:
                times.append(seconds)
    return [statistics.median(times) for times in samples]
