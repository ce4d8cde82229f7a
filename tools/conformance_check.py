"""One operator in one dtype: run on the CPU and on the card, compared, and how the card ran it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance_compare import Ran, WrongResultError, compare
from conformance_samples import (
    CARD,
    FUNCTION,
    GAPPED,
    Call,
    Copier,
    UnstorableError,
    bad_calls,
    dtypes,
    reading_calls,
    samples,
    seed,
    storable,
    tensors,
    writing_calls,
)
from torch_spyre_ref import backend
from torch_spyre_ref.aten import fallback
from torch_spyre_ref.queueing.api import reset

RANDOM = "random numbers"
FRESH_MEMORY = "fresh memory"
_FRESH = {
    *("empty", "empty_like", "empty_permuted", "empty_strided"),
    *("new_empty", "new_empty_strided"),
}
_TAKEN_APART = 4  # samples of which the parts are counted
_FAULTS_SHOWN = 5


@dataclass
class Outcome:
    """What the check of one operator in one dtype found.

    Attributes:
        runs: how the card runs it: program, composed, move, view or fallback; none, if no sample
            could be compared.
        samples: how many samples were compared.
        fell_back: how many of them used the CPU.
        refused: how many more hold or give a tensor of a layout that no card stores.
        unequal: how many were compared in all but their values.
        why_unequal: why not in their values.
        on_cpu: the aten ops that fell back, with their reason, in any way of calling it.
        also_on_cpu: ways of calling it that fall back although the function does not.
        faults: what is wrong, in words.
    """

    runs: str = "none"
    samples: int = 0
    fell_back: int = 0
    refused: int = 0
    unequal: int = 0
    why_unequal: str = ""
    on_cpu: dict[str, str] = field(default_factory=dict)
    also_on_cpu: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class _Tags(TorchDispatchMode):
    """Sees whether an aten op of a call draws random numbers."""

    is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **kwargs or {})


class _Parts(TorchDispatchMode):
    """Counts the aten ops of a call for which the card worked."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _watched() as kinds:
            result = func(*args, **kwargs or {})
        self.count += bool(kinds)
        return result


@contextmanager
def _watched() -> Iterator[set[str]]:
    """Collect the kinds of operations that the card did meanwhile; poison takes no time."""
    torch.accelerator.synchronize()
    timeline = backend.current().runtime.timeline
    timeline.clear()
    kinds: set[str] = set()
    yield kinds
    torch.accelerator.synchronize()
    kinds.update(record.kind for record in timeline if record.end > record.start)


def _usable_again() -> None:
    """Make a card good again after an error, of which only the first to wait was told."""
    with suppress(Exception):
        torch.accelerator.synchronize()
    reset()


class _Check:
    """The check of one operator in one dtype, sample by sample."""

    def __init__(self, op: Any, dtype: torch.dtype, progress: Callable[[str], None]) -> None:
        self.op, self.dtype, self.progress = op, dtype, progress
        self.outcome = Outcome()
        self.kinds: set[str] = set()
        self.parts = 0

    def run(self) -> Outcome:
        """Check every sample in every way of calling the operator."""
        for number, sample in enumerate(samples(self.op, self.dtype)):
            unequal = self._why_unequal(sample, number)
            self.outcome.unequal += bool(unequal)
            self.outcome.why_unequal = unequal or self.outcome.why_unequal
            for call in reading_calls(self.op, sample):
                ran = self._check(call, number, unequal)
                if ran is not None and call.way == FUNCTION:
                    for writing in writing_calls(self.op, sample, ran.result):
                        self._check(writing, number, unequal)
        if self.dtype == dtypes(self.op)[0]:
            for number, call in enumerate(bad_calls(self.op)):
                self._check(call, number, "")
        self.outcome.runs = self._runs()
        if self.outcome.runs == "fallback":
            self.outcome.also_on_cpu.clear()
        return self.outcome

    def _runs(self) -> str:
        if not self.outcome.samples:
            return "none"
        if self.outcome.fell_back:
            return "fallback"
        if "Execute" in self.kinds:
            return "composed" if self.parts > 1 else "program"
        return "move" if self.kinds else "view"

    def _why_unequal(self, sample: Any, number: int) -> str:
        """Why a sample's values cannot be compared; nothing if they can."""
        if self.op.name in _FRESH:
            return FRESH_MEMORY
        seed(number)
        call = next(reading_calls(self.op, sample))
        try:
            with _Tags() as tags:  # type: ignore[no-untyped-call]
                call.on(Copier("cpu"))()
        except Exception:
            return ""
        return RANDOM if tags.is_random else ""

    def _check(self, call: Call, number: int, unequal: str) -> Ran | None:
        """Run one call on both devices and compare; return what the CPU did, None on an error."""
        self.progress(f"sample {number}, {call}")
        try:
            return self._compare(call, number, unequal)
        except UnstorableError:
            self.outcome.refused += call.way == FUNCTION
        except WrongResultError as difference:
            if len(self.outcome.faults) < _FAULTS_SHOWN:
                self.outcome.faults.append(f"sample {number}, {call}: {difference}")
        return None

    def _compare(self, call: Call, number: int, unequal: str) -> Ran | None:
        try:
            cpu = _on_cpu(call, number)
        except UnstorableError:
            raise
        except Exception as error:
            self._must_fail(call, error)
            return None
        card = self._on_card(call, number, cpu)
        if card is None:
            return cpu
        try:
            compare(self.op, call, cpu, card, unequal, number)
        except WrongResultError:
            other = call.also_right
            if other is None:
                raise
            compare(self.op, other, _on_cpu(other, number), card, unequal, number)
        return cpu

    def _must_fail(self, call: Call, error: Exception) -> None:
        """What the CPU refuses, a card refuses, if only when its program runs.

        But gaps are a matter of each kernel.
        """
        if call.way == GAPPED:
            return
        copier = Copier(CARD)
        pending = call.on(copier)
        try:
            pending()
            torch.accelerator.synchronize()
        except Exception:
            _usable_again()
            return
        raise WrongResultError(f"the CPU refuses it ({error!r:.200}), the card does not")

    def _on_card(self, call: Call, number: int, cpu: Ran) -> Ran | None:
        """What the card does, which is entered in the books; None if it rightly refuses."""
        copier = Copier(CARD)
        pending = call.on(copier)
        seed(number)
        is_storable = all(map(storable, tensors(cpu.result)))
        fallback.reset_fallback_report()
        try:
            with _watched() as kinds:
                result = pending()
        except Exception as error:
            _usable_again()
            if is_storable or not isinstance(error, NotImplementedError):
                raise WrongResultError(f"raises {error!r:.400}") from error
            self.outcome.refused += call.way == FUNCTION
            return None
        if not is_storable:
            raise WrongResultError("gives a tensor of a layout that no card stores")
        self._note(call, kinds)
        return Ran(copier, result)

    def _note(self, call: Call, kinds: set[str]) -> None:
        """Enter in the books how the card ran one call."""
        rows = list(fallback.fallback_report())
        outcome = self.outcome
        outcome.on_cpu |= {row.op: row.reason for row in rows}
        if call.way != FUNCTION:
            if rows and call.way not in outcome.also_on_cpu:
                outcome.also_on_cpu.append(call.way)
            return
        outcome.samples += 1
        outcome.fell_back += bool(rows)
        self.kinds |= kinds
        if outcome.samples <= _TAKEN_APART and not rows:
            pending = call.on(Copier(CARD))
            with _Parts() as parts:  # type: ignore[no-untyped-call]
                pending()
            self.parts = max(self.parts, parts.count)


def _on_cpu(call: Call, number: int) -> Ran:
    copier = Copier("cpu")
    pending = call.on(copier)
    seed(number)
    return Ran(copier, pending())


def check(op: Any, dtype: torch.dtype, progress: Callable[[str], None]) -> Outcome:
    """Check one operator in one dtype; ``progress`` is told what is about to be called."""
    with warnings.catch_warnings(), torch.no_grad(), fallback.fallback_policy("silent"):
        warnings.simplefilter("ignore")
        return _Check(op, dtype, progress).run()
