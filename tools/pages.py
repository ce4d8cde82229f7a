"""Make the site's pages of chapters, modules and operators from notebooks, code and the record.

    python tools/pages.py

Writes `docs/chapters/`, `docs/api/` and `docs/operators/` (git-ignored, made anew each time) and
the navigation, `build/nav.yml`, which `mkdocs.yml` inherits. `mkdocs build --strict` then checks
every link.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

from conformance_page import page as operators_page
from literate import PACKAGE, ROOT, Chapter, chapters, dotted, run
from render import chapter_page, site_links

OPERATORS = "operators/index.md"
REFERENCE = [
    "use.md",
    OPERATORS,
    "port_it.md",
    "where_to_find.md",
    "openreg_guide.md",
    "glossary.md",
    "simulated.md",
]


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def modules(package: Path) -> dict[str, list[str]]:
    """Public modules by the folder of the package that they lie in, the package itself first."""
    folders: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py"), key=lambda p: (len(p.relative_to(package).parts), p)):
        target = path.relative_to(package)
        if not target.name.startswith("_"):
            folders.setdefault(target.parent.as_posix(), []).append(target.as_posix())
    return folders


def origins(sources: list[Chapter]) -> dict[str, list[str]]:
    """What to say of a module's chapters: which one makes it, which ones quote it."""
    said: dict[str, list[str]] = {}
    for chapter in sources:
        link = f"[chapter {chapter.number}](../chapters/{chapter.slug}.md)"
        for target in chapter.exports():
            said.setdefault(target, []).append(f"made by {link}")
        quoted = re.findall(rf'--8<-- "{PACKAGE}/([\w/]+\.py)', chapter.path.read_text())
        for target in dict.fromkeys(quoted):
            said.setdefault(target, []).append(f"quoted by {link}")
    return said


def api_pages(root: Path, sources: list[Chapter]) -> dict[str, str]:
    """API pages by file name: one for each public module, and an index by folder."""
    said = origins(sources)
    index, pages = f"# API\n\nEvery public module of `{PACKAGE}`.\n", {}
    for folder, targets in modules(root / PACKAGE).items():
        index += f"\n## {folder}\n\n" if folder != "." else "\n"
        if folder != ".":
            index += summary(root / PACKAGE / folder / "__init__.py") + "\n\n"
        index += "| module | what it is | chapters |\n| --- | --- | --- |\n"
        for target in targets:
            name = dotted(target)
            origin = ", ".join(said.get(target, []))
            what = summary(root / PACKAGE / target).replace("|", "&#124;")
            index += f"| [`{name}`]({name}.md) | {what} | {origin} |\n"
            facts = f"`{PACKAGE}/{target}` · {origin or 'written by hand'}"
            bar = f'<div class="chapter-bar" markdown>\n\n{facts}\n\n</div>'
            pages[f"{name}.md"] = f"# {name}\n\n{bar}\n\n::: {PACKAGE}.{name}\n"
    return {"index.md": index, **pages}


def navigation(sources: list[Chapter], api: dict[str, str]) -> list[Any]:
    """The site's navigation: the hand-written pages, each chapter, each module in its folder."""
    read = [{f"{c.number} · {c.opening[0]}": f"chapters/{c.slug}.md"} for c in sources]
    folders: dict[str, list[Any]] = {}
    for name in api:
        folder, _, title = name.removesuffix(".md").rpartition(".")
        entry = f"api/{name}" if title == "index" else {title: f"api/{name}"}
        folders.setdefault(folder, []).append(entry)
    modules = [*folders.pop(""), *({folder: entries} for folder, entries in folders.items())]
    return [
        {"Home": "index.md"},
        {"Chapters": ["chapters/index.md", *read]},
        {"Reference": [*REFERENCE]},
        {"API": modules},
        {"Benchmarks": "benchmarks.md"},
    ]


def chapter_index(sources: list[Chapter]) -> str:
    """The list of chapters, each with its summary."""
    items = [
        f"## [{c.number} · {c.opening[0]}]({c.slug}.md)\n\n{site_links(c.opening[1])}"
        for c in sources
    ]
    intro = "Each chapter is a notebook that has been run; every output below its code is its own."
    return "\n\n".join(["# Chapters", intro, *items]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the site's generated pages.")
    parser.add_argument("--root", type=Path, default=ROOT, help="project root")
    root = parser.parse_args(arguments).root.resolve()
    sources = chapters(root)
    pages = {f"chapters/{c.slug}.md": chapter_page(c) for c in sources}
    pages["chapters/index.md"] = chapter_index(sources)
    api = api_pages(root, sources)
    pages |= {f"api/{name}": text for name, text in api.items()}
    pages[OPERATORS] = operators_page(json.loads((root / "docs/conformance.json").read_text()))
    for folder in ("chapters", "api", "operators"):
        shutil.rmtree(root / "docs" / folder, ignore_errors=True)
        (root / "docs" / folder).mkdir(parents=True)
    for name, text in pages.items():
        (root / "docs" / name).write_text(text)
    for chapter in sources:
        shutil.copy(chapter.notebook_path, root / "docs" / "chapters")
    (root / "build").mkdir(exist_ok=True)
    nav = json.dumps({"nav": navigation(sources, api)}, indent=1, ensure_ascii=False)  # is YAML
    (root / "build" / "nav.yml").write_text(nav)
    print(f"{len(sources)} chapter pages, {len(api)} API pages")
    return 0


if __name__ == "__main__":
    run(main)
