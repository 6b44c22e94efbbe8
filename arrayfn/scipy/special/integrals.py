"""Exponential, sine and cosine integrals, and the dilogarithm.

Numerical Recipes, section 6.3, and Abramowitz and Stegun, chapter 5: power series near
0, continued fractions elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.lax.special_convergence import continued_fraction, series
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import horner, in_float64, quiet
from arrayfn.transforms.custom import custom_jvp

_EULER = 0.57721566490153286
# Coefficients B(2k) / (2k + 1)! of Debye's series of the dilogarithm, k from 1.
_DEBYE = (
    1 / 36,
    -1 / 3600,
    1 / 211680,
    -1 / 10886400,
    1 / 526901760,
    -4.0647616451442255e-11,
    8.921691020456452e-13,
    -1.9939295860721074e-14,
    4.518980029619918e-16,
    -1.0356517612182471e-17,
)


@quiet
def exp1(x: ArrayLike) -> Array:
    """Return the integral of exp(-t) / t from x to infinity, for x >= 0.

    It is NaN for x < 0.
    """
    (x,), dtype = in_float64("exp1", x)
    return ops.convert(_exp1(x), dtype)


@quiet
def expn(n: ArrayLike, x: ArrayLike) -> Array:
    """Return the integral of exp(-x t) / t**n over t > 1.

    n must be an integer >= 0, and x >= 0; otherwise it is NaN.
    """
    (n, x), dtype = in_float64("expn", n, x)
    return ops.convert(_expn(n, x), dtype)


@quiet
def expi(x: ArrayLike) -> Array:
    """Return the integral of exp(t) / t from minus infinity to x.

    It is the principal value. The relative error is 1e-15. Near the zero at 0.3725,
    this is the absolute error.
    """
    (x,), dtype = in_float64("expi", x)
    return ops.convert(_expi(x), dtype)


@quiet
def sici(x: ArrayLike) -> tuple[Array, Array]:
    """Return the integrals of sin(t) / t from 0 to x, and of cos(t) / t from infinity.

    The second integral is that of abs(x), as in SciPy. It is -inf at 0 and NaN at -inf.
    """
    (x,), dtype = in_float64("sici", x)
    return ops.convert(_si(x), dtype), ops.convert(_ci(x), dtype)


@quiet
def spence(x: ArrayLike) -> Array:
    """Return the dilogarithm of 1 - x.

    It is the integral of log(t) / (1 - t) from 1 to x >= 0, and NaN for x < 0.
    """
    (x,), dtype = in_float64("spence", x)
    return ops.convert(_spence(x), dtype)


# Exponential integrals.


def _tail(n: ArrayLike, x: Array) -> Array:
    """Return expn(n, x) for x > 1 by its continued fraction.

    The fraction is exp(-x) / (x + n - 1 n / (x + n + 2 - 2 (n + 1) / (x + n + 4 -
    ...))) (A and S 5.1.22, contracted). It is evaluated from the last term: this damps
    rounding errors, which add up when starting from the first term. After k terms the
    fraction is within exp(-4 sqrt(k x)) of its limit.
    """
    needed = anp.where(x > 1.0, anp.ceil(_TAIL_TERMS / x), 0.0)  # 0 for NaN
    count = anp.max(needed, initial=0.0) + 3.0

    def step(state: Any) -> Any:
        """Put part k of the fraction around the parts after it."""
        k, fraction = state
        before = x + n + 2.0 * (k - 1.0)
        return k - 1.0, before - k * (n + (k - 1.0)) / fraction

    start = (count, x + n + 2.0 * count)
    _, fraction = lax.while_loop(lambda state: state[0] > 0.5, step, start)
    return anp.exp(-x) / fraction


_TAIL_TERMS = 90.0


@custom_jvp
def _exp1(x: Array) -> Array:
    """Return the exponential integral E1(x), infinite at 0 and NaN for x < 0.

    Up to 1, it is -gamma - log(x) - sum((-x)**k / (k k!)), with Euler's constant gamma.
    Beyond 1, it is a continued fraction.
    """
    near = x <= 1.0
    small = anp.where(near & (x > 0), x, 1.0)
    total = _series_of_expi(-small)
    below = -_EULER - anp.log(small) - total
    value = anp.where(near, below, _tail(1.0, anp.where(near, 2.0, x)))
    value = anp.where(x == math.inf, 0.0, value)
    value = anp.where(x == 0, math.inf, value)
    return anp.where(x >= 0, value, math.nan)


@_exp1.defjvp
def _exp1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return E1(x) and its derivative, -exp(-x) / x."""
    (x,), (dx,) = primals, tangents
    return _exp1(x), -anp.exp(-x) / x * dx


def _series_of_expi(x: Array) -> Array:
    """Return the sum of x**k / (k k!) over k >= 1."""
    return series(x, lambda k: x * k / ((k + 1.0) * (k + 1.0)))


@custom_jvp
def _expi(x: Array) -> Array:
    """Return the exponential integral Ei(x).

    It is -E1(-x) for negative x, gamma + log(x) + sum(x**k / (k k!)) up to 40, and
    exp(x) / x sum(k! / x**k) beyond.
    """
    below = -_exp1.function(anp.where(x < 0, -x, 1.0))
    near = (x > 0) & (x <= 40.0)
    a = anp.where(near, x, 1.0)
    middle = _EULER + anp.log(a) + _series_of_expi(a)
    b = anp.where(x > 40.0, x, 40.0)
    total: Any = 1.0
    for k in range(39, 0, -1):
        total = 1.0 + (float(k) / b) * total
    # exp overflows slightly before the quotient does.
    half = anp.exp(0.5 * b)
    far = half / b * total * half
    value = anp.where(x < 0, below, anp.where(near, middle, far))
    value = anp.where(x == math.inf, math.inf, value)
    value = anp.where(x == 0, -math.inf, value)
    return anp.where(anp.isnan(x), x, value)


@_expi.defjvp
def _expi_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Ei(x) and its derivative, exp(x) / x."""
    (x,), (dx,) = primals, tangents
    return _expi(x), anp.exp(x) / x * dx


@custom_jvp
def _expn(n: Array, x: Array) -> Array:
    """Return the exponential integral En(x), for integers n >= 0 and x >= 0.

    Up to x = 1, it is a series, and beyond, a continued fraction. E0(x) is exp(-x) / x,
    and En(0) is 1 / (n - 1), infinite for n <= 1. For other n or x, it is NaN.
    """
    near = x <= 1.0
    # n = 0 has another formula.
    order = anp.maximum(n, 1.0)
    small = anp.where(near & (x > 0), x, 1.0)
    below = _expn_series(order, small)
    above = _tail(order, anp.where(near, 2.0, x))
    value = anp.where(near, below, above)
    at_zero = anp.where(n > 1, 1.0 / anp.where(n > 1, n - 1.0, 1.0), math.inf)
    value = anp.where(x == 0, at_zero, value)
    value = anp.where((n == 0) & (x > 0), anp.exp(-_or_one(x)) / _or_one(x), value)
    value = anp.where(x == math.inf, 0.0, value)
    valid = (n >= 0) & (anp.rint(n) == n) & (x >= 0)
    return anp.where(valid, value, math.nan)


def _or_one(x: Array) -> Array:
    """Return x if it is positive, else 1."""
    return anp.where(x > 0, x, 1.0)


def _expn_series(n: Array, x: Array) -> Array:
    """Return En(x) for n >= 1 and x <= 1 (A and S 5.1.12).

    It is the sum of -(-x)**m / ((m - n + 1) m!) over m except n - 1, plus the term
    (-x)**(n - 1) / (n - 1)! (digamma(n) - log(x)).
    """
    total: Any = 0.0
    term: Any = anp.ones_like(x)
    for m in range(22):
        divisor = n - (m + 1.0)
        total = total + anp.where(
            divisor == 0, 0.0, term / anp.where(divisor == 0, 1.0, divisor)
        )
        term = term * (-x / (m + 1.0))
    log_size = (n - 1.0) * anp.log(x) - lax.lgamma(n)
    sign = 2.0 * anp.remainder(n, 2.0) - 1.0
    special_term = sign * anp.exp(log_size) * (lax.digamma(n) - anp.log(x))
    return total + special_term


@_expn.defjvp
def _expn_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return En(x) and its derivative by x, -E(n - 1)(x).

    The integer order has no derivative. For order 0, it is -exp(-x) (1 / x + 1 / x**2).
    """
    (n, x), (_, dx) = primals, tangents
    inverse = 1.0 / x
    first = anp.exp(-x) * inverse * (1.0 + inverse)
    slope = anp.where(n == 0, first, _expn(anp.maximum(n - 1.0, 0.0), x))
    return _expn(n, x), -slope * dx


# Sine and cosine integrals.


def _auxiliary(a: Array) -> tuple[Array, Array]:
    """Return Si(a) - pi / 2 and Ci(a) for a > 4.

    They are the imaginary part and minus the real part of E1(i a), by its continued
    fraction.
    """
    z = anp.multiply(a, ops.scalar(1j, dtypes.complex128))
    # 0.0 * z gives the numerators the shape and dtype of z.
    fraction = continued_fraction(
        z + 1.0, lambda k: (-k * k + 0.0 * z, z + 1.0 + 2.0 * k)
    )
    value = anp.exp(-z) / fraction
    return anp.imag(value), -anp.real(value)


@custom_jvp
def _si(x: Array) -> Array:
    """Return the sine integral Si(x), an odd function.

    Up to 4, it is the sum of (-1)**k x**(2 k + 1) / ((2 k + 1) (2 k + 1)!).
    """
    a = anp.abs(x)
    near = a <= 4.0
    b = anp.where(near, a, 0.0)
    below = series(
        b,
        lambda n: (
            -b * b * (2.0 * n - 1.0) / (2.0 * n * (2.0 * n + 1.0) * (2.0 * n + 1.0))
        ),
    )
    far = anp.where(near | (a == math.inf), 5.0, a)
    difference, _ = _auxiliary(far)  # Si - pi / 2, and Ci
    above = anp.where(a == math.inf, 0.0, difference) + 0.5 * math.pi
    value = anp.where(near, below, above)
    return anp.where(anp.isnan(x), x, anp.where(x < 0, -value, value))


@_si.defjvp
def _si_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Si(x) and its derivative, sin(x) / x."""
    (x,), (dx,) = primals, tangents
    zero = x == 0
    slope = anp.where(zero, 1.0, anp.sin(x) / anp.where(zero, 1.0, x))
    return _si(x), slope * dx


@custom_jvp
def _ci(x: Array) -> Array:
    """Return the cosine integral Ci(|x|), -inf at 0 and NaN at -inf.

    Up to 4, it is gamma + log(x) + the sum of (-1)**k x**(2 k) / (2 k (2 k)!) over k >=
    1, with Euler's constant gamma.
    """
    a = anp.abs(x)
    near = a <= 4.0
    b = anp.where(near & (a > 0), a, 1.0)
    total = series(
        -0.25 * b * b,
        lambda n: -b * b * (2.0 * n) / ((2.0 * n + 1.0) * (2.0 * n + 2.0) ** 2),
    )
    below = _EULER + anp.log(b) + total
    far = anp.where(near | (a == math.inf), 5.0, a)
    _, ci = _auxiliary(far)
    above = anp.where(a == math.inf, 0.0, ci)
    value = anp.where(a == 0, -math.inf, anp.where(near, below, above))
    return anp.where(anp.isnan(x) | (x == -math.inf), math.nan, value)


@_ci.defjvp
def _ci_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Ci(x) and its derivative, cos(x) / x."""
    (x,), (dx,) = primals, tangents
    return _ci(x), anp.cos(x) / x * dx


# The dilogarithm.


@custom_jvp
def _spence(x: Array) -> Array:
    """Return Spence's function, the integral of log(t) / (1 - t) from 1 to x.

    From 1/2 to 2, it is Debye's series in u = -log(z): u - u**2 / 4 + the sum of B(2 k)
    / (2 k + 1)! u**(2 k + 1). Smaller x are reflected to 1 - x, and larger x go to 1 -
    1 / x (DLMF 25.12.4 and 25.12.6).
    """
    inside = (x > 0) & (x < math.inf)
    y = anp.where(inside, x, 1.0)
    small, large = y < 0.5, y > 2.0
    inverse = 1.0 / anp.where(large, y, 2.0)
    z = anp.where(small, 1.0 - y, anp.where(large, 1.0 - inverse, y))
    u = -anp.log(z)
    square = u * u
    center = u - 0.25 * square + u * square * horner(square, _DEBYE)
    log = anp.log(y)
    reflected = math.pi**2 / 6 - log * anp.log1p(-anp.where(small, y, 0.0)) - center
    inverted = center - 0.5 * log * log - math.pi**2 / 6 - log * anp.log1p(-inverse)
    value = anp.where(small, reflected, anp.where(large, inverted, center))
    value = anp.where(x == 0, math.pi**2 / 6, value)
    value = anp.where(x == math.inf, -math.inf, value)
    return anp.where(x >= 0, value, math.nan)


@_spence.defjvp
def _spence_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Spence's function and its derivative, log(x) / (1 - x)."""
    (x,), (dx,) = primals, tangents
    one = x == 1
    slope = anp.where(one, -1.0, anp.log(x) / anp.where(one, 1.0, 1.0 - x))
    return _spence(x), slope * dx


__all__ = ["exp1", "expi", "expn", "sici", "spence"]
