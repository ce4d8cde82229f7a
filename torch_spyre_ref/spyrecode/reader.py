"""Reading an artifact: every byte is checked before it is used, so it may come from anywhere.

Both files are opened by a plain name inside the directory that was opened first, and neither may be
a link: nothing outside is ever read. Nothing is executed, and nothing is read that is larger than
was stated and allowed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

from torch_spyre_ref.spyrecode.artifact import DOCUMENT, MAX_DOCUMENT, Artifact
from torch_spyre_ref.spyrecode.schema import Place, parse, read, write


def read_artifact(directory: str | os.PathLike[str]) -> Artifact:
    """The artifact in ``directory``.

    Raises ``ArtifactError`` when there is none; it says
    which file, where in it, what is wrong and what was expected.
    """
    root = Path(directory)
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Place(str(root)).refusal(_reason(error), "an artifact's directory") from None
    try:
        place = Place(str(root / DOCUMENT))
        artifact = artifact_in(_contents(folder, DOCUMENT, place), place)
        binary = artifact.binary
        place = Place(str(root / binary.init_bin_file))
        program = _contents(folder, binary.init_bin_file, place, binary.size)
    finally:
        os.close(folder)
    digest = hashlib.sha256(program).hexdigest()
    place.require(digest == binary.sha256, f"SHA-256 {digest}", binary.sha256)
    return replace(artifact, program=program)


def artifact_in(text: bytes, place: Place) -> Artifact:
    """What the document says, checked; without the program."""
    artifact: Artifact = read(Artifact, parse(text, place), place)
    digest = content_digest(write(artifact))
    place.at("digest").require(
        digest == artifact.digest, artifact.digest, f"{digest}, which is that of the content"
    )
    return artifact


def content_digest(document: dict[str, object]) -> str:
    """The digest of a document that is otherwise complete, however it is spaced and ordered."""
    content = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(folder: int, name: str, place: Place, size: int | None = None) -> bytes:
    """All of a regular file: of exactly ``size`` bytes, or of what a document may have."""

    def opened(path: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a pipe that stands in the file's place would wait for ever.
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)

    try:
        with open(name, "rb", opener=opened) as file:
            status = os.fstat(file.fileno())
            place.require(stat.S_ISREG(status.st_mode), "something else", "a regular file")
            if size is None:
                size = status.st_size
                place.require(size <= MAX_DOCUMENT, f"{size} bytes", f"at most {MAX_DOCUMENT}")
            place.require(status.st_size == size, f"{status.st_size} bytes", str(size))
            contents = file.read(size + 1)
    except OSError as error:
        raise place.refusal(_reason(error), "a regular file") from None
    place.require(len(contents) == size, "changed while it was read", f"{size} bytes")
    return contents


def _reason(error: OSError) -> str:
    return "a symbolic link" if error.errno == errno.ELOOP else f"{error.strerror}"
