"""What the benchmark page says of the ladder: its rungs, a figure, and what IBM reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.ladder import COSTS, RUNGS, Run
from benchmarks.ladder_figure import figure
from torch_spyre_ref.emulator.spec import CardSpec

INTRODUCTION = """\
## The ladder of launch paths

One decoder (`examples/decoder.py`), four ways from a launch to the card's queues, the
[rungs](glossary.md#rung), with one switch from each to the next. What is computed is the same to
the last bit on all of them. [Chapter 6](chapters/a_whole_model.md) counts what they do; here is how
long the host takes, by the wall clock: from the Python call up to the last operation enqueued,
while the card is busy with something else.
"""
VIRTUAL = """\
In virtual time, the same decoder (*as trained*: it computes {small:.1f} µs a token) and a wide one
of the same code ({wide:.0f} µs a token), 8 tokens in a row. These figures depend on what the host
is assumed to cost: {submit} ns a submission, {callback} ns a callback, and for graphs {file} ns a
file and {item} ns a node or edge. The wall figures above do not.
"""
IBM = """\
Beside what IBM reports of Spyre for the same two steps, on Granite 3.3 8B with batch 1 and sequence
1024 ([PyTorch's blog](https://pytorch.org/blog/), "Building Spyre as a Native PyTorch Device"; it
says that about three quarters of the gain came from the compute path):
"""
COMPARABLE = """\
The order of the steps, their direction, and that most of the gain comes from the compute path can
be compared: on both sides rung 1 is a read of a file, a deserialisation, a stitching of arguments
and a parse for each launch (ours comes out of the operating system's cache). The numbers cannot.
Theirs are whole inferences on real cards, ours the host's part alone, or virtual time with assumed
costs; their model is far larger, and so may be their graphs; and a token of ours makes one copy to
the card beside {launches} launches, which leaves little for rung 2 to gain, while the post does not
say how many theirs makes.
"""
RESIDENCY = """\
## Residency

In the table above are the bytes that cross the link for one token: with copies in and out around
every op, with the weights resident, and with everything resident. Of the last, all but 16 bytes are
correction slots, 256 bytes for each address that a launch brings. They grow with the number of
launches and not with the model, so their share depends on its size; hence the two sizes.
"""
REPORTED = (("+9.9 %", "+13.6 %"), ("1.7×", "2.4×"))


def section(measured: Any) -> str:
    """The section as Markdown, from ``benchmarks.decode.Measured``."""
    spec, runs = CardSpec(), measured.runs
    computing = [_average(runs[model]["tokens"][0].busy("compute")) for model in runs]
    costs = {"submit": spec.submit_time, "callback": spec.callback_time, **COSTS._asdict()}
    gantt = figure(
        {rung.name: run for rung, run in zip(RUNGS, runs["wide"]["token"], strict=True)},
        "One token of the wide decoder on each rung, in virtual time",
    )
    return "\n".join(
        [
            INTRODUCTION,
            _host_table(measured),
            VIRTUAL.format(small=computing[0], wide=computing[1], **costs),
            _virtual_table(runs),
            f'<div class="figure">\n{gantt.svg().strip()}\n</div>\n',
            IBM,
            _reported_table(measured),
            COMPARABLE.format(launches=measured.launches["token"]),
            RESIDENCY,
        ]
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _rungs() -> list[str]:
    return [f"{number} · {rung.name}" for number, rung in enumerate(RUNGS, 1)]


def _host_table(measured: Any) -> str:
    heads = ["rung", "µs a launch, prompt", "µs a launch, token", "ms a token", "tokens/s, host"]
    rows = []
    for number, name in enumerate(_rungs()):
        prompt, token = (measured.host[phase][number] for phase in ("prompt", "token"))
        each = [
            seconds * 1e6 / measured.launches[phase]
            for phase, seconds in (("prompt", prompt), ("token", token))
        ]
        rows.append([name, *(f"{m:.1f}" for m in each), f"{token * 1e3:.2f}", f"{1 / token:,.0f}"])
    return _table(heads, rows)


def _virtual_table(runs: dict[str, dict[str, list[Run]]]) -> str:
    heads = ["rung"] + [
        f"{model}: {what}" for model in runs for what in ("µs a token", "compute idle", "tokens/s")
    ]
    rows = []
    for number, name in enumerate(_rungs()):
        cells = [name]
        for model in runs.values():
            run = model["tokens"][number]
            time = _average(run.makespan)
            cells += [f"{time:,.1f}", f"{run.idle:.0%}", f"{1e6 / time:,.0f}"]
        rows.append(cells)
    return _table(heads, rows)


def _average(time: int) -> float:
    """Microseconds of one of eight tokens."""
    return time / 8 / 1e3


def _reported_table(measured: Any) -> str:
    heads = ["against rung 1", "IBM: prefill", "IBM: decode", "ours, host: prefill", "decode"]
    heads += ["ours, wide, virtual: prefill", "decode"]
    rows = []
    for step, reported in enumerate(REPORTED, 1):
        host = [measured.host[phase] for phase in ("prompt", "token")]
        spans = [
            [run.makespan for run in measured.runs["wide"][phase]] for phase in ("prompt", "tokens")
        ]
        ours = [f"{times[0] / times[step]:.2f}×" for times in (*host, *spans)]
        rows.append([f"rung {step + 1}", *reported, *ours])
    return _table(heads, rows)
