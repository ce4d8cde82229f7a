"""Make the package's files from the exported cells of the chapters.

    python tools/tangle.py            write what has changed
    python tools/tangle.py --check    write nothing; exit 1 on drift

Both exit 1 on a generated file that no chapter makes, and on one that two chapters make.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import subprocess
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from literate import (
    PACKAGE,
    PRODUCED_BY,
    ROOT,
    Chapter,
    ChapterError,
    chapters,
    dotted,
    export_title,
    run,
)


def take_imports(source: str) -> tuple[list[str], str]:
    """Split a cell into its top-level imports (with the comments right above) and the rest."""
    lines = source.split("\n")
    imports: list[str] = []
    for node in reversed(ast.parse(source).body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            first = node.lineno - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            imports.insert(0, "\n".join(lines[first : node.end_lineno]))
            del lines[first : node.end_lineno]
    return imports, "\n".join(lines).strip("\n")


def take_docstring(source: str) -> tuple[str | None, str]:
    """Split a cell into the module docstring that it opens with, if any, and the rest."""
    body = ast.parse(source).body
    if not body or ast.get_docstring(ast.Module(body, [])) is None:
        return None, source
    lines = source.split("\n")
    end = body[0].end_lineno
    return "\n".join(lines[body[0].lineno - 1 : end]), "\n".join(lines[end:])


def docstring(chapter: Chapter, target: str) -> str:
    """The docstring of a file whose first exported cell gives none."""
    if target != f"{chapter.slug}.py":
        raise ChapterError(
            f"{chapter.name}: {PACKAGE}/{target} has no module docstring; "
            "open its first exported cell with one"
        )
    title, summary = chapter.opening
    text = f"{title.rstrip('.')}.\n\n{summary}"
    return '"""' + text.replace("\\", "\\\\").replace('"""', r"\"\"\"") + '\n"""'


def bound_names(code: str, imported: bool = True) -> set[str]:
    """Names that a file binds at its top level, with or without those that it imports."""
    symbols = symtable.symtable(code, "<cells>", "exec").get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() and (imported or not s.is_imported())}


def wanted_names(code: str) -> set[str]:
    """Names that a file reads from its global scope without binding them."""

    def scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
        yield table
        for child in table.get_children():
            yield from scopes(child)

    wanted = {
        symbol.get_name()
        for scope in scopes(symtable.symtable(code, "<cells>", "exec"))
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or scope.get_type() == "module")
    }
    for node in ast.walk(ast.parse(code)):  # deferred annotations are in no symbol table
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            wanted |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name)} if part else set()
    return wanted - bound_names(code)


def assemble(chapter: Chapter, target: str, cells: list[Any], lent: dict[str, str]) -> str:
    """The unformatted text of a file; `lent` says where the chapter's other names are made."""
    intro, blocks, imports = "", [], []
    for cell in cells:
        source = cell.source
        if cell is cells[0]:
            given, source = take_docstring(source)
            intro = given or docstring(chapter, target)
        found, body = take_imports(source)
        imports += found
        if body:
            blocks.append(f"# {export_title(cell)}\n{body}")
    code = "\n".join([*imports, *blocks])
    for name in sorted(wanted_names(code) & lent.keys()):
        imports.append(f"from {PACKAGE}.{dotted(lent[name])} import {name}")
    header = f"# Produced by {chapter.name}: edit it there, then run `make tangle`."
    return "\n\n\n".join([f"{header}\n{intro}\n\n" + "\n".join(dict.fromkeys(imports)), *blocks])


def ruff(text: str, target: str, root: Path) -> str:
    """Sort the imports and format, as ruff is configured for the file's place."""
    known = f'lint.isort.known-first-party = ["{PACKAGE}"]'
    sort = ["check", "--fix-only", "--select", "I", "--config", known]
    for command in (sort, ["format"]):
        name = f"{PACKAGE}/{target}"
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", name, "-"],
            input=text, capture_output=True, text=True, cwd=root,
        )  # fmt: skip
        if done.returncode:
            raise ChapterError(f"ruff refuses what the chapters make of {name}:\n{done.stderr}")
        text = done.stdout
    return text


def tangle(root: Path) -> dict[str, str]:
    """Every generated file of the package: its path relative to the package, and its text."""
    made: dict[str, str] = {}
    makers: dict[str, Chapter] = {}
    for chapter in chapters(root):
        exports = chapter.exports()
        own = {
            target: bound_names("\n".join(cell.source for cell in cells), imported=False)
            for target, cells in exports.items()
        }
        for target, cells in exports.items():
            if target in makers:
                raise ChapterError(
                    f"{PACKAGE}/{target} is made by {makers[target].name} and by {chapter.name}; "
                    "a generated file belongs to exactly one chapter"
                )
            makers[target] = chapter
            lent = {name: file for file, names in own.items() if file != target for name in names}
            made[target] = ruff(assemble(chapter, target, cells, lent), target, root)
    return made


def faults(root: Path, made: dict[str, str]) -> Iterator[str]:
    """Files that must not be where they are: orphans, and hand-written files in the way."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        target = path.relative_to(root / PACKAGE).as_posix()
        maker = PRODUCED_BY.match(path.read_text())
        if maker and target not in made:
            yield f"{PACKAGE}/{target}: no cell of {maker['chapter']} makes it any more; delete it"
        if not maker and target in made and path.read_text().strip():
            yield f"{PACKAGE}/{target}: hand-written, and a chapter makes it too; delete or move it"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the package's files from the chapters.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 on drift")
    parser.add_argument("--root", type=Path, default=ROOT, help="project root")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    made = tangle(root)
    problems = list(faults(root, made))
    for target, text in made.items() if not problems else ():
        path = root / PACKAGE / target
        old = path.read_text() if path.exists() else ""
        if old == text:
            continue
        if options.check:
            diff = difflib.unified_diff(
                old.splitlines(), text.splitlines(), "file", "chapter", "", "", 1
            )
            problems.append("\n".join([f"{PACKAGE}/{target} differs; run `make tangle`", *diff]))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {PACKAGE}/{target}")
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    run(main)
