"""Notebooks are the same bytes from run to run, and nbval sees every change of an output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import execute
from literate import ROOT, ChapterError, chapters


def run(project: Path, *arguments: str) -> int:
    return execute.main(["--root", str(project), *arguments])


def nbval(notebook: Path) -> int:
    """Exit status of `pytest --nbval` on one notebook."""
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(notebook.parent), str(notebook)],
        env={**os.environ, **execute.KERNEL_ENVIRONMENT},
        capture_output=True,
    )
    return done.returncode


def altered(notebook: Path, folder: Path) -> Path:
    """A copy that ends with its first cell that shows text, one character of that text changed."""
    content = json.loads(notebook.read_text())
    for index, cell in enumerate(content["cells"]):
        for output in cell.get("outputs", ()):
            shown = output if "text" in output else output.get("data", {})
            key = "text" if "text" in output else "text/plain"
            if key in shown:
                shown[key] = ["changed, " + "".join(shown[key])]
                content["cells"] = content["cells"][: index + 1]
                copy = folder / "altered.ipynb"
                copy.write_text(json.dumps(content))
                return copy
    pytest.fail(f"{notebook} shows no text")


def test_two_runs_give_the_same_bytes(project: Path) -> None:
    assert run(project) == 0
    first = {p.name: p.read_bytes() for p in (project / "chapters").glob("*.ipynb")}
    assert run(project, "--force", "--parallel", "1") == 0
    assert first == {p.name: p.read_bytes() for p in (project / "chapters").glob("*.ipynb")}
    assert len(first) == 2
    notebook = nbformat.reads(first["02_allocator.ipynb"].decode(), as_version=4)
    assert [cell.id for cell in notebook.cells] == [f"cell-{n:03d}" for n in range(7)]
    assert notebook.cells[4].outputs[0].text == "one\ntwo\n"
    error = notebook.cells[6].outputs[0]
    assert error.traceback == ["ValueError: asked for 4 bytes, 3 are left; free some"]


def test_only_what_has_changed_is_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(project)
    capsys.readouterr()
    run(project)
    assert capsys.readouterr().out.count("up to date") == 2
    notebook = project / "chapters/00_card.ipynb"
    notebook.write_text(notebook.read_text().replace("True", "False"))
    run(project)
    assert "00_card.py" in capsys.readouterr().out
    assert "True" in notebook.read_text()
    (project / "torch_spyre_ref/blocks.py").write_text("new = 1\n")
    run(project)
    assert "up to date" not in capsys.readouterr().out


def test_check_writes_nothing_and_shows_the_change(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(project)
    notebook = project / "chapters/00_card.ipynb"
    wrong = notebook.read_text().replace("True", "False")
    notebook.write_text(wrong)
    assert run(project, "--check", "card") == 1
    assert "True" in capsys.readouterr().err
    assert notebook.read_text() == wrong


def test_a_failing_cell_names_the_chapter_and_leaves_the_notebook(project: Path) -> None:
    chapter = project / "chapters/00_card.py"
    chapter.write_text(chapter.read_text().replace("math.pi > 3", "math.tau_"))
    with pytest.raises(ChapterError, match=r"00_card\.py failed in this cell"):
        run(project, "0")
    assert not (project / "chapters/00_card.ipynb").exists()


def test_an_unknown_chapter_is_refused(project: Path) -> None:
    with pytest.raises(ChapterError, match="no chapter is called nowhere"):
        run(project, "nowhere")


def test_a_quoted_section_stands_in_the_notebook(project: Path) -> None:
    (project / "guard.cpp").write_text("// --8<-- [start:g]\nint guard();\n// --8<-- [end:g]\n")
    chapter = project / "chapters/00_card.py"
    quote = '# # A card does what it is asked\n#\n# ```cpp\n# --8<-- "guard.cpp:{}"\n# ```'
    title = "# # A card does what it is asked"
    original = chapter.read_text()
    chapter.write_text(original.replace(title, quote.format("g")))
    assert "```cpp\nint guard();\n```" in chapters(project)[0].notebook().cells[0].source
    chapter.write_text(original.replace(title, quote.format("absent")))
    with pytest.raises(ChapterError, match="cannot quote a section"):
        chapters(project)[0].notebook()


def test_nbval_goes_red_on_an_altered_output(project: Path, tmp_path: Path) -> None:
    run(project, "0")
    notebook = project / "chapters/00_card.ipynb"
    assert nbval(notebook) == 0
    assert nbval(altered(notebook, tmp_path)) == 1


@pytest.mark.parametrize("chapter", chapters(ROOT), ids=lambda chapter: chapter.slug)
def test_nbval_goes_red_on_an_altered_output_of(chapter: execute.Chapter, tmp_path: Path) -> None:
    assert nbval(altered(chapter.notebook_path, tmp_path)) == 1
