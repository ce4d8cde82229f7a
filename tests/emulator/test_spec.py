"""The data sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torch_spyre_ref.emulator import CardSpec


def test_every_figure_has_a_unit_and_a_source_or_says_that_it_is_assumed() -> None:
    figures = {figure.name: figure for figure in CardSpec().figures()}
    assert all(figure.unit and figure.source for figure in figures.values())
    assert "blog" in figures["scratchpad"].source
    assert figures["move_rate"].source == "assumed"
    assert figures["cores"].value == 32


def test_a_run_is_moved_in_whole_sticks() -> None:
    spec = CardSpec()
    assert [spec.sticks(1, run) for run in (0, 1, 128, 129)] == [0, 1, 1, 2]
    assert spec.sticks(10, 2) == 10


def test_a_transfer_takes_its_latency_and_its_sticks() -> None:
    spec = CardSpec(link_latency=500, link_rate=64, move_latency=70, move_rate=100)
    assert spec.link_time(0) == 500
    assert spec.link_time(10) == 500 + 20
    assert spec.move_time(1) == 70 + 2, "1.28 ns takes 2"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"domains": 0}, "domains is 0"),
        ({"memory": -1}, "memory is -1"),
        ({"memory": 256 << 30}, "at most"),
        ({"memory": 1000}, "multiple of 4096"),
        ({"interleave_grain": 100}, "whole number of 128-byte sticks"),
    ],
)
def test_figures_that_contradict_one_another_are_refused(
    wrong: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CardSpec(), **wrong)
