"""Error functions, and the normal distribution function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.lowering.scalars.error_functions import ERFCX, ERFCX_CENTER
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.double_precision import horner, in_float64, quiet
from arrayfn.primitives import special
from arrayfn.tracing import apply
from arrayfn.transforms.custom import custom_jvp

_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO = math.sqrt(2.0)
_ROOT_PI = math.sqrt(math.pi)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def erf(x: ArrayLike) -> Array:
    """Return 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    return ops.floating(special.erf, "erf", x)


def erfc(x: ArrayLike) -> Array:
    """Return 1 - erf(x), accurate for large x."""
    return ops.floating(special.erfc, "erfc", x)


@quiet
def erfcx(x: ArrayLike) -> Array:
    """Return exp(x**2) erfc(x), without underflow or overflow for positive x.

    The error is below 1e-15.
    """
    (x,), dtype = in_float64("erfcx", x)
    return ops.convert(_erfcx(x), dtype)


def erfinv(x: ArrayLike) -> Array:
    """Return the inverse of erf; it is infinite at -1 and 1, and NaN outside."""
    return ops.floating(special.erfinv, "erfinv", x)


def wofz(z: ArrayLike) -> Array:
    """Return the Faddeeva function exp(-z**2) erfc(-i z) of complex z.

    The method is the rational approximation of Weideman (Computation of the complex
    error function, 1994), in the upper half plane. In the lower one, w(z) = 2
    exp(-z**2) - w(-z). The relative error is below 1e-13 in the upper half plane.
    """
    type = ops.type_of_operand("wofz", z)
    narrow = type.dtype in (dtypes.complex64, dtypes.float32)
    x = anp.astype(z, dtypes.complex128)
    upper = anp.imag(x) >= 0
    w = anp.where(upper, x, -x)
    i = ops.as_array(ops.scalar(1j, dtypes.complex128))
    denominator = _WOFZ_SCALE - i * w
    # w = 2 sum(a[k] ratio**k) / (L - i z)**2 + 1 / (sqrt(pi) (L - i z)), for the scale
    # L.
    ratio = (_WOFZ_SCALE + i * w) / denominator
    value = (
        2.0 * horner(ratio, _WOFZ) / (denominator * denominator)
        + (1.0 / _ROOT_PI) / denominator
    )
    value = anp.where(upper, value, 2.0 * anp.exp(-x * x) - value)
    return ops.convert(value, dtypes.complex64 if narrow else dtypes.complex128)


def _wofz_coefficients(count: int) -> tuple[float, tuple[float, ...]]:
    """Return Weideman's scale L and his ``count`` coefficients.

    The coefficients are the discrete Fourier transform of exp(-t**2) (L**2 + t**2) at t
    = L tan(angle / 2), for 4 ``count`` angles.
    """
    points = 2 * count
    scale = math.sqrt(count / math.sqrt(2.0))
    angle = np.arange(-points + 1, points) * (math.pi / points)
    t = scale * np.tan(0.5 * angle)
    values = np.concatenate([[0.0], np.exp(-t * t) * (scale * scale + t * t)])
    transform = np.fft.fft(np.fft.fftshift(values)).real / (2 * points)
    return scale, tuple(float(a) for a in transform[1 : count + 1])


_WOFZ_SCALE, _WOFZ = _wofz_coefficients(64)


def ndtr(x: ArrayLike) -> Array:
    """Return the distribution function of the standard normal distribution.

    The error is at most 2 ulp, in the lower tail too.
    """
    return ops.floating(special.ndtr, "ndtr", x)


@quiet
@also_takes("series_order")
def log_ndtr(x: ArrayLike) -> Array:
    """Return the logarithm of ``ndtr``, accurate to 1e-15 in both tails."""
    (x,), dtype = in_float64("log_ndtr", x)
    return ops.convert(_log_ndtr(x), dtype)


@quiet
def ndtri(p: ArrayLike) -> Array:
    """Return the inverse of ``ndtr``, accurate to 1e-15, also for tiny p.

    It is infinite at 0 and 1, and NaN outside of [0, 1].
    """
    (p,), dtype = in_float64("ndtri", p)
    return ops.convert(_ndtri(p), dtype)


def _erfcx_positive(a: Array) -> Array:
    """Return exp(a**2) erfc(a) for a >= 0.

    Up to 28, it is 1 / (1 + 2 a) times a polynomial in (a - center) / (a + center).
    Beyond 28, it is the asymptotic series (DLMF 7.12.1).
    """
    center = ERFCX_CENTER["f64"]
    near = anp.minimum(a, 28.0)
    inside = horner((near - center) / (near + center), ERFCX["f64"]) / (
        1.0 + 2.0 * near
    )
    far = anp.where(a > 28.0, a, 28.0)
    inverse = 0.5 / (far * far)
    total: Any = 1.0
    for odd in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        total = 1.0 - odd * inverse * total
    return anp.where(a > 28.0, total / (_ROOT_PI * far), inside)


def exp_of_square(x: Array, factor: float) -> Array:
    """Return exp(factor * x**2), without the rounding error of the square.

    With ``top``, x rounded to a multiple of 1/16, x**2 is top**2, which is exact, plus
    (x - top) (x + top), which is small. ``x`` is clipped to [-40, 40], where the result
    has long overflowed or underflowed.
    """
    bounded = anp.clip(x, -40.0, 40.0)
    top = anp.rint(bounded * 16.0) * 0.0625
    rest = (bounded - top) * (bounded + top)
    return anp.exp(factor * top * top) * anp.exp(factor * rest)


@custom_jvp
def _erfcx(x: Array) -> Array:
    """Return exp(x**2) erfc(x).

    For negative x, it is 2 exp(x**2) - erfcx(-x).
    """
    positive = _erfcx_positive(anp.abs(x))
    value = anp.where(x < 0, 2.0 * exp_of_square(x, 1.0) - positive, positive)
    return anp.where(anp.isnan(x), x, value)


@_erfcx.defjvp
def _erfcx_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return erfcx(x) and its derivative, 2 x erfcx(x) - 2 / sqrt(pi)."""
    (x,), (dx,) = primals, tangents
    value = _erfcx(x)
    return value, (2.0 * x * value - 2.0 / _ROOT_PI) * dx


@custom_jvp
def _log_ndtr(x: Array) -> Array:
    """Return the logarithm of the normal distribution function.

    Below -1, it is log(erfcx(-x / sqrt(2)) / 2) - x**2 / 2. Above, it is log1p of minus
    the upper tail.
    """
    negative = anp.minimum(x, -1.0)
    scaled = _erfcx_positive(-_ROOT_HALF * negative)
    below = anp.log(0.5 * scaled) - 0.5 * negative * negative
    above = anp.maximum(x, -1.0)
    tail = 0.5 * apply(special.erfc, _ROOT_HALF * above)
    value = anp.where(x < -1.0, below, anp.log1p(-tail))
    return anp.where(anp.isnan(x), x, value)


@_log_ndtr.defjvp
def _log_ndtr_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return log_ndtr(x) and its derivative, density over distribution function."""
    (x,), (dx,) = primals, tangents
    return _log_ndtr(x), _hazard(x) * dx


@custom_jvp
def _hazard(x: Array) -> Array:
    """Return the normal density over the distribution function.

    It is the derivative of log_ndtr.
    """
    return math.sqrt(2.0 / math.pi) / _erfcx(-_ROOT_HALF * x)


@_hazard.defjvp
def _hazard_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the hazard h and its derivative, -h (x + h), which is 0 where h is 0."""
    (x,), (dx,) = primals, tangents
    value = _hazard(x)
    return value, anp.where(value == 0, 0.0, -value * (x + value)) * dx


@custom_jvp
def _ndtri(p: Array) -> Array:
    """Return the inverse of the normal distribution function; NaN outside of [0, 1].

    From 1/4 to 3/4, it is sqrt(2) erfinv(2 p - 1). In the tails, it is a rational
    approximation (Abramowitz and Stegun 26.2.23, within 5e-4) and three steps of
    Newton's method on the logarithm.
    """
    lower = anp.minimum(p, 1.0 - p)
    middle = _ROOT_TWO * apply(special.erfinv, 2.0 * anp.clip(p, 0.2, 0.8) - 1.0)
    tail = anp.where((lower > 0) & (lower < 0.3), lower, 0.1)
    log = anp.log(tail)
    t = anp.sqrt(-2.0 * log)
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    bottom = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    x = top / bottom - t
    for _ in range(3):
        x = x - (_log_ndtr.function(x) - log) / _hazard(x)
    value = anp.where(p < 0.5, x, -x)
    value = anp.where((p >= 0.25) & (p <= 0.75), middle, value)
    # Infinite at 0 and 1, and NaN outside, by an operation that checks can report.
    outside = anp.where(p < 0, -2.0, 2.0 * p - 1.0)
    ends = apply(special.erfinv, anp.where(lower > 0, 0.0, outside))
    return anp.where(lower > 0, value, ends)


@_ndtri.defjvp
def _ndtri_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return x = ndtri(p) and its derivative, 1 over the density at x."""
    (p,), (dp,) = primals, tangents
    x = _ndtri(p)
    return x, anp.exp(0.5 * x * x + _LOG_ROOT_TWO_PI) * dp


__all__ = ["erf", "erfc", "erfcx", "erfinv", "log_ndtr", "ndtr", "ndtri", "wofz"]
