"""Run the chapters and write their notebooks, byte for byte the same from run to run.

    python tools/execute.py [NAME ...]    run what has changed since it was last run here
    python tools/execute.py --force       run whether or not anything has changed
    python tools/execute.py --check       write nothing; exit 1 where a notebook would change

A kernel starts in the notebook's own folder, as Jupyter and nbval start it, and without loading
the backend: a chapter installs its own.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import hashlib
import os
import platform
import re
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from literate import PACKAGE, ROOT, Chapter, ChapterError, chapters, dump, run

KERNEL_ENVIRONMENT = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else each kernel warns about frozen modules
}
CELL_TIMEOUT_SECONDS = 600


def stable(notebook: Any) -> Any:
    """Take out of an executed notebook what differs from run to run or from machine to machine."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            output.pop("transient", None)
            if output.output_type == "error":  # frames name paths and line numbers of this machine
                output.traceback = [f"{output.ename}: {output.evalue}"]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


async def execute(chapter: Chapter) -> str:
    """Run one chapter from its first cell and return the text of its notebook."""
    notebook = chapter.notebook()
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(chapter.path.parent)}},
    )
    try:
        await client.async_execute(env={**os.environ, **KERNEL_ENVIRONMENT})
    except CellExecutionError as error:
        message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        raise ChapterError(f"{chapter.name} failed in this cell:\n{message}") from None
    return dump(stable(notebook))


def fingerprint(chapter: Chapter) -> str:
    """Digest of all that an executed notebook depends on, the notebook itself included."""
    digest = hashlib.sha256(platform.python_version().encode())
    for distribution in ("torch", "numpy", "ipykernel"):
        digest.update(metadata.version(distribution).encode())
    sources = [
        p
        for folder in (PACKAGE, "csrc", "benchmarks", "examples")
        for p in (chapter.root / folder).rglob("*.*")
    ]
    kept = [p for p in sources if p.suffix in (".py", ".cpp", ".h", ".pyi", ".pt")]
    for path in [chapter.path, chapter.notebook_path, *sorted(kept)]:
        if path.exists():
            digest.update(path.relative_to(chapter.root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def stamp(chapter: Chapter) -> Path:
    """Where the fingerprint of the last run is kept."""
    return chapter.root / "build" / "executed" / chapter.path.stem


def is_current(chapter: Chapter) -> bool:
    """Has this very chapter been run here, with this very package?"""
    path = stamp(chapter)
    return path.exists() and path.read_text() == fingerprint(chapter)


async def update(chapter: Chapter, check: bool, turn: asyncio.Semaphore) -> bool:
    """Run one chapter, report its time, write or compare; False where a check finds a change."""
    async with turn:
        start = time.monotonic()
        text = await execute(chapter)
        seconds = time.monotonic() - start
    path = chapter.notebook_path
    old = path.read_text() if path.exists() else ""
    print(f"{chapter.name:<36}{seconds:6.1f} s{'  changed' if text != old else ''}", flush=True)
    if not check:
        path.write_text(text)
        stamp(chapter).parent.mkdir(parents=True, exist_ok=True)
        stamp(chapter).write_text(fingerprint(chapter))
    elif text != old:
        diff = difflib.unified_diff(
            old.split("\n"), text.split("\n"), "committed", "run", "", "", 2
        )
        print(*list(diff)[:60], sep="\n", file=sys.stderr)
    return not check or text == old


async def update_all(wanted: list[Chapter], check: bool, parallel: int) -> bool:
    """Run chapters, a few at a time, each of them even where one fails; then raise that error."""
    turn = asyncio.Semaphore(parallel)
    jobs = [update(chapter, check, turn) for chapter in wanted]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return all(results)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run the chapters and write their notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a chapter's number, slug or file")
    parser.add_argument("--force", action="store_true", help="run chapters that are up to date too")
    parser.add_argument(
        "--check", action="store_true", help="compare with what is there, write nothing"
    )
    parser.add_argument("--parallel", type=int, default=2, help="kernels at a time (2)")
    parser.add_argument("--root", type=Path, default=ROOT, help="project root")
    options = parser.parse_args(arguments)
    everything = chapters(options.root.resolve())
    names = {Path(name).stem for name in options.names}
    known = {c: {c.path.stem, c.slug, str(c.number), f"{c.number:02d}"} for c in everything}
    if unknown := names - set[str]().union(*known.values()):
        raise ChapterError(f"no chapter is called {', '.join(sorted(unknown))}")
    wanted = [c for c in everything if not names or names & known[c]]
    due = [c for c in wanted if options.force or options.check or not is_current(c)]
    for chapter in wanted:
        if chapter not in due:
            print(f"{chapter.name:<36} up to date")
    return 0 if asyncio.run(update_all(due, options.check, options.parallel)) else 1


if __name__ == "__main__":
    run(main)
