"""Nodes that lie in one stage of a program: axes, passes, and every body run once, or again.

A value that a later pass needs is either *held* in scratchpad, for all that the pass streams, or
its node's body runs *again* in the later pass, from memory. The first moves every stick once; the
second needs no more scratchpad however long the axis is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import sympy
from torch._inductor.sizevars import SimplifyIndexing
from torch._inductor.virtualized import V

from torch_spyre_ref import backend
from torch_spyre_ref.emulator.assembly import Assembler, Axis
from torch_spyre_ref.inductor.emitter import Emitter
from torch_spyre_ref.inductor.expressions import Expressions
from torch_spyre_ref.inductor.launch_arguments import Declared
from torch_spyre_ref.inductor.loop_nest import LoopNest, breaks, common_nest, hint, numel
from torch_spyre_ref.inductor.loop_tracer import Buffers

Node: TypeAlias = Any  # a SchedulerNode

ROW: Final = 4_096
"""So long may an axis of unknown size be for what is held along it."""
_INNER: Final = 512
_OUTER: Final = 1 << 18


class Stage:
    """Traces nodes into the present stage of a program. ``kernel`` is Inductor's handler for it."""

    def __init__(
        self, kernel: Any, asm: Assembler, declared: Declared, nodes: Sequence[Node], hold: bool
    ) -> None:
        nest = nest_of(nodes)
        assert nest is not None
        self._kernel, self._asm, self._nest, self._hold = kernel, asm, nest, hold
        self._nodes = nodes
        axes = _dimensions(asm, nest, Expressions(asm, declared.sizes, {}))
        places = Expressions(asm, declared.sizes, axes)
        buffers = Buffers(declared.operands, V.graph.get_dtype, kernel.removed_buffers)
        make = backend.current().parts.loop_tracer
        self._tracer = make(Emitter(asm), places, axes, buffers)
        self._streams = [axes[cut.symbol] for cut in nest.axes if nest.is_reduced(cut)]
        self._open: ExitStack | None = None
        self._folding: set[str] = set()

    def trace(self) -> None:
        """Run all bodies, and end the stage."""
        for node in self._nodes:
            self._enter(node)
            self._run(node)
            for name in _written(node):
                if name in self._tracer.known:
                    self._tracer.again[name] = partial(self._run, node)
            if node.is_reduction():
                self._folding |= set(node.get_buffer_names())
        self._leave()
        self._asm.stage()

    def _enter(self, node: Node) -> None:
        """Be in a pass that the node can be part of: over the reduced axes, or after such a one."""
        streamed = base_of(node, self._nest) == 1
        if not streamed or self._folding & set(node.used_buffer_names()):
            self._leave()
        if streamed and self._open is None and self._streams:
            if not self._hold:
                self._tracer.forget(self._streams)
            self._open = ExitStack()
            self._open.enter_context(self._asm.stream(*self._streams))

    def _leave(self) -> None:
        """End the pass: what it folded is whole, and is stored."""
        if self._open is not None:
            self._open.close()
            self._open = None
        self._folding.clear()
        self._tracer.finish_pass()

    def _run(self, node: Node) -> None:
        with self._handlers(node):
            loops = node.get_ranges()
            node._body(*self._nest.variables(loops, base_of(node, self._nest)))
        known = self._tracer.known
        for buffer in node.get_outputs():
            if buffer.get_name() in known:
                known.update(dict.fromkeys(buffer.get_mutations(), known[buffer.get_name()]))

    @contextmanager
    def _handlers(self, node: Node) -> Iterator[None]:
        """What Inductor's own code asks while a body runs."""
        with ExitStack() as stack:
            stack.enter_context(V.set_kernel_handler(self._kernel))
            handler = SimplifyIndexing(self._tracer, self._nest.ranges)
            stack.enter_context(V.set_ops_handler(handler))
            stack.enter_context(self._kernel.set_current_node(node))
            yield


def _written(node: Node) -> Iterator[str]:
    """The buffers that a node makes, and those that it writes in place, by the names of readers."""
    for buffer in node.get_outputs():
        yield buffer.get_name()
        yield from buffer.get_mutations()


def _dimensions(asm: Assembler, nest: LoopNest, sizes: Expressions) -> dict[sympy.Symbol, Axis]:
    """The dimensions of the stage. Where a size is unknown, tiles are for what is likely."""
    axes = {}
    for number, cut in enumerate(nest.axes):
        least = ROW if nest.is_reduced(cut) else _INNER if number else _OUTER
        likely = hint(cut.size) if cut.size.is_Integer else max(hint(cut.size), least)
        size = sizes.amount(cut.size)
        axes[cut.symbol] = asm.dimension(cut.symbol.name, size, likely=likely)
    return axes


def unbounded(nodes: Sequence[Node]) -> list[tuple[sympy.Expr, int]]:
    """The reduced axes of unknown size, and how long each may be for what is held along it."""
    nest = nest_of(nodes)
    assert nest is not None
    reduced = [cut.size for cut in nest.axes if nest.is_reduced(cut)]
    return [(size, max(hint(size), ROW)) for size in reduced if not size.is_Integer]


def space(nodes: Sequence[Node]) -> tuple[sympy.Expr, sympy.Expr]:
    """How many elements nodes go through: those kept, and those folded for each of them."""
    folding = [node for node in nodes if node.is_reduction()]
    iterated, folded = (folding or nodes)[0].get_ranges()
    return numel(iterated), numel(folded)


def base_of(node: Node, nest: LoopNest) -> sympy.Expr:
    """How many elements of the whole space lie in a step of the node's innermost loop."""
    iterated, folded = node.get_ranges()
    total = sympy.Mul(*[cut.size for cut in nest.cuts])
    whole = V.graph.sizevars.statically_known_equals(numel([*iterated, *folded]), total)
    return sympy.S.One if whole else nest.inner


def nest_of(nodes: Sequence[Node]) -> LoopNest | None:
    """The common nest of nodes that may lie in one stage; None when there is none."""
    kept, inner = space(nodes)
    same = V.graph.sizevars.statically_known_equals
    loops = []
    for node in nodes:
        iterated, folded = node.get_ranges()
        if node.is_reduction():
            fits, base = same(numel(iterated), kept) and same(numel(folded), inner), sympy.S.One
        elif same(numel(iterated), numel([kept, inner])):
            fits, base = True, sympy.S.One
        else:
            fits, base = same(numel(iterated), kept), inner
        if not fits:
            return None
        loops.append((node.get_ranges(), base))
    return common_nest(loops, inner, _wished(nodes))


def _wished(nodes: Sequence[Node]) -> Iterator[sympy.Expr]:
    """Where elementwise nodes would have their loops cut; a product's axes stay as they are."""
    if any(node.is_reduction() for node in nodes):
        return
    for node in nodes:
        base, loops = sympy.S.One, {}
        ranges = [size for part in node.get_ranges() for size in part]
        variables = [variable for part in node._body.vars for variable in part]
        for variable, size in zip(reversed(variables), reversed(ranges), strict=True):
            loops[variable] = base, size
            base *= size
        for index in node._body.indexing_exprs.values():
            yield from breaks(index, loops)
