"""Dawson's integral, the Fresnel integrals, and Owen's function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.lax.special_convergence import continued_fraction, series
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import exact_product, in_float64, quiet
from arrayfn.primitives import special
from arrayfn.scipy.special.error_functions import exp_of_square
from arrayfn.tracing import apply
from arrayfn.transforms.custom import custom_jvp

# From here on, 24 terms of the asymptotic series of Dawson's integral suffice.
_DAWSON_BORDER = 7.0
_FRESNEL_BORDER = 1.5  # a continued fraction replaces the power series
# From here on, the Fresnel integrals are 1/2 in float64, and numbers multiples of 4.
_FRESNEL_END = 2.0**54
# exp(-x**2 / 2) is negligible from here on.
_GAUSSIAN_END = 9.0
# Gauss-Legendre nodes and weights on [-1, 1], for Owen's integral.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


@quiet
def dawsn(x: ArrayLike) -> Array:
    """Return exp(-x**2) times the integral of exp(t**2) from 0 to x, within 2e-15."""
    (x,), dtype = in_float64("dawsn", x)
    return ops.convert(_dawsn(x), dtype)


@custom_jvp
def _dawsn(x: Array) -> Array:
    """Return Dawson's integral by its power series, or for |x| >= 7 asymptotically."""
    a = anp.abs(x)
    far = a >= _DAWSON_BORDER
    b = anp.where(far | anp.isnan(a), 0.0, a)
    square = b * b
    # x exp(-x**2) times the sum of x**(2 k) / (k! (2 k + 1)), all positive.
    total = series(
        anp.ones_like(b),
        lambda k: square / k * ((2.0 * k - 1.0) / (2.0 * k + 1.0)),
    )
    below = b * exp_of_square(b, -1.0) * total
    # 1 / (2 x) times the sum of (2 k - 1)!! / (2 x**2)**k, by Horner's scheme.
    c = anp.where(far, a, _DAWSON_BORDER)
    inverse = 0.5 / (c * c)
    tail: Any = 1.0
    for k in range(24, 0, -1):
        tail = 1.0 + (2.0 * k - 1.0) * inverse * tail
    value = anp.where(far, 0.5 / c * tail, below)
    return anp.where(anp.isnan(x), x, anp.copysign(value, x))


@_dawsn.defjvp
def _dawsn_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return dawsn(x) and its derivative, 1 - 2 x dawsn(x)."""
    (x,), (dx,) = primals, tangents
    value = _dawsn(x)
    return value, (1.0 - 2.0 * x * value) * dx


@quiet
def fresnel(x: ArrayLike) -> tuple[Array, Array]:
    """Return the integrals of sin and of cos of pi t**2 / 2 from 0 to x.

    The method is a power series near 0 and a continued fraction elsewhere (Numerical
    Recipes, section 6.8).
    """
    (x,), dtype = in_float64("fresnel", x)
    return ops.convert(_sine(x), dtype), ops.convert(_cosine(x), dtype)


def _near(a: Array) -> tuple[Array, Array]:
    """Return b and pi b**2 / 2, where b is ``a`` below 1.5, else 0.

    The power series uses b.
    """
    b = anp.where(a < _FRESNEL_BORDER, a, 0.0)
    return b, 0.5 * math.pi * b * b


def _phase(x: Array) -> Array:
    """Return pi x**2 / 2 up to a multiple of 2 pi, without cancellation for large x."""
    x = anp.where(anp.abs(x) < _FRESNEL_END, x, 0.0 * x)
    square, error = exact_product(x, x)
    return 0.5 * math.pi * (anp.remainder(square, 4.0) + error)


def _far(a: Array) -> tuple[Array, Array]:
    """Return both Fresnel integrals, S and C, of ``a`` >= 1.5.

    With z = (1 - i) sqrt(pi) a / 2, C + i S = (1 + i) / 2 erf(z), and erfc is computed
    by its continued fraction (Numerical Recipes, section 6.8). Both are 1/2 at
    infinity.
    """
    used = (a >= _FRESNEL_BORDER) & (a < _FRESNEL_END)
    b = anp.where(used, a, _FRESNEL_BORDER)
    square = math.pi * b * b
    i = ops.as_array(ops.scalar(1j, dtypes.complex128))
    whole = 1.0 - i * square
    # 0.0 * whole gives the numerators the shape and dtype of ``whole``.
    fraction = continued_fraction(
        whole, lambda n: (-(2.0 * n - 1.0) * (2.0 * n) + 0.0 * whole, whole + 4.0 * n)
    )
    wave = anp.exp(i * _phase(b)) * b * (1.0 - 1.0 * i) / fraction
    both = (0.5 + 0.5 * i) * (1.0 - wave)
    at_end = a >= _FRESNEL_END
    return (
        anp.where(at_end, 0.5, anp.imag(both)),
        anp.where(at_end, 0.5, anp.real(both)),
    )


def _signed(x: Array, near: Array, far: Array) -> Array:
    """Choose ``near`` for |x| < 1.5, else ``far``, and give it the sign of x."""
    a = anp.abs(x)
    value = anp.where(a < _FRESNEL_BORDER, near, far)
    return anp.where(anp.isnan(x), x, anp.copysign(value, x))


@custom_jvp
def _sine(x: Array) -> Array:
    """Return the Fresnel integral S(x), an odd function."""
    b, t = _near(anp.abs(x))  # t = pi b**2 / 2, with b = |x| below 1.5, else 0
    # The sum of (-1)**k t**(2 k + 1) / ((2 k + 1)! (4 k + 3)), times b. ``series``
    # takes the first term, and the quotient of terms k and k - 1.
    total = series(
        b * t / 3.0,
        lambda k: (
            -t * t * (4.0 * k - 1.0) / (2.0 * k * (2.0 * k + 1.0) * (4.0 * k + 3.0))
        ),
    )
    far, _ = _far(anp.abs(x))  # S and C for |x| >= 1.5
    return _signed(x, total, far)


@custom_jvp
def _cosine(x: Array) -> Array:
    """Return the Fresnel integral C(x), an odd function."""
    b, t = _near(anp.abs(x))  # t = pi b**2 / 2, with b = |x| below 1.5, else 0
    # The sum of (-1)**k t**(2 k) / ((2 k)! (4 k + 1)), times b. ``series`` takes the
    # first term, and the quotient of terms k and k - 1.
    total = series(
        b,
        lambda k: (
            -t * t * (4.0 * k - 3.0) / (2.0 * k * (2.0 * k - 1.0) * (4.0 * k + 1.0))
        ),
    )
    _, far = _far(anp.abs(x))  # S and C for |x| >= 1.5
    return _signed(x, total, far)


@_sine.defjvp
def _sine_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return S(x) and its derivative, sin(pi x**2 / 2)."""
    (x,), (dx,) = primals, tangents
    return _sine(x), anp.sin(_phase(x)) * dx


@_cosine.defjvp
def _cosine_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return C(x) and its derivative, cos(pi x**2 / 2)."""
    (x,), (dx,) = primals, tangents
    return _cosine(x), anp.cos(_phase(x)) * dx


@quiet
def owens_t(h: ArrayLike, a: ArrayLike) -> Array:
    """Return the probability of X > h and 0 < Y < a X for standard normal X and Y.

    The method is Gauss-Legendre quadrature of Owen's integral (Tables for computing
    bivariate normal probabilities, 1956). The absolute error is below 1e-15.
    """
    (h, a), dtype = in_float64("owens_t", h, a)
    return ops.convert(_owens_t(h, a), dtype)


@custom_jvp
def _owens_t(h: Array, a: Array) -> Array:
    """Return Owen's T(h, a), by quadrature for abs(a) up to 1.

    For steeper a, T(h, a) + T(a h, 1 / a) = Q(h) / 2 + Q(a h) / 2 - Q(h) Q(a h), where
    Q is the upper tail of the normal distribution. T is even in h and odd in a.
    """
    x, slope = anp.abs(h), anp.abs(a)
    steep = slope > 1.0
    flat = anp.where(steep, 1.0 / anp.where(steep, slope, 1.0), slope)
    scaled = anp.where(steep & (x > 0), x * slope, x)
    quadrature = _owens_quadrature(anp.where(steep, scaled, x), flat)
    tail, other = _upper(x), _upper(scaled)
    value = anp.where(
        steep, 0.5 * (tail + other) - tail * other - quadrature, quadrature
    )
    value = anp.where(a < 0, -value, value)
    return anp.where(anp.isnan(h) | anp.isnan(a), math.nan, value)


def _upper(x: Array) -> Array:
    """Return the probability that a standard normal variable is above x."""
    return apply(special.ndtr, -x)


def _owens_quadrature(h: Array, a: Array) -> Array:
    """Return Owen's function for h >= 0 and a in [0, 1].

    It is the integral of exp(-h**2 (1 + x**2) / 2) / (2 pi (1 + x**2)) over x from 0 to
    a. Gauss-Legendre quadrature has 48 nodes, on a new last axis, and ends where the
    integrand is negligible.
    """
    end = anp.minimum(a, _GAUSSIAN_END / anp.maximum(h, 1.0))
    half = anp.expand_dims(0.5 * end, -1)
    x = half * (_NODES + 1.0)
    square = 1.0 + x * x
    height = anp.expand_dims(-0.5 * h * h, -1)
    values = anp.exp(height * square) / square
    return 0.5 * end * anp.sum(values * _WEIGHTS, -1) / (2.0 * math.pi)


@_owens_t.defjvp
def _owens_t_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return T(h, a) and its derivatives by h and by a.

    By h it is -density(h) erf(a h / sqrt(2)) / 2, and by a it is exp(-h**2 (1 + a**2) /
    2) / (2 pi (1 + a**2)).
    """
    (h, a), (dh, da) = primals, tangents
    density = anp.exp(-0.5 * h * h) / math.sqrt(2.0 * math.pi)
    by_h = -0.5 * density * apply(special.erf, a * h * math.sqrt(0.5))
    square = 1.0 + a * a
    by_a = anp.exp(-0.5 * h * h * square) / (2.0 * math.pi * square)
    return _owens_t(h, a), by_h * dh + by_a * da


__all__ = ["dawsn", "fresnel", "owens_t"]
