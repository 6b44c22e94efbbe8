"""Logistic functions, entropies, Box-Cox transformations and Bessel functions."""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import bessel
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.primitives import special
from arrayfn.transforms.custom import SymbolicZero, custom_jvp


def expit(x: ArrayLike) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return ops.floating(special.logistic, "expit", x)


def logit(x: ArrayLike) -> Array:
    """Return log(x / (1 - x)), the inverse of expit, also accurate near 1/2.

    Between 0.3 and 0.65, it is log1p((2 x - 1) / (1 - x)), and elsewhere log(x) -
    log1p(-x).
    """
    (x,) = floats("logit", x)
    # Near 1/2 both x - 1/2 and the quotient's distance from 1 are exact.
    middle = anp.logical_and(anp.greater(x, 0.3), anp.less(x, 0.65))
    near = anp.where(middle, x, 0.5)
    far = anp.where(middle, 0.5, x)
    ratio = anp.divide(anp.multiply(2.0, anp.subtract(near, 0.5)), 1.0 - near)
    outside = anp.subtract(anp.log(far), anp.log1p(anp.negative(far)))
    return anp.where(middle, anp.log1p(ratio), outside)


def log_expit(x: ArrayLike) -> Array:
    """Return the logarithm of expit, -log(1 + exp(-x)), without overflow."""
    return anp.negative(anp.logaddexp(anp.negative(x), 0.0))


# Products with logarithms, 0 for a factor of 0.


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x log(y), which is 0 for x = 0 (unless y is NaN)."""
    return _xlogy(*floats("xlogy", x, y))


@custom_jvp
def _xlogy(x: Array, y: Array) -> Array:
    """Return x log(y), which is 0 for x = 0 unless y is NaN."""
    zero = anp.logical_and(anp.equal(x, 0), anp.logical_not(anp.isnan(y)))
    return anp.where(zero, 0, anp.multiply(x, anp.log(anp.where(zero, 1, y))))


def _xlogy_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return x log(y) and its tangent, log(y) dx + x / y dy.

    A symbolic zero tangent adds no term, because 0 times an infinite derivative is NaN.
    At x = y = 0, the derivative by y is 0.
    """
    (x, y), (dx, dy) = primals, tangents
    slope: Any = anp.zeros_like(x)
    if not isinstance(dx, SymbolicZero):
        slope = anp.add(slope, anp.multiply(anp.log(y), dx))
    if not isinstance(dy, SymbolicZero):
        both = anp.logical_and(anp.equal(x, 0), anp.equal(y, 0))
        by_y = anp.divide(x, anp.where(both, 1, y))
        slope = anp.add(slope, anp.multiply(by_y, dy))
    return _xlogy(x, y), slope


# A zero tangent must not be multiplied by an infinite derivative.
_xlogy.defjvp(_xlogy_jvp, symbolic_zeros=True)


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x log(1 + y), which is 0 for x = 0 (unless y is NaN)."""
    return _xlog1py(*floats("xlog1py", x, y))


@custom_jvp
def _xlog1py(x: Array, y: Array) -> Array:
    """Return x log(1 + y), which is 0 for x = 0 unless y is NaN."""
    zero = anp.logical_and(anp.equal(x, 0), anp.logical_not(anp.isnan(y)))
    return anp.where(zero, 0, anp.multiply(x, anp.log1p(anp.where(zero, 0, y))))


def _xlog1py_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return x log(1 + y) and its tangent, log(1 + y) dx + x / (1 + y) dy.

    Symbolic zeros are handled as in ``_xlogy_jvp``. At x = 0 and y = -1, the derivative
    by y is 0.
    """
    (x, y), (dx, dy) = primals, tangents
    slope: Any = anp.zeros_like(x)
    if not isinstance(dx, SymbolicZero):
        slope = anp.add(slope, anp.multiply(anp.log1p(y), dx))
    if not isinstance(dy, SymbolicZero):
        both = anp.logical_and(anp.equal(x, 0), anp.equal(y, -1))
        by_y = anp.divide(x, anp.add(anp.where(both, 0, y), 1))
        slope = anp.add(slope, anp.multiply(by_y, dy))
    return _xlog1py(x, y), slope


_xlog1py.defjvp(_xlog1py_jvp, symbolic_zeros=True)


def entr(x: ArrayLike) -> Array:
    """Return -x log(x).

    The result is 0 at 0, where the derivative is infinite. For negative x the result is
    -inf.
    """
    (x,) = floats("entr", x)
    negative = anp.less(x, 0)
    safe = anp.where(negative, 1, x)
    return anp.where(negative, -math.inf, anp.subtract(0.0, _xlogx(safe)))


@custom_jvp
def _xlogx(x: Array) -> Array:
    """Return x log(x), which is 0 for x = 0.

    ``_xlogy.function`` is the function without its rule of differentiation: this
    function has its own.
    """
    return _xlogy.function(x, x)


@_xlogx.defjvp
def _xlogx_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return x log(x) and its derivative, log(x) + 1."""
    (x,), (dx,) = primals, tangents
    return _xlogx(x), anp.multiply(anp.add(anp.log(x), 1), dx)


@quiet
def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """Return p log(p / q) for positive p and q, accurate for p near q.

    The result is 0 for p = 0 and q >= 0, and otherwise infinite.
    """
    return _rel_entr(*floats("rel_entr", p, q))


@custom_jvp
def _rel_entr(x: Array, y: Array) -> Array:
    """Return x log(x / y) for positive x and y.

    Elsewhere, it is 0 for x = 0 and y >= 0, NaN if x or y is NaN, and infinite
    otherwise.
    """
    both = anp.logical_and(anp.greater(x, 0), anp.greater(y, 0))
    a, b = anp.where(both, x, 1), anp.where(both, y, 1)
    value = anp.multiply(a, _log_ratio(a, b))
    is_zero = anp.logical_and(anp.equal(x, 0), anp.greater_equal(y, 0))
    unknown = anp.logical_or(anp.isnan(x), anp.isnan(y))
    outside = anp.where(unknown, math.nan, anp.where(is_zero, 0, math.inf))
    return anp.where(both, value, anp.astype(outside, value.dtype))


def _rel_entr_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return x log(x / y) and its tangent, (log(x / y) + 1) dx - x / y dy.

    Symbolic zeros are handled as in ``_xlogy_jvp``.
    """
    (x, y), (dx, dy) = primals, tangents
    both = anp.logical_and(anp.greater(x, 0), anp.greater(y, 0))
    a, b = anp.where(both, x, 1), anp.where(both, y, 1)
    # At y = 0 the derivatives are infinite, as in the limit y -> 0. Elsewhere outside
    # the domain the value is constant.
    border = anp.logical_and(anp.greater(x, 0), anp.equal(y, 0))
    infinite = anp.astype(anp.where(border, math.inf, 0.0), a.dtype)
    slope: Any = anp.zeros_like(a)
    if not isinstance(dx, SymbolicZero):
        by_x = anp.where(both, anp.add(_log_ratio(a, b), 1), infinite)
        slope = anp.add(slope, anp.multiply(by_x, dx))
    if not isinstance(dy, SymbolicZero):
        by_y = anp.where(both, anp.divide(a, b), infinite)
        slope = anp.subtract(slope, anp.multiply(by_y, dy))
    return _rel_entr(x, y), slope


_rel_entr.defjvp(_rel_entr_jvp, symbolic_zeros=True)


def _log_ratio(x: Array, y: Array) -> Array:
    """Return log(x / y) for positive x and y.

    For a ratio in (1/2, 2), it is log1p((x - y) / y), whose difference is exact. If the
    ratio overflows or underflows, it is log(x) - log(y).
    """
    ratio = anp.divide(x, y)
    near = anp.logical_and(anp.greater(ratio, 0.5), anp.less(ratio, 2))
    tiny = float(anp.finfo(x.dtype).tiny)
    is_normal = anp.logical_and(anp.greater(ratio, tiny), anp.less(ratio, math.inf))
    a, b = anp.where(near, x, 1), anp.where(near, y, 1)
    from_difference = anp.log1p(anp.divide(anp.subtract(a, b), b))
    c, d = anp.where(is_normal, x, 1), anp.where(is_normal, y, 1)
    from_ratio = anp.where(
        is_normal, anp.log(anp.divide(c, d)), anp.log(x) - anp.log(y)
    )
    return anp.where(near, from_difference, from_ratio)


@quiet
def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """Return p log(p / q) - p + q, whose sum is the Kullback-Leibler divergence."""
    p, q = floats("kl_div", p, q)
    value = rel_entr(p, q)
    # For infinite p or q, the result would be a difference of infinities.
    unknown = anp.logical_and(anp.greater(p, 0), anp.greater(q, 0))
    unknown = anp.logical_and(unknown, anp.logical_or(anp.isinf(p), anp.isinf(q)))
    value = anp.where(unknown, math.nan, value)
    infinite = anp.isinf(value)
    difference = anp.subtract(anp.where(infinite, 0, q), anp.where(infinite, 0, p))
    return anp.add(value, difference)


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Return (x**lmbda - 1) / lmbda, or log(x) for lmbda = 0."""
    x, lmbda = floats("boxcox", x, lmbda)
    return _power_of_exponential(anp.log(x), lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Return ((1 + x)**lmbda - 1) / lmbda, or log(1 + x) for lmbda = 0."""
    x, lmbda = floats("boxcox1p", x, lmbda)
    return _power_of_exponential(anp.log1p(x), lmbda)


def _power_of_exponential(log: Array, lmbda: Array) -> Array:
    """Return (exp(log)**lmbda - 1) / lmbda, or ``log`` for lmbda = 0.

    With t = lmbda log, it is log (exp(t) - 1) / t by the series for |t| < 1/2, and
    expm1(t) / lmbda elsewhere. The series also gives the derivative by lmbda at 0. For
    lmbda = 0 and infinite ``log``, t is NaN and is replaced by 0.
    """
    exponent = anp.multiply(lmbda, log)
    infinite_log = anp.logical_and(anp.equal(lmbda, 0), anp.isinf(log))
    near = anp.logical_or(anp.less(anp.absolute(exponent), 0.5), infinite_log)
    # (exp(t) - 1) / t near 0 by its series, which has the right derivative by lmbda.
    t = anp.where(anp.logical_and(near, anp.logical_not(infinite_log)), exponent, 0)
    series: Array = anp.multiply(t, _EXPONENTIAL[-1])
    for coefficient in reversed(_EXPONENTIAL[:-1]):
        series = anp.add(series, coefficient)
        # The last coefficient added is 1, and has no factor t.
        if coefficient != 1.0:
            series = anp.multiply(series, t)
    from_series = anp.multiply(anp.where(near, log, 0), series)
    divisor = anp.where(near, 1, lmbda)
    return anp.where(near, from_series, anp.divide(anp.expm1(exponent), divisor))


# Coefficients of the series of (exp(t) - 1) / t.
_EXPONENTIAL = tuple(1 / math.factorial(k + 1) for k in range(15))


# Modified Bessel functions.


def i0(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the first kind of order 0."""
    return bessel.i0(x)


def i0e(x: ArrayLike) -> Array:
    """Return exp(-abs(x)) i0(x), without overflow."""
    return bessel.bessel_i0e(x)


def i1(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the first kind of order 1."""
    return bessel.i1(x)


def i1e(x: ArrayLike) -> Array:
    """Return exp(-abs(x)) i1(x), without overflow."""
    return bessel.bessel_i1e(x)


__all__ = [
    "boxcox",
    "boxcox1p",
    "entr",
    "expit",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_expit",
    "logit",
    "rel_entr",
    "xlog1py",
    "xlogy",
]
