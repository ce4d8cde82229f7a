"""Check what nbval does not: that the notebooks are complete, honest and the same everywhere.

    python tools/lint_notebooks.py

Each fault is one line that names the notebook, the cell and what to do; any fault exits 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from literate import ROOT, Chapter, chapters, export_title, run

MUST_FAIL = "raises-exception"
MACHINE_TEXT = {
    "a path of this machine": re.compile(r"/(?:home|tmp|root|Users)/[\w.~-]+"),
    "an address of this process": re.compile(r"\b0x[57][0-9a-f]{11}\b|<[^<>]* at 0x[0-9a-f]+>"),
}
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\(|<img\b(?![^>]*\balt=[\"'][^\"'])", re.I)
SHELL = re.compile(r"^\s*[!%?]|\?\s*$")


def code_faults(source: str) -> Iterator[str]:
    """Faults in the source of a code cell."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        magics = [line.strip() for line in source.split("\n") if SHELL.search(line)]
        wrong = f"has a magic or shell line ({magics[0]!r})" if magics else f"is wrong: {error.msg}"
        yield f"{wrong}; write plain Python"
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.OP and token.string == ";":
            yield "has a ';'; put each statement on its own line, and let the last value show"
            break
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names):
            yield f"imports * from {node.module}; name what is used"
        inside = ast.walk(node) if isinstance(node, ast.Try) else ()
        if any(isinstance(part, (ast.Import, ast.ImportFrom)) for part in inside):
            yield "has an import inside try; import it plainly, so that a missing module shows"


def outcome_faults(cell: Any) -> Iterator[str]:
    """Faults in what a code cell did."""
    errors = [o.ename for o in cell.outputs if o.output_type == "error"]
    must_fail = MUST_FAIL in cell.metadata.get("tags", ())
    if cell.execution_count is None:
        yield "has not been run; run `make chapters`"
        return
    if must_fail and not errors:
        yield f"is tagged {MUST_FAIL} and raises nothing; remove the tag or make it fail"
    if errors and not must_fail:
        yield f"raises {errors[0]} without the tag {MUST_FAIL}; correct it or tag it"
    if not must_fail and any(o.get("name") == "stderr" for o in cell.outputs):
        yield f"writes to stderr; only a cell tagged {MUST_FAIL} may"
    for output in cell.outputs:
        yield from text_faults(output)


def text_faults(output: Any) -> Iterator[str]:
    """Faults in the text of one output."""
    shown = {
        **output.get("data", {}),
        "stream": output.get("text", ""),
        "error": output.get("evalue", ""),
    }
    for kind, text in shown.items():
        for what, pattern in MACHINE_TEXT.items():
            if found := pattern.search(str(text)):
                yield f"shows {what} ({found[0].strip()}); show what is the same everywhere"
        if kind == "image/svg+xml" and not re.search(r"<title\b[^>]*>\s*\S", str(text)):
            yield "shows a figure without <title>; say in it what the figure shows"


def prose_faults(source: str) -> Iterator[str]:
    """Faults in a Markdown cell, taken alone."""
    for image in IMAGE.finditer(source):
        if not (image["alt"] or "").strip():
            yield "has an image without alt text; say what it shows"


def headings(notebook: Any) -> Iterator[tuple[int, int, str]]:
    """Cell index, level and text of every heading outside fenced code."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            prose = re.sub(r"^(```+|~~~+).*?^\1", "", cell.source, flags=re.S | re.M)
            for found in re.finditer(r"^(#+) +(.+)", prose, re.M):
                yield index, len(found[1]), found[2]


def heading_faults(notebook: Any) -> Iterator[tuple[int, str]]:
    """Headings out of order: one title at the start, then no level left out."""
    above = 0
    for index, level, text in headings(notebook):
        if level == 1 and (above or index):
            yield index, f"has a second title ({text!r}); a chapter has one '# ' heading"
        elif level > above + 1:
            yield index, f"goes from heading level {above} to {level} ({text!r}); use {above + 1}"
        above = level


def source_faults(notebook: Any, chapter: Chapter) -> Iterator[tuple[int, str]]:
    """Cells that are no longer those of the chapter."""

    def essence(cell: Any) -> tuple[Any, ...]:
        return cell.cell_type, cell.source, dict(cell.metadata), cell.id

    made, kept = chapter.notebook().cells, notebook.cells
    if len(made) != len(kept):
        yield 0, f"notebook has {len(kept)} cells, the chapter {len(made)}; run `make chapters`"
    for index, (ours, theirs) in enumerate(zip(made, kept, strict=False)):
        if essence(ours) != essence(theirs):
            yield (
                index,
                "differs from the chapter, or what it quotes has changed; run `make chapters`",
            )
            return


def faults(chapter: Chapter) -> Iterator[tuple[int, str]]:
    """Every fault of one chapter's notebook: cell index and sentence."""
    notebook = chapter.executed()
    yield from source_faults(notebook, chapter)
    yield from heading_faults(notebook)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            found = [*prose_faults(cell.source)]
        else:
            found = [*code_faults(cell.source), *outcome_faults(cell)]
            if export_title(cell) == "":
                found.append("is exported without a title; write '# %% Do this tags=[\"export\"]'")
        yield from ((index, fault) for fault in found)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Check that notebooks are complete and stable.")
    parser.add_argument("--root", type=Path, default=ROOT, help="project root")
    root = parser.parse_args(arguments).root.resolve()
    found: list[str] = []
    sources = chapters(root)
    for chapter in sources:
        name = chapter.notebook_path.relative_to(root).as_posix()
        if chapter.notebook_path.exists():
            found += [f"{name}: cell {index} {fault}" for index, fault in faults(chapter)]
        else:
            found.append(f"{name}: missing; run `make chapters`")
    for path in set((root / "chapters").rglob("*.ipynb")) - {c.notebook_path for c in sources}:
        if ".ipynb_checkpoints" not in path.parts:
            found.append(f"{path.relative_to(root).as_posix()}: no chapter makes it; delete it")
    print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
    print(f"{len(sources)} notebooks, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    run(main)
