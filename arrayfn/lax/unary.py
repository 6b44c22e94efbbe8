"""Elementwise functions of one operand.

The operand is an array or a Python number. The result has its shape, and its dtype
unless the function says otherwise. Each function raises DTypeError for dtypes that it
does not take.
"""

from __future__ import annotations

from arrayfn import dtypes
from arrayfn import numpy as anp
from arrayfn.lax._operands import elementwise
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import complex_numbers as c
from arrayfn.primitives import discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import special as s


def _is_complex(name: str, x: ArrayLike) -> bool:
    """Return whether x has a complex dtype; ``name`` is the caller's, for errors."""
    return ops.type_of_operand(name, x).dtype in dtypes.COMPLEX


def _complex_of(x: ArrayLike) -> dtypes.DType:
    """Return the complex dtype whose parts hold the numbers of real x."""
    real = ops.type_of_operand("conj", x).dtype
    return dtypes.complex64 if real == dtypes.float32 else dtypes.complex128


def abs(x: ArrayLike) -> Array:
    """Return the absolute value of x; that of a complex number is real."""
    return anp.absolute(x) if _is_complex("abs", x) else elementwise(e.absolute, x)


def acos(x: ArrayLike) -> Array:
    """Return the angle in radians, from 0 to pi, whose cosine is x."""
    return elementwise(s.acos, x)


def acosh(x: ArrayLike) -> Array:
    """Return the inverse of the hyperbolic cosine at x."""
    return elementwise(s.acosh, x)


def asin(x: ArrayLike) -> Array:
    """Return the angle in radians, from -pi/2 to pi/2, whose sine is x."""
    return elementwise(s.asin, x)


def asinh(x: ArrayLike) -> Array:
    """Return the inverse of the hyperbolic sine at x."""
    return elementwise(s.asinh, x)


def atan(x: ArrayLike) -> Array:
    """Return the angle in radians, from -pi/2 to pi/2, whose tangent is x."""
    return elementwise(s.atan, x)


def atanh(x: ArrayLike) -> Array:
    """Return the inverse of the hyperbolic tangent at x."""
    return elementwise(s.atanh, x)


def bitwise_not(x: ArrayLike) -> Array:
    """Return x with all bits flipped; of bools, logical not."""
    return elementwise(discrete.bitwise_not, x)


def cbrt(x: ArrayLike) -> Array:
    """Return the real cube root of x."""
    return elementwise(s.cbrt, x)


def ceil(x: ArrayLike) -> Array:
    """Return the smallest integer that is not below x, in the dtype of x."""
    return elementwise(discrete.ceil, x)


def clz(x: ArrayLike) -> Array:
    """Return the number of leading zero bits of x, in the dtype of x."""
    return elementwise(discrete.clz, x)


def conj(x: ArrayLike) -> Array:
    """Return the complex conjugate of x; the result is complex even for real x."""
    if not _is_complex("conj", x):
        x = anp.add(x, anp.zeros((), _complex_of(x)))
    return elementwise(c.conj, x)


def cos(x: ArrayLike) -> Array:
    """Return the cosine of x in radians."""
    return elementwise(s.cos, x)


def cosh(x: ArrayLike) -> Array:
    """Return the hyperbolic cosine of x."""
    return elementwise(s.cosh, x)


def digamma(x: ArrayLike) -> Array:
    """Return the derivative of ``lgamma`` at x."""
    return elementwise(s.digamma, x)


def erf(x: ArrayLike) -> Array:
    """Return the error function of x."""
    return elementwise(s.erf, x)


def erf_inv(x: ArrayLike) -> Array:
    """Return the inverse of ``erf`` at x."""
    return elementwise(s.erfinv, x)


def erfc(x: ArrayLike) -> Array:
    """Return 1 - erf(x), which is accurate for large x."""
    return elementwise(s.erfc, x)


def exp(x: ArrayLike) -> Array:
    """Return e to the power x."""
    return elementwise(s.exp, x)


def exp2(x: ArrayLike) -> Array:
    """Return 2 to the power x."""
    return anp.exp2(x) if _is_complex("exp2", x) else elementwise(s.exp2, x)


def expm1(x: ArrayLike) -> Array:
    """Return exp(x) - 1, which is accurate near 0."""
    return elementwise(s.expm1, x)


def floor(x: ArrayLike) -> Array:
    """Return the largest integer that is not above x, in the dtype of x."""
    return elementwise(discrete.floor, x)


def imag(x: ArrayLike) -> Array:
    """Return the imaginary part of complex x, which is real."""
    return elementwise(c.imag, x)


def is_finite(x: ArrayLike) -> Array:
    """Return whether x is neither infinite nor NaN, as bools."""
    return elementwise(discrete.isfinite, x)


def lgamma(x: ArrayLike) -> Array:
    """Return the logarithm of the absolute value of the gamma function at x."""
    return elementwise(s.lgamma, x)


def log(x: ArrayLike) -> Array:
    """Return the natural logarithm of x."""
    return elementwise(s.log, x)


def log1p(x: ArrayLike) -> Array:
    """Return log(1 + x), which is accurate near 0."""
    return elementwise(s.log1p, x)


def logistic(x: ArrayLike) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    if _is_complex("logistic", x):
        return anp.reciprocal(anp.add(1, anp.exp(anp.negative(x))))
    return elementwise(s.logistic, x)


def neg(x: ArrayLike) -> Array:
    """Return -x."""
    return elementwise(e.neg, x)


def population_count(x: ArrayLike) -> Array:
    """Return the number of bits that are set in x, in the dtype of x."""
    return elementwise(discrete.population_count, x)


def real(x: ArrayLike) -> Array:
    """Return the real part of complex x."""
    return elementwise(c.real, x)


def reciprocal(x: ArrayLike) -> Array:
    """Return 1 / x."""
    return elementwise(e.reciprocal, x)


def rsqrt(x: ArrayLike) -> Array:
    """Return 1 / sqrt(x)."""
    return elementwise(s.rsqrt, x)


def sign(x: ArrayLike) -> Array:
    """Return the sign of real x: -1, 0 or 1; NaN for NaN."""
    return elementwise(e.sign, x)


def sin(x: ArrayLike) -> Array:
    """Return the sine of x in radians."""
    return elementwise(s.sin, x)


def sinh(x: ArrayLike) -> Array:
    """Return the hyperbolic sine of x."""
    return elementwise(s.sinh, x)


def sqrt(x: ArrayLike) -> Array:
    """Return the square root of x."""
    return elementwise(s.sqrt, x)


def square(x: ArrayLike) -> Array:
    """Return x * x."""
    return elementwise(e.square, x)


def tan(x: ArrayLike) -> Array:
    """Return the tangent of x in radians."""
    return elementwise(s.tan, x)


def tanh(x: ArrayLike) -> Array:
    """Return the hyperbolic tangent of x."""
    return elementwise(s.tanh, x)
