"""What an artifact and a launch of it can be refused for."""

from __future__ import annotations


class ArtifactError(ValueError):
    """A directory that is no artifact: which file, where in it, what is wrong, what must be."""

    def __init__(self, file: str, place: str, wrong: str, expected: str) -> None:
        super().__init__(file, place, wrong, expected)
        self.file, self.place, self.wrong, self.expected = file, place, wrong, expected

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.wrong}; expected {self.expected}"


class LaunchMismatchError(ValueError):
    """Arguments that a launch spec does not allow; nothing was enqueued."""
