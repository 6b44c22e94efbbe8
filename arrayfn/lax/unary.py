"""Elementwise functions of one operand.

Operands have one dtype, and one shape or rank 0; Python numbers take the dtype of the
others. The result has that dtype and shape.
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
    return ops.type_of_operand(name, x).dtype in dtypes.COMPLEX


def _complex_of(x: ArrayLike) -> dtypes.DType:
    real = ops.type_of_operand("conj", x).dtype
    return dtypes.complex64 if real == dtypes.float32 else dtypes.complex128


def abs(x: ArrayLike) -> Array:
    """The absolute value of x."""
    return anp.absolute(x) if _is_complex("abs", x) else elementwise(e.absolute, x)


def acos(x: ArrayLike) -> Array:
    """The angle whose cosine is x."""
    return elementwise(s.acos, x)


def acosh(x: ArrayLike) -> Array:
    """The inverse of the hyperbolic cosine."""
    return elementwise(s.acosh, x)


def asin(x: ArrayLike) -> Array:
    """The angle whose sine is x."""
    return elementwise(s.asin, x)


def asinh(x: ArrayLike) -> Array:
    """The inverse of the hyperbolic sine."""
    return elementwise(s.asinh, x)


def atan(x: ArrayLike) -> Array:
    """The angle whose tangent is x."""
    return elementwise(s.atan, x)


def atanh(x: ArrayLike) -> Array:
    """The inverse of the hyperbolic tangent."""
    return elementwise(s.atanh, x)


def bitwise_not(x: ArrayLike) -> Array:
    """The bits that are not set in x."""
    return elementwise(discrete.bitwise_not, x)


def cbrt(x: ArrayLike) -> Array:
    """The real cube root."""
    return elementwise(s.cbrt, x)


def ceil(x: ArrayLike) -> Array:
    """The smallest integer not below x."""
    return elementwise(discrete.ceil, x)


def clz(x: ArrayLike) -> Array:
    """The number of leading zero bits of x, in the dtype of x."""
    return elementwise(discrete.clz, x)


def conj(x: ArrayLike) -> Array:
    """The complex conjugate of x; the result is complex even for real x."""
    if not _is_complex("conj", x):
        x = anp.add(x, anp.zeros((), _complex_of(x)))
    return elementwise(c.conj, x)


def cos(x: ArrayLike) -> Array:
    """The cosine of x in radians."""
    return elementwise(s.cos, x)


def cosh(x: ArrayLike) -> Array:
    """The hyperbolic cosine."""
    return elementwise(s.cosh, x)


def digamma(x: ArrayLike) -> Array:
    """The derivative of lgamma."""
    return elementwise(s.digamma, x)


def erf(x: ArrayLike) -> Array:
    """The error function."""
    return elementwise(s.erf, x)


def erf_inv(x: ArrayLike) -> Array:
    """The inverse of erf."""
    return elementwise(s.erfinv, x)


def erfc(x: ArrayLike) -> Array:
    """Return 1 - erf(x), accurate for large x."""
    return elementwise(s.erfc, x)


def exp(x: ArrayLike) -> Array:
    """e to the power x."""
    return elementwise(s.exp, x)


def exp2(x: ArrayLike) -> Array:
    """2 to the power x."""
    return anp.exp2(x) if _is_complex("exp2", x) else elementwise(s.exp2, x)


def expm1(x: ArrayLike) -> Array:
    """exp(x) - 1, accurate near 0."""
    return elementwise(s.expm1, x)


def floor(x: ArrayLike) -> Array:
    """The largest integer not above x."""
    return elementwise(discrete.floor, x)


def imag(x: ArrayLike) -> Array:
    """The imaginary part of complex x."""
    return elementwise(c.imag, x)


def is_finite(x: ArrayLike) -> Array:
    """Whether x is neither infinite nor NaN: bool."""
    return elementwise(discrete.isfinite, x)


def lgamma(x: ArrayLike) -> Array:
    """The logarithm of the absolute value of the gamma function."""
    return elementwise(s.lgamma, x)


def log(x: ArrayLike) -> Array:
    """The natural logarithm."""
    return elementwise(s.log, x)


def log1p(x: ArrayLike) -> Array:
    """log(1 + x), accurate near 0."""
    return elementwise(s.log1p, x)


def logistic(x: ArrayLike) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    if _is_complex("logistic", x):
        return anp.reciprocal(anp.add(1, anp.exp(anp.negative(x))))
    return elementwise(s.logistic, x)


def neg(x: ArrayLike) -> Array:
    """-x."""
    return elementwise(e.neg, x)


def population_count(x: ArrayLike) -> Array:
    """The number of bits that are set in x, in the dtype of x."""
    return elementwise(discrete.population_count, x)


def real(x: ArrayLike) -> Array:
    """The real part of complex x."""
    return elementwise(c.real, x)


def reciprocal(x: ArrayLike) -> Array:
    """1 / x."""
    return elementwise(e.reciprocal, x)


def rsqrt(x: ArrayLike) -> Array:
    """1 / sqrt(x)."""
    return elementwise(s.rsqrt, x)


def sign(x: ArrayLike) -> Array:
    """The sign of x: -1, 0 or 1."""
    return elementwise(e.sign, x)


def sin(x: ArrayLike) -> Array:
    """The sine of x in radians."""
    return elementwise(s.sin, x)


def sinh(x: ArrayLike) -> Array:
    """The hyperbolic sine."""
    return elementwise(s.sinh, x)


def sqrt(x: ArrayLike) -> Array:
    """The square root."""
    return elementwise(s.sqrt, x)


def square(x: ArrayLike) -> Array:
    """x * x."""
    return elementwise(e.square, x)


def tan(x: ArrayLike) -> Array:
    """The tangent of x in radians."""
    return elementwise(s.tan, x)


def tanh(x: ArrayLike) -> Array:
    """The hyperbolic tangent."""
    return elementwise(s.tanh, x)
