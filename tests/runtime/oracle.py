"""When does what start and end? The rules of queues and pipelines, written down a second time.

No heap, no callbacks, no laziness: all operations are looked at again at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Op:
    """One operation; ``pipeline`` None needs none, ``after`` is the signal that a wait names."""

    queue: int
    pipeline: str | None
    duration: int
    priority: int = 0
    after: Op | None = None
    submitted: int = 0
    start: int | None = None
    end: int | None = None
    before: Op | None = field(default=None, repr=False)

    def ready(self, now: int) -> int | None:
        """Since when nothing but its pipeline holds the operation back."""
        needs = [op for op in (self.before, self.after) if op is not None]
        if any(op.end is None or op.end > now for op in needs):
            return None
        return max([self.submitted, *(op.end or 0 for op in needs)])


def simulate(ops: list[Op]) -> None:
    """Set the start and end of every operation; ``ops`` are in submission order."""
    last: dict[int, Op] = {}
    for op in ops:
        op.start = op.end = None
        op.before, last[op.queue] = last.get(op.queue), op
    now = 0
    while any(op.end is None for op in ops):
        # The call that submits an operation lets everything else that is due happen first.
        settle([op for op in ops if op.submitted < now], now)
        settle([op for op in ops if op.submitted <= now], now)
        moments = [op.end for op in ops if op.end is not None] + [op.submitted for op in ops]
        now = min((moment for moment in moments if moment > now), default=now)


def settle(ops: list[Op], now: int) -> None:
    """Start all that starts at ``now``."""
    while True:
        free = [op for op in waiting(ops, now) if op.pipeline is None]
        if free:
            begin(free[0], now)
            continue
        busy = {op.pipeline for op in ops if op.end is not None and op.end > now}
        held = [op for op in waiting(ops, now) if op.pipeline not in busy]
        if not held:
            return
        begin(min(held, key=lambda op: (op.priority, op.ready(now), ops.index(op))), now)


def waiting(ops: list[Op], now: int) -> list[Op]:
    return [op for op in ops if op.start is None and op.ready(now) is not None]


def begin(op: Op, now: int) -> None:
    op.start, op.end = now, now + op.duration
