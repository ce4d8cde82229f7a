"""The units of a core and the instruction set: which unit does what, on which formats.

An instruction's *rule* says how the formats of its inputs and outputs go together:

- ``same``: all inputs and the output have one format; ``number``, ``float``, ``integer`` and
  ``bits`` say which ones are possible (``bits`` is integers and bool);
- ``compare``: inputs of one format, a bool out; ``test``: the same, floats only;
- ``position``: an int64 out, and one of the format that goes in;
- ``select``: a bool and two of one format; ``convert``: one format in, any out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.formats import FORMATS

UNITS: Final = ("load", "index", "random", "vector", "special", "matrix", "reduce", "store")


class Op(NamedTuple):
    """One entry of the instruction set."""

    code: int
    unit: str
    inputs: int
    outputs: int
    rule: str


_VECTOR: Final = {
    "same": ((1, "copy"), (2, "minimum maximum")),
    "same number": (
        (1, "negative absolute sign"),
        (2, "add subtract multiply floor_divide remainder fmod truncate_divide"),
    ),
    "same float": (
        (1, "floor ceil truncate round reciprocal round_float16 round_bfloat16"),
        (2, "divide copysign nextafter"),
        (3, "multiply_add"),
    ),
    "same integer": ((2, "shift_left shift_right gcd"),),
    "same bits": ((1, "bitwise_not"), (2, "bitwise_and bitwise_or bitwise_xor")),
    "compare": ((1, "logical_not"), (2, "equal not_equal less less_equal greater greater_equal")),
    "compare logical": ((2, "logical_and logical_or logical_xor"),),
    "test": ((1, "isnan isinf isfinite signbit"),),
    "select": ((3, "select"),),
    "convert": ((1, "convert"),),
}
_SPECIAL: Final = {
    "same float": (
        (1, "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid erf erfc"),
        (1, "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"),
        (2, "atan2 hypot"),
    ),
    "same number": ((2, "power"),),
}


def _instruction_set() -> dict[str, Op]:
    ops: dict[str, Op] = {}

    def add(name: str, unit: str, inputs: int, outputs: int, rule: str) -> None:
        ops[name] = Op(len(ops), unit, inputs, outputs, rule)

    add("load", "load", -1, 1, "memory")
    add("store", "store", -1, 0, "memory")
    add("store_add", "store", -1, 0, "memory")
    add("index", "index", 0, 1, "index")
    for unit, table in (("vector", _VECTOR), ("special", _SPECIAL)):
        for rule, groups in table.items():
            for inputs, names in groups:
                for name in names.split():
                    add(name, unit, inputs, 1, rule)
    add("matmul", "matrix", 2, 1, "same")
    for name in ("sum", "product"):
        add(name, "reduce", 1, 1, "same number")
    for name in ("max", "min"):
        add(name, "reduce", 1, 1, "same")
    for name in ("any", "all"):
        add(name, "reduce", 1, 1, "compare")
    add("xor", "reduce", 1, 1, "same bits")
    for name in ("argmax", "argmin"):
        add(name, "reduce", 1, 2, "position")
    add("welford", "reduce", 1, 3, "same float")
    add("uniform", "random", 3, 1, "random float")
    add("normal", "random", 3, 1, "random float")
    add("integers", "random", 5, 1, "random integer")
    add("bits", "random", 3, 1, "random word")
    return ops


OPS: Final = _instruction_set()
"""By name, in the order of their codes in a program."""
OP_NAMES: Final = tuple(OPS)

_IN_PLACE: Final = (
    "negative absolute add subtract multiply divide floor_divide remainder fmod floor ceil truncate"
    " round copysign bitwise_not bitwise_and bitwise_or bitwise_xor shift_left shift_right minimum"
    " maximum sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh"
    " asinh acosh atanh"
)
IN_PLACE: Final = frozenset(_IN_PLACE.split())
"""Elementwise instructions whose result may lie where an input does that nobody needs any more."""

_KINDS: Final = {
    "number": ("integer", "float"),
    "float": ("float",),
    "integer": ("integer",),
    "bits": ("integer", "bool"),
}


def misfit(op: str, inputs: list[str | None], outputs: list[str]) -> str | None:
    """What is wrong with the formats of an instruction; None when nothing is.

    An input of None is a number of the table, which takes whatever format is needed.
    """
    rule, _, kind = OPS[op].rule.partition(" ")
    named = [name for name in inputs if name is not None]
    if rule == "select":
        if inputs[0] not in (None, "bool"):
            return f"chooses by a {inputs[0]}, not by a bool"
        named = [name for name in inputs[1:] if name is not None]
    wanted = _RESULTS.get(rule)
    if rule in ("same", "select"):
        named += outputs
    elif wanted and outputs[0] != wanted:
        return f"makes {wanted}, not {outputs[0]}"
    if rule == "position":
        named += outputs[1:]
    if rule == "random":
        return _random_misfit(kind, inputs, outputs)
    if len(set(named)) > 1 and rule != "convert":
        return f"mixes the formats {', '.join(dict.fromkeys(named))}"
    if rule in ("compare", "test") and not named:
        return "needs at least one value, not numbers alone"
    kinds = ("float",) if rule == "test" else _KINDS.get(kind)
    if kinds and named and FORMATS[named[0]].kind not in kinds:
        return f"does not work on {named[0]}"
    return None


_RESULTS: Final = {"compare": "bool", "test": "bool", "index": "int64", "position": "int64"}


def _random_misfit(kind: str, inputs: list[str | None], outputs: list[str]) -> str | None:
    wanted = {"float": ("float32", "float64"), "integer": ("int64",), "word": ("uint32",)}[kind]
    if any(name not in (None, "int64") for name in inputs):
        return "takes seed, offset and element as int64"
    return None if outputs[0] in wanted else f"makes {' or '.join(wanted)}, not {outputs[0]}"


def result_format(op: str, inputs: list[str]) -> str:
    """The format that ``op`` makes of ``inputs``, where its rule leaves no choice.

    Raises ``ProgramError`` when there is no such instruction, or nothing to go by.
    """
    if op not in OPS:
        raise ProgramError(f"there is no instruction {op!r}; there are {', '.join(OPS)}")
    rule, _, kind = OPS[op].rule.partition(" ")
    if rule == "random":
        return {"float": "float32", "integer": "int64", "word": "uint32"}[kind]
    if rule not in _RESULTS and not inputs:
        raise ProgramError(f"{op} is given numbers alone; use arithmetic, or load one of them")
    return _RESULTS.get(rule) or inputs[-1]
