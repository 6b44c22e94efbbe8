"""Elementwise arithmetic and rounding, with NumPy's promotion and broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import complex_numbers as c
from arrayfn.primitives import discrete, special
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import apply

_LARGEST_UNROLLED_POWER = 8


def add(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x + y, elementwise; for bools this is logical or."""
    return ops.elementwise(e.add, "add", x, y, of_bools=discrete.bitwise_or)


def subtract(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x - y, elementwise.

    Raises DTypeError for bools.
    """
    return ops.elementwise(e.sub, "subtract", x, y)


def multiply(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x * y, elementwise; for bools this is logical and."""
    return ops.elementwise(e.mul, "multiply", x, y, of_bools=discrete.bitwise_and)


def divide(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x / y, elementwise; integers are divided as float64."""
    types = [ops.type_of_operand("divide", a) for a in (x, y)]
    dtype, weak = dtypes.promote((t.dtype, t.weak) for t in types)
    wide = ops.inexact_dtype("divide", dtype)
    if wide != dtype:
        x, y = (ops.convert(a, wide, weak) for a in (x, y))
    return ops.elementwise(e.div, "divide", x, y)


true_divide = divide


def floor_divide(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the floor of x / y, elementwise, in the dtype of x and y.

    Bools give int8, and integers divided by 0 give 0.
    """
    return ops.elementwise(
        e.floor_divide, "floor_divide", x, y, dtype=_number("floor_divide", x, y)
    )


def remainder(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x - floor(x / y) * y, elementwise, which has the sign of y.

    The dtype is that of x and y; bools give int8.
    """
    return ops.elementwise(
        e.remainder, "remainder", x, y, dtype=_number("remainder", x, y)
    )


mod = remainder


def fmod(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x - trunc(x / y) * y, elementwise, which has the sign of x.

    The dtype is that of x and y; bools give int8.
    """
    return ops.elementwise(e.fmod, "fmod", x, y, dtype=_number("fmod", x, y))


def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Array, Array]:
    """Return the pair of the results of ``floor_divide`` and ``remainder``."""
    return floor_divide(x, y), remainder(x, y)


def power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Raise x to the power y, elementwise.

    A Python number of magnitude 1 to 8 without a fraction becomes multiplications, and
    0.5 becomes a square root. Raises ArgumentError if x has integers and y is a
    negative Python integer.
    """
    if dtypes.is_python_scalar(y) and not isinstance(y, (bool, complex)):
        types = [ops.type_of_operand("power", a) for a in (x, y)]
        dtype, weak = dtypes.promote((t.dtype, t.weak) for t in types)
        if dtype in dtypes.INTEGERS and y < 0:
            raise ArgumentError(
                "power: integers to negative integer powers are not allowed; convert "
                "them to floating-point first",
                user_location(),
            )
        if not dtypes.is_python_scalar(x) and dtype != dtypes.bool_:
            unrolled = _unrolled_power(ops.convert(x, dtype, weak), y)
            if unrolled is not None:
                return unrolled
    return ops.elementwise(e.pow, "power", x, y, dtype=_number("power", x, y))


pow = power


def by_squaring(x: ArrayLike, exponent: int) -> Any:
    """Return x to a positive power, by about log2(exponent) multiplications."""
    result: ArrayLike | None = None
    # x is x, x**2, x**4, ...; the result has those of the bits set in exponent.
    while True:
        if exponent & 1:
            result = x if result is None else apply(e.mul, result, x)
        exponent >>= 1
        if not exponent:
            return result
        x = apply(e.square, x)


def _unrolled_power(x: ArrayLike, y: float) -> Array | None:
    """Return x to the power y by multiplications or a root; None for other exponents.

    Exponents of magnitude 1 to 8 are computed by repeated squaring.
    """
    if y == 0.5:
        return sqrt(x)
    size = -y if y < 0 else y
    if not 0 < size <= _LARGEST_UNROLLED_POWER or size != int(size):
        return None
    result = by_squaring(x, int(size))
    if y < 0:
        return reciprocal(result)
    return ops.same(result) if result is x else result  # x**1 is a copy of x


def float_power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Raise x to the power y, elementwise, in at least float64."""
    wide = ops.common_dtype("float_power", (x, y, np.float64(1)))
    return ops.elementwise(e.pow, "float_power", x, y, dtype=wide)


def negative(x: ArrayLike, /) -> Array:
    """Return -x, elementwise.

    Raises DTypeError for bools.
    """
    return ops.elementwise(e.neg, "negative", x)


def positive(x: ArrayLike, /) -> Array:
    """Return a copy of x, as +x does.

    Raises DTypeError for bools.
    """
    if ops.type_of_operand("positive", x).dtype == dtypes.bool_:
        raise DTypeError("positive is not defined for bool", user_location())
    return ops.same(x)


def absolute(x: ArrayLike, /) -> Array:
    """Return the absolute value, elementwise, in the dtype of x.

    That of a complex number is real.
    """
    dtype = ops.type_of_operand("absolute", x).dtype
    if dtype in dtypes.COMPLEX:
        return ops.elementwise(c.complex_abs, "absolute", x)
    if dtype == dtypes.bool_ or dtype in dtypes.UNSIGNED:
        return ops.same(x)
    return ops.elementwise(e.absolute, "absolute", x)


abs = absolute


def fabs(x: ArrayLike, /) -> Array:
    """Return the absolute value of real x, as floating-point numbers."""
    return ops.floating(e.absolute, "fabs", x)


def sign(x: ArrayLike, /) -> Array:
    """Return the sign of x: -1, 0 or 1, in the dtype of x.

    For complex x, it is x / abs(x), and 0 for 0.
    """
    if ops.type_of_operand("sign", x).dtype in dtypes.COMPLEX:
        size = absolute(x)
        is_zero = ops.elementwise(discrete.eq, "sign", size, 0)
        # Divide 0 by 1, not by 0, which would give NaN.
        safe = ops.elementwise(e.add, "sign", size, ops.convert(is_zero, size.dtype))
        zero = ops.scalar(0, ops.type_of_operand("sign", x).dtype)
        return apply(e.select, is_zero, zero, divide(x, safe))
    return ops.elementwise(e.sign, "sign", x)


def square(x: ArrayLike, /) -> Array:
    """Return x * x, elementwise; bools give int8."""
    return ops.elementwise(e.square, "square", x, dtype=_number("square", x))


def reciprocal(x: ArrayLike, /) -> Array:
    """Return 1 / x, elementwise; integers are divided as integers, towards zero."""
    if ops.type_of_operand("reciprocal", x).dtype in dtypes.INEXACT:
        return ops.elementwise(e.reciprocal, "reciprocal", x)
    one = ops.scalar(1, _number("reciprocal", x))
    # Division towards zero differs from floor_divide only for x < -1, where it gives 0.
    quotient = ops.elementwise(
        e.floor_divide, "reciprocal", one, x, dtype=_number("reciprocal", x)
    )
    below = ops.elementwise(discrete.lt, "reciprocal", x, -1) if _signed(x) else False
    zero = ops.scalar(0, _number("reciprocal", x))
    return apply(e.select, below, zero, quotient)


def sqrt(x: ArrayLike, /) -> Array:
    """Return the square root, elementwise; NaN for negative real x.

    Integers give floats.
    """
    return ops.floating(special.sqrt, "sqrt", x)


def cbrt(x: ArrayLike, /) -> Array:
    """Return the real cube root, elementwise; integers give floats."""
    return ops.floating(special.cbrt, "cbrt", x)


def hypot(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the square root of x**2 + y**2, without intermediate overflow.

    Integers give floats.
    """
    return ops.floating(e.hypot, "hypot", x, y)


def maximum(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the larger of x and y, elementwise; NaN if either is NaN.

    Complex numbers are ordered by their real parts, then by their imaginary parts.
    """
    return ops.elementwise(
        e.maximum,
        "maximum",
        x,
        y,
        of_bools=discrete.bitwise_or,
        of_complex=lambda a, b: _chosen_complex(discrete.gt, a, b),
    )


def minimum(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the smaller of x and y, elementwise; NaN if either is NaN.

    Complex numbers are ordered by their real parts, then by their imaginary parts.
    """
    return ops.elementwise(
        e.minimum,
        "minimum",
        x,
        y,
        of_bools=discrete.bitwise_and,
        of_complex=lambda a, b: _chosen_complex(discrete.lt, a, b),
    )


def _chosen_complex(before: Primitive, a: ArrayLike, b: ArrayLike) -> Array:
    """Return ``a`` where it comes before ``b`` or is NaN, else ``b``, both complex.

    ``before`` is the comparison of real numbers, lt or gt. Complex numbers are compared
    by their real parts, then by their imaginary parts.
    """
    either, both = discrete.bitwise_or, discrete.bitwise_and
    (real_a, imag_a), (real_b, imag_b) = (
        (apply(c.real, x), apply(c.imag, x)) for x in (a, b)
    )
    tie = apply(discrete.eq, real_a, real_b)
    by_imag = apply(both, tie, apply(before, imag_a, imag_b))
    a_first = apply(either, apply(before, real_a, real_b), by_imag)
    # If one of the two is NaN, choose that one.
    b_is_number = apply(discrete.bitwise_not, apply(discrete.isnan, b))
    choose_a = apply(
        either, apply(discrete.isnan, a), apply(both, b_is_number, a_first)
    )
    return apply(e.select, choose_a, a, b)


def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the larger of ``x1`` and ``x2``, elementwise.

    If one of the two is NaN, the result is the other.
    """
    return _unless_nan(x1, x2, maximum(x1, x2))


def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the smaller of ``x1`` and ``x2``, elementwise.

    If one of the two is NaN, the result is the other.
    """
    return _unless_nan(x1, x2, minimum(x1, x2))


def _unless_nan(x: ArrayLike, y: ArrayLike, extreme: Array) -> Array:
    """Return ``extreme``, the maximum or minimum of x and y, but ignore NaN.

    Where one of x and y is NaN, the result is the other one.
    """
    dtype = extreme.dtype
    if dtype not in dtypes.INEXACT:
        return extreme
    (a, b), types, _ = ops.promoted("fmax", (x, y))
    a, b = ops.broadcast("fmax", (a, b), types)
    other = apply(e.select, apply(discrete.isnan, b), a, extreme)
    return apply(e.select, apply(discrete.isnan, a), b, other)


def copysign(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return x with the sign of y, elementwise; integers give floats."""
    return ops.floating(e.copysign, "copysign", x, y)


def heaviside(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the step function of x, elementwise: 0 for x < 0 and 1 for x > 0.

    It is y for x == 0, and NaN for NaN. Integers give floats.
    """
    x, y = ops.floated("heaviside", x, y)
    dtype = ops.type_of_operand("heaviside", x).dtype
    zero, one = ops.scalar(0, dtype), ops.scalar(1, dtype)
    step = apply(e.select, apply(discrete.gt, x, zero), one, zero)
    at_zero = apply(e.select, apply(discrete.eq, x, zero), y, step)
    return apply(e.select, apply(discrete.isnan, x), x, at_zero)


# Rounding. Integers are returned unchanged.


def floor(x: ArrayLike, /) -> Array:
    """Return the largest integer not above x, elementwise, in the dtype of x."""
    if ops.type_of_operand("floor", x).dtype not in dtypes.INEXACT:
        return ops.same(x)
    return ops.elementwise(discrete.floor, "floor", x)


def ceil(x: ArrayLike, /) -> Array:
    """Return the smallest integer not below x, elementwise, in the dtype of x."""
    if ops.type_of_operand("ceil", x).dtype not in dtypes.INEXACT:
        return ops.same(x)
    return ops.elementwise(discrete.ceil, "ceil", x)


def trunc(x: ArrayLike, out: None = None) -> Array:
    """Round x towards zero, elementwise, in the dtype of x.

    Raises ArgumentError if ``out`` is given.
    """
    ops.refuse_out("trunc", out)
    if ops.type_of_operand("trunc", x).dtype not in dtypes.INEXACT:
        return ops.same(x)
    return ops.elementwise(discrete.trunc, "trunc", x)


fix = trunc


def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """Round ``a`` to ``decimals`` decimal places, in the dtype of ``a``.

    A tie is rounded to the even digit. Negative ``decimals`` round to tens, hundreds
    and so on. Both parts of a complex number are rounded. Raises ArgumentError if
    ``out`` is given.
    """
    ops.refuse_out("round", out)
    decimals = ops.whole(decimals)
    dtype = ops.type_of_operand("round", a).dtype
    if dtype in dtypes.COMPLEX:
        return apply(c.make_complex, *(round(p, decimals) for p in (real(a), imag(a))))
    if dtype not in dtypes.FLOATS:
        return ops.same(a) if decimals >= 0 else _rounded_integers(a, decimals)
    if decimals == 0:
        return ops.elementwise(discrete.round, "round", a)
    scale = 10.0 ** np.abs(decimals)
    before, after = (multiply, divide) if decimals > 0 else (divide, multiply)
    return after(
        ops.elementwise(discrete.round, "round", before(a, scale.item())), scale.item()
    )


around = round


def rint(x: ArrayLike, /) -> Array:
    """Round x to the nearest integer, elementwise; integers give floats.

    A tie is rounded to the even integer. Both parts of a complex x are rounded.
    """
    if ops.type_of_operand("rint", x).dtype in dtypes.COMPLEX:
        return round(x)
    return ops.floating(discrete.round, "rint", x)


def _rounded_integers(x: ArrayLike, decimals: int) -> Array:
    """Round integers x to the nearest multiple of 10**-decimals, for decimals < 0."""
    scale = 10**-decimals
    whole = ops.elementwise(discrete.round, "round", divide(x, scale))
    return ops.convert(multiply(whole, float(scale)), x.dtype)


def clip(
    a: ArrayLike,
    min: ArrayLike | None = None,
    max: ArrayLike | None = None,
    out: None = None,
    *,
    a_min: ArrayLike | None = None,
    a_max: ArrayLike | None = None,
) -> Array:
    """Limit ``a`` to [min, max], elementwise; None is no limit.

    The result has the dtype and shape to which ``a`` and the limits promote and
    broadcast. ``a_min`` and ``a_max`` are NumPy's older names. At a limit the
    derivative is 1/2, like that of ``maximum`` and ``minimum``. The derivative of
    ``lax.clamp`` is 0 there. Raises ArgumentError if ``out`` is given.
    """
    ops.refuse_out("clip", out)
    low = a_min if min is None else min
    high = a_max if max is None else max
    if low is None:
        return ops.same(a) if high is None else minimum(a, high)
    if high is None:
        return maximum(a, low)
    if ops.is_number(a):  # `a` takes the dtype of both limits at once
        (a, low, high), _, _ = ops.promoted("clip", (a, low, high))
    return minimum(maximum(a, low), high)


# Complex numbers.


def real(val: ArrayLike) -> Array:
    """Return the real part of ``val``, or ``val`` itself if it is real."""
    if ops.type_of_operand("real", val).dtype not in dtypes.COMPLEX:
        return ops.same(val)
    return ops.elementwise(c.real, "real", val)


def imag(val: ArrayLike) -> Array:
    """Return the imaginary part of ``val``; zeros of its dtype if ``val`` is real."""
    dtype = ops.type_of_operand("imag", val).dtype
    if dtype in dtypes.COMPLEX:
        return ops.elementwise(c.imag, "imag", val)
    return ops.full(0, ops.type_of_operand("imag", val).shape, dtype, val)


def conj(x: ArrayLike, /) -> Array:
    """Return the complex conjugate of x, or x itself if it is real."""
    if ops.type_of_operand("conj", x).dtype not in dtypes.COMPLEX:
        return ops.same(x)
    return ops.elementwise(c.conj, "conj", x)


conjugate = conj


def angle(z: ArrayLike, deg: bool = False) -> Array:
    """Return the angle of complex z in radians, within (-pi, pi].

    With ``deg``, it is in degrees.
    """
    value = ops.floating(special.atan2, "angle", imag(z), real(z))
    return multiply(value, 180.0 / np.pi) if deg else value


def _number(name: str, *operands: ArrayLike) -> DType:
    """Return the promoted dtype; int8 instead of bool, as in NumPy's arithmetic.

    Errors call the function ``name``.
    """
    dtype = ops.common_dtype(name, operands)
    return dtypes.int8 if dtype == dtypes.bool_ else dtype


def _signed(x: ArrayLike) -> bool:
    """Return whether the dtype of x is a signed integer's."""
    return (x.dtype if ops.is_array(x) else _number("abs", x)) in dtypes.SIGNED
