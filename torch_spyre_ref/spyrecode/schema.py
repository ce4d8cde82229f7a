"""How records lie in JSON. A dataclass is the table: its fields are the keys, their type hints say
what may stand there, and both reading and writing follow it.

Reading is safe on text from anywhere: whatever a hint does not allow is refused at its place, and
nothing is made but records of what was there. A hint is ``int``, ``str`` or a union of the two, a
``Literal``, a ``Record``, a union of ``Command`` classes, a ``tuple[hint, ...]``, or one
of these ``Annotated`` with rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

from torch_spyre_ref.spyrecode.errors import ArtifactError

_DIGITS: Final = 19
_SHOWN: Final = 60
_LINE: Final = 96


class Place(NamedTuple):
    """Where in which file; errors begin with it."""

    file: str
    path: str = ""

    def at(self, key: str | int) -> Place:
        """The place of an entry of what stands here."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        return Place(self.file, (self.path + step).lstrip("."))

    def refusal(self, wrong: str, expected: str) -> ArtifactError:
        """The error for what stands here."""
        return ArtifactError(self.file, self.path or "as a whole", wrong, expected)

    def require(self, holds: bool, wrong: str, expected: str) -> None:
        """Raise that error unless ``holds``."""
        if not holds:
            raise self.refusal(wrong, expected)


class Record:
    """A dataclass that lies in JSON as an object, one key for each field.

    A field's metadata may give another ``key``, or None for a field that lies elsewhere.
    """

    __slots__ = ()

    def verify(self, place: Place) -> None:
        """Refuse what only several fields together show to be wrong."""


class Command(Record):
    """A record that lies in JSON as a step of a plan: ``{"command": ..., "properties": {...}}``."""

    __slots__ = ()


class Whole(NamedTuple):
    """A rule for numbers: from ``low`` to ``high`` in steps of ``step``."""

    low: int
    high: int
    step: int = 1

    def __call__(self, value: int, place: Place) -> None:
        steps = f", a multiple of {self.step}" if self.step > 1 else ""
        holds = self.low <= value <= self.high and value % self.step == 0
        place.require(holds, str(value), f"{self.low} to {self.high}{steps}")


class Text(NamedTuple):
    """A rule for strings."""

    pattern: str
    what: str

    def __call__(self, value: str, place: Place) -> None:
        place.require(re.fullmatch(self.pattern, value) is not None, _shown(value), self.what)


class AtMost(NamedTuple):
    """A rule for lists."""

    length: int

    def __call__(self, value: Sequence[object], place: Place) -> None:
        place.require(len(value) <= self.length, _shown(value), f"at most {self.length} entries")


class _Pairs(tuple[tuple[str, object], ...]):
    """A JSON object as it was written, so that a key that stands twice is seen, and where."""

    __slots__ = ()


def parse(text: bytes, place: Place) -> object:
    """The JSON value that ``text`` is, to be given to ``read``."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_Pairs, parse_int=_number)
    except UnicodeDecodeError as error:
        wrong, place = "no UTF-8", place.at(f"byte {error.start}")
    except json.JSONDecodeError as error:
        wrong, place = error.msg, place.at(f"line {error.lineno}, column {error.colno}")
    except RecursionError:
        wrong = "nested too deeply"
    raise place.refusal(wrong, "JSON")


def _number(digits: str) -> int | float:
    # Python refuses to convert more than 4300 digits, by an error that says nothing of the place.
    # A float is refused by its type, in its place.
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def read(hint: Any, value: object, place: Place) -> Any:
    """What ``value``, from ``parse``, is as a ``hint``. Raises ``ArtifactError``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        result = read(arguments[0], value, place)
        for rule in arguments[1:]:
            rule(result, place)
        return result
    if origin is tuple:
        if not isinstance(value, list):
            raise place.refusal(_shown(value), "a list")
        return tuple(read(arguments[0], entry, place.at(i)) for i, entry in enumerate(value))
    if origin is Literal:
        holds = any(type(value) is type(allowed) and value == allowed for allowed in arguments)
        place.require(holds, _shown(value), " or ".join(map(_shown, arguments)))
        return value
    if origin is UnionType and issubclass(arguments[0], Command):
        return _command(arguments, value, place)
    if origin is None and issubclass(hint, Record):
        return _record(hint, value, place)
    types = arguments or (hint,)
    words = " or ".join("a whole number" if t is int else "a string" for t in types)
    place.require(type(value) in types, _shown(value), words)
    return value


def _command(kinds: Sequence[type[Command]], value: object, place: Place) -> Command:
    entries = _Entries(value, place)
    known = {kind.__name__: kind for kind in kinds}
    name = Annotated[str, Text("|".join(known), f"one of {', '.join(known)}")]
    command: Command = entries.take("properties", known[entries.take("command", name)])
    entries.end()
    return command


def _record(kind: Any, value: object, place: Place) -> Any:
    entries = _Entries(value, place)
    record = kind(*(entries.take(key, hint) for key, (_, hint) in _table(kind).items()))
    entries.end()
    record.verify(place)
    return record


class _Entries:
    """An object's entries, taken out one by one."""

    def __init__(self, value: object, place: Place) -> None:
        if not isinstance(value, _Pairs):
            raise place.refusal(_shown(value), "an object")
        self._place, self._left = place, dict[str, object]()
        for key, entry in value:
            place.require(key not in self._left, f"key {_shown(key)} twice", "every key once")
            self._left[key] = entry

    def take(self, key: str, hint: Any) -> Any:
        self._place.require(key in self._left, f"no key {_shown(key)}", "that key")
        return read(hint, self._left.pop(key), self._place.at(key))

    def end(self) -> None:
        for key in self._left:
            raise self._place.refusal(f"unknown key {_shown(key)}", "none besides the known ones")


@cache
def _table(kind: Any) -> dict[str, tuple[str, Any]]:
    """The attribute and hint that lie under each key of ``kind``, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    named = ((field.metadata.get("key", field.name), field.name) for field in fields(kind))
    return {key: (name, hints[name]) for key, name in named if key is not None}


def write(value: object) -> Any:
    """The JSON value of a record, or of what stands in one: what ``read`` takes back."""
    if isinstance(value, Record):
        kind: Any = type(value)
        entries = {key: write(getattr(value, name)) for key, (name, _) in _table(kind).items()}
        if isinstance(value, Command):
            return {"command": type(value).__name__, "properties": entries}
        return entries
    return [write(entry) for entry in value] if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    """A value in an error: containers by their size, which may be anything's."""
    if isinstance(value, _Pairs):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def pretty(value: Any, indent: str = "\n") -> str:
    """JSON text, an entry a line, broken up only where it does not fit in a line."""
    flat = json.dumps(value)
    if len(indent) + len(flat) <= _LINE or not isinstance(value, dict | list):
        return flat
    inner = indent + "  "
    comma = f",{inner}"
    if isinstance(value, list):
        return f"[{inner}{comma.join(pretty(entry, inner) for entry in value)}{indent}]"
    entries = (f"{json.dumps(key)}: {pretty(entry, inner)}" for key, entry in value.items())
    return f"{{{inner}{comma.join(entries)}{indent}}}"
