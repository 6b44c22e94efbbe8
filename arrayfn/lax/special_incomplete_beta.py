"""The regularized incomplete beta function."""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.lax.special_convergence import continued_fraction, stirling
from arrayfn.lax.unary import digamma, lgamma
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import exact_product, horner, in_float64, quiet
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import SymbolicZero, custom_jvp

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@quiet
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized incomplete beta function, elementwise.

    It is the integral of t**(a - 1) (1 - t)**(b - 1) from 0 to x, divided by the
    integral from 0 to 1. It is defined for positive a and b and x in [0, 1], and has
    limits if a or b is 0 or infinite. Elsewhere it is NaN. The operands are broadcast.
    They are computed in float64, and the result has the operands' floating-point dtype.
    The method is the continued fraction of DiDonato and Morris (Algorithm 708, 1992,
    equation 9). The derivatives with respect to a and b are those of the fraction.

    >>> betainc(2.0, 3.0, 0.5)
    array(0.6875)
    """
    (a, b, x), dtype = in_float64("betainc", a, b, x)
    return ops.convert(_betainc(a, b, x), dtype)


def log_beta(a: Array, b: Array) -> Array:
    """Return log(gamma(a) gamma(b) / gamma(a + b)) for positive float64 arrays."""
    return _log_beta(a, b)


@custom_jvp
def _log_beta(a: Array, b: Array) -> Array:
    """Compute ``log_beta``, without cancellation between large logarithms.

    If an operand is 10 or more, differences of lgamma are replaced by differences of
    Stirling's series, in which the large terms are already cancelled.
    """
    small, large = anp.minimum(a, b), anp.maximum(a, b)
    plain = (lgamma(small) - lgamma(small + large)) + lgamma(large)
    # Where the formulas below do not apply, give them the harmless operand 10.
    wide = anp.where(large >= _ASYMPTOTIC, large, _ASYMPTOTIC)
    ratio = small / wide
    tail = stirling(wide) - stirling(small + wide)
    log = anp.log1p(ratio)
    total = small + wide
    one_large = (
        lgamma(small) + tail - (wide - 0.5) * log - small * (anp.log(total) - 1.0)
    )
    narrow = anp.where(small >= _ASYMPTOTIC, small, _ASYMPTOTIC)
    both_large = (
        _HALF_LOG_TWO_PI
        - 0.5 * anp.log(wide)
        - (narrow - 0.5) * anp.log1p(wide / narrow)
        - wide * anp.log1p(narrow / wide)
        + (stirling(narrow) + stirling(wide) - stirling(narrow + wide))
    )
    value = anp.where(large >= _ASYMPTOTIC, one_large, plain)
    return anp.where(small >= _ASYMPTOTIC, both_large, value)


_ASYMPTOTIC = 10.0  # From here on, Stirling's series is accurate.


@_log_beta.defjvp
def _log_beta_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the value and its tangent; derivatives of lgamma are digamma."""
    (a, b), (da, db) = primals, tangents
    both = digamma(a + b)
    slope = (digamma(a) - both) * da + (digamma(b) - both) * db
    return _log_beta.function(a, b), slope  # the formula, without this rule


def _fraction(a: Array, b: Array, x: Array, y: Array, lam: Array) -> Array:
    """Return betainc(a, b, x) divided by x**a y**b / B(a, b), where y = 1 - x.

    This factor is a continued fraction. ``lam`` is a - (a + b) x, computed exactly by
    ``_distance``.
    """

    def denominator(n: Any, before: Array, after: Array) -> Array:
        """Return denominator n; before = a + 2n - 1, after = a + 2n + 1."""
        return (
            n + n * (b - n) * x / before + (a + n) / after * (lam + 1.0 + n * (1.0 + y))
        )

    def part(n: Any) -> tuple[Array, Array]:
        """Return numerator and denominator n of the fraction."""
        before, after = a + (2.0 * n - 1.0), a + (2.0 * n + 1.0)
        top = (a + (n - 1.0)) * (a + b + (n - 1.0)) * n * (b - n) * x * x
        return top / (before * before), denominator(n, before, after)

    # For n = 0 the term over ``before`` is 0. 1 replaces a - 1, which can be 0.
    first = denominator(0.0, anp.ones_like(a), a + 1.0)
    return 1.0 / continued_fraction(first, part)


def _distance(a: Array, b: Array, x: Array) -> Array:
    """Return a - (a + b) x with a small relative error.

    The terms nearly cancel for x near the mean a / (a + b). So the products are split
    into rounded values and exact errors, and the errors are subtracted last.
    """
    by_a, low_a = exact_product(a, x)
    by_b, low_b = exact_product(b, x)
    first = a - by_a
    rest = (a - first) - by_a  # the rounding error of ``first``
    return (first - by_b) + (rest - low_a - low_b)


def _density(a: Array, b: Array, x: Array, lam: Array) -> Array:
    """Compute x**a (1 - x)**b / B(a, b).

    ``lam`` is a - (a + b) x, computed without cancellation by ``_distance``: a + b
    times the distance of x below the mean a / (a + b). If ``a`` and ``b`` are both 10
    or more, the large parts of the logarithms cancel, and the value is computed from
    ``lam``. The method is BRCOMP of DiDonato and Morris.
    """
    log_x, log_y = anp.log(x), anp.log1p(-x)
    plain = anp.exp(a * log_x + b * log_y - _log_beta(a, b))
    large = anp.minimum(a, b) >= _ASYMPTOTIC
    c, d = anp.where(large, a, _ASYMPTOTIC), anp.where(large, b, _ASYMPTOTIC)
    gap = anp.where(large, lam, 0.0)
    total = c + d
    # x = (c - gap) / total and 1 - x = (d + gap) / total, so that log(x total / c) is
    # log(1 - gap / c). ``far_c`` and ``far_d`` are u - log(1 + u) for large u.
    far_c = -gap / c - (log_x - anp.log(c / total))
    far_d = gap / d - (log_y - anp.log(d / total))
    exponent = c * _less_log(-gap / c, far_c) + d * _less_log(gap / d, far_d)
    correction = stirling(c) + stirling(d) - stirling(total)
    size = anp.sqrt(c * (d / total) / (2.0 * math.pi))
    return anp.where(large, size * anp.exp(-exponent - correction), plain)


def _less_log(x: Array, far: Array) -> Array:
    """Return x - log(1 + x), without cancellation for |x| <= 0.6; else ``far``.

    With r = x / (x + 2), log(1 + x) = 2 atanh(r), which is a power series in r.
    """
    near = anp.abs(x) <= 0.6
    small = anp.where(near, x, 0.0)
    ratio = small / (small + 2.0)
    square = ratio * ratio
    series = horner(square, [1.0 / (2 * k + 1) for k in range(1, _LOG_TERMS + 1)])
    value = 2.0 * square * (1.0 / (1.0 - ratio) - ratio * series)
    return anp.where(near, value, far)


_LOG_TERMS = 20


def tails(a: Array, b: Array, x: Array) -> tuple[Array, Array]:
    """Return betainc(a, b, x) and 1 - betainc(a, b, x), inside the domain.

    The smaller of the two is accurate. The fraction converges for x below the mean.
    Above it, betainc(a, b, x) = 1 - betainc(b, a, 1 - x) is used.
    """
    swapped = x > a / (a + b)
    lam = _distance(a, b, x)
    first, second = anp.where(swapped, b, a), anp.where(swapped, a, b)
    y = 1.0 - x
    low, high = anp.where(swapped, y, x), anp.where(swapped, x, y)
    # b - (a + b) (1 - x) = -(a - (a + b) x)
    side = anp.where(swapped, -lam, lam)
    fraction = _fraction(first, second, low, high, side)
    part = _density(a, b, x, lam) * fraction
    rest = 1.0 - part
    return anp.where(swapped, rest, part), anp.where(swapped, part, rest)


def _value(a: Array, b: Array, x: Array) -> Array:
    """Return betainc(a, b, x) inside the domain."""
    return tails(a, b, x)[0]


def logit_density(a: Array, b: Array, x: Array) -> Array:
    """Return the derivative of betainc with respect to log(x / (1 - x)).

    It is x**a (1 - x)**b / B(a, b).
    """
    return _density(a, b, x, _distance(a, b, x))


def _inside(a: Array, b: Array, x: Array) -> Array:
    """Return where a and b are positive and finite, and 0 < x < 1."""
    finite = anp.isfinite(a) & anp.isfinite(b)
    return finite & (a > 0) & (b > 0) & (x > 0) & (x < 1)


def _safe(a: Array, b: Array, x: Array) -> tuple[Array, Array, Array]:
    """Return the operands inside the domain, and (1, 1, 0.5) elsewhere.

    The callers replace the results that are computed from (1, 1, 0.5).
    """
    inside = _inside(a, b, x)
    return (
        anp.where(inside, a, 1.0),
        anp.where(inside, b, 1.0),
        anp.where(inside, x, 0.5),
    )


@custom_jvp
def _betainc(a: Array, b: Array, x: Array) -> Array:
    """Compute betainc(a, b, x), with its limits on the border and NaN outside.

    The border is x = 0 or 1, and a or b 0 or infinite.
    """
    value = anp.where(_inside(a, b, x), _value(*_safe(a, b, x)), math.nan)
    # In the limits, all probability is at t = 0 (``low``) or at t = 1 (``high``).
    low, high = (a == 0) | (b == math.inf), (b == 0) | (a == math.inf)
    value = anp.where(low & ~high, 1.0, anp.where(high & ~low, 0.0, value))
    valid = (a >= 0) & (b >= 0) & (x >= 0) & (x <= 1) & ~(low & high)
    value = anp.where(x == 0, 0.0, anp.where(x == 1, 1.0, value))
    return anp.where(valid, value, math.nan)


def _betainc_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the value and its tangent.

    The derivative by x is the density. Those by a and b are those of the fraction; they
    are expensive, and are left out where a and b do not vary. The tangent is 0 outside
    the domain.
    """
    a, b, x = primals
    c, d, y = _safe(a, b, x)
    da, db, dx = tangents
    slope: Any = anp.zeros_like(y)
    if not isinstance(da, SymbolicZero):
        slope = (
            slope + jvp(lambda c: _value(c, d, y), (c,), (anp.ones_like(c),))[1] * da
        )
    if not isinstance(db, SymbolicZero):
        slope = (
            slope + jvp(lambda d: _value(c, d, y), (d,), (anp.ones_like(d),))[1] * db
        )
    if not isinstance(dx, SymbolicZero):
        # y (1 - y) is the derivative of y with respect to logit(y).
        slope = slope + logit_density(c, d, y) / (y * (1.0 - y)) * dx
    return _betainc.function(a, b, x), anp.where(_inside(a, b, x), slope, 0.0)


_betainc.defjvp(_betainc_jvp, symbolic_zeros=True)
