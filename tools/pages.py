"""Turn executed notebooks into the site's chapter pages, and modules into its API pages.

    python tools/pages.py

Writes `docs/chapters/` and `docs/api/` (both git-ignored, made anew each time) and the navigation,
`build/nav.yml`, which `mkdocs.yml` inherits. `mkdocs build --strict` then checks every link.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from literate import PACKAGE, ROOT, Chapter, ChapterError, chapters, export_title, run

RICHEST_FIRST = ("image/svg+xml", "text/html", "text/markdown", "text/plain")
REFERENCE = ["where_to_find.md", "openreg_guide.md", "glossary.md", "simulated.md"]


def fence(text: str, classes: str, title: str = "") -> str:
    """A fenced block that no backtick inside can end."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    caption = f' title="{title}"' if title else ""
    return f"{ticks} {{ {classes}{caption} }}\n{text.rstrip()}\n{ticks}"


def html(text: str, class_name: str) -> str:
    """A piece of HTML that Markdown passes through: an empty line would end it."""
    return f'<div class="{class_name}">\n' + re.sub(r"\n\s*\n", "\n", text.strip()) + "\n</div>"


def figure(svg: str, cell_id: str) -> str:
    """An inline figure, which follows the page's light or dark palette; ids made unique."""
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE[^>]*>|<!--.*?-->", "", svg, flags=re.S)
    for name in re.findall(r'\bid="([^"]+)"', svg):
        svg = re.sub(rf'(["#]){re.escape(name)}(["\)])', rf"\g<1>{cell_id}-{name}\2", svg)
    return html(svg, "figure")


def output_text(output: Any, cell_id: str) -> str:
    """One output of a code cell as Markdown."""
    if output.output_type == "stream":
        return fence(output.text, f".text .output .{output.name}")
    if output.output_type == "error":
        return fence("\n".join(output.traceback), ".text .output .error")
    kind = next((kind for kind in RICHEST_FIRST if kind in output.data), None)
    if kind is None:
        raise ChapterError(f"{cell_id}: cannot show {', '.join(output.data)}; show SVG or text")
    data = output.data[kind]
    if kind == "image/svg+xml":
        return figure(data, cell_id)
    if kind == "text/html":
        return html(data, "output-html")
    return str(data) if kind == "text/markdown" else fence(data, ".text .output")


def site_links(source: str) -> str:
    """Links between files of the repository, as links between pages of the site."""

    def module_page(found: re.Match[str]) -> str:
        return f"](../api/{found[1].replace('/', '.')}.md)"

    source = re.sub(r"\]\(\d\d_(\w+)\.(?:ipynb|py)", r"](\1.md", source)
    source = re.sub(rf"\]\(\.\./{PACKAGE}/([\w/]+)\.py\)", module_page, source)
    return source.replace("](../docs/", "](../")


def cell_text(cell: Any, chapter: Chapter) -> Iterator[str]:
    """One cell and its outputs as blocks of Markdown."""
    if cell.cell_type == "markdown":
        yield site_links(cell.source)
        return
    title = export_title(cell)
    if title is not None:
        target = cell.metadata.get("file", f"{chapter.slug}.py")
        caption = f"{title} → {PACKAGE}/{target}".replace('"', "'")
        yield fence(cell.source, ".python .export", caption)
    else:
        fails = " .must-fail" if "raises-exception" in cell.metadata.get("tags", ()) else ""
        yield fence(cell.source, ".python" + fails)
    for number, output in enumerate(cell.outputs):
        yield output_text(output, f"{cell.id}-{number}")


def module_link(target: str, folder: str) -> str:
    """A link to the API page of a file of the package."""
    return f"[`{PACKAGE}/{target}`]({folder}{target.removesuffix('.py').replace('/', '.')}.md)"


def chapter_page(chapter: Chapter) -> str:
    """The page of one chapter, from its executed notebook."""
    blocks = [block for cell in chapter.executed().cells for block in cell_text(cell, chapter)]
    title, _, rest = blocks[0].partition("\n")
    made = ", ".join(module_link(target, "../api/") for target in chapter.exports())
    facts = [f"Chapter {chapter.number}"] + ([f"makes {made}"] if made else [])
    download = f"[Download the notebook]({chapter.notebook_path.name}){{ .download download }}"
    bar = f'<div class="chapter-bar" markdown>\n\n{" · ".join(facts)}\n\n{download}\n\n</div>'
    return "\n\n".join([title, bar, rest.strip(), *blocks[1:]]) + "\n"


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """Public modules in reading order: file relative to the package, and its docstring's start."""
    package = root / PACKAGE
    for path in sorted(package.rglob("*.py"), key=lambda p: (len(p.relative_to(package).parts), p)):
        target = path.relative_to(package).as_posix()
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name != "__init__.py" and not path.name.startswith("_"):
            yield target, text.split("\n\n")[0].replace("\n", " ")


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
    """API pages by file name: one for each public module, and an index."""
    said = origins(sources)
    rows, pages = [], {}
    for target, summary in modules(root):
        dotted = target.removesuffix(".py").replace("/", ".")
        origin = ", ".join(said.get(target, ["written by hand"]))
        rows.append(f"| [`{dotted}`]({dotted}.md) | {summary.replace('|', '&#124;')} | {origin} |")
        bar = f'<div class="chapter-bar" markdown>\n\n`{PACKAGE}/{target}` · {origin}\n\n</div>'
        pages[f"{dotted}.md"] = f"# {dotted}\n\n{bar}\n\n::: {PACKAGE}.{dotted}\n"
    head = "| module | what it is | chapter |\n| --- | --- | --- |\n"
    intro = f"# API\n\nEvery public module of `{PACKAGE}`.\n\n"
    return {"index.md": intro + head + "\n".join(rows) + "\n", **pages}


def navigation(sources: list[Chapter], api: dict[str, str]) -> list[Any]:
    """The site's navigation: the hand-written pages, each chapter, each module."""
    read = [{f"{c.number} · {c.opening[0]}": f"chapters/{c.slug}.md"} for c in sources]
    return [
        {"Home": "index.md"},
        {"Chapters": ["chapters/index.md", *read]},
        {"Reference": [*REFERENCE, {"API": [f"api/{name}" for name in api]}]},
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
    for folder in ("chapters", "api"):
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
