"""Chapter pages: an executed notebook as one page of Markdown for the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from literate import PACKAGE, Chapter, ChapterError, dotted, export_title

RICHEST_FIRST = ("image/svg+xml", "text/html", "text/markdown", "text/plain")


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
    title = re.match(r"\s*<svg[^>]*>\s*<title[^>]*>([^<]+)</title>", svg)
    # Hidden from readers of screens, which say the title anyway.
    caption = f'<p class="caption" aria-hidden="true">{title[1]}</p>' if title else ""
    return html(f"{svg.strip()}\n{caption}", "figure")


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
        return f"](../api/{dotted(found[1])}.md)"

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
    return f"[`{PACKAGE}/{target}`]({folder}{dotted(target)}.md)"


def chapter_page(chapter: Chapter) -> str:
    """The page of one chapter, from its executed notebook."""
    blocks = [block for cell in chapter.executed().cells for block in cell_text(cell, chapter)]
    title, _, rest = blocks[0].partition("\n")
    made = ", ".join(module_link(target, "../api/") for target in chapter.exports())
    facts = [f"Chapter {chapter.number}"] + ([f"makes {made}"] if made else [])
    download = f"[Download the notebook]({chapter.notebook_path.name}){{ .download download }}"
    bar = f'<div class="chapter-bar" markdown>\n\n{" · ".join(facts)}\n\n{download}\n\n</div>'
    return "\n\n".join([title, bar, rest.strip(), *blocks[1:]]) + "\n"
