"""What the code that Inductor generates calls: a kernel that carries its artifact."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.launch import SLOTS, JobPlan, launch_jobplan
from torch_spyre_ref.spyrecode.artifact import Artifact
from torch_spyre_ref.spyrecode.reader import artifact_in
from torch_spyre_ref.spyrecode.schema import Place


class CompiledKernel:
    """An artifact in the generated code; it is prepared when it is first launched.

    Args:
        card: the index of the card that the graph was compiled for.
        document: the artifact's document, as text.
        program: its program, compressed, in base 85.
    """

    def __init__(self, card: int, document: str, program: str) -> None:
        self.card, self._document, self._program = card, document, program
        self._plan: JobPlan | None = None

    @property
    def artifact(self) -> Artifact:
        """The artifact, checked as one from a directory would be."""
        artifact = artifact_in(self._document.encode(), Place("the generated code"))
        return replace(artifact, program=zlib.decompress(base64.b85decode(self._program)))

    @property
    def plan(self) -> JobPlan:
        """The program on the card, put there on first use."""
        if self._plan is None:
            programs = backend.current().programs(self.card)
            self._plan = JobPlan(programs.job(self.artifact, SLOTS))
        return self._plan

    def __call__(self, *arguments: torch.Tensor | int | float) -> None:
        plan = self._plan or self.plan
        count = len(plan.spec.arguments)
        launch_jobplan(plan, arguments[:count], arguments[count:])  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"CompiledKernel({self.artifact.name!r} for spyre:{self.card})"
