"""Artifacts that somebody broke: refused, each by an error that says where, and nothing stays."""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.spyrecode.samples import PROGRAM, SPEC
from torch_spyre_ref.spyrecode import (
    Artifact,
    ArtifactError,
    DataTransfer,
    read_artifact,
    write_artifact,
)
from torch_spyre_ref.spyrecode.artifact import MAX_DOCUMENT
from torch_spyre_ref.spyrecode.reader import content_digest

Route = tuple[str | int, ...]
Document = dict[str, Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "a", PROGRAM, SPEC, name="sample", memory=1000)
    return tmp_path / "a"


def refusal(root: Path) -> ArtifactError:
    """The error that reading ends with, which must be complete."""
    with pytest.raises(ArtifactError) as caught:
        read_artifact(root)
    error = caught.value
    assert Path(error.file).is_relative_to(root)
    assert error.place and error.wrong and error.expected
    assert len(str(error)) < 1_000
    return error


def sealed(document: Document) -> bytes:
    """A document with the digest that it should have: what someone careful would forge."""
    document = {key: value for key, value in document.items() if key != "digest"}
    items = list(document.items())
    digest = content_digest(document)
    return json.dumps(dict([*items[:2], ("digest", digest), *items[2:]])).encode()


def places(value: Any, path: Route = ()) -> Iterator[Route]:
    """The path of everything in a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from places(entry, (*path, key))


def parent(document: Document, path: Route) -> Any:
    """What holds the entry at ``path``."""
    for key in path[:-1]:
        document = document[key]  # type: ignore[index]
    return document


def at(document: Document, path: Route) -> Any:
    return parent(document, path)[path[-1]]


# None of these may stand anywhere, but for a few places that test below knows.
POISON: list[Any] = [
    None,
    True,
    False,
    -1,
    -(1 << 63),
    1 << 63,
    10**400,
    1.0,
    1e999,
    "",
    "../x",
    "/etc/passwd",
    "x\x00.bin",
    "\ud800",
    "1",
    "__class__",
    "n*" * 400 + "n",
    [],
    {},
    [[]],
    [1] * 5_000,
    {"command": "Allocate", "properties": {"size": 1 << 60}},
    {"command": "__import__", "properties": {}},
]


def changed(document: Document) -> Iterator[bytes]:
    """Forged documents, each with one entry that is wrong, gone, new, or another's."""
    paths = [path for path in places(document) if path != ("digest",)]
    for path in paths:
        for poison in POISON:
            broken = copy.deepcopy(document)
            parent(broken, path)[path[-1]] = poison
            yield sealed(broken)
        broken = copy.deepcopy(document)
        del parent(broken, path)[path[-1]]
        yield sealed(broken)
        for key in ("__proto__", "size", "Size"):
            if isinstance(at(document, path), dict) and key not in at(document, path):
                broken = copy.deepcopy(document)
                at(broken, path)[key] = 0
                yield sealed(broken)
    for one, other in combinations(paths, 2):
        nested = one == other[: len(one)]
        if not nested and at(document, one) != at(document, other) and len(one) < len(other):
            broken = copy.deepcopy(document)
            parent(broken, one)[one[-1]], parent(broken, other)[other[-1]] = (
                at(broken, other),
                at(broken, one),
            )
            yield sealed(broken)


def damaged(text: bytes) -> Iterator[bytes]:
    """A document after an accident: bits flipped, cut short, pieces twice, keys twice."""
    random_ = random.Random(0)
    for _ in range(3_000):
        bit = random_.randrange(len(text) * 8)
        broken = bytearray(text)
        broken[bit // 8] ^= 1 << bit % 8
        yield bytes(broken)
    for end in range(0, len(text) - 1, 2):
        yield text[:end]
    for _ in range(500):
        start, end = sorted(random_.randrange(len(text)) for _ in range(2))
        if end - start > 1:
            yield text[:end] + text[start:]
    lines = text.split(b"\n")
    for index, line in enumerate(lines):
        if b":" in line and line.rstrip().endswith((b",", b"}", b"]")):
            yield b"\n".join([*lines[:index], line.rstrip(b",") + b",", *lines[index:]])


class Readings:
    """Reads documents in the artifact's place, and counts how that ends."""

    def __init__(self, root: Path) -> None:
        self.root, self.document = root, root / "spyrecode.json"
        self.refused = self.accepted = 0

    def read(self, text: bytes) -> Artifact | None:
        self.document.write_bytes(text)
        try:
            artifact = read_artifact(self.root)
        except ArtifactError as error:
            assert error.place and error.expected
            self.refused += 1
            return None
        self.accepted += 1
        return artifact


def _unnamed(artifact: Artifact) -> object:
    """All of an artifact that names and digest say nothing about."""
    spec = artifact.spec
    named = (spec.arguments, spec.dimensions, spec.scalars)
    records = [[replace(record, name="x") for record in records] for records in named]
    return records, spec.symbols, artifact.preparation, artifact.execution


def held(work: Callable[[], object]) -> int:
    """Bytes that Python holds more after ``work`` than before it."""
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_ten_thousand_broken_artifacts_are_refused_and_nothing_stays(root: Path) -> None:
    original = (root / "spyrecode.json").read_bytes()
    document = json.loads(original)
    readings, sound = Readings(root), read_artifact(root)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))

    for text in damaged(original):
        # The digest seals every value; only the space between them is free.
        assert readings.read(text) in (None, sound)
    assert readings.accepted < 10
    for text in changed(document):
        artifact = readings.read(text)
        # A name may be another name. Nothing else may be anything else.
        assert artifact is None or _unnamed(artifact) == _unnamed(sound)
    assert readings.refused > 10_000

    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert [entry.name for entry in root.parent.iterdir()] == ["a"]
    sample = [*damaged(original)][::40] + [*changed(document)][::40]
    assert held(lambda: [readings.read(text) and None for text in sample]) < 40_000


def test_no_number_that_is_wrong_is_accepted(root: Path) -> None:
    """Negative, fractional, huge, or no number at all, in the place of every number there is."""
    text = (root / "spyrecode.json").read_bytes()
    document, readings = json.loads(text), Readings(root)
    numbers = [path for path in places(document) if type(at(document, path)) is int]
    assert len(numbers) > 40
    for path in numbers:
        for wrong in (-1, 1 << 63, 10**400, 0.5, 1.0, 1e999, True, None, "-1", [1]):
            broken = copy.deepcopy(document)
            parent(broken, path)[path[-1]] = wrong
            readings.read(sealed(broken))
    assert readings.accepted == 0


def test_huge_numbers_are_refused_before_anything_is_made_for_them(root: Path) -> None:
    document = json.loads((root / "spyrecode.json").read_bytes())
    document["JobPreparationPlan"][1]["properties"]["size"] = 64 << 20
    document["JobPreparationPlan"][0]["properties"]["size"] = 128 << 30
    document["JobExecPlan"][2]["properties"]["memory_ptr"] = 100 << 30
    (root / "spyrecode.json").write_bytes(sealed(document))
    with (root / "program.bin").open("r+b") as program:
        program.truncate(65 << 20)  # a hole, so that the test is quick
    tracemalloc.start()
    error = refusal(root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (error.wrong, error.expected) == (f"{65 << 20} bytes", str(64 << 20))
    assert peak < 1 << 20


@pytest.mark.parametrize("name", ["spyrecode.json", "program.bin"])
@pytest.mark.parametrize("target", ["same", "outside", "nowhere", "itself"])
def test_a_link_is_never_followed(root: Path, name: str, target: str) -> None:
    file, outside = root / name, root.parent / "outside"
    outside.write_bytes(file.read_bytes())
    inside = file.rename(root / "real")
    to = {"same": inside, "outside": outside, "nowhere": root / "none", "itself": file}[target]
    file.symlink_to(to)
    error = refusal(root)
    assert (error.file, error.wrong) == (str(file), "a symbolic link")


@pytest.mark.parametrize("name", ["spyrecode.json", "program.bin"])
def test_what_is_no_regular_file_is_refused_at_once(root: Path, name: str) -> None:
    (root / name).unlink()
    error = refusal(root)
    assert error.file == str(root / name) and "No such file" in error.wrong
    (root / name).mkdir()
    assert refusal(root).file == str(root / name)
    (root / name).rmdir()
    os.mkfifo(root / name)
    assert refusal(root).expected == "a regular file"


def test_the_directory_itself_may_be_a_link_but_must_be_there(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root, target_is_directory=True)
    assert read_artifact(link) == read_artifact(root)
    with pytest.raises(ArtifactError, match=r"none, as a whole: No such"):
        read_artifact(root / "none")
    with pytest.raises(ArtifactError, match=r"program\.bin, as a whole: Not a dir"):
        read_artifact(root / "program.bin")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ".", "..", "a/b", "", "x\n", "é.bin"])
def test_the_program_must_lie_in_the_directory(root: Path, name: str) -> None:
    (root.parent / "x").write_bytes(PROGRAM)
    document = json.loads((root / "spyrecode.json").read_bytes())
    document["JobPreparationPlan"][1]["properties"]["init_bin_file"] = name
    (root / "spyrecode.json").write_bytes(sealed(document))
    error = refusal(root)
    assert error.place == "JobPreparationPlan[1].properties.init_bin_file"
    assert error.expected == "the plain name of a file"


def test_every_byte_of_the_program_counts(root: Path) -> None:
    program = root / "program.bin"
    for bit in range(0, len(PROGRAM) * 8, 13):
        broken = bytearray(PROGRAM)
        broken[bit // 8] ^= 1 << bit % 8
        program.write_bytes(broken)
        error = refusal(root)
        assert error.file == str(program) and error.expected == _sha256(PROGRAM)
    for wrong in (b"", PROGRAM[:-1], PROGRAM + b"\0"):
        program.write_bytes(wrong)
        assert refusal(root).wrong == f"{len(wrong)} bytes"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("text", "place", "wrong"),
    [
        (b"", "line 1, column 1", "Expecting value"),
        (b"\xff", "byte 0", "no UTF-8"),
        (b"\xef\xbb\xbf{}", "line 1, column 1", "Unexpected UTF-8 BOM"),
        (b"[" * 100_000, "as a whole", "nested too deeply"),
        (b'{"a":' * 100_000, "as a whole", "nested too deeply"),
        (b"[]", "as a whole", "a list of 0"),
        (b"NaN", "as a whole", "NaN"),
        (b"9" * 5_000, "as a whole", "Infinity"),
        (b'{"format": "spyrecode", "format": "spyrecode"}', "as a whole", 'key "format" twice'),
        (b'{"format": "zip"}', "format", '"zip"'),
        (b'{"format": "spyrecode", "version": 2, "new": 1}', "version", "2"),
        (b" " * (MAX_DOCUMENT + 1), "as a whole", f"{MAX_DOCUMENT + 1} bytes"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_document_is_refused_where_it_goes_wrong(
    root: Path, text: bytes, place: str, wrong: str
) -> None:
    (root / "spyrecode.json").write_bytes(text)
    error = refusal(root)
    assert error.place == place
    assert error.wrong.startswith(wrong)


def _plan(key: str, value: object, *path: str | int) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        entry: Any = document
        for step in path:
            entry = entry[step]
        entry[key] = value

    return change


PREPARE, RUN, SYMBOLS = "JobPreparationPlan", "JobExecPlan", ("LaunchSpec", "symbols")


@pytest.mark.parametrize(
    ("change", "place", "expected"),
    [
        (_plan(PREPARE, []), PREPARE, "Allocate, InitTransfer"),
        (lambda d: d[PREPARE].reverse(), PREPARE, "Allocate, InitTransfer"),
        (lambda d: d[PREPARE].append(d[PREPARE][0]), PREPARE, "Allocate, InitTransfer"),
        (_plan("size", 1152, PREPARE, 0, "properties"), f"{PREPARE}[1]", "0 to 1152"),
        (_plan("size", 1280, RUN, 0, "properties"), f"{RUN}[0]", "a correction slot"),
        (_plan("host_handle", 1, RUN, 1, "properties"), f"{RUN}[1]", "all that the buffer holds"),
        (_plan("dev_ptr", 128, RUN, 1, "properties"), f"{RUN}[1]", "within 0 to 1152"),
        (_plan("dev_ptr", 1152, RUN, 1, "properties"), f"{RUN}[1]", "within 1920 to 2944"),
        (_plan("dirn", "D2D", RUN, 1, "properties"), f"{RUN}[1]", '"H2D" or "D2H"'),
        (_plan("job_bin_ptr", 0, RUN, 2, "properties"), f"{RUN}[2]", "where the program is"),
        (_plan("correction_ptr", 128, RUN, 2, "properties"), f"{RUN}[2]", "within 0 to 1152"),
        (_plan("memory_ptr", 128, RUN, 2, "properties"), f"{RUN}[2]", "within 1920 to 2944"),
        (lambda d: d[RUN].pop(1), f"{RUN}[1]", "one that is filled"),
        (lambda d: d[RUN].reverse(), f"{RUN}[0]", "one that is filled"),
        (_plan(RUN, []), RUN, "at least one"),
        (_plan("offset", 1024, *SYMBOLS, 0), "LaunchSpec.symbols[1]", "0, the next free"),
        (_plan("offset", 8, *SYMBOLS, 1), "LaunchSpec.symbols[1]", "256, the next free"),
        (lambda d: d["LaunchSpec"]["symbols"].pop(), "LaunchSpec.symbols", "argument and scalar"),
        (lambda d: d["LaunchSpec"]["symbols"].clear(), "LaunchSpec.symbols", "argument and scalar"),
        (_plan("correction_size", 1280, "LaunchSpec"), "LaunchSpec.symbols", "1280, a whole slot"),
        (_plan("offset", 1028, *SYMBOLS, 4), "LaunchSpec.symbols[4].offset", "a multiple of 8"),
        (_plan("index", 4, *SYMBOLS, 0), "LaunchSpec.symbols[0]", "less than 4"),
        (_plan("kind", "scalar", *SYMBOLS, 6), "LaunchSpec.symbols[6]", "less than 2"),
        (
            _plan("name", "x", "LaunchSpec", "arguments", 1),
            "LaunchSpec.arguments[1]",
            "a name of its own",
        ),
        (
            _plan("min", 5000, "LaunchSpec", "dimensions", 0),
            "LaunchSpec.dimensions[0]",
            "min, 5000, or more",
        ),
        (
            _plan("strides", [1], "LaunchSpec", "arguments", 0),
            "LaunchSpec.arguments[0]",
            "2",
        ),
        (_plan("digest", "0" * 64), "digest", "that of the content"),
    ],
)
def test_entries_must_agree_with_one_another(
    root: Path, change: Callable[[Document], object], place: str, expected: str
) -> None:
    document = json.loads((root / "spyrecode.json").read_bytes())
    change(document)
    forged = json.dumps(document).encode() if place == "digest" else sealed(document)
    (root / "spyrecode.json").write_bytes(forged)
    error = refusal(root)
    assert error.place.startswith(place)
    assert error.expected.endswith(expected) or expected in error.expected


def test_a_plan_may_read_back_what_the_job_wrote(root: Path) -> None:
    document = json.loads((root / "spyrecode.json").read_bytes())
    back = {"dirn": "D2H", "host_handle": 1, "dev_ptr": 1920, "size": 1024}
    document[RUN].append({"command": "DataTransfer", "properties": back})
    (root / "spyrecode.json").write_bytes(sealed(document))
    assert read_artifact(root).execution[3] == DataTransfer(**back)
    back["size"] = 1025
    (root / "spyrecode.json").write_bytes(sealed(document))
    assert refusal(root).expected == "bytes within 0 to 2944"
