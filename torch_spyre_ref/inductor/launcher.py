"""What the code that Inductor generates calls: a kernel that carries its artifacts."""

from __future__ import annotations

import base64
import zlib
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.launch import SLOTS, JobPlan, launch_jobplan
from torch_spyre_ref.spyrecode.artifact import Artifact
from torch_spyre_ref.spyrecode.reader import artifact_in
from torch_spyre_ref.spyrecode.schema import Place


class Launch(NamedTuple):
    """A launch that was made: of which artifact, and with which correction slot."""

    artifact: Artifact
    slot: bytes


recording: ContextVar[list[Launch] | None] = ContextVar("recording", default=None)
"""Where launches of this context are noted, when someone wants to know them."""

Packed: TypeAlias = tuple[str, str]
"""An artifact in generated code: its document, and its program, compressed, in base 85."""


class CompiledKernel:
    """An artifact in the generated code; it is prepared when it is first launched.

    Args:
        card: the index of the card that the graph was compiled for.
        packed: the artifact.
        longer: the same for axes that are too long for this one, if there is such a one.
    """

    def __init__(self, card: int, packed: Packed, longer: Packed | None = None) -> None:
        self.card, self._packed, self._longer = card, packed, longer

    @property
    def artifact(self) -> Artifact:
        """The artifact, checked as one from a directory would be."""
        document, program = self._packed
        artifact = artifact_in(document.encode(), Place("the generated code"))
        return replace(artifact, program=zlib.decompress(base64.b85decode(program)))

    @cached_property
    def plan(self) -> JobPlan:
        """The program on the card, put there on first use."""
        programs = backend.current().programs(self.card)
        return JobPlan(programs.job(self.artifact, SLOTS))

    @cached_property
    def for_long_axes(self) -> CompiledKernel:
        """The kernel that holds nothing along an axis."""
        assert self._longer is not None
        return CompiledKernel(self.card, self._longer)

    def __call__(self, *arguments: torch.Tensor | int | float) -> None:
        plan = self.plan
        count = len(plan.spec.arguments)
        tensors: Any = arguments[:count]
        scalars: Any = arguments[count:]
        launch_jobplan(plan, tensors, scalars)
        launches = recording.get()
        if launches is not None:
            launches.append(Launch(plan.job.artifact, plan.patch(tensors, scalars)))

    def __repr__(self) -> str:
        return f"CompiledKernel({self.artifact.name!r} for spyre:{self.card})"
