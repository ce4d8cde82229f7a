"""The arguments of a kernel: which tensors and numbers its launches bring, and in what order.

Addresses, sizes and scalars are symbols: an artifact knows its arguments by their spec alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import sympy
import torch
from torch._inductor.loop_body import MemoryUsageType
from torch._inductor.virtualized import V
from torch.utils._sympy.symbol import SymT, symbol_is_type

from torch_spyre_ref.emulator.assembly import Assembler, Tensor
from torch_spyre_ref.emulator.assembly import Scalar as Number
from torch_spyre_ref.inductor.values import stored
from torch_spyre_ref.spyrecode import Argument, Dimension, LaunchSpec, Scalar
from torch_spyre_ref.spyrecode.spec import MAX_SIZE, Role

Expr: TypeAlias = sympy.Expr
Node: TypeAlias = Any  # a SchedulerNode

_FLOATS = (SymT.FLOAT, SymT.UNBACKED_FLOAT)
_GIVEN = (SymT.SIZE, SymT.UNBACKED_INT, SymT.PRECOMPUTED_SIZE, *_FLOATS)


class Declared(NamedTuple):
    """The symbols of one program: an operand for each buffer, and a number for each size."""

    operands: dict[str, Tensor]
    sizes: dict[sympy.Symbol, Number]


class LaunchArguments:
    """What nodes touch, by Inductor's names, less the buffers that nobody stores."""

    def __init__(self, nodes: Sequence[Node], unstored: Container[str]) -> None:
        self.real: dict[str, str] = {}
        roles: dict[str, set[str]] = {}
        for name, role in _touched(nodes):
            if name not in unstored:
                self.real[name] = V.graph.scheduler.mutation_real_name.get(name, name)
                roles.setdefault(self.real[name], set()).add(role)
        self.roles = {name: _ROLES[frozenset(found)] for name, found in roles.items()}
        self.tensors = sorted(self.roles, key=lambda name: self.roles[name] == "output")
        self._names: dict[Expr, str] = {}
        self._arguments = [self._argument(name) for name in self.tensors]
        symbols = {s for node in nodes for s in _symbols(node)}
        self.scalars = sorted((s for s in symbols if s not in self._names), key=str)

    def _argument(self, name: str) -> Argument:
        buffer = V.graph.get_buffer(name)
        sizes, strides = buffer.get_size(), buffer.get_stride()
        return Argument(
            name,
            self.roles[name],
            stored(V.graph.get_dtype(name)),
            self._extents(sizes),
            self._extents(strides),
        )

    def _extents(self, sizes: Sequence[Expr]) -> tuple[int | str, ...]:
        """Each as a number or a dimension symbol; an expression gets a symbol of its own."""
        found: list[int | str] = []
        for size in sizes:
            expr = V.graph.sizevars.simplify(sympy.sympify(size))
            if expr.is_Integer:
                found.append(int(expr))
            else:
                fresh = expr.name if expr.is_Symbol else f"extent{len(self._names)}"
                found.append(self._names.setdefault(expr, fresh))
        return tuple(found)

    @property
    def spec(self) -> LaunchSpec:
        """What a launch is given."""
        dimensions = [Dimension(name, 0, MAX_SIZE) for name in self._names.values()]
        scalars = [Scalar(s.name, "float" if _is_float(s) else "integer") for s in self.scalars]
        return LaunchSpec.of(self._arguments, dimensions, scalars)

    def call(self) -> list[str]:
        """The wrapper's names for all of it, in order."""
        for symbol in self.scalars:
            V.graph.wrapper_code.ensure_size_computed(symbol)
        return [*self.tensors, *(s.name for s in self.scalars)]

    def declare(self, asm: Assembler) -> Declared:
        """Make the symbols of a program, in the order of the launch spec."""
        tensors = {a.name: asm.argument(a.name, a.dtype) for a in self._arguments}
        sizes = {expr: asm.size_symbol() for expr in self._names}
        for symbol in self.scalars:
            sizes[symbol] = asm.float_symbol() if _is_float(symbol) else asm.size_symbol()
        operands = {name: tensors[real] for name, real in self.real.items()}
        return Declared(operands, {e: n for e, n in sizes.items() if e.is_Symbol})

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a buffer."""
        dtype: torch.dtype = V.graph.get_dtype(name)
        return dtype


_ROLES: dict[frozenset[str], Role] = {
    frozenset({"input"}): "input",
    frozenset({"output"}): "output",
    frozenset({"input", "output"}): "input_output",
}


def _is_float(symbol: sympy.Symbol) -> bool:
    return bool(symbol_is_type(symbol, _FLOATS))


def _touched(nodes: Sequence[Node]) -> Iterator[tuple[str, Literal["input", "output"]]]:
    """Every buffer that is loaded or stored, in order; not a load of what a node before stored."""
    written: set[str] = set()
    for node in nodes:
        usage = node._body.memory_usage
        for kind in (MemoryUsageType.LOAD, MemoryUsageType.LOAD_SEED):
            names = (entry.buffer_name for entry in usage[kind])
            yield from ((name, "input") for name in names if name not in written)
        for kind in (MemoryUsageType.STORE, MemoryUsageType.STORE_REDUCTION):
            for entry in usage[kind]:
                if entry.mode is not None:
                    yield entry.buffer_name, "input"
                yield entry.buffer_name, "output"
                written.add(entry.buffer_name)


def _symbols(node: Node) -> Iterator[sympy.Symbol]:
    """The sizes and scalars that a node's body and loops speak of."""
    body = node._body
    ranges = [size for part in node.get_ranges() for size in part]
    for expr in (*body.indexing_exprs.values(), *body.indirect_var_ranges.values(), *ranges):
        for symbol in V.graph.sizevars.simplify(sympy.sympify(expr)).free_symbols:
            if symbol_is_type(symbol, _GIVEN):
                yield symbol
