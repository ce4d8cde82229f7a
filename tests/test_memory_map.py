"""The figure of the memory map: every region, its domains, and what is live, cached and free."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch

from torch_spyre_ref.memory.map import MemoryMap, RegionMap, Span, size_text

SVG = "{http://www.w3.org/2000/svg}"
MIB = 1 << 20


def region(number: int, domain: int, *lengths: tuple[str, int]) -> RegionMap:
    spans, offset = [], 0
    for kind, length in lengths:
        spans.append(Span(kind, offset, length))
        offset += length
    return RegionMap(number, domain, offset, tuple(spans))


def shapes(figure: MemoryMap, kind: str) -> list[ElementTree.Element]:
    """What is drawn in the colour of ``kind``, but for the legend."""
    root = ElementTree.fromstring(figure._repr_svg_())
    found = [e for e in root.iter() if e.get("class") == f"spyre-{kind}"]
    return [e for e in found if e.get("width") != "10.0"]


def columns(path: ElementTree.Element) -> list[tuple[float, float]]:
    """(left edge, height) of each column of a skyline that stands on one level."""
    outline = path.get("d", "")
    start, floor = map(float, re.match(r"M([\d.]+) ([\d.]+)", outline).groups())  # type: ignore[union-attr]
    tops = [float(top) for top, step in re.findall(r"V([\d.]+)h(-?\d+)", outline) if step[0] != "-"]
    return [(start + 4 * number, floor - top) for number, top in enumerate(tops)]


def test_bars_are_ordered_by_domain_and_named() -> None:
    regions = (
        region(3, 1, ("free", MIB)),
        region(0, 0, ("free", MIB)),
        region(1, 1, ("live", MIB)),
    )
    figure = MemoryMap(0, regions)
    texts = [e.text for e in ElementTree.fromstring(figure._repr_svg_()).iter(f"{SVG}text")]
    named = [text for text in texts if text and text.startswith(("domain", "region"))]
    assert named == ["domain 0", "region 0", "domain 1", "region 1", "region 3"]
    assert texts.count("1.00 MiB live") == 1
    assert texts.count("0 bytes live") == 2


def test_the_title_says_what_the_figure_shows() -> None:
    figure = MemoryMap(1, (region(0, 0, ("live", MIB), ("cached", MIB), ("free", 2 * MIB)),))
    title = ElementTree.fromstring(figure._repr_svg_()).find(f"{SVG}title")
    assert title is not None
    assert title.text == (
        "Memory of spyre:1: 1 open region, 1.00 MiB live, 1.00 MiB cached, 2.00 MiB free"
    )


def test_spans_are_as_long_as_their_share() -> None:
    figure = MemoryMap(0, (region(0, 0, ("live", MIB), ("free", 2 * MIB), ("cached", MIB)),))
    (live,), (cached,) = shapes(figure, "used"), shapes(figure, "cached")
    assert len(columns(live)) == len(columns(cached)) == 25
    assert {height for _, height in columns(live) + columns(cached)} == {22.0}
    assert columns(cached)[0][0] - columns(live)[0][0] == 300


def test_what_is_too_small_to_see_is_merged_by_its_share() -> None:
    pairs = [("live", 128), ("free", 128)] * 2000
    figure = MemoryMap(0, (region(0, 0, *pairs),))
    (live,) = shapes(figure, "used")
    assert {height for _, height in columns(live)} == {11.0}
    assert len(figure._repr_svg_()) < 10_000


def test_one_stick_in_a_large_region_can_be_seen() -> None:
    size = 16 << 30
    figure = MemoryMap(0, (region(0, 0, ("free", size), ("live", 128), ("free", size - 128)),))
    (live,) = shapes(figure, "used")
    assert [height for _, height in columns(live)] == [2.0]


def test_live_and_cached_share_a_column_without_covering_one_another() -> None:
    figure = MemoryMap(0, (region(0, 0, *[("live", 128), ("cached", 128)] * 1000),))
    (live,), (cached,) = shapes(figure, "used"), shapes(figure, "cached")
    assert {height for _, height in columns(live)} == {11.0}
    first_top = float(re.search(r"V([\d.]+)h4", cached.get("d", "")).group(1))  # type: ignore[union-attr]
    assert first_top == 8.0  # the top of the bar


def test_a_card_that_gave_out_nothing_has_an_empty_map() -> None:
    figure = MemoryMap(0, ())
    assert str(figure) == "spyre:0: 0 open regions"
    assert shapes(figure, "used") == []


def test_the_text_is_a_table_of_all_regions() -> None:
    figure = MemoryMap(0, (region(7, 2, ("live", MIB), ("free", MIB), ("cached", 128)),))
    head, names, row = str(figure).splitlines()
    assert head == "spyre:0: 1 open region"
    assert names.split() == ["size", "live", "cached", "free", "largest", "free", "block"]
    assert row.split("  ")[1] == "region 7, domain 2"
    assert [size_text(size) in row for size in (2 * MIB + 128, MIB, 128)] == [True] * 3


@pytest.mark.parametrize("policy", ["bind", "interleave"])
def test_the_map_of_a_card_can_be_drawn(policy: str) -> None:
    with torch.spyre.placement(policy):
        tensors = [torch.empty(n * 10_000, device="spyre:1") for n in range(1, 9)]
    del tensors[::2]
    drawn = torch.spyre.memory_map(1)
    assert len(shapes(drawn, "free")) == len(drawn.regions)
    assert shapes(drawn, "used")
