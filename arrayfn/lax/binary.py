"""Elementwise functions of two operands, and selection among several.

Operands have one dtype, and one rank or rank 0; axes of extent 1 are broadcast. Python
numbers take the dtype of the others. The result has that dtype and shape.
"""

from __future__ import annotations

from enum import Enum

from arrayfn import dtypes
from arrayfn.lax._operands import alike, elementwise, typed
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import by_squaring
from arrayfn.primitives import complex_numbers as c
from arrayfn.primitives import discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import special as s
from arrayfn.tracing import apply


def add(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x + y elementwise, in the operands' dtype."""
    return elementwise(e.add, x, y)


def atan2(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the angle of the point (y, x) in radians, from -pi to pi, elementwise."""
    return elementwise(s.atan2, x, y)


def bitwise_and(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the bits that are set in both x and y, elementwise."""
    return elementwise(discrete.bitwise_and, x, y)


def bitwise_or(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the bits that are set in x or y or both, elementwise."""
    return elementwise(discrete.bitwise_or, x, y)


def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the bits that are set in exactly one of x and y, elementwise."""
    return elementwise(discrete.bitwise_xor, x, y)


def eq(x: ArrayLike, y: ArrayLike) -> Array:
    """Return whether x == y elementwise, as an array of bool."""
    return elementwise(discrete.eq, x, y)


def ge(x: ArrayLike, y: ArrayLike) -> Array:
    """Return whether x >= y elementwise, as an array of bool."""
    return elementwise(discrete.ge, x, y)


def gt(x: ArrayLike, y: ArrayLike) -> Array:
    """Return whether x > y elementwise, as an array of bool."""
    return elementwise(discrete.gt, x, y)


def le(x: ArrayLike, y: ArrayLike) -> Array:
    """Return whether x <= y elementwise, as an array of bool."""
    return elementwise(discrete.le, x, y)


def lt(x: ArrayLike, y: ArrayLike) -> Array:
    """Return whether x < y elementwise, as an array of bool."""
    return elementwise(discrete.lt, x, y)


def max(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the larger of x and y elementwise, or NaN if either is NaN."""
    return elementwise(e.maximum, x, y)


def min(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the smaller of x and y elementwise, or NaN if either is NaN."""
    return elementwise(e.minimum, x, y)


def mul(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x * y elementwise, in the operands' dtype."""
    return elementwise(e.mul, x, y)


def ne(x: ArrayLike, y: ArrayLike) -> Array:
    """Return whether x != y elementwise, as an array of bool."""
    return elementwise(discrete.ne, x, y)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the next representable float after ``x1`` in the direction of ``x2``."""
    return elementwise(e.nextafter, x1, x2)


def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """Raise x to the power y elementwise.

    x and y have one dtype, or x is inexact (float or complex) and y is an integer,
    which is then converted to the dtype of x.
    """
    base, exponent = (ops.type_of_operand("pow", v).dtype for v in (x, y))
    if base in dtypes.INEXACT and exponent in dtypes.INTEGERS:
        y = ops.convert(y, base)
    return elementwise(e.pow, x, y)


def rem(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the remainder of x / y elementwise, with the sign of x (C's ``fmod``)."""
    return elementwise(e.fmod, x, y)


def shift_left(x: ArrayLike, y: ArrayLike) -> Array:
    """Shift the bits of x left by y places, elementwise."""
    return elementwise(discrete.shift_left, x, y)


def shift_right_arithmetic(x: ArrayLike, y: ArrayLike) -> Array:
    """Shift the bits of x right by y places elementwise, and fill with the sign bit."""
    return elementwise(discrete.shift_right_arithmetic, x, y)


def shift_right_logical(x: ArrayLike, y: ArrayLike) -> Array:
    """Shift the bits of x right by y places elementwise, and fill with zeros."""
    return elementwise(discrete.shift_right_logical, x, y)


def sub(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x - y elementwise, in the operands' dtype."""
    return elementwise(e.sub, x, y)


def div(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x / y elementwise; the quotient of integers is rounded towards zero."""
    x, y = alike("div", typed("div", x, y))
    if x.dtype not in dtypes.INTEGERS:
        return apply(e.div, x, y)
    # Without its remainder x is a multiple of y, and floor_divide has nothing to round.
    multiple = apply(e.sub, x, apply(e.fmod, x, y))
    return apply(e.floor_divide, multiple, y)


def complex(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the complex numbers x + iy, for x and y of one floating-point dtype."""
    return elementwise(c.make_complex, x, y)


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """Limit each element of x to the interval [min, max]."""
    return elementwise(e.clamp, min, x, max)


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """Take ``on_true`` where the bool ``pred`` is true, and ``on_false`` elsewhere."""
    return apply(e.select, pred, *typed("select", on_true, on_false))


def integer_pow(x: ArrayLike, y: int) -> Array:
    """Raise x to the integer power y, which may be negative.

    The power is computed by repeated squaring, in about log2(|y|) multiplications.
    Negative powers are powers of 1 / x. For y = 0, the result is 1.
    """
    (x,) = typed("integer_pow", x)
    if y == 0:
        return elementwise(e.pow, x, 0)
    return by_squaring(x if y > 0 else apply(e.reciprocal, x), abs(y))


class RoundingMethod(Enum):
    """The ways in which ``round`` rounds numbers halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(
    x: ArrayLike,
    rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO,
) -> Array:
    """Round x to the nearest integers, in the floating-point dtype of x.

    ``rounding_method`` decides how numbers halfway between two integers are rounded:
    away from zero, or to the even neighbour.
    """
    if rounding_method is RoundingMethod.TO_NEAREST_EVEN:
        return elementwise(discrete.round, x)
    (x,) = typed("round", x)
    whole = apply(discrete.trunc, x)
    # Round away from zero where the fraction is at least one half.
    is_far = elementwise(
        discrete.ge, elementwise(e.absolute, apply(e.sub, x, whole)), 0.5
    )
    step = elementwise(e.copysign, 1, x)
    return apply(e.select, is_far, apply(e.add, whole, step), whole)
