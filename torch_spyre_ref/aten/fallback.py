"""The contract of the CPU fallback: what has no program runs on the CPU, and says so.

Everything that runs an op on the CPU on the card's behalf, the bridge's boxed fallback and the
kernels beside this file alike, calls `count` first. `count` keeps the books and applies the
policy: ``warn`` warns once an op, ``silent`` only counts, ``error`` refuses.

The policy and the books belong to the process, not to a thread: autograd runs a backward pass on
threads of its own, which must follow the policy of the code that called ``backward()``.

Printing a tensor is left out of all this. torch computes a dozen masks and extremes on the way to a
``repr``, on whatever device the tensor is, and none of them is an op that the reader asked for.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from torch_spyre_ref import backend

POLICIES: Final = ("warn", "silent", "error")
NO_PROGRAM: Final = "no program"
NO_CPU_KERNEL: Final = "core has no CPU kernel"

_PRINTER: Final = torch._tensor_str.__file__
_LIBRARIES: Final = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")


class FallbackWarning(UserWarning):
    """An op ran on the CPU instead of the card."""


class FallbackError(NotImplementedError):
    """An op would have run on the CPU, and the fallback policy is ``error``."""


@dataclass(frozen=True, slots=True)
class FallbackRow:
    """How often one op fell back for one reason."""

    op: str
    calls: int
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class FallbackReport:
    """What ran on the CPU so far: rows by falling number of calls, then by name."""

    rows: tuple[FallbackRow, ...]

    @property
    def calls(self) -> int:
        """Calls of all ops together."""
        return sum(row.calls for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[FallbackRow]:
        return iter(self.rows)

    def __getitem__(self, op: str) -> int:
        """Return the calls of ``op`` (say ``"aten::add.Tensor"``); 0 if it never fell back."""
        return sum(row.calls for row in self.rows if row.op == op)

    def __repr__(self) -> str:
        if not self.rows:
            return "no fallbacks"
        op_width = max(len("op"), *(len(row.op) for row in self.rows))
        calls_width = max(len("calls"), *(len(str(row.calls)) for row in self.rows))
        lines = [f"{'op':<{op_width}}  {'calls':>{calls_width}}  reason"]
        lines += [
            f"{row.op:<{op_width}}  {row.calls:>{calls_width}}  {row.reason}" for row in self.rows
        ]
        return "\n".join(lines)


class _Books:
    """The process's policy and counters, behind one lock that is never held around user code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._policy: str | None = None
        self._calls: dict[tuple[str, str], int] = {}
        self._warned: set[str] = set()

    @property
    def policy(self) -> str:
        return self._policy or backend.current().settings.fallback

    def exchange_policy(self, policy: str | None) -> str | None:
        """Set the policy, None for what the environment says; return what was set before."""
        if policy not in (*POLICIES, None):
            raise ValueError(f"fallback policy {policy!r} does not exist; choose from {POLICIES}")
        with self._lock:
            previous, self._policy = self._policy, policy
        return previous

    def enter(self, op: str, reason: str) -> bool:
        """Count one call, and say whether its warning is due. Refuse instead under ``error``."""
        policy = self.policy
        with self._lock:
            if policy == "error":
                raise FallbackError(_refusal(op, reason))
            self._calls[op, reason] = self._calls.get((op, reason), 0) + 1
            due = policy == "warn" and op not in self._warned
            if due:
                self._warned.add(op)
            return due

    def undo(self, op: str, reason: str) -> None:
        """Take back a call whose warning was raised as an error, so that the op did not run."""
        with self._lock:
            self._warned.discard(op)
            calls = self._calls.pop((op, reason), 1) - 1
            if calls:
                self._calls[op, reason] = calls

    def report(self) -> FallbackReport:
        with self._lock:
            rows = [FallbackRow(op, calls, why) for (op, why), calls in self._calls.items()]
        rows.sort(key=lambda row: (-row.calls, row.op, row.reason))
        return FallbackReport(tuple(rows))

    def reset(self) -> None:
        with self._lock:
            self._calls.clear()
            self._warned.clear()


_books = _Books()


class _Thread(threading.local):
    """What this thread knows of the op that is just falling back."""

    reason: str | None = None
    on_trial: list[str] | None = None


_thread = _Thread()


@contextmanager
def because(reason: str) -> Iterator[None]:
    """Ops that fall back inside a ``with`` block, on this thread, do so for ``reason``."""
    before, _thread.reason = _thread.reason, reason
    try:
        yield
    finally:
        _thread.reason = before


def known_reason() -> str | None:
    """Why what this thread calls runs on the CPU, where it is `because` of something."""
    return _thread.reason


@contextmanager
def judged(reason: Callable[[], str]) -> Iterator[None]:
    """Ops inside the block may be refused by the CPU too: they are counted if they are not.

    ``reason`` is asked for then.
    """
    before, _thread.on_trial = _thread.on_trial, []
    try:
        yield
        passed = _thread.on_trial
    finally:
        _thread.on_trial = before
    because_of = reason()
    for op in passed:
        count(op, because_of)


def count(op: str, reason: str | None = None) -> None:
    """Enter one call of ``op`` in the books before it runs on the CPU.

    Args:
        op: the op's qualified name with its overload, for example ``"aten::add.Tensor"``.
        reason: why the card does not run it, in a few words; by default what `because` says.

    Raises:
        FallbackError: the policy is ``error``. Nothing is counted then.
        FallbackWarning: a warning filter turns it into an error. Nothing is counted then either.
    """
    reason = reason or _thread.reason or NO_PROGRAM
    if _thread.on_trial is not None:
        _thread.on_trial.append(op)
        return
    if is_printing() or not _books.enter(op, reason):
        return
    try:
        warnings.warn(_notice(op, reason), FallbackWarning, stacklevel=_caller_level())
    except Exception:
        _books.undo(op, reason)
        raise


def get_fallback_policy() -> str:
    """Return the process's fallback policy: ``"warn"``, ``"silent"`` or ``"error"``."""
    return _books.policy


def set_fallback_policy(policy: str) -> None:
    """Set the process's fallback policy to ``"warn"``, ``"silent"`` or ``"error"``.

    Until then ``TORCH_SPYRE_REF_FALLBACK`` decides.

    Raises:
        ValueError: there is no such policy.
    """
    _books.exchange_policy(policy)


@contextmanager
def fallback_policy(policy: str) -> Iterator[None]:
    """Set the process's fallback policy inside a ``with`` block, and put the former one back.

    Raises:
        ValueError: there is no such policy.
    """
    previous = _books.exchange_policy(policy)
    try:
        yield
    finally:
        _books.exchange_policy(previous)


def fallback_report() -> FallbackReport:
    """Return what ran on the CPU since the process began or since `reset_fallback_report`."""
    return _books.report()


def reset_fallback_report() -> None:
    """Empty the report. Each op's next fallback warns again."""
    _books.reset()


def _notice(op: str, reason: str) -> str:
    return (
        f"{op} ran on the CPU: {reason}. Said once per op; torch.spyre.fallback_report() counts, "
        '`with torch.spyre.fallback_policy("silent"):` or TORCH_SPYRE_REF_FALLBACK=silent silences.'
    )


def _refusal(op: str, reason: str) -> str:
    return (
        f"{op} would run on the CPU ({reason}), and the fallback policy is 'error'. To allow it: "
        '`with torch.spyre.fallback_policy("silent"):` or TORCH_SPYRE_REF_FALLBACK=warn.'
    )


def is_printing() -> bool:
    """Whether the op was called by the code that turns a tensor into text, some frames up."""
    frame = sys._getframe(1).f_back
    for _ in range(16):
        if frame is None:
            return False
        if frame.f_code.co_filename == _PRINTER:
            return True
        frame = frame.f_back
    return False


def _caller_level() -> int:
    """Return the stack level, seen from `count`, of the first frame outside torch and the package.

    Without it the warning names a line inside torch.nn, where nobody can change anything.
    """
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
        level += 1
    return level if frame is not None else 2


EXPORTS: Final = (
    fallback_report,
    reset_fallback_report,
    fallback_policy,
    get_fallback_policy,
    set_fallback_policy,
)
