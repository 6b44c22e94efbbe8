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
from arrayfn.primitives import complex_numbers as c
from arrayfn.primitives import discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import special as s
from arrayfn.tracing import apply


def add(x: ArrayLike, y: ArrayLike) -> Array:
    """x + y."""
    return elementwise(e.add, x, y)


def atan2(x: ArrayLike, y: ArrayLike) -> Array:
    """The angle of the point (y, x)."""
    return elementwise(s.atan2, x, y)


def bitwise_and(x: ArrayLike, y: ArrayLike) -> Array:
    """The bits that are set in both x and y."""
    return elementwise(discrete.bitwise_and, x, y)


def bitwise_or(x: ArrayLike, y: ArrayLike) -> Array:
    """The bits that are set in x or y."""
    return elementwise(discrete.bitwise_or, x, y)


def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """The bits that are set in only one of x and y."""
    return elementwise(discrete.bitwise_xor, x, y)


def eq(x: ArrayLike, y: ArrayLike) -> Array:
    """Whether x == y: bool."""
    return elementwise(discrete.eq, x, y)


def ge(x: ArrayLike, y: ArrayLike) -> Array:
    """Whether x >= y: bool."""
    return elementwise(discrete.ge, x, y)


def gt(x: ArrayLike, y: ArrayLike) -> Array:
    """Whether x > y: bool."""
    return elementwise(discrete.gt, x, y)


def le(x: ArrayLike, y: ArrayLike) -> Array:
    """Whether x <= y: bool."""
    return elementwise(discrete.le, x, y)


def lt(x: ArrayLike, y: ArrayLike) -> Array:
    """Whether x < y: bool."""
    return elementwise(discrete.lt, x, y)


def max(x: ArrayLike, y: ArrayLike) -> Array:
    """The larger of x and y; it is NaN if either is NaN."""
    return elementwise(e.maximum, x, y)


def min(x: ArrayLike, y: ArrayLike) -> Array:
    """The smaller of x and y; it is NaN if either is NaN."""
    return elementwise(e.minimum, x, y)


def mul(x: ArrayLike, y: ArrayLike) -> Array:
    """x * y."""
    return elementwise(e.mul, x, y)


def ne(x: ArrayLike, y: ArrayLike) -> Array:
    """Whether x != y: bool."""
    return elementwise(discrete.ne, x, y)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The next floating-point number from ``x1`` in the direction of ``x2``."""
    return elementwise(e.nextafter, x1, x2)


def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """Raise x to the power y, which may be an integer for an inexact x."""
    kinds = [ops.type_of_operand("pow", v).dtype for v in (x, y)]
    if kinds[0] in dtypes.INEXACT and kinds[1] in dtypes.INTEGERS:
        y = ops.convert(y, kinds[0])
    return elementwise(e.pow, x, y)


def rem(x: ArrayLike, y: ArrayLike) -> Array:
    """The remainder of x / y with the sign of x."""
    return elementwise(e.fmod, x, y)


def shift_left(x: ArrayLike, y: ArrayLike) -> Array:
    """Shift the bits of x left by y."""
    return elementwise(discrete.shift_left, x, y)


def shift_right_arithmetic(x: ArrayLike, y: ArrayLike) -> Array:
    """Shift the bits of x right by y, and keep the sign."""
    return elementwise(discrete.shift_right_arithmetic, x, y)


def shift_right_logical(x: ArrayLike, y: ArrayLike) -> Array:
    """Shift the bits of x right by y, and fill with zeros."""
    return elementwise(discrete.shift_right_logical, x, y)


def sub(x: ArrayLike, y: ArrayLike) -> Array:
    """x - y."""
    return elementwise(e.sub, x, y)


def div(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x / y; the quotient of integers is rounded towards zero."""
    x, y = alike("div", typed("div", x, y))
    if x.dtype not in dtypes.INTEGERS:
        return apply(e.div, x, y)
    whole = apply(e.sub, x, apply(e.fmod, x, y))
    return apply(e.floor_divide, whole, y)


def complex(x: ArrayLike, y: ArrayLike) -> Array:
    """The complex number with these real and imaginary parts."""
    return elementwise(c.make_complex, x, y)


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """Limit x to [min, max]."""
    return elementwise(e.clamp, min, x, max)


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """Take ``on_true`` where bool ``pred`` is true, and ``on_false`` elsewhere."""
    return apply(e.select, pred, *typed("select", on_true, on_false))


def integer_pow(x: ArrayLike, y: int) -> Array:
    """Raise x to the integer power y, by multiplications."""
    (x,) = typed("integer_pow", x)
    result: Array | None = elementwise(e.pow, x, 0) if y == 0 else None
    factor = x if y > 0 else apply(e.reciprocal, x)
    rest = y if y > 0 else -y
    while rest:
        if rest & 1:
            result = factor if result is None else apply(e.mul, result, factor)
        rest >>= 1
        factor = apply(e.square, factor) if rest else factor
    assert result is not None
    return result


class RoundingMethod(Enum):
    """How numbers halfway between two integers are rounded."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(
    x: ArrayLike,
    rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO,
) -> Array:
    """Round x to the nearest integer; ``rounding_method`` decides ties."""
    if rounding_method is RoundingMethod.TO_NEAREST_EVEN:
        return elementwise(discrete.round, x)
    (x,) = typed("round", x)
    whole = apply(discrete.trunc, x)
    is_far = elementwise(
        discrete.ge, elementwise(e.absolute, apply(e.sub, x, whole)), 0.5
    )
    step = elementwise(e.copysign, 1, x)
    return apply(e.select, is_far, apply(e.add, whole, step), whole)
