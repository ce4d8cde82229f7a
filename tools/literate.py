"""A chapter as the tools see it: one jupytext percent file, its cells, and the files they make.

`tangle`, `execute`, `lint_notebooks` and `pages` all read chapters through this module, so that
the four agree on what a chapter is called, what it exports and what its notebook must contain.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import markdown
import nbformat

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "torch_spyre_ref"
FILE_NAME = re.compile(r"(?P<number>\d\d)_(?P<slug>[a-z][a-z0-9_]*)")
PRODUCED_BY = re.compile(r"# Produced by (?P<chapter>chapters/\w+\.py):")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class ChapterError(Exception):
    """A fault in a chapter or in what it makes, worded for the chapter's author."""


def dotted(target: str) -> str:
    """A file of the package as a module below it: `runtime/hazards.py` is `runtime.hazards`."""
    return target.removesuffix(".py").replace("/", ".")


def export_title(cell: Any) -> str | None:
    """The title of an exported cell; None for every other cell."""
    if cell.cell_type != "code" or "export" not in cell.metadata.get("tags", ()):
        return None
    return str(cell.metadata.get("title", ""))


@dataclass(frozen=True)
class Chapter:
    """One chapter: `path` is `<root>/chapters/NN_slug.py`, the only source of everything else."""

    path: Path

    @property
    def root(self) -> Path:
        return self.path.parents[1]

    @property
    def name(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def number(self) -> int:
        return int(self._name_part("number"))

    @property
    def slug(self) -> str:
        return self._name_part("slug")

    @property
    def notebook_path(self) -> Path:
        return self.path.with_suffix(".ipynb")

    def _name_part(self, part: str) -> str:
        found = FILE_NAME.fullmatch(self.path.stem)
        if not found:
            raise ChapterError(
                f"{self.name}: a chapter is named NN_slug.py (02_allocator.py); rename the file"
            )
        return found[part]

    @functools.cached_property
    def cells(self) -> list[Any]:
        """The cells as written: sources untouched, metadata reduced to title, file and tags."""
        cells = list(jupytext.read(self.path).cells)
        for cell in cells:
            cell.metadata = {
                k: v for k, v in cell.metadata.items() if k in ("title", "file", "tags")
            }
        return cells

    @functools.cached_property
    def opening(self) -> tuple[str, str]:
        """Title and summary: the first heading, and the paragraph under it."""
        first = self.cells[0].source if self.cells else ""
        found = re.match(
            r"# (?P<title>[^\n]+)\n\s*\n(?P<summary>(?!#)[^\n].*?)(\n\s*\n|\Z)", first, re.S
        )
        if not found:
            raise ChapterError(
                f"{self.name}: the first cell must be Markdown, '# ' and a title, an empty line, "
                "and a paragraph that says what the chapter builds; write them"
            )
        return found["title"].strip(), found["summary"].strip()

    def exports(self) -> dict[str, list[Any]]:
        """Exported cells in order, by the file they make, relative to the package folder."""
        files: dict[str, list[Any]] = {}
        for index, cell in enumerate(self.cells):
            title = export_title(cell)
            if title is None:
                continue
            target = cell.metadata.get("file", f"{self.slug}.py")
            where = f"{self.name}: exported cell {index}"
            if not title:
                raise ChapterError(f"{where} has no title; write '# %% Do this tags=[\"export\"]'")
            if not re.fullmatch(r"(\w+/)*\w+\.py", target):
                raise ChapterError(
                    f"{where} names file={target!r}; give a .py path inside {PACKAGE}/, "
                    'like file="runtime/hazards.py"'
                )
            try:
                ast.parse(cell.source)
            except SyntaxError as error:
                raise ChapterError(f"{where} ({title}) is not Python: {error}") from None
            files.setdefault(target, []).append(cell)
        return files

    def notebook(self) -> Any:
        """The notebook before it is run: quoted sections filled in, cell ids from the index."""
        quote = _quoter(self.root)
        cells = []
        for index, cell in enumerate(self.cells):
            fixed = {"metadata": cell.metadata, "id": f"cell-{index:03d}"}
            if cell.cell_type == "code":
                cells.append(nbformat.v4.new_code_cell(cell.source, **fixed))
            else:
                text = quote(cell.source, self.name)
                cells.append(nbformat.v4.new_markdown_cell(text, **fixed))
        metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
        return nbformat.v4.new_notebook(cells=cells, metadata=metadata)

    def executed(self) -> Any:
        """The notebook as it was last run, outputs included."""
        return nbformat.read(self.notebook_path, as_version=4)


def _quoter(root: Path) -> Callable[[str, str], str]:
    """Fill in `--8<--` lines with the same extension that the site uses for its other pages."""
    options = {"base_path": [str(root)], "check_paths": True, "dedent_subsections": True}
    converter = markdown.Markdown(
        extensions=["pymdownx.snippets"], extension_configs={"pymdownx.snippets": options}
    )

    def quote(source: str, name: str) -> str:
        if "--8<--" not in source:
            return source
        try:
            return "\n".join(converter.preprocessors["snippet"].run(source.split("\n")))
        except Exception as error:
            raise ChapterError(f"{name}: cannot quote a section: {error}") from error

    return quote


def chapters(root: Path) -> list[Chapter]:
    """Every chapter of a project in reading order."""
    return [Chapter(path) for path in sorted((root / "chapters").glob("[0-9]*.py"))]


def dump(notebook: Any) -> str:
    """The text of a notebook file: always the same bytes for the same notebook."""
    return str(nbformat.writes(notebook, version=4)).rstrip("\n") + "\n"


def run(main: Callable[[], int]) -> None:
    """Run a tool; an author's fault ends it with the message and without a traceback."""
    try:
        sys.exit(main())
    except ChapterError as error:
        sys.exit(f"error: {error}")
