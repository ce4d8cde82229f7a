"""One kernel: nodes that Inductor fused, traced into one program, with the spec of its launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import sympy
from torch._inductor.codegen.common import Kernel
from torch._inductor.sizevars import SimplifyIndexing
from torch._inductor.virtualized import V

from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import Program, ScratchpadError
from torch_spyre_ref.inductor.expressions import Expressions
from torch_spyre_ref.inductor.launch_arguments import Declared, LaunchArguments
from torch_spyre_ref.inductor.loop_nest import LoopNest, common_nest, hint, numel
from torch_spyre_ref.inductor.loop_tracer import Buffers, Emitter, LoopTracer

Node: TypeAlias = Any  # a SchedulerNode


class SpyreKernel(Kernel[Any]):
    """What Inductor asks of a kernel while its nodes are traced: which node, which buffers."""

    def __init__(self, nodes: Sequence[Node], name: str) -> None:
        super().__init__()
        self.nodes, self.name = list(nodes), name
        self.removed_buffers |= _private(self.nodes)
        self.program, self.arguments = self._compiled()

    def _compiled(self) -> tuple[Program, LaunchArguments]:
        """All nodes in one stage; where that does not fit the card, a stage for each."""
        if nest_of(self.nodes) is not None:
            try:
                return self._assembled([self.nodes])
            except ScratchpadError:
                if len(self.nodes) == 1:
                    raise
        self.removed_buffers.clear()
        return self._assembled([[node] for node in self.nodes])

    def _assembled(self, stages: Sequence[Sequence[Node]]) -> tuple[Program, LaunchArguments]:
        arguments = LaunchArguments(self.nodes, self.removed_buffers)
        asm = Assembler(self.name)
        declared = arguments.declare(asm)
        for nodes in stages:
            self._stage(asm, declared, nodes)
        return asm.assemble(), arguments

    def _stage(self, asm: Assembler, declared: Declared, nodes: Sequence[Node]) -> None:
        nest = nest_of(nodes)
        assert nest is not None
        sizes = Expressions(asm, declared.sizes, {})
        axes = {
            cut.symbol: asm.dimension(cut.symbol.name, sizes.amount(cut.size), likely=hint(cut.size))
            for cut in nest.axes
        }
        tracer = LoopTracer(
            Emitter(asm),
            Expressions(asm, declared.sizes, axes),
            axes,
            Buffers(declared.operands, V.graph.get_dtype, self.removed_buffers),
        )
        streams = [axes[cut.symbol] for cut in nest.axes if nest.is_reduced(cut)]
        passes = Passes(asm, streams, tracer)
        for node in nodes:
            base = base_of(node, nest)
            passes.enter(node, base == 1)
            with self._tracing(node, tracer, nest):
                node._body(*nest.variables(node.get_ranges(), base))
            _remember_mutations(node, tracer)
        passes.leave()
        asm.stage()

    @contextmanager
    def _tracing(self, node: Node, tracer: LoopTracer, nest: LoopNest) -> Iterator[None]:
        """The handlers under which a node's body runs."""
        with ExitStack() as stack:
            stack.enter_context(V.set_kernel_handler(self))
            stack.enter_context(V.set_ops_handler(SimplifyIndexing(tracer, nest.ranges)))
            stack.enter_context(self.set_current_node(node))
            yield


def _remember_mutations(node: Node, tracer: LoopTracer) -> None:
    """Who reads a tensor after it was written in place reads the new values."""
    for buffer in node.get_outputs():
        if buffer.get_name() in tracer.known:
            for other in buffer.get_mutations():
                tracer.known[other] = tracer.known[buffer.get_name()]


class Passes:
    """Opens a pass over the reduced axes when a node needs one, and ends it when it must be over."""

    def __init__(self, asm: Assembler, streams: list[Any], tracer: LoopTracer) -> None:
        self._asm, self._streams, self._tracer = asm, streams, tracer
        self._open: ExitStack | None = None
        self._folding: set[str] = set()

    def enter(self, node: Node, streamed: bool) -> None:
        """Be in a pass that the node can be part of."""
        if not streamed or self._folding & set(node.used_buffer_names()):
            self.leave()
        if streamed and self._open is None and self._streams:
            self._open = ExitStack()
            self._open.enter_context(self._asm.stream(*self._streams))
        if node.is_reduction():
            self._folding |= set(node.get_buffer_names())

    def leave(self) -> None:
        """End the pass: what it folded is whole, and is stored."""
        if self._open is not None:
            self._open.close()
            self._open = None
        self._folding.clear()
        self._tracer.finish_pass()


def _private(nodes: Sequence[Node]) -> set[str]:
    """The buffers that no one outside of these nodes will read."""
    names = {name for node in nodes for name in node.get_operation_names()}
    scheduler = V.graph.scheduler
    return {
        buffer
        for node in nodes
        for buffer in node.get_buffer_names()
        if scheduler.can_buffer_be_removed_through_fusion(buffer, names)
    }


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
    return common_nest(loops, inner)
