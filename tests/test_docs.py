"""What the hand-written pages say and a program can check: names, figures, settings, snippets."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from literate import PACKAGE, ROOT, chapters
from torch_spyre_ref.emulator.addresses import MAX_CHUNKS
from torch_spyre_ref.emulator.spec import CardSpec
from torch_spyre_ref.runtime import Runtime
from torch_spyre_ref.settings import PREFIX, Settings

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FILE = re.compile(r"[\w.]*\w/(?:[\w.]+/)*|(?:[\w.]+/)*[\w.]+\.(?:py|pyi|cpp|h|md|toml|yml)")
WORDS = """
    card, region, chunk, composite address, unit, allocation, domain, placement, stick, scratchpad,
    core, queue, stream, operation, event, footprint, hazard, derived edge, artifact, program,
    correction region, correction slot, symbol, job plan, prepare, launch, fetch barrier,
    preparation stream, device stream, fallback
"""


class Span(NamedTuple):
    """A piece of code in a page's text, with its line and what follows it there."""

    where: str
    line: str
    code: str
    after: str


def prose(page: Path) -> str:
    """A page without its fenced blocks, which keep their lines."""
    return re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text(),
        flags=re.M | re.S,
    )


def spans() -> Iterator[Span]:
    """Every piece of code in the text of every page."""
    for page in PAGES:
        for number, line in enumerate(prose(page).splitlines(), 1):
            for found in re.finditer(r"`([^`]+)`(?:\]\([^)]*\))?", line):
                where = f"{page.relative_to(ROOT)}:{number}"
                yield Span(where, line, found[1], line[found.end() :])


def there(name: str) -> bool:
    """Whether a file or folder is there, seen from the project, the package or the tests."""
    return any((root / name).exists() for root in (ROOT, ROOT / PACKAGE, ROOT / "tests"))


def functions(file: str) -> set[str]:
    """The functions that a file of the tests defines."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def rows(page: Path) -> Iterator[list[str]]:
    """The cells of every line of every table."""
    for line in prose(page).splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_file_that_a_page_names_is_there_unless_it_comes_later() -> None:
    named = [span for span in spans() if FILE.fullmatch(span.code)]
    wrong = [
        f"{span.where}: {span.code}"
        for span in named
        if there(span.code) == span.after.startswith(", later")
    ]
    assert len(named) > 100
    assert wrong == []


def test_every_test_that_a_page_names_is_in_the_file_named_before_it() -> None:
    wrong, checked = [], 0
    for page in PAGES:
        for line in prose(page).splitlines():
            file = ""
            for found in re.finditer(r"`((?:\w+/)*(?:test|case)_\w+\.py)`|\*([\w ]+)\*", line):
                file = found[1] or file
                if file and found[2]:
                    checked += 1
                    if "test_" + found[2].replace(" ", "_") not in functions(file):
                        wrong.append(f"{page.name}: {found[2]} is not in {file}")
    assert checked > 40
    assert wrong == []


def test_every_name_of_torch_or_the_package_resolves() -> None:
    importlib.import_module("torch")
    wrong, checked = [], 0
    for span in spans():
        found = re.match(rf"(?:with |print\()?((?:torch|{PACKAGE})(?:\.\w+)+)", span.code)
        if found and not FILE.fullmatch(span.code):
            checked += 1
            value: object = importlib.import_module(found[1].split(".")[0])
            for name in found[1].split(".")[1:]:
                value = getattr(value, name, None)
            if value is None:
                wrong.append(f"{span.where}: {found[1]}")
    assert checked > 20
    assert wrong == []


def test_a_chapter_that_comes_later_is_not_there_yet() -> None:
    numbers = {chapter.number for chapter in chapters(ROOT)}
    said = re.compile(r"((?:\b\d(?: and |, | to )?)+), later")
    wrong = [
        f"{page.name}: {found[0]}"
        for page in PAGES
        for found in said.finditer(prose(page))
        if numbers & {int(number) for number in re.findall(r"\d", found[1])}
    ]
    assert wrong == []


def test_every_make_target_and_module_that_can_be_called_is_there() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make (\w+)", text, re.M)) <= targets
    called = set(re.findall(r"python -m (\w+)", text))
    assert called >= {PACKAGE, "benchmarks"}
    assert {name for name in called if not there(f"{name}/__main__.py")} == set()


def test_the_table_of_settings_is_the_settings() -> None:
    table = {row[0].strip("`"): row[1:3] for row in rows(ROOT / "README.md") if PREFIX in row[0]}
    assert table.keys() == {PREFIX + name.upper() for name in Settings.__dataclass_fields__}
    for variable, (default, accepted) in table.items():
        assert Settings.from_environment({variable: default.strip("`")}) == Settings()
        for value in re.findall(r"`(\w+)`", accepted):
            Settings.from_environment({variable: value})


def test_every_variable_that_a_page_names_is_a_setting() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    names = {name.lower() for name in re.findall(rf"{PREFIX}(\w+)", text)}
    assert names <= set(Settings.__dataclass_fields__)


def test_the_data_sheet_is_that_of_the_card() -> None:
    lines = ["| figure | value | unit | source |", "| --- | ---: | --- | --- |"]
    lines += [f"| `{f.name}` | {f.value:,} | {f.unit} | {f.source} |" for f in CardSpec().figures()]
    sheet = "\n".join(lines)
    found = re.search(
        r"<!-- data sheet[^\n]*-->\n\n(.*?)\n\n<!-- end of data sheet -->",
        (DOCS / "simulated.md").read_text(),
        re.S,
    )
    assert found is not None
    assert found[1] == sheet, f"put this table into docs/simulated.md:\n\n{sheet}"


def test_figures_that_stand_in_sentences_are_those_of_the_code() -> None:
    spec, said = CardSpec(), (DOCS / "simulated.md").read_text()
    depth = inspect.signature(Runtime).parameters["queue_depth"].default
    count = {8: "eight"}
    for sentence in (
        f"A submission costs the host {spec.submit_time / 1000:g} µs, a query "
        f"{spec.query_time / 1000:g} µs.",
        f"A queue holds {depth:,} operations".replace(",", " "),
        f"in portions of {spec.stick} bytes",
        f"The memory is {count[spec.regions]} equal regions",
        f"VF mode means {count[spec.vf_handles]} handles",
        f"PF mode means {spec.pf_handles} handles.",
        f"at most {count[MAX_CHUNKS]} chunks; the grain of interleaving is "
        f"{spec.interleave_grain >> 10} KiB.",
        f"{spec.cores} cores on a ring, {spec.scratchpad >> 20} MB of scratchpad each",
        f"Up to {spec.memory_limit >> 30} GB of LPDDR5",
    ):
        assert sentence in said


def test_the_glossary_defines_every_word_of_the_project_once() -> None:
    headings = re.findall(r"^### (.+) \{ #([\w-]+) \}$", (DOCS / "glossary.md").read_text(), re.M)
    terms = [term.lower() for term, _ in headings]
    wanted = {word.strip() for word in WORDS.split(",")}
    assert wanted - set(terms) == set()
    assert len(set(terms)) == len(terms)
    for term, anchor in headings:
        if " and " not in term:
            assert anchor == term.lower().replace(" ", "-")


def test_where_to_find_names_every_module_that_the_device_is_made_of() -> None:
    named = set(re.findall(r"\]\(api/([\w.]+)\.md\)", (DOCS / "where_to_find.md").read_text()))
    script = f"import sys, torch; print(*(name for name in sys.modules if '{PACKAGE}.' in name))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    names = {name.removeprefix(f"{PACKAGE}.") for name in loaded.stdout.split()}
    modules = {name for name in names if (ROOT / PACKAGE / f"{name.replace('.', '/')}.py").exists()}
    assert len(modules) > 30
    assert {name for name in modules if not name.startswith("_")} - named == set()


def snippets() -> list[pytest.param]:
    """The Python snippets of the pages; those of the README are run by tests/tools."""
    return [
        pytest.param(code, id=f"{page.stem}-{number}")
        for page in PAGES[1:]
        for number, code in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        )
    ]


@pytest.mark.parametrize("code", snippets())
def test_a_snippet_of_a_page_runs(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=tmp_path,  # some write files
    )
    assert done.returncode == 0, done.stderr


def test_every_item_of_the_checklist_for_a_port_names_its_proof() -> None:
    items = [row for row in rows(DOCS / "port_it.md") if len(row) == 2 and "---" not in row[0]]
    items = [(claim, proof) for claim, proof in items if proof != "proved by"]
    assert len(items) > 40
    for claim, proof in items:
        tests = re.findall(r"`((?:\w+/)*test_\w+\.py)`", proof)
        assert tests or proof.startswith("`python -m "), f"{claim!r} is proved by nothing"
        assert all((ROOT / "tests" / test).exists() for test in tests), claim


def test_every_test_that_the_page_for_a_port_names_is_there() -> None:
    text = " ".join((DOCS / "port_it.md").read_text().split())
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)` \*([^*]+)\*", text)
    assert len(named) > 40
    for file, words in named:
        test = "def test_" + words.replace(" ", "_") + "("
        assert test in (ROOT / "tests" / file).read_text().lower(), f"{file}: {words}"
