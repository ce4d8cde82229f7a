"""``torch.spyre.sanitizer``: look for races, fresh memory that is read, and wrong addresses."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_spyre_ref import backend
from torch_spyre_ref.memory.driver import watch
from torch_spyre_ref.runtime import MemcheckError, Runtime
from torch_spyre_ref.runtime.sanitizer import KINDS, Report


class SanitizerError(RuntimeError):
    """What the sanitizer found, or did not find although it was expected; see ``reports``."""

    def __init__(self, message: str, reports: list[Report]) -> None:
        super().__init__("\n".join([message, *map(str, reports)]))
        self.reports = reports


class sanitizer:  # noqa: N801 (a context manager, as torch's own are)
    """``with torch.spyre.sanitizer():`` fails at its end if the block did anything wrong.

    It waits for the cards on the way in and out. Blocks that are allocated inside are poisoned.
    ``with ... as reports`` gives the list of what was found so far. What nobody owns is not
    touched at all: the call that would is refused with ``MemcheckError``.

    Raises:
        SanitizerError: at the end, with all that was found.
    """

    def __enter__(self) -> list[Report]:
        runtime = backend.current().runtime
        _settle(runtime)
        self._was_on = runtime.sanitizer.on
        if not self._was_on:
            _switch_on(runtime)
        self._reports = runtime.sanitizer.reports
        self._start = len(self._reports)
        return self._reports

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        found = self._leave()
        if found and kind is None:
            raise SanitizerError(f"the sanitizer found {len(found)} faults:", found)

    def _leave(self) -> list[Report]:
        """Have all as it was before; what was found meanwhile, which is forgotten."""
        runtime = backend.current().runtime
        _settle(runtime)
        if not self._was_on:
            runtime.sanitizer.switch_off()
            _watch(poisoned=backend.current().settings.poison)
        found = self._reports[self._start :]
        del self._reports[self._start :]
        return found

    @staticmethod
    @contextmanager
    def expect(kind: str) -> Iterator[list[Report]]:
        """Run a block that must do one kind of wrong, such as "race", and no other.

        A ``MemcheckError`` of that kind ends the block, and goes no further.

        Raises:
            SanitizerError: something else was found, or nothing.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of fault; expect one of {', '.join(KINDS)}")
        expected: list[Report] = []
        looking = sanitizer()
        looking.__enter__()
        try:
            yield expected
        except MemcheckError as error:
            if error.report.kind != kind:
                raise
        finally:
            found = looking._leave()
        expected += [report for report in found if report.kind == kind]
        if others := [report for report in found if report.kind != kind]:
            raise SanitizerError(f"only {kind!r} was expected:", others)
        if not expected:
            raise SanitizerError(f"{kind!r} was expected, and nothing was found", [])


def _settle(runtime: Runtime) -> None:
    for card in runtime.cards:
        card.settle()


def _switch_on(runtime: Runtime) -> None:
    """Look from now on; what has an owner already keeps it."""
    memory = backend.current().memory
    with memory.allocator.lock:
        runtime.sanitizer.switch_on([card.card.memory for card in runtime.cards])
        memcheck = runtime.memcheck
        assert memcheck is not None
        for device in list(memory.allocator.cards):
            with memory.settled(device) as card:
                for block in card.live.values():
                    memcheck.handed_out(device, block.composite)
        _watch(poisoned=True)


def _watch(*, poisoned: bool) -> None:
    now = backend.current()
    with now.memory.allocator.lock:
        for device in list(now.memory.allocator.cards):
            with now.memory.settled(device) as card:
                watch(now, card, poisoned=poisoned)


def report_at_exit() -> None:
    """Have what was found, and nobody asked for, printed as the process ends."""
    atexit.register(_print_reports)


def _print_reports() -> None:
    now = backend.current()
    if now.started and (reports := now.runtime.sanitizer.reports):
        print(f"the sanitizer found {len(reports)} faults:", *reports, sep="\n", file=sys.stderr)


EXPORTS: tuple[Callable[..., Any], ...] = (sanitizer,)
