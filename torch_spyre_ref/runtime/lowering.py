"""From a typed operation to what a pipeline is given: where, how long, and to what effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch_spyre_ref.emulator.card import Card
from torch_spyre_ref.emulator.clock import Duration, Effect
from torch_spyre_ref.emulator.fetch import Dispatch, Source
from torch_spyre_ref.emulator.pipelines import Pipeline
from torch_spyre_ref.runtime import operations
from torch_spyre_ref.runtime.events import Event
from torch_spyre_ref.runtime.execute import Execute
from torch_spyre_ref.runtime.intervals import Ranges
from torch_spyre_ref.runtime.operations import (
    D2D,
    D2H,
    H2D,
    Compute,
    EventSignal,
    EventWait,
    Fill,
    HostCallback,
    Operation,
)
from torch_spyre_ref.runtime.pinned import PinnedMemory

Touched = Callable[[], Ranges]
"""Says what a launch reads and writes."""


class Work(NamedTuple):
    """What a queue starts: ``effect`` on ``pipeline`` after ``duration`` virtual ns.

    ``awaited`` is an event that must have fired first, ``fires`` one that fires at the end.
    """

    pipeline: Pipeline
    duration: Duration
    effect: Effect | None
    nbytes: int = 0
    sticks: int = 0
    awaited: Event | None = None
    fires: Event | None = None
    unseen: bool = False  # submitting it costs the host nothing
    dispatch: Dispatch | None = None  # the run of a program that it is
    touched: Touched | None = None  # whom to ask what it touches besides its job's memory


new = tuple.__new__  # what a named tuple's own, a function of Python's, calls

Prepared = tuple[Operation, Work]
"""An operation, and the work that it is on a card."""

Rules = dict[type[Any], Callable[[Card, PinnedMemory, Any], Work]]
"""What each class of operation is on a card."""


def rules(namespace: object) -> Rules:
    """The rules for the classes of ``namespace``, a module or namespace that has them by name."""
    return {
        getattr(namespace, name): rule for name, rule in _RULES.items() if hasattr(namespace, name)
    }


def lower(rules: Rules, card: Card, pinned: PinnedMemory, operation: Operation) -> Work:
    """The work that ``operation`` is on ``card``.

    Raises ``TypeError`` for what is no operation, ``ValueError`` for one that cannot be enqueued.
    """
    rule = rules.get(type(operation))
    if rule is None:
        raise TypeError(
            f"a queue was given {operation!r}; it takes {', '.join(t.__name__ for t in rules)}"
        )
    return rule(card, pinned, operation)


def again(operation: Operation, work: Work, effect: Effect) -> Prepared:
    """A host callback once more, to another effect: a third of the price of lowering a new one."""
    parts = work.pipeline, work.duration, effect, 0, 0, None, None, False, None, None
    return operation, new(Work, parts)


def of_job(operation: Operation, work: Work, touched: Touched) -> Prepared:
    """What a job does to its own memory, in an order of its own, and what else that touches."""
    return operation, work._replace(touched=touched)


def rerun(operation: Operation, work: Work, touched: Touched | None = None) -> Prepared:
    """The run of a program once more: it is fetched anew, and touches something else."""
    before = work.dispatch
    assert before is not None
    now = before.unit.dispatch(before.source, before.barrier)
    return operation, new(
        Work, (work.pipeline, now.start, now.finish, 0, 0, None, None, False, now, touched)
    )


# --8<-- [start:h2d]
def _h2d(card: Card, pinned: PinnedMemory, operation: H2D) -> Work:
    target = operation.target
    pinned.require(operation.source)
    effect = partial(card.memory.write, target, operation.source)
    sticks = card.spec.sticks(target.runs, target.run)
    return Work(card.pipelines.h2d, card.spec.link_time(sticks), effect, target.nbytes, sticks)


# --8<-- [end:h2d]


def _d2h(card: Card, pinned: PinnedMemory, operation: D2H) -> Work:
    source = operation.source
    pinned.require(operation.target)
    effect = partial(card.memory.read_into, source, operation.target)
    sticks = card.spec.sticks(source.runs, source.run)
    return Work(card.pipelines.d2h, card.spec.link_time(sticks), effect, source.nbytes, sticks)


def _d2d(card: Card, _: PinnedMemory, operation: D2D) -> Work:
    source, target = operation.source, operation.target
    effect = partial(card.memory.move, source, target)
    # The engine reads and writes at once: the more scattered side sets the pace.
    sticks = max(
        card.spec.sticks(source.runs, source.run), card.spec.sticks(target.runs, target.run)
    )
    return Work(card.pipelines.move, card.spec.move_time(sticks), effect, target.nbytes, sticks)


def _fill(card: Card, _: PinnedMemory, operation: Fill) -> Work:
    target = operation.target
    effect = partial(card.memory.fill, target, operation.pattern)
    if operation.free:
        return Work(card.pipelines.control, 0, effect, target.nbytes, unseen=True)
    sticks = card.spec.sticks(target.runs, target.run)
    return Work(card.pipelines.move, card.spec.move_time(sticks), effect, target.nbytes, sticks)


def _compute(card: Card, _: PinnedMemory, operation: Compute) -> Work:
    effect = partial(operation.effect, card.memory)
    return Work(card.pipelines.compute, operation.duration, effect)


def _execute(card: Card, _: PinnedMemory, operation: Execute) -> Work:
    source = Source(operation.program, operation.slot, operation.memory)
    dispatch = card.fetch.dispatch(source, operation.barrier)
    return Work(card.pipelines.compute, dispatch.start, dispatch.finish, dispatch=dispatch)


def _host_callback(card: Card, _: PinnedMemory, operation: HostCallback) -> Work:
    duration = operation.duration
    if duration is None:
        duration = card.spec.callback_time
    return Work(card.pipelines.host, duration, operation.function)


def _event_signal(card: Card, _: PinnedMemory, operation: EventSignal) -> Work:
    return Work(card.pipelines.control, 0, None, fires=operation.event)


def _event_wait(card: Card, _: PinnedMemory, operation: EventWait) -> Work:
    event = operation.signal.event
    if event.ticket is None:
        raise ValueError(
            f"{operation}: its signal is not enqueued yet, so nothing says that it ever fires; "
            "submit the signal first"
        )
    return Work(card.pipelines.control, 0, None, awaited=event)


_RULES: dict[str, Callable[[Card, PinnedMemory, Any], Work]] = {
    "HostCallback": _host_callback,
    "H2D": _h2d,
    "D2H": _d2h,
    "D2D": _d2d,
    "Fill": _fill,
    "Compute": _compute,
    "Execute": _execute,
    "EventSignal": _event_signal,
    "EventWait": _event_wait,
}

SHIPPED = SimpleNamespace(Execute=Execute, **vars(operations))
"""Every operation there is, by name."""
