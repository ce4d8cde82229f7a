"""The site is whole: every link, anchor and quoted section, and nothing asked of a third party."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pages
import render
from literate import ROOT, chapters

REMOTE = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^\s>]*"""
    r"""|url\(["']?(?:https?:)?//[^)]*|@import\s+["'][^"']*""",
    re.I,
)


def build(project: Path) -> subprocess.CompletedProcess[str]:
    """Build a project's site strictly."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


@pytest.fixture
def site(executed_project: Path, tmp_path: Path) -> Path:
    """A project ready for `mkdocs build`: the real configuration, theme and page names."""
    project = tmp_path / "project"
    shutil.copytree(executed_project, project)
    shutil.copy(ROOT / "mkdocs.yml", project)
    shutil.copytree(ROOT / "docs/assets", project / "docs/assets")
    shutil.copy(ROOT / "docs/conformance.json", project / "docs")
    for page in (ROOT / "docs").glob("*.md"):
        (project / "docs" / page.name).write_text("# A page\n\nIts text.\n\n## A section\n")
    assert pages.main(["--root", str(project)]) == 0
    return project


def test_a_whole_site_builds(site: Path) -> None:
    built = build(site)
    assert built.returncode == 0, built.stderr
    chapter = (site / "site/chapters/allocator.html").read_text()
    assert 'href="the_card.html"' not in chapter
    for link in ("card.html", "../glossary.html", "../api/emulator.card.html"):
        assert f'href="{link}"' in chapter
    assert 'href="02_allocator.ipynb"' in chapter
    assert (site / "site/chapters/02_allocator.ipynb").exists()
    assert "Hand out a block → torch_spyre_ref/allocator.py" in chapter
    assert chapter.count('class="language-text output') == 3
    module = (site / "site/api/allocator.html").read_text()
    assert '<a href="../chapters/allocator.html">chapter 2</a>' in module
    assert "A block of <code>size</code> bytes." in module


@pytest.mark.parametrize(
    "fault",
    [
        "[gone](nowhere.md)",
        "[gone](glossary.md#nowhere)",
        "[gone](chapters/nowhere.md)",
        "[gone][torch_spyre_ref.nowhere]",
        '--8<-- "docs/nowhere.md"',
        '--8<-- "chapters/00_card.py:nowhere"',
    ],
)
def test_a_broken_reference_fails_the_build(site: Path, fault: str) -> None:
    page = site / "docs/simulated.md"
    page.write_text(f"{page.read_text()}\n{fault}\n")
    built = build(site)
    assert built.returncode == 1
    assert "nowhere" in built.stderr


def test_a_page_outside_the_navigation_fails_the_build(site: Path) -> None:
    (site / "docs/forgotten.md").write_text("# Forgotten\n")
    built = build(site)
    assert built.returncode == 1
    assert "forgotten.md" in built.stderr


def test_a_reader_of_the_site_asks_no_third_party(site: Path) -> None:
    build(site)
    kinds = ("*.html", "*.css")
    folders = [folder for folder in (site / "site", ROOT / "site") if folder.exists()]
    files = [path for folder in folders for kind in kinds for path in folder.rglob(kind)]
    assert len(files) > 5
    found = {f"{path}: {link}" for path in files for link in REMOTE.findall(path.read_text())}
    assert found == set()


def test_the_landing_page_leads_to_every_chapter() -> None:
    landing = (ROOT / "docs/index.md").read_text()
    assert [c.name for c in chapters(ROOT) if f"(chapters/{c.slug}.md)" not in landing] == []


def test_a_figure_shows_its_title_and_a_reader_hears_it_once() -> None:
    svg = '<svg role="img"><title>Copies &amp; runs</title><rect><title>one</title></rect></svg>'
    drawn = render.figure(svg, "cell-004-0")
    assert drawn.count('<p class="caption" aria-hidden="true">Copies &amp; runs</p>') == 1
    assert "caption" not in render.figure("<svg/>", "cell-004-0")


def test_two_figures_on_a_page_share_no_id() -> None:
    svg = (
        '<svg aria-labelledby="t"><title id="t">x</title><use href="#t"/><g mask="url(#t)"/></svg>'
    )
    drawn = render.figure(svg, "cell-004-0")
    assert '"t"' not in drawn
    assert "#t" not in drawn
    assert drawn.count("cell-004-0-t") == 4
