"""Index expressions of Inductor, evaluated by the card.

What is the same for a whole launch becomes an entry of the number table, which the scalar unit
evaluates once at fetch. What changes from element to element becomes a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

import sympy
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.symbol import SymT, symbol_is_type

from torch_spyre_ref.emulator.assembly import Amount, Assembler, Axis, Scalar, Wire

Expr: TypeAlias = sympy.Expr
Term: TypeAlias = Amount | Wire

_VALUES: Final = {"modulo": "remainder"}
_FOLDED: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "modulo": operator.mod,
    "minimum": min,
    "maximum": max,
}
_FUNCTIONS: Final = {
    "FloorDiv": "floor_divide",
    "CleanDiv": "floor_divide",
    "Mod": "modulo",
    "PythonMod": "modulo",
    "Min": "minimum",
    "Max": "maximum",
}


_FLOATS: Final = {
    "FloatTrueDiv": "divide",
    "IntTrueDiv": "divide",
    "FloatPow": "power",
    "ToFloat": "copy",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_log2": "log2",
}
"""Functions of floats; what they make is computed in float64, as the host would."""
_RELATIONS: Final = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "not_equal",
}
_TRUNCATED: Final = {"TruncToInt": "truncate", "CeilToInt": "ceil", "FloorToInt": "floor"}


class Place(NamedTuple):
    """An index, taken apart: a stride for each symbol, a constant, and what is not affine."""

    strides: dict[sympy.Symbol, Expr]
    offset: Expr
    rest: Expr


def take_apart(index: Expr, steps: Mapping[sympy.Symbol, Any]) -> Place:
    """``index`` as a sum over ``steps``, the symbols that change from element to element."""
    strides: dict[sympy.Symbol, Expr] = {}
    offset = rest = sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand(index)):
        moving = [symbol for symbol in term.free_symbols if symbol in steps]
        if not moving:
            offset += term
            continue
        stride, factor = term.as_independent(*moving, as_Add=False)
        if factor in steps:
            strides[factor] = strides.get(factor, sympy.S.Zero) + stride
        else:
            rest += term
    return Place(strides, offset, rest)


class Expressions:
    """The expressions of one stage. ``sizes`` are the symbols that a launch gives."""

    def __init__(
        self,
        asm: Assembler,
        sizes: Mapping[sympy.Symbol, Scalar],
        axes: Mapping[sympy.Symbol, Axis],
    ) -> None:
        self._asm, self._sizes, self._axes = asm, sizes, axes
        self.values: dict[sympy.Symbol, Wire] = {}
        self._known: dict[Expr, Term] = {}

    def amount(self, expr: Expr) -> Amount:
        """An expression of sizes alone."""
        term = self.term(expr)
        if isinstance(term, Wire):
            raise NotImplementedError(f"{expr} changes from element to element")
        return term

    def term(self, expr: Expr) -> Term:
        """Any expression: a number where it is one."""
        if expr.is_Integer:
            return int(expr)
        if expr not in self._known:
            self._known[expr] = self._evaluated(expr)
        return self._known[expr]

    def forget_values(self) -> None:
        """What was made in an earlier pass need not be there in the next."""
        self._known = {e: t for e, t in self._known.items() if not isinstance(t, Wire)}

    def _evaluated(self, expr: Expr) -> Term:
        if isinstance(expr, sympy.Symbol):
            return self._symbol(expr)
        if expr.is_Number or expr.is_NumberSymbol:
            return self._asm.constant(float(expr), "float64")
        if isinstance(expr, sympy.Add):
            return self._folded("add", expr.args)
        if isinstance(expr, sympy.Mul | sympy.Pow):
            above, below = sympy.fraction(expr)
            if below != 1:
                return self._apply("floor_divide", self.term(above), self.term(below))
            if isinstance(expr, sympy.Pow):
                return self._folded("multiply", [expr.base] * int(expr.exp))
            return self._folded("multiply", expr.args)
        return self._function(expr)

    def _symbol(self, symbol: sympy.Symbol) -> Term:
        if symbol in self._axes:
            return self._asm.index(self._axes[symbol])
        if symbol in self.values:
            return self.values[symbol]
        if symbol_is_type(symbol, (SymT.FLOAT, SymT.UNBACKED_FLOAT)):
            return self._asm.constant(self._sizes[symbol], "float64")
        return self._sizes[symbol]

    def _function(self, expr: Expr) -> Term:
        name = type(expr).__name__
        if isinstance(expr, sympy_functions.ModularIndexing):
            base, divisor, modulus = map(self.term, expr.args)
            return self._apply("modulo", self._apply("floor_divide", base, divisor), modulus)
        if name == "Identity":
            return self.term(expr.args[0])
        if isinstance(expr, sympy.Abs):
            inner = self.term(expr.args[0])
            return self._apply("maximum", inner, self._apply("multiply", inner, -1))
        if name == "Where":
            test, yes, no = expr.args
            sides = [self._value(self.term(side)) for side in (yes, no)]
            return self._asm.apply("select", self._test(test), *sides)
        if name in _FLOATS:
            return self._asm.apply(_FLOATS[name], *(self._float(self.term(a)) for a in expr.args))
        if name in _TRUNCATED:
            whole = self._asm.apply(_TRUNCATED[name], self._float(self.term(expr.args[0])))
            return self._asm.convert(whole, "int64")
        if name not in _FUNCTIONS:
            raise NotImplementedError(f"the index expression {expr}")
        return self._folded(_FUNCTIONS[name], expr.args)

    def _test(self, expr: Expr) -> Wire:
        """A condition, as a bool for each element."""
        if isinstance(expr, sympy.Not):
            return self._asm.apply("logical_not", self._test(expr.args[0]))
        if isinstance(expr, sympy.And | sympy.Or):
            op = "logical_and" if isinstance(expr, sympy.And) else "logical_or"
            return reduce(lambda a, b: self._asm.apply(op, a, b), map(self._test, expr.args))
        sides = [self._value(self.term(side)) for side in expr.args]
        return self._asm.apply(_RELATIONS[expr.rel_op], *sides)

    def _value(self, term: Term) -> Wire:
        return term if isinstance(term, Wire) else self._asm.constant(term, "int64")

    def _folded(self, op: str, parts: Iterable[Expr]) -> Term:
        return reduce(lambda a, b: self._apply(op, a, b), map(self.term, parts))

    def _float(self, term: Term) -> Wire:
        value = self._value(term)
        return value if value.format == "float64" else self._asm.convert(value, "float64")

    def _apply(self, op: str, a: Term, b: Term) -> Term:
        sides = [side for side in (a, b) if isinstance(side, Wire)]
        if any(side.format == "float64" for side in sides):
            return self._asm.apply(_VALUES.get(op, op), self._float(a), self._float(b))
        if isinstance(a, Wire) or isinstance(b, Wire):
            whole = op == "floor_divide" and b == 1
            return a if whole else self._asm.apply(_VALUES.get(op, op), a, b)
        if isinstance(a, int) and isinstance(b, int):
            return _FOLDED[op](a, b)
        return self._asm.arithmetic(op, a, b)
