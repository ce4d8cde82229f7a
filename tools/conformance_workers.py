"""Worker processes that check operators, and survive what an operator does to one of them.

A worker checks one task after another and tells what it is about to call. One that dies or does
not come back in time is replaced; what it was calling is the fault that is reported.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

TIME_LIMIT_SECONDS = 300
MOST_SAMPLES = "CONFORMANCE_SAMPLES"  # the workers have both in their environment
COMPILED = "CONFORMANCE_COMPILED"
_CONTEXT = multiprocessing.get_context("spawn")
# Poison makes fresh memory NaN, so that no value is right by luck.
_ENVIRONMENT = {"TORCH_SPYRE_REF_POISON": "1", "TORCH_SPYRE_REF_FALLBACK": "silent"}


Serve: TypeAlias = Callable[[Connection], None]


class Task(NamedTuple):
    """One operator, by its full name in the database, in one dtype."""

    op: str
    dtype: str


def _serve(connection: Connection) -> None:
    """The worker's side: check what is asked for, one task after another."""
    import torch  # here only: the process that directs has no use for it

    import torch_spyre_ref
    from conformance_check import check
    from conformance_samples import operators
    from torch_spyre_ref.eager import clear_eager_cache
    from torch_spyre_ref.parts import Parts

    torch.set_num_threads(1)
    if not os.environ.get(COMPILED):
        torch_spyre_ref.register(parts=replace(Parts(), eager_kernels=lambda aside: {}))
    ops = operators()
    while True:
        name, dtype = connection.recv()
        clear_eager_cache()  # sizes seen before would be symbols in its programs
        outcome = check(ops[name], getattr(torch, dtype), connection.send)
        connection.send(asdict(outcome))


def _list(connection: Connection, dtype: str | None) -> None:
    """Another process: name every operator, and the dtypes in which it is to be checked."""
    import torch

    from conformance_samples import dtypes, operators

    found = {name: dtypes(op) for name, op in operators().items()}
    if dtype is not None:
        one = getattr(torch, dtype)
        found = {
            name: [one] if op.supports_dtype(one, "cpu") else [] for name, op in operators().items()
        }
    names = {op: [str(one).removeprefix("torch.") for one in ones] for op, ones in found.items()}
    connection.send(names)


class _Worker:
    """One worker process, started when first asked, and again after each death."""

    def __init__(self, serve: Serve, time_limit: float) -> None:
        self._serve, self._time_limit = serve, time_limit
        self._process: Any = None
        self._connection: Any = None

    def _start(self) -> None:
        if self._process is not None:
            return
        self._connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=self._serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def stop(self) -> int | None:
        """End the process and return its exit code."""
        if self._process is None:
            return None
        self._process.kill()
        self._process.join()
        code, self._process = self._process.exitcode, None
        return int(code)

    def check(self, task: Task) -> dict[str, Any]:
        """Have one task checked; a death or a time-out is a fault of the operator."""
        self._start()
        self._connection.send(tuple(task))
        calling = "its samples"
        while self._connection.poll(self._time_limit):
            try:
                said = self._connection.recv()
            except EOFError:
                self._process.join()
                return _lost(calling, f"the process died: {_cause(self.stop())}")
            if isinstance(said, dict):
                return said
            calling = said
        self.stop()
        return _lost(calling, f"no end after {self._time_limit} s")


def _cause(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _lost(calling: str, reason: str) -> dict[str, Any]:
    return {"runs": "none", "faults": [f"{calling}: {reason}"]}


def database(dtype: str | None) -> dict[str, list[str]]:
    """The operators of the database and the dtypes in which each is checked.

    ``dtype`` is the only one then; with None, the usual ones. An operator of which the CPU has no
    kernel in any of them is there with an empty list.
    """
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_list, args=(theirs, dtype))
    process.start()
    theirs.close()
    found: dict[str, list[str]] = ours.recv()
    process.join()
    return found


def check_all(
    tasks: Iterable[Task],
    report: Callable[[Task, dict[str, Any]], None],
    workers: int,
    serve: Serve = _serve,
    time_limit: float = TIME_LIMIT_SECONDS,
) -> None:
    """Check tasks on several workers.

    Args:
        tasks: what to check.
        report: gets each outcome, one at a time.
        workers: how many processes there are at a time.
        serve: what a worker process runs.
        time_limit: seconds that a worker may be silent, which it is while one call runs.
    """
    os.environ.update(_ENVIRONMENT)
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    lock = threading.Lock()

    def work() -> None:
        worker = _Worker(serve, time_limit)
        try:
            while True:
                task = todo.get_nowait()
                outcome = worker.check(task)
                with lock:
                    report(task, outcome)
        except queue.Empty:
            pass
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
