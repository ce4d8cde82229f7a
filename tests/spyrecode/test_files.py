"""Writing an artifact and reading it back: all of it, the same bytes, or nothing."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spyrecode.samples import PROGRAM, SPEC, specs
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import encode
from torch_spyre_ref.spyrecode import (
    Allocate,
    Argument,
    ArtifactError,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Dimension,
    InitTransfer,
    LaunchSpec,
    read_artifact,
    write_artifact,
)

GOLDEN = Path(__file__).parent / "golden"


def files(directory: Path) -> dict[str, bytes]:
    """What lies in a directory."""
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def entries(directory: Path) -> list[str]:
    """The names of what lies in a directory."""
    return sorted(entry.name for entry in directory.iterdir())


@settings(max_examples=60, deadline=None)
@given(
    program=st.binary(min_size=1, max_size=600),
    spec=specs(),
    memory=st.integers(0, 1 << 30),
    name=st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1, max_size=64),
)
def test_what_is_read_is_what_was_written(
    program: bytes, spec: LaunchSpec, memory: int, name: str
) -> None:
    with TemporaryDirectory() as scratch:
        first, second = Path(scratch, "first"), Path(scratch, "second")
        written = write_artifact(first, program, spec, name=name, memory=memory)
        assert read_artifact(first) == written
        assert (written.program, written.spec, written.name) == (program, spec, name)
        write_artifact(second, program, spec, name=name, memory=memory)
        assert files(first) == files(second)


def test_the_format_is_the_one_that_artifacts_out_there_have(tmp_path: Path) -> None:
    write_artifact(tmp_path, PROGRAM, SPEC, name="golden", memory=1000)
    assert files(tmp_path) == files(GOLDEN), "a new format needs a new version number"
    assert read_artifact(GOLDEN).spec == SPEC


def test_the_plans_lay_the_job_out_as_slot_then_program_then_memory() -> None:
    artifact = read_artifact(GOLDEN)
    slot = 4 * 256 + 5 * 8 + 88
    assert artifact.spec.correction_size == slot
    assert artifact.binary.dev_ptr == slot
    digest = artifact.binary.sha256
    assert artifact.preparation == (
        Allocate(slot + 768 + 1024),
        InitTransfer("program.bin", slot, 768, digest),
    )
    assert artifact.execution == (
        ComputeOnHost(0, slot),
        DataTransfer("H2D", 0, 0, slot),
        ComputeOnDevice(slot, 0, slot + 768),
    )


def test_a_program_without_symbols_has_no_slot_and_nothing_to_patch(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", b"program", LaunchSpec.of([]))
    assert artifact.execution == (ComputeOnDevice(0, 0, 128),)
    assert read_artifact(tmp_path / "a") == artifact


def test_the_digest_names_program_spec_and_plans(tmp_path: Path) -> None:
    other = replace(SPEC, dimensions=(Dimension("rows", 0, 4095), *SPEC.dimensions[1:]))
    written = [
        write_artifact(tmp_path / "1", PROGRAM, SPEC),
        write_artifact(tmp_path / "2", PROGRAM[::-1], SPEC),
        write_artifact(tmp_path / "3", PROGRAM, other),
        write_artifact(tmp_path / "4", PROGRAM, SPEC, memory=128),
        write_artifact(tmp_path / "5", PROGRAM, SPEC, name="other"),
    ]
    assert len({artifact.digest for artifact in written}) == 5


def test_spacing_and_order_of_keys_are_free(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path, PROGRAM, SPEC)
    document = tmp_path / "spyrecode.json"
    document.write_bytes(document.read_bytes().replace(b" ", b"").replace(b"\n", b"\n \t"))
    assert read_artifact(tmp_path) == artifact


def test_an_artifact_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_artifact(tmp_path / "a", PROGRAM, SPEC)
    newer = write_artifact(tmp_path / "a", b"newer", SPEC)
    assert read_artifact(tmp_path / "a") == newer
    assert entries(tmp_path) == ["a"]


def test_a_directory_with_anything_else_in_it_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("years of work")
    with pytest.raises(
        ArtifactError, match=r"a, as a whole: a directory that holds thesis\.tex; expected a new"
    ):
        write_artifact(tmp_path / "a", PROGRAM, SPEC)
    assert files(tmp_path / "a") == {"thesis.tex": b"years of work"}
    assert entries(tmp_path) == ["a"]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("failing", ["write_bytes", "rename"])
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool, failing: str
) -> None:
    root = tmp_path / "a"
    before = write_artifact(root, PROGRAM, SPEC) if exists else None
    real = getattr(Path, failing)

    def fail(self: Path, *arguments: object) -> None:
        if self.name in ("spyrecode.json", "fresh"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *arguments)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(Path, failing, fail)
        write_artifact(root, b"newer", SPEC)
    assert entries(tmp_path) == (["a"] if exists else [])
    if exists:
        assert read_artifact(root) == before


def test_writers_of_one_directory_leave_one_whole_artifact(tmp_path: Path) -> None:
    programs = [bytes([n]) * 500 for n in range(4)]
    failures: list[BaseException] = []

    def work(program: bytes) -> None:
        try:
            for _ in range(20):
                write_artifact(tmp_path / "a", program, SPEC)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert read_artifact(tmp_path / "a").program in programs
    assert entries(tmp_path) == ["a"]


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    def refused(expected: str, program: bytes = PROGRAM, spec: LaunchSpec = SPEC) -> None:
        with pytest.raises(ArtifactError, match=expected):
            write_artifact(tmp_path / "a", program, spec)
        assert entries(tmp_path) == []

    x = Argument("x", "input", "float16", ("n",), (1,))
    refused(r"JobPreparationPlan\[1\]\.properties\.size: 0; expected 1 to", program=b"")
    refused(r"arguments\[0\]\.shape\[0\]: 'n'; expected symbols that", spec=LaunchSpec.of([x]))
    complex_ = replace(x, dtype="complex64", shape=(4,))
    refused(r"dtype: \"complex64\"; expected one of bool, uint8", spec=LaunchSpec.of([complex_]))
    unread = LaunchSpec.of([], [Dimension("n", 0, 1)])
    refused(r"dimensions\[0\]: no size or stride is this symbol alone", spec=unread)


def test_a_program_is_written_as_its_bytes(tmp_path: Path) -> None:
    asm = Assembler("copy")
    n = asm.dimension("n", 4)
    x, out = asm.argument("x", "float32"), asm.argument("out", "float32")
    asm.store(out, {n: 1}, asm.load(x, {n: 1}))
    program = asm.assemble()
    assert write_artifact(tmp_path / "copy", program, LaunchSpec.of([])).program == encode(program)
