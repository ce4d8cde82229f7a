"""The command: list the benchmarks, run some, check their goals, write the site's page."""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure

NAMES = {
    "allocate": "allocate",
    "copy": "copy",
    "import": "imports",
    "launch": "launch",
    "elementwise": "elementwise",
    "matmul": "matmul",
    "streams": "streams",
    "eager": "eager",
    "first_call": "first_call",
    "traffic": "traffic",
    "decode": "decode",
    "chapters": "chapters",
    "suite": "suite",
}
ON_REQUEST = ("suite",)
"""Not among ``all``: the test command itself."""
PAGE = Path("docs/benchmarks.md")
HEADINGS = ("what", "ours", "theirs", "value", "goal", "")


def run(name: str) -> list[Figure]:
    """Measure one benchmark."""
    figures: list[Figure] = importlib.import_module(f"benchmarks.{NAMES[name]}").figures()
    return figures


def sections(names: Sequence[str]) -> list[str]:
    """What those of the measured benchmarks that have more to say than figures say on the page."""
    modules = [importlib.import_module(f"benchmarks.{NAMES[name]}") for name in names]
    return [module.section() for module in modules if hasattr(module, "section")]


def show(figures: list[Figure]) -> None:
    """Print figures as a table."""
    rows = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def page(figures: list[Figure], sections: Sequence[str] = ()) -> str:
    """The site's page: machine, date, every figure, and sections of their own."""
    import torch

    lines = [
        "# Benchmarks",
        "",
        "Every figure is measured side by side with what it is compared with, in one run, both",
        "sides on one thread, as the median of interleaved rounds. `make bench` measures them",
        "again; `python -m benchmarks NAME --check` fails where a goal is missed.",
        "",
        f"Measured on {datetime.date.today():%d %B %Y} with torch {torch.__version__} and Python",
        f"{platform.python_version()} on {processor()} ({os.cpu_count()} cores).",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + " --- |" * len(HEADINGS),
    ]
    lines += ["| " + " | ".join(figure.cells()) + " |" for figure in figures]
    return "\n".join([*lines, *(f"\n{section.rstrip()}" for section in sections)]) + "\n"


def processor() -> str:
    """The processor's name, where the system tells."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.exists() else ""
    named = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return named[0] if named else platform.machine()


def main() -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], "all", *NAMES], metavar="NAME")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    arguments = parser.parse_args()
    every = [name for name in NAMES if name not in ON_REQUEST]
    names = every if "all" in arguments.names else arguments.names
    if not names:
        print("python -m benchmarks NAME [NAME ...] | all, of:", ", ".join(NAMES))
        return
    # NumPy's BLAS asks for it when it is imported, which torch does: one thread there, too.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    figures = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        figures += run(name)
    show(figures)
    if arguments.write:
        PAGE.write_text(page(figures, sections(names)))
    if arguments.check and not all(figure.met for figure in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
