"""Each fault that the notebook lint knows is provoked once, and reported as what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

import lint_notebooks
from literate import chapters, dump

SVG = "image/svg+xml"


def code(source: str, *outputs: Any, tags: tuple[str, ...] = (), count: int | None = 1) -> Any:
    """A code cell that has been run."""
    metadata = {"tags": list(tags)} if tags else {}
    return nbformat.v4.new_code_cell(
        source, outputs=list(outputs), execution_count=count, metadata=metadata
    )


def printed(text: str, name: str = "stdout") -> Any:
    return nbformat.v4.new_output("stream", name=name, text=text)


def shown(kind: str, data: str) -> Any:
    return nbformat.v4.new_output("display_data", data={kind: data})


def raised(message: str = "no") -> Any:
    return nbformat.v4.new_output("error", ename="ValueError", evalue=message, traceback=[])


def prose(source: str) -> Any:
    return nbformat.v4.new_markdown_cell(source)


MUST_FAIL = ("raises-exception",)


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        (code("1", count=None), "has not been run"),
        (code("%matplotlib inline"), "magic or shell line"),
        (code("!ls"), "magic or shell line"),
        (code("print?"), "magic or shell line"),
        (code("x = = 1"), "is wrong: invalid syntax"),
        (code("1;"), "has a ';'"),
        (code("from os import *"), "imports * from os"),
        (code("try:\n    import os\nexcept ImportError:\n    os = None"), "import inside try"),
        (code("1 / 0", raised()), "without the tag raises-exception"),
        (code("1", tags=MUST_FAIL), "raises nothing"),
        (code("1", printed("careful", "stderr")), "writes to stderr"),
        (code("1", printed("in /home/ada/work")), "a path of this machine"),
        (code("1", shown("text/html", "<b>/tmp/x</b>")), "a path of this machine"),
        (code("1", raised("in /tmp/x"), tags=MUST_FAIL), "a path of this machine"),
        (code("1", shown("text/plain", "<F object at 0x7f3a2c>")), "an address of this process"),
        (code("1", printed("0x7f3a2c01b9d0")), "an address of this process"),
        (code("1", shown(SVG, "<svg><rect/></svg>")), "a figure without <title>"),
        (code("1", tags=("export",)), "exported without a title"),
        (prose("![](map.svg)"), "image without alt text"),
        (prose('<img src="map.svg" alt="">'), "image without alt text"),
        (prose("# A second title"), "has a second title"),
        (prose("#### Too deep"), "goes from heading level 1 to 4"),
    ],
)
def test_each_fault_is_reported(tmp_path: Path, cell: Any, fault: str) -> None:
    found = faults_of(tmp_path, cell)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    "cell",
    [
        code('"why?"  # is it so?\n"a; b"', shown("text/plain", "'a; b'")),
        code("1 / 0", raised(), printed("careful", "stderr"), tags=MUST_FAIL),
        code("1", printed("block at 0x100000080, chunk (2, 0, 128)")),
        code("1", shown(SVG, "<svg><title>A map of memory</title></svg>")),
        prose("![a map](map.svg)\n\n```sh\n# not a heading\n```\n\n## A heading\n\n### Below"),
    ],
)
def test_what_is_right_is_left_alone(tmp_path: Path, cell: Any) -> None:
    assert faults_of(tmp_path, cell) == []


def faults_of(folder: Path, cell: Any) -> list[str]:
    """What the lint says of a notebook with one good cell and this one, its source apart."""
    notebook = nbformat.v4.new_notebook(cells=[prose("# Title\n\nSummary."), cell])
    (folder / "chapters").mkdir()
    (folder / "chapters" / "00_card.py").touch()
    chapter = chapters(folder)[0]
    chapter.notebook_path.write_text(dump(notebook))
    faults = [fault for _, fault in lint_notebooks.faults(chapter)]
    assert "the chapter 0" in faults[0]
    return faults[1:]


@pytest.fixture
def written(project: Path) -> Path:
    """The project with notebooks that are as their chapters, and look as if they had been run."""
    for chapter in chapters(project):
        notebook = chapter.notebook()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = 1
                if "raises-exception" in cell.metadata.get("tags", ()):
                    cell.outputs = [raised()]
        chapter.notebook_path.write_text(dump(notebook))
    return project


def run(project: Path) -> int:
    return lint_notebooks.main(["--root", str(project)])


def test_whole_notebooks_pass(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(written) == 0
    assert capsys.readouterr().out == "2 notebooks, 0 faults\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.pi > 3", "math.pi > 4"),
        ("keeps a list.", "keeps a book."),
        ("Keep a list", "Keep it"),
    ],
)
def test_a_notebook_must_be_its_chapter(
    written: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    chapter = written / "chapters/00_card.py"
    chapter.write_text(chapter.read_text().replace(old, new))
    assert run(written) == 1
    assert "differs from the chapter" in capsys.readouterr().err


def test_no_notebook_is_missing_or_left_over(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written / "chapters"
    (folder / "00_card.ipynb").rename(folder / "01_old.ipynb")
    assert run(written) == 1
    error = capsys.readouterr().err
    assert "00_card.ipynb: missing" in error
    assert "01_old.ipynb: no chapter makes it" in error
