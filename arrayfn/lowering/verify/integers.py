"""Integer arithmetic and comparisons of kernels' texts, on Numbers over symbols.

Functions that need a value in each lane raise NeedsLanes if there is none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn.lowering.verify.numbers import (
    FAR,
    Both,
    Data,
    Either,
    Lanes,
    Maybe,
    NeedsLanes,
    NonNegative,
    Number,
    State,
    Truth,
    Value,
    negated,
)

INTEGERS: Final = frozenset(("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"))
_WIDE: Final = 64  # bits


def limits(dtype: str) -> tuple[int, int]:
    """Return (minimum, maximum) of an integer dtype, such as "i32".

    64-bit integers are assumed to be from -FAR to FAR, so that sums do not overflow.
    """
    bits = int(dtype[1:])
    if bits == _WIDE:
        return (0 if dtype[0] == "u" else -FAR), FAR
    if dtype[0] == "u":
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


# Conditions.


def is_truth(value: Value) -> bool:
    """Whether ``value`` is a condition."""
    return isinstance(value, (NonNegative, Both, Either, Maybe))


def truth_of(value: Value) -> Truth:
    """Convert ``value`` to a condition, as Python's ``bool`` does.

    A Number becomes the condition that it is not 0. Memory and Data become Maybe, as
    nothing is known of them.
    """
    if isinstance(value, (NonNegative, Both, Either, Maybe)):
        return value
    if isinstance(value, Number):
        one = Number(1)
        # Not 0: value >= 1 or value <= -1.
        return Either(
            NonNegative(value.plus(one, -1)), NonNegative(value.plus(one).times(-1))
        )
    return Maybe()


def joined(truths: Sequence[Truth], *, either: bool) -> Truth:
    """Return the conjunction of ``truths``, or the disjunction if ``either``."""
    result, *rest = truths
    for other in rest:
        result = Either(result, other) if either else Both(result, other)
    return result


def _less(x: Number, y: Number) -> Truth:
    """Return the condition ``x < y``, which is ``y - x - 1 >= 0`` for integers."""
    return NonNegative(y.plus(x, -1).plus(Number(-1)))


_COMPARISONS: Final[dict[str, Callable[[Number, Number], Truth]]] = {
    "lt": _less,
    "le": lambda x, y: NonNegative(y.plus(x, -1)),
    "gt": lambda x, y: _less(y, x),
    "ge": lambda x, y: NonNegative(x.plus(y, -1)),
    "eq": lambda x, y: Both(NonNegative(x.plus(y, -1)), NonNegative(y.plus(x, -1))),
    "ne": lambda x, y: Either(_less(x, y), _less(y, x)),
}
NAME_OF_OPERATOR: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}


def compared(names: Sequence[str], values: Sequence[Value]) -> Truth:
    """Return the condition of a chain of comparisons, such as ``x < y <= z``.

    ``names`` are the comparisons' names in the scalar vocabulary: "lt", "le". A
    comparison of values that are not Numbers is Maybe.
    """
    truths: list[Truth] = []
    for name, x, y in zip(names, values[:-1], values[1:], strict=True):
        if isinstance(x, Number) and isinstance(y, Number):
            truths.append(_COMPARISONS[name](x, y))
        else:
            truths.append(Maybe())
    return joined(truths, either=False)


# Arithmetic.


def binary(operator: str, x: Number, y: Number, state: State) -> Value:
    """Compute ``x operator y``; ``operator`` is the name of an ast class, as "Add".

    Sums, and products and shifts by constants, are exact Numbers. ``x & (2**k - 1)`` is
    computed as the remainder by 2**k. Other operations are computed lane by lane, or
    give an unknown number if they depend on data.
    """
    if operator == "Add":
        return x.plus(y)
    if operator == "Sub":
        return x.plus(y, -1)
    if operator == "Mult":
        return product(x, y, state)
    if operator in ("FloorDiv", "Mod"):
        return divided(x, y, state, quotient=operator == "FloorDiv")
    if operator in ("RShift", "LShift"):
        count = state.constant(y)
        if count is not None and 0 <= count < _WIDE:
            if operator == "LShift":
                return x.times(1 << count)
            return divided(x, Number(1 << count), state, quotient=True)
        low, high = state.extremes(y)
        if low < 0 or high >= _WIDE:  # the result depends on the processor
            return state.unknown(-FAR, FAR)
    if operator == "BitAnd":
        mask = state.constant(y)
        if mask is not None and mask > 0 and not mask & (mask + 1):
            return divided(x, Number(mask + 1), state, quotient=False)
    if operator == "Div":
        return Data()
    return _computed_per_lane(_BITS[operator], x, y, state) or state.unknown(-FAR, FAR)


_BITS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "RShift": lambda x, y: x >> y,
    "LShift": lambda x, y: x << y,
    "BitAnd": lambda x, y: x & y,
    "BitOr": lambda x, y: x | y,
    "BitXor": lambda x, y: x ^ y,
    "Pow": lambda x, y: x**y,
}


def _computed_per_lane(
    function: Callable[[Any, Any], Any], x: Number, y: Number, state: State
) -> Number | None:
    """Compute ``function(x, y)`` in each lane; None if a number depends on data.

    Raises NeedsLanes if a number has several values in a lane.
    """
    left = state.lanes_of(x)
    right = state.lanes_of(y)
    if left is None or right is None:
        return None
    return Number(function(left, right))


def product(x: Number, y: Number, state: State) -> Number:
    """Compute ``x * y``; an unknown number with bounds if both depend on data.

    Raises NeedsLanes if neither is constant and one has several values in a lane.
    """
    for candidate, multiplicand in ((x, y), (y, x)):
        factor = state.constant(candidate)
        if factor is not None:
            return multiplicand.times(factor)
    exact = _computed_per_lane(lambda a, b: a * b, x, y, state)
    if exact is not None:
        return exact
    corners = [a * b for a in state.extremes(x) for b in state.extremes(y)]
    return state.unknown(min(corners), max(corners), x, y)


def divided(x: Number, y: Number, state: State, *, quotient: bool) -> Number:
    """Compute the ``quotient`` of ``x`` by ``y``, or else the remainder.

    For a constant divisor, terms of ``x`` that are multiples of it contribute only to
    the quotient: ``(8 i + j) // 4`` is ``2 i + j // 4``. The result is exact if the
    other terms, ``remaining``, stay between two neighbouring multiples of the divisor.
    It is exact too if they are one symbol that can be split into two digits, as ``j =
    4 upper + lower``, for which NeedsLanes is raised. Otherwise the result is computed
    for each value (NeedsLanes), or is an unknown number with bounds.
    """
    size = state.constant(y)
    if size is None:
        exact = _computed_per_lane(_quotient if quotient else _remainder, x, y, state)
        if exact is not None:
            return exact
        low, high = state.extremes(y)
        if low <= 0:
            return state.unknown(-FAR, FAR)
        if not quotient:
            return state.unknown(0, high - 1)
        first, last = state.extremes(x)
        return state.unknown(min(first // low, first // high, 0), max(last // low, 0))
    if size <= 0:
        return state.unknown(-FAR, FAR)
    x = state.simplified(x)
    multiples = {s: c // size for s, c in x.terms.items() if not c % size}
    remaining = Number(x.base, {s: c for s, c in x.terms.items() if c % size})
    low, high = state.range(remaining)
    first = low // size
    if np.all(first == high // size):
        # ``remaining`` stays between two neighbouring multiples.
        if quotient:
            return Number(first, multiples)
        return remaining.plus(Number(first * size), -1)
    counted = [s for s in remaining.terms if s.counted]
    if len(counted) == len(remaining.terms) == 1:
        ((symbol, c),) = remaining.terms.items()
        begin, end = state.bounds[symbol]
        # The lower digit of the symbol is below ``digit``: c * digit is the divisor.
        digit = size // c if c > 0 and not size % c else 0
        if (
            digit
            and isinstance(begin, int)
            and isinstance(end, int)
            and not begin
            and not (end + 1) % digit
            and np.all(np.asarray(remaining.base) % size == 0)
        ):
            raise NeedsLanes(lambda state: state.with_digits(symbol, digit))
    state.want_values(remaining)
    if not quotient:
        return state.unknown(0, size - 1, remaining)
    return Number(0, multiples).plus(state.unknown(first, high // size, remaining))


def _quotient(x: Any, y: Any) -> Any:
    """Compute ``x // y`` of lanes; where ``y`` is 0, divide by 1 without a warning."""
    return x // np.where(np.asarray(y) == 0, 1, y)


def _remainder(x: Any, y: Any) -> Any:
    """Compute ``x % y`` of lanes; where ``y`` is 0, divide by 1 without a warning."""
    return x % np.where(np.asarray(y) == 0, 1, y)


def _plain(x: Any) -> Lanes:
    """Convert ``x``, a NumPy scalar or int, to an int; leave arrays of lanes."""
    return x if isinstance(x, np.ndarray) else int(x)


def extreme(x: Number, y: Number, state: State, *, larger: bool) -> Number:
    """Compute the smaller of two numbers, or the larger one if ``larger``.

    If the same one is always smaller (or larger), the result is that number itself.
    Otherwise it is computed for each value (NeedsLanes), or is an unknown number with
    bounds if it depends on data.
    """
    difference = y.plus(x, -1)
    if larger:
        difference = difference.times(-1)
    low, high = state.range(state.simplified(difference))
    if np.all(np.asarray(low) >= 0):
        return x
    if np.all(np.asarray(high) <= 0):
        return y
    function = np.maximum if larger else np.minimum
    exact = _computed_per_lane(function, x, y, state)
    if exact is not None:
        # Of two ints, NumPy's function makes a NumPy scalar.
        return Number(_plain(exact.base))
    (a, b), (c, d) = state.range(x), state.range(y)
    return state.unknown(_plain(function(a, c)), _plain(function(b, d)), x, y)


# The scalar vocabulary.

_SAME: Final = frozenset(("identity", "round"))
_ARITHMETIC: Final = {"add": "Add", "sub": "Sub", "mul": "Mult"} | {
    "accumulate_add": "Add",
    "accumulate_mul": "Mult",
}
_BITWISE: Final = {"and": "BitAnd", "or": "BitOr", "xor": "BitXor"} | {
    "shift_left": "LShift",
    "shift_right": "RShift",
}
_EXTREMES: Final = frozenset(("min", "max", "accumulate_min", "accumulate_max"))


def evaluate_function(
    kind: str, suffix: str, values: Sequence[Value], state: State
) -> Value | None:
    """Compute a scalar function of integers or conditions; None for other functions.

    ``kind`` and ``suffix`` are the parts of the function's name: "min" and "i64" of
    ``min_i64``, "convert_i64" and "i32" of ``convert_i64_i32``. Results that do not fit
    the dtype, and functions without a rule, give an unknown number of that dtype.
    """
    if suffix == "bool":
        return _function_of_conditions(kind, values)
    if kind in _COMPARISONS:
        return compared([kind], values)
    if suffix not in INTEGERS:
        return None
    if kind.startswith("convert_"):
        return as_dtype(values[0], suffix, state)
    numbers = [v for v in values if isinstance(v, Number)]
    if len(numbers) != len(values) or not numbers:
        return state.unknown(*limits(suffix))
    if kind == "clamp":
        lower = extreme(numbers[0], numbers[1], state, larger=True)
        return extreme(lower, numbers[2], state, larger=False)
    if kind in _EXTREMES:
        x, y = numbers
        return extreme(x, y, state, larger=kind.endswith("max"))
    operator = _ARITHMETIC.get(kind) or _BITWISE.get(kind)
    if operator is not None:
        x, y = numbers
        return as_dtype(binary(operator, x, y, state), suffix, state)
    if kind == "neg":
        return as_dtype(numbers[0].times(-1), suffix, state)
    if kind == "abs":
        return extreme(numbers[0], numbers[0].times(-1), state, larger=True)
    if kind in _SAME:
        return numbers[0]
    return state.unknown(*limits(suffix))


def as_dtype(value: Value, dtype: str, state: State) -> Value:
    """Convert ``value`` to an integer ``dtype``.

    A Number that fits is unchanged; all else becomes an unknown number of the dtype.
    """
    low, high = limits(dtype)
    if isinstance(value, Number):
        a, b = state.extremes(value)
        return value if low <= a and b <= high else state.unknown(low, high, value)
    if is_truth(value):
        return state.unknown(0, 1)
    return state.unknown(low, high)


def without_overflow(value: Number, state: State) -> Number:
    """Return ``value``, or an unknown number if it may not fit an i64.

    Kernels compute modulo 2**64. Sums of such numbers are right modulo 2**64, but
    quotients and comparisons of what does not fit are not.
    """
    low, high = state.extremes(value)
    return value if low >= -FAR and high <= FAR else state.unknown(-FAR, FAR)


def _function_of_conditions(kind: str, values: Sequence[Value]) -> Truth:
    """Compute a function with a bool result: "and", "or", "not" and copies.

    Other functions give Maybe.
    """
    truths = [truth_of(v) for v in values]
    if kind in ("and", "or", "accumulate_and", "accumulate_or") and truths:
        return joined(truths, either=kind.endswith("or"))
    if kind == "not":
        return negated(truths[0])
    if kind in ("convert_u8", "identity"):
        return truths[0] if is_truth(values[0]) else Maybe()
    return Maybe()


def of_data(name: str) -> Value:
    """Return the value of a function of floats: Maybe for predicates, else Data."""
    return Maybe() if name.startswith(("is", "eq_", "ne_", "lt_")) else Data()
