"""Keeps Dynamo out of the Python that serves PyTorch's own calls.

Dynamo looks at every Python frame that runs while a compiled function does, and PyTorch calls
kernels and drivers from there: it would trace what a kernel does with its bytes into a graph.
``torch.compiler.disable`` says no, but imports Dynamo, which would make ``import torch`` slow; what
is called here is what it ends in.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)


def hide(function: Callable[..., Any]) -> None:
    """Have Dynamo run ``function``, and all that it calls, as it is."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        set_code_exec_strategy(code, skip)
