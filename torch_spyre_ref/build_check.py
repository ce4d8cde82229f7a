"""Whether the C++ bridge fits the torch that is running: asked before it is loaded."""

from __future__ import annotations

import importlib.util

import torch

REBUILD = "pip install --no-build-isolation -e ."


def built_for() -> str:
    """The torch version that the bridge was built for."""
    from torch_spyre_ref._build import TORCH_VERSION

    return TORCH_VERSION


def check_build() -> None:
    """Refuse a bridge that is missing or was built for another torch.

    Raises:
        ImportError: says which torch it was built for, which one runs, and how to rebuild.
    """
    if importlib.util.find_spec("torch_spyre_ref._build") is None:
        raise ImportError(
            "torch_spyre_ref's C++ bridge has not been built. In its source folder, run "
            f"`{REBUILD}` with the Python that has torch."
        )
    if torch.__version__ != built_for():
        raise ImportError(
            f"torch_spyre_ref's C++ bridge was built for torch {built_for()}, but torch "
            f"{torch.__version__} is running. In its source folder, run `{REBUILD}`."
        )
