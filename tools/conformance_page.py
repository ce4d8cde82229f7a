"""The site's page on operators: how each one of PyTorch's database runs on the card."""

from __future__ import annotations

from collections import Counter
from typing import Any

Entry = dict[str, Any]

WAYS = {
    "program": "one aten op, computed by programs on the card",
    "composed": "several aten ops, each computed or moved by the card",
    "move": "the card copies or fills memory; nothing is computed",
    "view": "sizes, strides or fresh memory; the card has nothing to do",
    "fallback": "some part, for some sample, is computed on the CPU",
    "none": "no sample could be compared: the CPU has no such kernel, or a layout is not strided",
}
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_COLUMNS = {
    "float32": ("float32",),
    "float16": ("float16",),
    "integer": _INTEGERS,
    "bool": ("bool",),
}
_NAMESPACES = ("fft", "linalg", "masked", "nn.functional", "signal.windows", "sparse", "special")
_INTRODUCTION = """# Operators

Each entry of PyTorch's own operator database, run on the card with compiled operators and compared
with the CPU: values, dtype, shape, strides and aliasing, as a function, on tensors with gaps, in
place and with `out=`. Of the database's sample inputs a few are taken, evenly spread: up to four in
float32, two in float16, one in other dtypes; `python tools/conformance.py --samples 0` takes them
all. How an operator runs was seen while it ran; a **fallback** has its reason beside it.
[`conformance.json`](../conformance.json) holds the same; `make conformance` makes it anew, and
`make test` checks a part of it. A wrong result or a crash has no row here: it stops the build.
"""


def page(record: dict[str, Any]) -> str:
    """The whole page, in Markdown."""
    ops: dict[str, Entry] = record["ops"]
    parts = [_INTRODUCTION, _counts(ops), _reasons(ops)]
    sections: dict[str, list[str]] = {}
    for op, entry in ops.items():
        sections.setdefault(namespace(op), []).append(_row(op, entry))
    for title, rows in sorted(sections.items()):
        table = "\n".join(["| operator | runs as | details |", "| --- | --- | --- |", *rows])
        parts.append(f'## {title}\n\n<div class="operators" markdown>\n\n{table}\n\n</div>\n')
    return "\n".join(parts)


def namespace(op: str) -> str:
    """The module that an operator's name says it lies in."""
    found = [name for name in _NAMESPACES if op.startswith(f"{name}.")]
    return f"torch.{found[0]}" if found else "torch"


def _counts(ops: dict[str, Entry]) -> str:
    """How many operators run how, by dtype, and what the words mean."""
    rows = [f"| runs as | {' | '.join(_COLUMNS)} |", "| --- |" + " ---: |" * len(_COLUMNS)]
    counted = {
        column: Counter(
            next((entry["runs"][dtype] for dtype in dtypes if dtype in entry["runs"]), "")
            for entry in ops.values()
        )
        for column, dtypes in _COLUMNS.items()
    }
    for way in WAYS:
        numbers = " | ".join(str(counted[column][way]) for column in _COLUMNS)
        rows.append(f"| **{way}** | {numbers} |")
    table = '<div class="operator-counts" markdown>\n\n' + "\n".join(rows) + "\n\n</div>\n"
    words = "\n".join(f"- **{way}**: {meaning}" for way, meaning in WAYS.items())
    without = sum(not entry["runs"] for entry in ops.values())
    total = f"{len(ops)} operators; for {without} of them the CPU has no kernel in any dtype."
    return f"{table}\n{words}\n\n{total}\n"


def _reasons(ops: dict[str, Entry]) -> str:
    """Why aten ops fall back, and how many for each reason."""
    pairs = {pair for entry in ops.values() for pair in entry.get("on_cpu", {}).items()}
    counted = Counter(reason for _, reason in pairs)
    items = [f"- {count}: {reason}" for reason, count in counted.most_common()]
    return "How many aten ops fall back, and why:\n\n" + "\n".join(items) + "\n"


def _row(op: str, entry: Entry) -> str:
    ways: dict[str, list[str]] = {}
    for dtype, way in entry["runs"].items():
        ways.setdefault(way, []).append(dtype)
    details = [] if len(ways) == 1 else [f"{way}: {', '.join(of)}" for way, of in ways.items()]
    details += [_samples(entry)] if entry.get("samples") else []
    details += _on_cpu(entry)
    also = sorted({way for found in entry.get("also_on_cpu", {}).values() for way in found})
    details += [f"on the CPU only {' and '.join(also)}"] if also else []
    if entry.get("unequal"):
        details.append(f"values not compared: {entry['why_unequal']}")
    if entry.get("refused"):
        details.append("sparse samples are refused")
    if not entry["runs"]:
        details.append("PyTorch has no kernel on the CPU to compare with")
    shown = " and ".join(ways) or "none"
    return f"| `{op}` | {shown} | {'<br>'.join(details)} |"


def _samples(entry: Entry) -> str:
    numbers: dict[int, list[str]] = {}
    for dtype, number in entry["samples"].items():
        numbers.setdefault(number, []).append(dtype)
    text = "; ".join(f"{number} samples in {', '.join(of)}" for number, of in numbers.items())
    partly = ", ".join(f"{number} in {dtype}" for dtype, number in entry.get("partly", {}).items())
    return f"{text}; on the CPU {partly}" if partly else text


def _on_cpu(entry: Entry) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for op, reason in entry.get("on_cpu", {}).items():
        reasons.setdefault(reason, []).append(f"`{op.removeprefix('aten::')}`")
    return [f"{reason}: {', '.join(ops)}" for reason, ops in reasons.items()]
