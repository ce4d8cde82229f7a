"""The iteration space that the loops of one kernel have in common.

Inductor gives every node of a kernel loops of its own. Laid end to end, row-major, the loops of
nodes that belong together count the same elements; they only cut them at other places. Cut at all
of these places, the space has *axes* on which every node's loop variables are affine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import sympy
from torch._inductor.utils import sympy_index_symbol, sympy_product
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre_ref.emulator.program.model import MAX_DIMENSIONS

Expr: TypeAlias = sympy.Expr
Loops: TypeAlias = Sequence[Sequence[Expr]]


class Cut(NamedTuple):
    """An axis: ``size`` steps, each of which is ``base`` elements of the flattened space."""

    symbol: sympy.Symbol
    size: Expr
    base: Expr


class LoopNest(NamedTuple):
    """``cuts`` from the outermost in; the innermost ones, ``inner`` elements, are reduced."""

    cuts: tuple[Cut, ...]
    merged: dict[Expr, Expr]
    inner: Expr

    @property
    def ranges(self) -> dict[sympy.Symbol, Expr]:
        """The size of each axis."""
        return {cut.symbol: cut.size for cut in self.axes}

    @property
    def axes(self) -> list[Cut]:
        """The axes of the stage: the cuts, or where these are too many, some of them merged."""
        merged = [cut for cut in self.cuts if cut.symbol not in self.merged]
        whole = [Cut(s, n, b) for s, n, b in _wholes(self)]
        return sorted([*merged, *whole], key=lambda cut: -hint(cut.base))

    def is_reduced(self, cut: Cut) -> bool:
        """Whether an axis is one that reductions fold."""
        return cut.base != self.inner and _divides(cut.base, self.inner)

    def variables(self, loops: Loops, base: Expr) -> list[list[Expr]]:
        """Each loop variable in terms of the axes; a step of the innermost loop is ``base``."""
        sizes = [size for part in loops for size in part]
        found = []
        for size in reversed(sizes):
            end = _simplified(base * size)
            found.append(self._between(base, end))
            base = end
        found.reverse()
        return [found[: len(loops[0])], found[len(loops[0]) :]]

    def _between(self, base: Expr, end: Expr) -> Expr:
        bases = [cut.base for cut in self.cuts]
        if base == end:
            return sympy.S.Zero
        first = bases.index(end) + 1 if end in bases else 0
        within = self.cuts[first : bases.index(base) + 1]
        variable = sympy.Add(*(_ratio(cut.base, base) * cut.symbol for cut in within))
        return variable.xreplace(self.merged) if self.merged else variable


def common_nest(
    loops: Iterable[tuple[Loops, Expr]], inner: Expr, wished: Iterable[Expr] = ()
) -> LoopNest | None:
    """The nest of loops, each with the base of its innermost step; None when they do not nest.

    It is also cut where ``wished``, if that is possible without merging axes.
    """
    points = {sympy.S.One, inner}
    for parts, base in loops:
        points.add(base)
        for size in reversed([size for part in parts for size in part]):
            base = _simplified(base * size)
            points.add(base)
    cuts = _cuts(points)
    if cuts is None:
        return None
    finer = _cuts(points.union(wished))
    if finer is not None and len(finer) <= MAX_DIMENSIONS:
        cuts = finer
    named = [Cut(sympy_index_symbol(f"d{n}"), size, low) for n, (low, size) in enumerate(cuts)]
    return LoopNest(tuple(named), _merge(named, inner), inner)


def _cuts(points: set[Expr]) -> list[tuple[Expr, Expr]] | None:
    """Base and size of the axes between points, the outermost first; None unless each divides."""
    cuts = []
    for low, high in pairwise(sorted(points, key=hint)):
        if not _divides(low, high):
            return None
        cuts.append((low, _ratio(high, low)))
    cuts.reverse()
    return cuts


def breaks(index: Expr, loops: Mapping[Expr, tuple[Expr, Expr]]) -> Iterator[Expr]:
    """Where an index breaks off along a loop: half of a row that is swapped with the other, say.

    ``loops`` has each loop variable's base and size. Cut there, the index is affine.
    """
    for term in index.atoms(FloorDiv, ModularIndexing):
        variable, *steps = term.args
        base, size = loops.get(variable, (sympy.S.Zero, sympy.S.Zero))
        step = sympy.S.One
        for factor in steps:
            step *= factor
            if step.is_Integer and size.is_Integer and 1 < step < size and size % step == 0:
                yield _simplified(base * step)


def _merge(cuts: list[Cut], inner: Expr) -> dict[Expr, Expr]:
    """What axes beyond the card's number of dimensions are in terms of one that replaces them."""
    spare = len(cuts) - MAX_DIMENSIONS
    if spare <= 0:
        return {}
    group = [cut for cut in cuts if not _divides(cut.base * cut.size, inner)][: spare + 1]
    whole, within = sympy_index_symbol("dm"), group[-1].base
    return {
        cut.symbol: ModularIndexing(whole, _ratio(cut.base, within), cut.size)
        if n
        else FloorDiv(whole, _ratio(cut.base, within))
        for n, cut in enumerate(group)
    }


def _wholes(nest: LoopNest) -> list[Cut]:
    group = [cut for cut in nest.cuts if cut.symbol in nest.merged]
    if not group:
        return []
    size = _simplified(sympy_product([cut.size for cut in group]))
    return [Cut(sympy_index_symbol("dm"), size, group[-1].base)]


def hint(expr: Expr) -> int:
    """The size that an expression of sizes is expected to have."""
    return int(V.graph.sizevars.optimization_hint(expr, fallback=4096))


def _simplified(expr: Expr) -> Expr:
    return V.graph.sizevars.simplify(expr)


def _ratio(high: Expr, low: Expr) -> Expr:
    if low == 1:
        return high
    return _simplified(sympy.cancel(high / low))


def _divides(low: Expr, high: Expr) -> bool:
    if high.is_Integer and low.is_Integer:
        return bool(low != 0 and high % low == 0)
    return bool(low != 0 and sympy.fraction(sympy.cancel(high / low))[1] == 1)


def numel(sizes: Sequence[Expr]) -> Expr:
    """How many elements loops of these sizes count."""
    return _simplified(reduce(lambda a, b: a * b, sizes, sympy.S.One))
