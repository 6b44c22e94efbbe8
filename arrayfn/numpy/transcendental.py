"""Elementwise exponentials, logarithms and trigonometry; angles are in radians.

Floating-point x keeps its dtype; integers become floating-point as in NumPy.
"""

from __future__ import annotations

import math

from arrayfn import dtypes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import (
    absolute,
    add,
    ceil,
    divide,
    imag,
    multiply,
    negative,
    real,
    rint,
    subtract,
)
from arrayfn.numpy.comparison import (
    equal,
    greater,
    isinf,
    less_equal,
    logical_or,
    not_equal,
    where,
)
from arrayfn.primitives import complex_numbers, special
from arrayfn.tracing import apply


def exp(x: ArrayLike, /) -> Array:
    """Raise e to the power x, elementwise."""
    return ops.floating(special.exp, "exp", x)


def exp2(x: ArrayLike, /) -> Array:
    """Raise 2 to the power x, elementwise."""
    if ops.type_of_operand("exp2", x).dtype in dtypes.COMPLEX:
        return exp(_scaled(x, math.log(2.0)))
    return ops.floating(special.exp2, "exp2", x)


def expm1(x: ArrayLike, /) -> Array:
    """Return exp(x) - 1, elementwise, which is accurate near 0."""
    return ops.floating(special.expm1, "expm1", x)


def log(x: ArrayLike, /) -> Array:
    """Return the natural logarithm; it is -inf at 0 and NaN for negative numbers."""
    return ops.floating(special.log, "log", x)


def log2(x: ArrayLike, /) -> Array:
    """Return the logarithm of x to base 2, elementwise."""
    if ops.type_of_operand("log2", x).dtype in dtypes.COMPLEX:
        return _log_to_base(x, 2.0)
    return ops.floating(special.log2, "log2", x)


def log10(x: ArrayLike, /) -> Array:
    """Return the logarithm of x to base 10, elementwise."""
    if ops.type_of_operand("log10", x).dtype in dtypes.COMPLEX:
        return _log_to_base(x, 10.0)
    return ops.floating(special.log10, "log10", x)


def _log_to_base(x: ArrayLike, base: float) -> Array:
    """Return the logarithm of complex x to the real ``base``."""
    return _scaled(log(x), 1.0 / math.log(base))


def _scaled(x: ArrayLike, factor: float) -> Array:
    """Multiply complex x by a real factor, part by part.

    A product of complex numbers would turn infinite parts into NaN.
    """
    parts = [multiply(part, factor) for part in (real(x), imag(x))]
    return apply(complex_numbers.make_complex, *parts)


def log1p(x: ArrayLike, /) -> Array:
    """Return log(1 + x), elementwise, which is accurate near 0."""
    return ops.floating(special.log1p, "log1p", x)


def logaddexp(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return log(exp(x) + exp(y)), elementwise, without intermediate overflow.

    For complex numbers the result is the principal value.
    """
    if ops.common_dtype("logaddexp", (x, y)) in dtypes.COMPLEX:
        # The operands have just been checked, so floated needs no name for errors.
        return _complex_logaddexp(*(ops.as_array(v) for v in ops.floated("", x, y)))
    return ops.floating(special.logaddexp, "logaddexp", x, y)


def _complex_logaddexp(x: Array, y: Array) -> Array:
    """Return log(exp(x) + exp(y)) of complex numbers, as the principal value.

    Its imaginary part is within (-pi, pi].
    """
    first = greater(real(x), real(y))
    larger, smaller = where(first, x, y), where(first, y, x)
    # If both real parts are -inf, both exponentials are 0, but their difference is NaN.
    both_zero = equal(real(larger), -math.inf)
    difference = subtract(smaller, where(both_zero, 0, larger))
    value = add(larger, log1p(exp(difference)))
    # Move the imaginary part into (-pi, pi].
    periods = ceil(divide(subtract(imag(value), math.pi), 2 * math.pi))
    return subtract(value, multiply(periods, complex(0, 2 * math.pi)))


def logaddexp2(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return log2(2**x + 2**y), elementwise, without intermediate overflow."""
    log_of_two = math.log(2.0)
    # Promote first: a Python number that is multiplied alone becomes a float64 array.
    x, y = ops.floated("logaddexp2", x, y)
    scaled = multiply(x, log_of_two), multiply(y, log_of_two)
    return multiply(logaddexp(*scaled), 1.0 / log_of_two)


def sin(x: ArrayLike, /) -> Array:
    """Return the sine of x, elementwise."""
    return ops.floating(special.sin, "sin", x)


def cos(x: ArrayLike, /) -> Array:
    """Return the cosine of x, elementwise."""
    return ops.floating(special.cos, "cos", x)


def tan(x: ArrayLike, /) -> Array:
    """Return the tangent of x, elementwise."""
    return ops.floating(special.tan, "tan", x)


def arcsin(x: ArrayLike, /) -> Array:
    """Return the angle within [-pi/2, pi/2] whose sine is x, elementwise.

    It is NaN for real x outside [-1, 1].
    """
    return ops.floating(special.asin, "arcsin", x)


asin = arcsin


def arccos(x: ArrayLike, /) -> Array:
    """Return the angle within [0, pi] whose cosine is x, elementwise.

    It is NaN for real x outside [-1, 1].
    """
    return ops.floating(special.acos, "arccos", x)


acos = arccos


def arctan(x: ArrayLike, /) -> Array:
    """Return the angle within [-pi/2, pi/2] whose tangent is x."""
    return ops.floating(special.atan, "arctan", x)


atan = arctan


def arctan2(y: ArrayLike, x: ArrayLike, /) -> Array:
    """Return the angle within [-pi, pi] of the point (x, y)."""
    return ops.floating(special.atan2, "arctan2", y, x)


atan2 = arctan2


def sinh(x: ArrayLike, /) -> Array:
    """Return the hyperbolic sine of x, elementwise."""
    return ops.floating(special.sinh, "sinh", x)


def cosh(x: ArrayLike, /) -> Array:
    """Return the hyperbolic cosine of x, elementwise."""
    return ops.floating(special.cosh, "cosh", x)


def tanh(x: ArrayLike, /) -> Array:
    """Return the hyperbolic tangent of x, elementwise."""
    return ops.floating(special.tanh, "tanh", x)


def arcsinh(x: ArrayLike, /) -> Array:
    """Return the inverse of the hyperbolic sine at x, elementwise."""
    return ops.floating(special.asinh, "arcsinh", x)


asinh = arcsinh


def arccosh(x: ArrayLike, /) -> Array:
    """Return the inverse of the hyperbolic cosine at x, elementwise.

    The result is not negative. It is NaN for real x below 1.
    """
    return ops.floating(special.acosh, "arccosh", x)


acosh = arccosh


def arctanh(x: ArrayLike, /) -> Array:
    """Return the inverse of the hyperbolic tangent at x, elementwise.

    It is NaN for real x outside [-1, 1].
    """
    return ops.floating(special.atanh, "arctanh", x)


atanh = arctanh


def deg2rad(x: ArrayLike, /) -> Array:
    """Convert degrees to radians, elementwise."""
    return multiply(ops.as_floating("deg2rad", x), math.pi / 180.0)


radians = deg2rad


def rad2deg(x: ArrayLike, /) -> Array:
    """Convert radians to degrees, elementwise."""
    return multiply(ops.as_floating("rad2deg", x), 180.0 / math.pi)


degrees = rad2deg


def sinc(x: ArrayLike) -> Array:
    """Return sin(pi x) / (pi x), elementwise.

    The result is 1 at 0, and 0 at all other integers and at infinities. Near 0 the
    derivatives are those of the power series.
    """
    x = ops.as_array(ops.as_floating("sinc", x))
    if x.dtype in dtypes.COMPLEX:
        angle = multiply(x, math.pi)
        at_zero = equal(angle, 0)
        safe = where(at_zero, 1.0, angle)
        return where(at_zero, 1.0, divide(sin(safe), safe))
    near = less_equal(absolute(x), _SINC_BORDER)
    angle = multiply(where(near, x, 0.0), math.pi)
    squared = multiply(angle, angle)
    # Horner's rule. The constant term, 1, is added last.
    series: Array = multiply(squared, _SINC_SERIES[-1])
    for coefficient in reversed(_SINC_SERIES[1:-1]):
        series = multiply(squared, add(series, coefficient))
    # sin(pi x) is (-1)**n sin(pi (x - n)) for the nearest integer n; x - n is exact.
    far = where(logical_or(near, isinf(x)), 1.0, x)
    whole = rint(far)
    odd = not_equal(multiply(2.0, rint(multiply(0.5, whole))), whole)
    sine = sin(multiply(subtract(far, whole), math.pi))
    value = divide(divide(where(odd, negative(sine), sine), math.pi), far)
    return where(near, add(series, 1.0), value)


_SINC_BORDER = 0.25  # up to which the power series is used
_SINC_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(12))
