"""Chapters make the package: nothing is lost, nothing drifts, nothing is left over."""

from __future__ import annotations

from pathlib import Path

import pytest

import tangle
from literate import ChapterError


def run(project: Path, *arguments: str) -> int:
    return tangle.main(["--root", str(project), *arguments])


@pytest.fixture
def tangled(project: Path) -> Path:
    assert run(project) == 0
    return project


def test_a_file_names_its_chapter_and_carries_its_summary(tangled: Path) -> None:
    lines = (tangled / "torch_spyre_ref/allocator.py").read_text().split("\n")
    assert "chapters/02_allocator.py" in lines[0]
    assert "make tangle" in lines[0]
    assert lines[1:6] == [
        '"""A block is an address and a promise.',
        "",
        "The allocator hands out blocks",
        "of a `Card`.",
        '"""',
    ]


def test_a_named_file_keeps_its_own_docstring(tangled: Path) -> None:
    text = (tangled / "torch_spyre_ref/emulator/card.py").read_text()
    assert text.split("\n")[1] == '"""The card: it keeps a list."""'


def test_titles_become_comments(tangled: Path) -> None:
    text = (tangled / "torch_spyre_ref/allocator.py").read_text()
    assert "\n\n\n# Hand out a block\ndef block(" in text
    assert "\n\n\n# Round up\nGRAIN = 128\n" in text


def test_imports_are_collected_once_at_the_top(tangled: Path) -> None:
    text = (tangled / "torch_spyre_ref/allocator.py").read_text()
    top, _, rest = text.partition("# Hand out a block")
    assert top.count("import bisect") == 1
    assert "from collections import deque" in top
    assert "import" not in rest


def test_a_name_of_the_same_chapter_is_imported_from_the_file_that_it_makes(tangled: Path) -> None:
    text = (tangled / "torch_spyre_ref/allocator.py").read_text()
    assert "from torch_spyre_ref.blocks import Block\n" in text


def test_a_name_that_is_only_local_is_not_imported(project: Path) -> None:
    chapter = project / "chapters/02_allocator.py"
    chapter.write_text(
        chapter.read_text().replace("return Block(", "Block = int\n    return Block(")
    )
    assert run(project) == 0
    text = (project / "torch_spyre_ref/allocator.py").read_text()
    assert "import Block" in text  # the annotation of the result still reads it
    chapter.write_text(chapter.read_text().replace("-> Block", "-> int"))
    assert run(project) == 0
    assert "import Block" not in (project / "torch_spyre_ref/allocator.py").read_text()


def test_the_result_is_stable(tangled: Path) -> None:
    assert run(tangled, "--check") == 0


def test_an_edited_file_is_drift(tangled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tangled / "torch_spyre_ref/allocator.py"
    path.write_text(path.read_text().replace("GRAIN = 128", "GRAIN = 64"))
    assert run(tangled, "--check") == 1
    error = capsys.readouterr().err
    assert "torch_spyre_ref/allocator.py differs; run `make tangle`" in error
    assert "+GRAIN = 128" in error
    assert "GRAIN = 64" in path.read_text()


def test_a_missing_file_is_drift(tangled: Path) -> None:
    (tangled / "torch_spyre_ref/blocks.py").unlink()
    assert run(tangled, "--check") == 1


def test_a_file_that_no_chapter_makes_is_an_orphan(
    tangled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tangled / "chapters/00_card.py").unlink()
    assert run(tangled, "--check") == 1
    assert "emulator/card.py: no cell of chapters/00_card.py makes it" in capsys.readouterr().err


def test_a_file_belongs_to_one_chapter(project: Path) -> None:
    text = (project / "chapters/00_card.py").read_text()
    (project / "chapters/01_again.py").write_text(text)
    with pytest.raises(ChapterError, match=r"00_card\.py and by chapters/01_again\.py"):
        run(project)


def test_a_hand_written_file_is_not_overwritten(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "torch_spyre_ref/blocks.py"
    path.write_text("kept = True\n")
    assert run(project) == 1
    assert "hand-written" in capsys.readouterr().err
    assert path.read_text() == "kept = True\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# %% Round up ", "# %% ", "has no title"),
        ('file="blocks.py"', 'file="../blocks.py"', "inside torch_spyre_ref/"),
        ('"""Blocks: what is handed out."""\n', "", "no module docstring"),
        ("GRAIN = 128", "GRAIN = = 128", r"\(Round up\) is not Python"),
        ("# The allocator hands out blocks\n# of a `Card`.\n", "", "first cell must be Markdown"),
    ],
)
def test_a_fault_of_the_chapter_is_named(project: Path, old: str, new: str, message: str) -> None:
    chapter = project / "chapters/02_allocator.py"
    assert old in chapter.read_text()
    chapter.write_text(chapter.read_text().replace(old, new))
    with pytest.raises(ChapterError, match=message):
        run(project)
