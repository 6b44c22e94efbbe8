"""Functions of ``scipy.special`` that need a few steps, accurate near their zeros.

Angles in degrees, powers and exponentials less 1, loss functions of robust statistics,
binomial coefficients of real numbers.
"""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.error_functions import ndtri
from arrayfn.scipy.special.gamma_functions import (
    beta,
    gammaln,
    gammasgn,
    is_nonpositive_integer,
)
from arrayfn.scipy.special.gaussian_integrals import dawsn
from arrayfn.transforms.custom import custom_jvp

cbrt = anp.cbrt
exp2 = anp.exp2
expm1 = anp.expm1
log1p = anp.log1p
sinc = anp.sinc


def exp10(x: ArrayLike) -> Array:
    """Raise 10 to the power x."""
    (x,), dtype = in_float64("exp10", x)
    return ops.convert(anp.power(10.0, x), dtype)


def cosm1(x: ArrayLike) -> Array:
    """Return cos(x) - 1, also accurate near 0, by -2 sin(x / 2)**2."""
    (x,), dtype = in_float64("cosm1", x)
    return ops.convert(-2.0 * anp.square(anp.sin(0.5 * x)), dtype)


@quiet
def powm1(x: ArrayLike, y: ArrayLike) -> Array:
    """Return x**y - 1, also accurate if the result is near 0.

    If |y log(x)| < 1/2, it is expm1(y log(x)).
    """
    (x, y), dtype = in_float64("powm1", x, y)
    exponent = y * anp.log(anp.where(x > 0, x, 1.0))
    near = (x > 0) & (anp.abs(exponent) < 0.5)
    value = anp.where(near, anp.expm1(exponent), anp.power(x, y) - 1.0)
    return ops.convert(value, dtype)


@quiet
def exprel(x: ArrayLike) -> Array:
    """Return (exp(x) - 1) / x, which is 1 at 0 and infinite at infinity."""
    (x,), dtype = in_float64("exprel", x)
    small = anp.abs(x) < 1e-5
    safe = anp.where(small, 1.0, x)
    series = 1.0 + 0.5 * x * (1.0 + x / 3.0)
    far = anp.where(x == math.inf, math.inf, anp.expm1(safe) / safe)
    return ops.convert(anp.where(small, series, far), dtype)


# Angles in degrees.


def _quarters(x: Array) -> tuple[Array, Array]:
    """Split ``x`` degrees into quarter circles and a rest in [-45, 45] degrees.

    The number of quarter circles is modulo 4.
    """
    circle = anp.fmod(x, 360.0)
    quarters = anp.rint(circle / 90.0)
    return anp.remainder(quarters, 4.0), circle - 90.0 * quarters


def _sine(quarters: Array, rest: Array) -> Array:
    """Return the sine of ``quarters`` quarter circles plus ``rest`` degrees.

    An odd number of quarters exchanges sine and cosine, and two or three change the
    sign.
    """
    odd = anp.remainder(quarters, 2.0) == 1.0
    angle = rest * (math.pi / 180.0)
    size = anp.where(odd, anp.cos(angle), anp.sin(angle))
    return anp.where(quarters >= 2.0, -size, size)


def sindg(x: ArrayLike) -> Array:
    """Return the sine of ``x`` degrees, exact at multiples of 90."""
    (x,), dtype = in_float64("sindg", x)
    return ops.convert(_sine(*_quarters(x)), dtype)


def cosdg(x: ArrayLike) -> Array:
    """Return the cosine of ``x`` degrees, exact at multiples of 90.

    It is the sine of one quarter circle more.
    """
    (x,), dtype = in_float64("cosdg", x)
    quarters, rest = _quarters(x)
    return ops.convert(_sine(anp.remainder(quarters + 1.0, 4.0), rest), dtype)


def _tangents(rest: Array) -> tuple[Array, Array]:
    """Return the tangent of ``rest`` degrees and its inverse, the cotangent.

    The tangent is exact at 45. The cotangent of 0 is 1; callers replace it.
    """
    tangent = anp.tan(rest * (math.pi / 180.0))
    tangent = anp.where(anp.abs(rest) == 45.0, anp.sign(rest), tangent)
    return tangent, 1.0 / anp.where(rest == 0, 1.0, tangent)


@quiet
def tandg(x: ArrayLike) -> Array:
    """Return the tangent of ``x`` degrees; it is infinite at odd multiples of 90."""
    (x,), dtype = in_float64("tandg", x)
    quarters, rest = _quarters(x)
    tangent, cotangent = _tangents(rest)
    # tan(x + 90 degrees) = -cot(x)
    beyond = anp.where(rest == 0, math.inf, -cotangent)
    odd = anp.remainder(quarters, 2.0) == 1.0
    return ops.convert(anp.where(odd, beyond, tangent), dtype)


@quiet
def cotdg(x: ArrayLike) -> Array:
    """Return the cotangent of ``x`` degrees; it is infinite at multiples of 180."""
    (x,), dtype = in_float64("cotdg", x)
    quarters, rest = _quarters(x)
    tangent, cotangent = _tangents(rest)
    even = anp.where(rest == 0, math.inf, cotangent)
    odd = anp.remainder(quarters, 2.0) == 1.0
    return ops.convert(anp.where(odd, -tangent, even), dtype)


def radian(d: ArrayLike, m: ArrayLike, s: ArrayLike) -> Array:
    """Convert ``d`` degrees, ``m`` minutes and ``s`` seconds to radians."""
    (d, m, s), dtype = in_float64("radian", d, m, s)
    return ops.convert((d + m / 60.0 + s / 3600.0) * (math.pi / 180.0), dtype)


# Losses, transformations of data.


@quiet
def huber(delta: ArrayLike, r: ArrayLike) -> Array:
    """Return r**2 / 2 up to abs(r) = delta, and a line beyond.

    The result is infinite for negative delta.
    """
    (delta, r), dtype = in_float64("huber", delta, r)
    size = anp.abs(r)
    value = anp.where(size <= delta, 0.5 * r * r, delta * (size - 0.5 * delta))
    return ops.convert(anp.where(delta < 0, math.inf, value), dtype)


@quiet
def pseudo_huber(delta: ArrayLike, r: ArrayLike) -> Array:
    """Return delta**2 (sqrt(1 + (r / delta)**2) - 1), a smooth ``huber``.

    The result is infinite for negative delta.
    """
    (delta, r), dtype = in_float64("pseudo_huber", delta, r)
    positive = anp.where(delta <= 0, 1.0, delta)
    square = anp.square(r / positive)
    # sqrt(1 + s) - 1 = s / (1 + sqrt(1 + s)), which does not cancel near 0.
    root = anp.sqrt(1.0 + square)
    share = anp.where(square < 1.0, square / (1.0 + root), root - 1.0)
    value = positive * positive * share
    value = anp.where((delta == 0) | (r == 0), 0.0, value)
    return ops.convert(anp.where(delta < 0, math.inf, value), dtype)


@quiet
def inv_boxcox(y: ArrayLike, lmbda: ArrayLike) -> Array:
    """Return the inverse of ``boxcox``.

    It is (lmbda y + 1)**(1 / lmbda), or exp(y) for lmbda = 0.
    """
    (y, lmbda), dtype = in_float64("inv_boxcox", y, lmbda)
    return ops.convert(anp.exp(_log_inverse(y, lmbda)), dtype)


@quiet
def inv_boxcox1p(y: ArrayLike, lmbda: ArrayLike) -> Array:
    """Return the inverse of ``boxcox1p``: ``inv_boxcox`` - 1, also accurate near 0."""
    (y, lmbda), dtype = in_float64("inv_boxcox1p", y, lmbda)
    return ops.convert(anp.expm1(_log_inverse(y, lmbda)), dtype)


def _log_inverse(y: Array, lmbda: Array) -> Array:
    """Return log(lmbda y + 1) / lmbda, or y for lmbda = 0."""
    product = y * lmbda
    product = anp.where(lmbda == 0, 0.0, product)  # also for infinite y
    tiny = anp.abs(product) < 1e-8
    safe = anp.where(tiny, 1.0, lmbda)
    # log(1 + u) / lmbda is y (1 - u / 2) for small u.
    return anp.where(tiny, y * (1.0 - 0.5 * product), anp.log1p(product) / safe)


# Of the gamma, zeta and error functions.


@quiet
def rgamma(x: ArrayLike) -> Array:
    """Return 1 / gamma(x), which is 0 at the poles of gamma.

    It is the sign of gamma times exp(-log |gamma|).
    """
    (x,), dtype = in_float64("rgamma", x)
    pole = is_nonpositive_integer(x)
    safe = anp.where(pole, 1.0, x)
    return ops.convert(
        anp.where(pole, 0.0, gammasgn(safe) * anp.exp(-gammaln(safe))), dtype
    )


@quiet
def binom(n: ArrayLike, k: ArrayLike) -> Array:
    """Return the binomial coefficient n over k of real numbers.

    It is 1 / ((n + 1) beta(1 + n - k, 1 + k)), rounded if n and k are integers, and NaN
    for negative integers n.
    """
    (n, k), dtype = in_float64("binom", n, k)
    whole = anp.floor(k) == k
    # A falling factorial over a factorial vanishes for integers k < 0 or k > n.
    none = whole & ((k < 0) | ((anp.floor(n) == n) & (k > n)))
    safe: Any = anp.where(none, 0.0, k)
    value = 1.0 / ((n + 1.0) * beta(1.0 + n - safe, 1.0 + safe))
    rounded = anp.where(
        (anp.floor(n) == n) & whole & (value < 1e14), anp.rint(value), value
    )
    value = anp.where(none, 0.0, rounded)
    value = anp.where(anp.isnan(n), n, value)
    return ops.convert(anp.where((n < 0) & (anp.floor(n) == n), math.nan, value), dtype)


def erfcinv(y: ArrayLike) -> Array:
    """Return the inverse of ``erfc``, for y between 0 and 2.

    It is -ndtri(y / 2) / sqrt(2).
    """
    return anp.multiply(-math.sqrt(0.5), ndtri(anp.multiply(0.5, y)))


@quiet
def erfi(z: ArrayLike) -> Array:
    """Return the imaginary error function -i erf(i z) of real z.

    It is 2 / sqrt(pi) exp(z**2) dawsn(z), and infinite for |z| > 30.
    """
    (z,), dtype = in_float64("erfi", z)
    return ops.convert(_erfi(z), dtype)


@custom_jvp
def _erfi(z: Array) -> Array:
    """Return ``erfi`` of a float64 array."""
    value = 2.0 / math.sqrt(math.pi) * anp.exp(z * z) * dawsn(z)
    far = anp.abs(z) > 30.0
    return anp.where(far, anp.copysign(math.inf, z), value)


@_erfi.defjvp
def _erfi_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return erfi(z) and its derivative, 2 / sqrt(pi) exp(z**2)."""
    (z,), (dz,) = primals, tangents
    return _erfi(z), 2.0 / math.sqrt(math.pi) * anp.exp(z * z) * dz


__all__ = [
    "binom",
    "cbrt",
    "cosdg",
    "cosm1",
    "cotdg",
    "erfcinv",
    "erfi",
    "exp2",
    "exp10",
    "expm1",
    "exprel",
    "huber",
    "inv_boxcox",
    "inv_boxcox1p",
    "log1p",
    "powm1",
    "pseudo_huber",
    "radian",
    "rgamma",
    "sinc",
    "sindg",
    "tandg",
]
