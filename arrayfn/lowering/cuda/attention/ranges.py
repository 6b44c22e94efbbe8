"""Integers of known range in scalar statements, and what follows from them.

The indices of a score are not negative and below known extents, so most tests whether
an index is negative or outside of an array have a known result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from arrayfn import dtypes
from arrayfn.lowering.kernel_ir import (
    Argument,
    Compute,
    Constant,
    IndexTerm,
    Load,
    Scalar,
    Statement,
    Store,
    Value,
    uses,
)
from arrayfn.records import frozen, record


@frozen
class Range:
    """The integers from ``low`` to ``high``."""

    low: int
    high: int

    def fits(self, bits: int) -> bool:
        """Whether all of them are signed integers of ``bits`` bits."""
        return -(2 ** (bits - 1)) <= self.low and self.high < 2 ** (bits - 1)


def _hull(numbers: Sequence[int]) -> Range:
    """Return the smallest range that has all of ``numbers``."""
    return Range(min(numbers), max(numbers))


def _multiplied(a: Range, b: Range) -> Range:
    """Return the range of the products of an integer of ``a`` and one of ``b``."""
    return _hull([x * y for x in (a.low, a.high) for y in (b.low, b.high)])


_ARITHMETIC: Final[dict[str, Callable[..., Range]]] = {
    "identity": lambda a: a,
    "convert": lambda a: a,
    "neg": lambda a: Range(-a.high, -a.low),
    "add": lambda a, b: Range(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Range(a.low - b.high, a.high - b.low),
    "mul": _multiplied,
    "max": lambda a, b: Range(max(a.low, b.low), max(a.high, b.high)),
    "min": lambda a, b: Range(min(a.low, b.low), min(a.high, b.high)),
    "clamp": lambda a, low, high: Range(
        min(max(a.low, low.low), high.low), min(max(a.high, low.high), high.high)
    ),
}
_OPPOSITE: Final = {"lt": "ge", "le": "gt", "ge": "lt", "gt": "le"}
_ALWAYS: Final[dict[str, Callable[[Range, Range], bool]]] = {
    "lt": lambda a, b: a.high < b.low,
    "le": lambda a, b: a.high <= b.low,
    "ge": lambda a, b: a.low >= b.high,
    "gt": lambda a, b: a.low > b.high,
}
_BITS: Final = {"i32": 32, "i64": 64}


def folded(
    statements: Sequence[Statement],
    results: Sequence[Scalar],
    ranges: Mapping[str, Range],
) -> tuple[list[Statement], list[Scalar]]:
    """Return the statements that ``results`` need, and the results.

    Statements whose value is known are left out: a constant or another value stands for
    it, also as a result. ``ranges`` has the ranges of values that the statements read,
    by name.
    """
    known = _Known(dict(ranges), {})
    kept: list[Statement] = []
    for statement in statements:
        assert not isinstance(statement, Store)
        rewritten = known.substituted(statement)
        if not (isinstance(rewritten, Compute) and known.fold(rewritten)):
            kept.append(rewritten)
    known_results = [known.scalar(result) for result in results]
    needed = {value.name for value in known_results if isinstance(value, Value)}
    live: list[Statement] = []
    for statement in reversed(kept):
        assert not isinstance(statement, Store)
        if statement.result.name in needed:
            live.append(statement)
            needed |= {value.name for value in uses(statement)}
    return live[::-1], known_results


@record
class _Known:
    """The ranges of integers, and the scalars that replace values, both by name."""

    ranges: dict[str, Range]
    scalars: dict[str, Scalar]

    def scalar(self, scalar: Scalar) -> Scalar:
        """Return what stands for ``scalar``: a known scalar, or ``scalar`` itself."""
        if isinstance(scalar, Value):
            return self.scalars.get(scalar.name, scalar)
        return scalar

    def substituted(self, s: Statement) -> Statement:
        """Return ``s`` with its operands replaced by scalars that stand for them."""
        if isinstance(s, Compute):
            return replace(s, arguments=tuple(map(self.scalar, s.arguments)))
        if isinstance(s, Load):
            return replace(s, indices=tuple(map(self.term, s.indices)))
        return s

    def term(self, term: IndexTerm) -> IndexTerm:
        """Return ``term`` with its index replaced by a value that stands for it."""
        index = self.scalar(term.index)
        return replace(term, index=index) if isinstance(index, Value) else term

    def range_of(self, scalar: Scalar) -> Range | None:
        """Return the range of ``scalar``; None if it is no integer of known range."""
        if isinstance(scalar, Value):
            return self.ranges.get(scalar.name)
        if isinstance(scalar, Constant) and scalar.dtype not in dtypes.INTEGERS:
            return None
        assert isinstance(scalar, Argument) or isinstance(scalar.value, int)
        number = int(scalar.value.real)
        return Range(number, number)

    def fold(self, s: Compute) -> bool:
        """Record what is known of the result of ``s``; return whether to drop ``s``.

        ``s`` is dropped if another scalar stands for its result. An integer of only one
        possible value keeps its statement, because it may be an index.
        """
        name, _, suffix = s.function.rpartition("_")
        if name == "identity" and s.result.dtype not in dtypes.INTEGERS:
            return self.replace(s, s.arguments[0])
        if name == "select" and isinstance(s.arguments[0], Constant):
            chosen = s.arguments[1 if s.arguments[0].value else 2]
            return self.replace(s, chosen)
        if name in ("and", "or") and suffix == "bool":
            return self.fold_logic(s, name)
        argument_ranges = [self.range_of(a) for a in s.arguments]
        if None in argument_ranges:
            return False
        bounds = [bound for bound in argument_ranges if bound is not None]
        # A comparison is known if it holds for all numbers of the ranges, or if the
        # opposite comparison does.
        if name in _ALWAYS:
            for function, value in ((name, True), (_OPPOSITE[name], False)):
                if _ALWAYS[function](*bounds):
                    return self.replace(s, Constant(value, dtypes.bool_))
            return False
        kind = "convert" if name.startswith("convert_") else name
        if kind in _ARITHMETIC and suffix in _BITS:
            result_range = _ARITHMETIC[kind](*bounds)
            if result_range.fits(_BITS[suffix]):
                self.ranges[s.result.name] = result_range
        return False

    def fold_logic(self, s: Compute, name: str) -> bool:
        """Return whether to leave out ``s``, an ``and`` or ``or``; record its result.

        It is left out if one operand is a constant. If the constant decides the result
        (``False and x``, ``True or x``), it stands for the result; otherwise the other
        operand does.
        """
        first, second = s.arguments
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Constant):
                decides = bool(one.value) == (name == "or")
                return self.replace(s, one if decides else other)
        return False

    def replace(self, s: Compute, scalar: Scalar) -> bool:
        """Let ``scalar`` stand for the result of ``s``; return whether it can.

        An integer constant cannot: the result may be an index, which must be a value.
        Its range is recorded all the same.
        """
        known_range = (
            self.range_of(scalar) if s.result.dtype in dtypes.INTEGERS else None
        )
        if known_range is not None:
            self.ranges[s.result.name] = known_range
        if isinstance(scalar, Constant) and s.result.dtype in dtypes.INTEGERS:
            return False
        self.scalars[s.result.name] = scalar
        return True
