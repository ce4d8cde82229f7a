"""``torch.spyre.sanitizer``: look for races on correction slots and for reads of fresh memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_spyre_ref import backend
from torch_spyre_ref.allocator import Allocation
from torch_spyre_ref.memory.driver import poison
from torch_spyre_ref.runtime.sanitizer import KINDS, SanitizerReport


class SanitizerError(RuntimeError):
    """What the sanitizer found, or did not find although it was expected; see ``reports``."""

    def __init__(self, message: str, reports: list[SanitizerReport]) -> None:
        super().__init__("\n".join([message, *map(str, reports)]))
        self.reports = reports


class sanitizer:  # noqa: N801 (a context manager, as torch's own are)
    """``with torch.spyre.sanitizer():`` fails at its end if the block did anything wrong.

    It waits for the cards on the way in and out. Blocks that are allocated inside are poisoned.
    ``with ... as reports`` gives the list of what was found so far.

    Raises:
        SanitizerError: at the end, with all that was found.
    """

    def __enter__(self) -> list[SanitizerReport]:
        runtime = backend.current().runtime
        for card in runtime.cards:
            card.settle()
        self._was_on = runtime.sanitizer.on
        self._start = len(runtime.sanitizer.reports)
        if not self._was_on:
            runtime.sanitizer.clear()
            runtime.sanitizer.on = True
            self._hooks = [(card, card.on_hand_out) for card in _opened()]
            for card, hook in self._hooks:
                card.on_hand_out = hook or _poisoner(card.device)
        self._reports = runtime.sanitizer.reports
        return self._reports

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        runtime = backend.current().runtime
        for attached in runtime.cards:
            attached.settle()
        if not self._was_on:
            runtime.sanitizer.on = False
            for card, hook in self._hooks:
                card.on_hand_out = hook
        found = self._reports[self._start :]
        del self._reports[self._start :]
        if found and kind is None:
            raise SanitizerError(f"the sanitizer found {len(found)} faults:", found)

    @staticmethod
    @contextmanager
    def expect(kind: str) -> Iterator[list[SanitizerReport]]:
        """Run a block that must do one kind of wrong, "race" or "uninitialised", and no other.

        Raises:
            SanitizerError: something else was found, or nothing.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of fault; expect one of {', '.join(KINDS)}")
        expected: list[SanitizerReport] = []
        try:
            with sanitizer():
                yield expected
        except SanitizerError as error:
            expected += [report for report in error.reports if report.kind == kind]
            others = [report for report in error.reports if report.kind != kind]
            if others:
                raise SanitizerError(f"only {kind!r} was expected:", others) from None
        if not expected:
            raise SanitizerError(f"{kind!r} was expected, and nothing was found", [])


def _opened() -> list[Any]:
    return list(backend.current().memory.allocator.cards.values())


def _poisoner(device: int) -> Callable[[Allocation], None]:
    return lambda block: poison(backend.current().queue(device), block)


EXPORTS: tuple[Callable[..., Any], ...] = (sanitizer,)
