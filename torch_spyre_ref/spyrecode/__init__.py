"""The artifact: a compiled program, what to do with it, and what a launch of it must be given.

A directory of two files, a program binary and ``spyrecode.json``, written once and launched on any
tensors of any size that its launch spec allows. Everything here is about the files; nothing knows
torch, and nothing touches a card.
"""

from torch_spyre_ref.spyrecode.artifact import (
    Allocate,
    Artifact,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    InitTransfer,
)
from torch_spyre_ref.spyrecode.errors import ArtifactError, LaunchMismatchError
from torch_spyre_ref.spyrecode.reader import read_artifact
from torch_spyre_ref.spyrecode.spec import (
    Argument,
    Description,
    Dimension,
    LaunchSpec,
    Scalar,
    Symbol,
)
from torch_spyre_ref.spyrecode.writer import write_artifact

__all__ = [
    "Allocate",
    "Argument",
    "Artifact",
    "ArtifactError",
    "ComputeOnDevice",
    "ComputeOnHost",
    "DataTransfer",
    "Description",
    "Dimension",
    "InitTransfer",
    "LaunchMismatchError",
    "LaunchSpec",
    "Scalar",
    "Symbol",
    "read_artifact",
    "write_artifact",
]
