"""What ``python -m benchmarks`` can measure; nothing is timed here."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from benchmarks.__main__ import NAMES, ON_REQUEST, page
from benchmarks.measure import Figure, bound, ratio, told
from literate import ROOT

PROMISED = """
    allocate copy import launch elementwise matmul streams eager first_call traffic decode chapters
    suite
"""


def test_every_promised_figure_has_a_benchmark() -> None:
    assert set(PROMISED.split()) <= set(NAMES)
    assert set(ON_REQUEST) == {"suite"}


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_figures(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{NAMES[name]}")
    assert callable(module.figures)
    assert module.__doc__


def test_the_command_lists_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip().endswith(", ".join(NAMES))


@pytest.mark.parametrize(
    ("figure", "met", "cells"),
    [
        (ratio("r", 3, 2, "µs", 1.5), True, ("r", "3 µs", "2 µs", "1.5×", "≤ 1.5×", "met")),
        (ratio("r", 4, 2, "µs", 1.5), False, ("r", "4 µs", "2 µs", "2×", "≤ 1.5×", "MISSED")),
        (
            bound("b", 524288, "sticks", 60),
            False,
            ("b", "524,288 sticks", "", "524,288 sticks", "≤ 60 sticks", "MISSED"),
        ),
        (told("t", 2.264, "s"), True, ("t", "2.26 s", "", "2.26 s", "", "")),
        (
            Figure("f", 20, 2, "µs", 10, 10, at_least=True),
            True,
            ("f", "20 µs", "2 µs", "10×", "≥ 10×", "met"),
        ),
    ],
)
def test_a_figure_says_whether_its_goal_is_met(
    figure: Figure, met: bool, cells: tuple[str, ...]
) -> None:
    assert figure.met is met
    assert figure.cells() == cells


def test_the_page_has_a_row_for_each_figure() -> None:
    rows = [
        line for line in page([told("a", 1, "s"), told("b", 2, "s")]).splitlines() if "|" in line
    ]
    assert len(rows) == 2 + 2
