"""Comparisons, logic, bits and selection, elementwise with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import absolute
from arrayfn.primitives import discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import apply
from arrayfn.tracing.keys import Key


def _compare(primitive: Primitive, name: str, x: ArrayLike, y: ArrayLike) -> Array:
    """Apply the comparison ``primitive``, exactly even if int64 meets uint64.

    Errors call the function ``name``.
    """
    first, second = getattr(x, "dtype", None), getattr(y, "dtype", None)
    if first is not second:
        operand_dtypes = {first, second}
        if dtypes.uint64 in operand_dtypes and operand_dtypes & dtypes.SIGNED:
            return _compare_signs(primitive, name, x, y)
    try:
        return ops.elementwise(primitive, name, x, y)
    except OverflowError:
        # A Python integer is outside of the array's dtype: compare both as float64.
        return ops.elementwise(primitive, name, x, y, dtype=dtypes.float64)


# The comparison that is true for (y, x) where the key is true for (x, y).
_MIRRORED: Final = {
    discrete.eq: discrete.eq,
    discrete.ne: discrete.ne,
    discrete.lt: discrete.gt,
    discrete.le: discrete.ge,
    discrete.gt: discrete.lt,
    discrete.ge: discrete.le,
}


def _compare_signs(
    primitive: Primitive, name: str, x: ArrayLike, y: ArrayLike
) -> Array:
    """Compare signed integers with uint64 integers exactly.

    One of ``x`` and ``y`` is uint64, and the other is signed. NumPy would compare both
    as float64. Here, signed integers of 0 or more are compared as uint64, and negative
    ones are less than all uint64 integers. Errors call the function ``name``.
    """
    if ops.type_of_operand(name, x).dtype == dtypes.uint64:
        x, y, primitive = y, x, _MIRRORED[primitive]  # x is the signed one
    as_unsigned = ops.elementwise(primitive, name, ops.convert(x, dtypes.uint64), y)
    if primitive in (discrete.eq, discrete.gt, discrete.ge):  # false for negative x
        is_natural = ops.elementwise(discrete.ge, name, x, 0)
        return ops.elementwise(discrete.bitwise_and, name, is_natural, as_unsigned)
    is_negative = ops.elementwise(discrete.lt, name, x, 0)
    return ops.elementwise(discrete.bitwise_or, name, is_negative, as_unsigned)


def equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x == y, as bools."""
    return _compare(discrete.eq, "equal", x, y)


def not_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x != y, as bools."""
    return _compare(discrete.ne, "not_equal", x, y)


def less(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x < y, as bools."""
    return _compare(discrete.lt, "less", x, y)


def less_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x <= y, as bools."""
    return _compare(discrete.le, "less_equal", x, y)


def greater(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x > y, as bools."""
    return _compare(discrete.gt, "greater", x, y)


def greater_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x >= y, as bools."""
    return _compare(discrete.ge, "greater_equal", x, y)


def truth(x: ArrayLike, name: str) -> ArrayLike:
    """Return x as bools: whether each element is not 0."""
    dtype = ops.type_of_operand(name, x).dtype
    return x if dtype == dtypes.bool_ else not_equal(x, 0)


def logical_and(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether both x and y are true (not 0), as bools."""
    name = "logical_and"
    return ops.elementwise(discrete.bitwise_and, name, truth(x, name), truth(y, name))


def logical_or(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether x or y is true (not 0), as bools."""
    name = "logical_or"
    return ops.elementwise(discrete.bitwise_or, name, truth(x, name), truth(y, name))


def logical_xor(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return whether exactly one of x and y is true (not 0), as bools."""
    name = "logical_xor"
    return ops.elementwise(discrete.bitwise_xor, name, truth(x, name), truth(y, name))


def logical_not(x: ArrayLike, /) -> Array:
    """Return whether x is false (0), as bools."""
    return ops.elementwise(discrete.bitwise_not, "logical_not", truth(x, "logical_not"))


def isnan(x: ArrayLike, /) -> Array:
    """Return whether x is NaN, as bools."""
    return _classify(discrete.isnan, "isnan", x, of_whole_numbers=False)


def isinf(x: ArrayLike, /) -> Array:
    """Return whether x is infinite, as bools."""
    return _classify(discrete.isinf, "isinf", x, of_whole_numbers=False)


def isfinite(x: ArrayLike, /) -> Array:
    """Return whether x is neither infinite nor NaN, as bools."""
    return _classify(discrete.isfinite, "isfinite", x, of_whole_numbers=True)


def isposinf(x: ArrayLike, out: None = None) -> Array:
    """Return whether x is +infinity, as bools."""
    ops.refuse_out("isposinf", out)
    return equal(x, float("inf"))


def isneginf(x: ArrayLike, out: None = None) -> Array:
    """Return whether x is -infinity, as bools."""
    ops.refuse_out("isneginf", out)
    return equal(x, -float("inf"))


def _classify(
    primitive: Primitive, name: str, x: ArrayLike, *, of_whole_numbers: bool
) -> Array:
    """Apply a test of floats, such as isnan, to x.

    Integers and bools need no test: all give ``of_whole_numbers``.
    """
    type = ops.type_of_operand(name, x)
    if type.dtype not in dtypes.INEXACT:
        return ops.full(of_whole_numbers, type.shape, dtypes.bool_, x)
    return ops.elementwise(primitive, name, x)


def signbit(x: ArrayLike, /) -> Array:
    """Return whether the sign bit of x is set, as it is for -0.0, as bools."""
    if ops.type_of_operand("signbit", x).dtype in dtypes.SIGNED:
        return less(x, 0)
    return ops.floating(discrete.signbit, "signbit", x)


def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Return whether ``abs(a - b) <= atol + rtol * abs(b)``, elementwise, as bools.

    Infinite numbers are close only if they are equal, and so are keys. NaN is close to
    NaN only with ``equal_nan``.
    """
    if isinstance(a, Key) and isinstance(b, Key):
        return equal(a, b)
    dtype = ops.floating_dtype(ops.common_dtype("isclose", (a, b)))
    a, b = ops.convert(a, dtype), ops.convert(b, dtype)
    size = ops.elementwise(e.mul, "isclose", absolute(b), rtol)
    limit = ops.elementwise(e.add, "isclose", size, atol)
    distance = absolute(ops.elementwise(e.sub, "isclose", a, b))
    near = logical_and(less_equal(distance, limit), isfinite(b))
    close = logical_or(near, equal(a, b))
    if equal_nan:
        close = logical_or(close, logical_and(isnan(a), isnan(b)))
    return close


# Bits.


def bitwise_and(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the bits that are set in both x and y, which are integers or bools."""
    return ops.elementwise(discrete.bitwise_and, "bitwise_and", x, y)


def bitwise_or(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the bits that are set in x or y, which are integers or bools."""
    return ops.elementwise(discrete.bitwise_or, "bitwise_or", x, y)


def bitwise_xor(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the bits that are set in exactly one of x and y (integers or bools)."""
    return ops.elementwise(discrete.bitwise_xor, "bitwise_xor", x, y)


def invert(x: ArrayLike, /) -> Array:
    """Return x with all bits flipped; for bools, this is logical not."""
    return ops.elementwise(discrete.bitwise_not, "invert", x)


bitwise_not = invert
bitwise_invert = invert


def left_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Shift the bits of integer x left by y places, elementwise.

    The result is 0 if y is at least the width of the dtype.
    """
    return ops.elementwise(discrete.shift_left, "left_shift", x, y)


bitwise_left_shift = left_shift


def right_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Shift the bits of integer x right by y places, and keep the sign."""
    return ops.elementwise(discrete.shift_right_arithmetic, "right_shift", x, y)


bitwise_right_shift = right_shift


def bitwise_count(x: ArrayLike, /) -> Array:
    """Return the number of bits set in abs(x): uint8."""
    size = absolute(x)
    return ops.convert(
        ops.elementwise(discrete.population_count, "bitwise_count", size), dtypes.uint8
    )


# Selection.


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x where ``condition`` is true (not 0), else y; all three broadcast.

    The result has the dtype to which x and y promote.
    """
    (x, y), types, _ = ops.promoted("where", (x, y))
    which = truth(condition, "where")
    types = [ops.type_of_operand("where", which), *types]
    return apply(e.select, *ops.broadcast("where", (which, x, y), types))


def select(
    condlist: Sequence[ArrayLike],
    choicelist: Sequence[ArrayLike],
    default: ArrayLike = 0,
) -> Array:
    """Take each element from the choice whose condition is the first true one.

    ``condlist`` and ``choicelist`` have equally many arrays, which all broadcast, and
    the result has the dtype to which the choices and ``default`` promote. Where no
    condition is true, it is ``default``. Raises ArgumentError for other numbers of
    arrays.
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ArgumentError(
            f"select takes as many choices as conditions, but was given "
            f"{len(choicelist)} and {len(condlist)}",
            user_location(),
        )
    # From the last condition to the first, so that the first true one decides.
    result = default
    pairs = zip(reversed(condlist), reversed(choicelist), strict=True)
    for condition, choice in pairs:
        result = where(condition, choice, result)
    return result
