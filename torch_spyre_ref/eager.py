# Produced by chapters/05_eager.py: edit it there, then run `make tangle`.
"""The only way to compute is to compile a program, and an op is the smallest one.

A kernel looks its call up among the programs that there are. A miss traces the op, has Inductor
compile it as it would compile a model, and keeps what comes of it; a hit launches. What cannot be
compiled runs on the CPU, and says why.
"""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.aten import fallback
from torch_spyre_ref.compiled import outputs, special, table
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.ops import Op
from torch_spyre_ref.compiled.refusal import Refusal, Refused
from torch_spyre_ref.compiled.report import CacheReport, CacheRow

# Keep what was compiled, the latest used longest
if TYPE_CHECKING:
    from torch_spyre_ref.compiled.programs import Code, Launch

KEPT: Final = 4_096
Kernel: TypeAlias = Callable[..., Any]


class Entry:
    """What there is for one key: a program, or why there is none."""

    def __init__(self, call: Call, program: "Launch | Code | outputs.Room | Refusal") -> None:
        self.op, self.signature, self.hits = call.op.name, repr(call), 0
        self.program = program


class EagerCache:
    """Entries by key, at most ``limit`` of them; ``compiled`` counts programs ever built."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit, self.compiled = limit, 0
        self._entries: OrderedDict[Any, Entry] = OrderedDict()

    def find(self, key: Any) -> Entry | None:
        """The entry of a key, which is then the latest used one."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.hits += 1
            try:
                self._entries.move_to_end(key)
            except KeyError:  # another thread has just put one too many
                return entry
        return entry

    def put(self, key: Any, entry: Entry) -> None:
        """Keep an entry, and let go of the one that was not used for longest."""
        self._entries[key] = entry
        if len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.compiled = 0

    def report(self) -> CacheReport:
        """What is kept, to be looked at."""
        rows = [
            CacheRow(e.op, e.signature, e.hits, e.program) for e in list(self._entries.values())
        ]
        return CacheReport(tuple(rows), self.compiled, self.limit)


_cache = EagerCache()


# Find what serves an op on the CPU
KEYS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)


def _present_kernel(name: str) -> Kernel:
    before = torch.library.get_kernel(f"aten::{name}", "PrivateUse1")

    def call(*args: Any, **kwargs: Any) -> Any:
        return before.call_boxed(KEYS, *args, **kwargs)

    return call


# Fall back, and say why
def aside(call: Call, on_cpu: Kernel, reason: str) -> Any:
    """Compute a call on the CPU."""
    with fallback.because(reason):
        return on_cpu(*outputs.as_tensors(call), **call.kwargs)


# Switch compilation off
_mode: list[str | None] = [None]


def compiles() -> bool:
    """Whether ops are compiled, as the environment or ``eager_mode`` says."""
    return (_mode[-1] or backend.current().settings.eager) == "compile"


@contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """Inside a ``with`` block ops are compiled (``"compile"``), or all computed on the CPU
    (``"fallback"``), in every thread.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in ("compile", "fallback"):
        raise ValueError(f"eager mode {mode!r} does not exist; it is 'compile' or 'fallback'")
    _mode.append(mode)
    try:
        yield
    finally:
        _mode.pop()


# Compile on a miss
@cache
def compiler() -> ModuleType:
    """What compiles: loaded when the first program is needed, and with it Inductor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch has deprecated in itself
        from torch_spyre_ref.compiled import families
    return families


def build(call: Call, on_cpu: Kernel) -> Any:
    """Build a program for a call, keep it, and compute the call with it; one thread at a time."""
    try:
        compiled, is_new = compiler().program_for(call)
    except Refused as refusal:
        _cache.put(call.key, Entry(call, Refusal(str(refusal))))
        return aside(call, on_cpu, str(refusal))
    except outputs.NeedsRoom as needed:
        _cache.put(call.key, Entry(call, outputs.Room(needed.shapes)))
        return outputs.make_room(call, needed.shapes)
    except Exception as error:
        return outputs.judge(call, on_cpu, error)
    if compiled.function is None:  # a number is part of the key from now on
        return kernel(call.op, on_cpu)(*call.args, **call.kwargs)
    _cache.compiled += is_new
    program, results = compiler().first_run(compiled, call)
    _cache.put(call.key, Entry(call, program))
    return outputs.returned(call, results)


def miss(call: Call, on_cpu: Kernel) -> Any:
    """See to what needs no program; for the rest, have one thread build it, and call again."""
    moved = outputs.with_indices_on_card(call)
    if moved is not None:
        return kernel(call.op, on_cpu)(*moved, **call.kwargs)
    outputs.check_devices(call)
    if fallback.is_printing():  # a repr is no reason to compile
        return aside(call, on_cpu, fallback.NO_PROGRAM)
    with compiler().compile_lock:  # the one of Dynamo: torch.compile may be at work elsewhere
        entry = _cache.find(call.key)
        if entry is None:
            return build(call, on_cpu)
    return kernel(call.op, on_cpu)(*call.args, **call.kwargs)


# Make a kernel of an op
def kernel(op: Op, on_cpu: Kernel) -> Kernel:
    """The card's kernel of ``op``; what has no program is computed by ``on_cpu``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        call = Call(op, args, kwargs)
        if not compiles():
            return aside(call, on_cpu, "eager compilation is off")
        if op.written and outputs.overlaps(call):
            return outputs.by_copy(call)
        entry = _cache.find(call.key)
        if entry is None:
            return miss(call, on_cpu)
        if isinstance(entry.program, Refusal):
            return aside(call, on_cpu, entry.program.reason)
        if isinstance(entry.program, outputs.Room):
            return outputs.make_room(call, entry.program.shapes)
        return outputs.returned(call, entry.program(call.tensors, call.numbers))

    return run


# Look inside, and forget
def eager_cache() -> CacheReport:
    """What eager ops have compiled so far: op, signature, hits, and what it is."""
    return _cache.report()


def clear_eager_cache() -> None:
    """Forget all programs of eager ops, and start counting anew."""
    if "torch_spyre_ref.compiled.families" in sys.modules:
        compiler().clear()  # another cache may have filled it
    _cache.clear()


def forget_programs() -> None:
    """Let go of all that was prepared on the present cards."""
    clear_eager_cache()
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is not None:
        codecache.PyCodeCache.cache_clear()
    if backend.current().started:
        for card, programs in backend.current().prepared():
            torch.accelerator.synchronize(card)
            programs.evict_all()


# Register a kernel for every op of the table
def kernels(aside: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """The kernels of all ops that are compiled, by name.

    What serves an op until now computes it on the CPU: its kernel in ``aside``, or the one that
    PyTorch would take without a kernel of ours.
    """
    made = special.kernels(kernel)
    for name in table.names():
        on_cpu = aside.get(name) or _present_kernel(name)
        made[name] = kernel(Op(f"aten::{name}"), on_cpu)
    return made


EXPORTS: Final = (eager_cache, clear_eager_cache, eager_mode)
