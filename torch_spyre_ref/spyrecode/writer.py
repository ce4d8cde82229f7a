"""Writing an artifact: the same bytes from the same input, and all of them or none.

Both files are made in a directory beside the final one and moved into place by renaming, after they
were checked as a reader will check them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from torch_spyre_ref.emulator.program import Program, encode
from torch_spyre_ref.emulator.program.slot import STICK
from torch_spyre_ref.spyrecode.artifact import (
    BINARY,
    DOCUMENT,
    Allocate,
    Artifact,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Execution,
    InitTransfer,
    after,
)
from torch_spyre_ref.spyrecode.errors import ArtifactError
from torch_spyre_ref.spyrecode.reader import artifact_in, content_digest, read_artifact
from torch_spyre_ref.spyrecode.schema import Place, pretty, write
from torch_spyre_ref.spyrecode.spec import LaunchSpec


def write_artifact(
    directory: str | os.PathLike[str],
    program: Program | bytes,
    spec: LaunchSpec,
    *,
    name: str = "program",
    memory: int = 0,
) -> Artifact:
    """Write ``program``, or its bytes, and the spec of its launches as the artifact ``directory``.

    ``memory`` is what the program needs for itself, in bytes. An artifact that is there already is
    replaced as a whole, and kept when the new one cannot be written. Raises ``OSError``, and
    ``ArtifactError`` for what could not be read back or when
    ``directory`` holds anything but an artifact.
    """
    root = Path(directory).resolve()
    program = encode(program) if isinstance(program, Program) else program
    artifact = assembled(program, spec, name=name, memory=memory)
    text = f"{pretty(write(artifact))}\n".encode()
    artifact_in(text, Place(str(root / DOCUMENT)))
    with suppress(ArtifactError):
        if read_artifact(root) == artifact:
            return artifact
    root.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as scratch:
        fresh = Path(scratch, "fresh")
        fresh.mkdir()
        (fresh / BINARY).write_bytes(program)
        (fresh / DOCUMENT).write_bytes(text)
        _move_in(fresh, root, Path(scratch))
    return artifact


def assembled(program: bytes, spec: LaunchSpec, *, name: str, memory: int) -> Artifact:
    """The artifact of a program: allocate and load once; compute, send and run its slot often."""
    slot = spec.correction_size
    sha256 = hashlib.sha256(program).hexdigest()
    load = InitTransfer(BINARY, slot, len(program), sha256)
    own = after(load)
    patch: tuple[Execution, ...] = (ComputeOnHost(0, slot), DataTransfer("H2D", 0, 0, slot))
    artifact = Artifact(
        "spyrecode",
        1,
        "",
        name,
        (Allocate(own + -(-memory // STICK) * STICK), load),
        (*(patch if slot else ()), ComputeOnDevice(slot, 0, own)),
        spec,
        program,
    )
    return replace(artifact, digest=content_digest(write(artifact)))


def _move_in(fresh: Path, root: Path, scratch: Path) -> None:
    """Rename ``fresh`` to ``root``; what was there is moved to ``scratch``, and back on failure."""
    for attempt in count():
        replaced = scratch / str(attempt)
        with suppress(FileNotFoundError):
            _refuse_strangers(root)
            root.rename(replaced)
        try:
            if _renamed(fresh, root):
                return
        finally:
            if replaced.exists() and not root.exists():
                _renamed(replaced, root)


def _renamed(source: Path, target: Path) -> bool:
    """Rename a directory, unless another writer's artifact came to lie there: the last stays."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _refuse_strangers(root: Path) -> None:
    strangers = sorted({file.name for file in root.iterdir()} - {BINARY, DOCUMENT})
    if strangers:
        wrong = f"a directory that holds {strangers[0]}"
        raise Place(str(root)).refusal(wrong, "a new directory, or an artifact to replace")
