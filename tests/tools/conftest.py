"""A project of two chapters in a temporary folder, for the tests of the literate tools."""

from __future__ import annotations

from pathlib import Path

import pytest

import execute
import tangle

CARD = '''\
# %% [markdown]
# # A card does what it is asked
#
# The card keeps a list.

# %% Keep a list tags=["export"] file="emulator/card.py"
"""The card: it keeps a list."""

import math


class Card:
    def __init__(self) -> None:
        self.kept: list[int] = []


# %%
print(math.pi > 3)
'''

ALLOCATOR = '''\
# %% [markdown]
# # A block is an address and a promise
#
# The allocator hands out blocks
# of a `Card`.
#
# ## You will build
#
# See [the card](00_card.ipynb), [its module](../torch_spyre_ref/emulator/card.py) and
# [the glossary](../docs/glossary.md).

# %% Describe a block tags=["export"] file="blocks.py"
"""Blocks: what is handed out."""

from dataclasses import dataclass


@dataclass
class Block:
    size: int


# %% Hand out a block tags=["export"]
import bisect


def block(size: int) -> Block:
    """A block of `size` bytes."""
    return Block(bisect.bisect([], 0) + size)


# %% Round up tags=["export"]
import bisect
from collections import deque

GRAIN = 128


def rounded(size: int, queue: deque[int]) -> int:
    return -(-size // GRAIN) * GRAIN


# %%
print("one")
print("two")
block(3)

# %% [markdown]
# ### A promise is broken

# %% tags=["raises-exception"]
raise ValueError("asked for 4 bytes, 3 are left; free some")
'''


def write_project(root: Path) -> Path:
    """Two chapters and an empty package."""
    for folder in ("chapters", "torch_spyre_ref/emulator"):
        (root / folder).mkdir(parents=True)
    for folder in ("torch_spyre_ref", "torch_spyre_ref/emulator"):
        (root / folder / "__init__.py").write_text('"""A package."""\n')
    (root / "chapters" / "00_card.py").write_text(CARD)
    (root / "chapters" / "02_allocator.py").write_text(ALLOCATOR)
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Root of a project with two chapters, not yet tangled and not yet run."""
    return write_project(tmp_path)


@pytest.fixture(scope="session")
def executed_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of the same project, tangled and run; shared, so not to be changed."""
    root = write_project(tmp_path_factory.mktemp("executed"))
    for tool in (tangle, execute):
        assert tool.main(["--root", str(root)]) == 0
    return root
