"""Cumulative distribution functions under the names of ``scipy.special``.

Each is a regularized incomplete gamma or beta function (DLMF 8.2 and 8.17), as in the
Cephes library, whose names these are. They are NaN for parameters below 0 and arguments
outside the distribution's range.
"""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.error_functions import ndtr
from arrayfn.scipy.special.gamma_functions import betainc, gammainc, gammaincc


def _where(inside: Any, value: Any, dtype: Any) -> Array:
    """Convert ``value`` to ``dtype``, with NaN where ``inside`` is false."""
    return ops.convert(anp.where(inside, value, math.nan), dtype)


@quiet
def betaincc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return 1 - betainc(a, b, x), accurate for x near 1."""
    (a, b, x), dtype = in_float64("betaincc", a, b, x)
    return ops.convert(_probability(b, a, 1.0 - x, x), dtype)


def _probability(a: Array | float, b: Array | float, x: Array, y: Array) -> Array:
    """Return betainc(a, b, x) for x and y = 1 - x, of which the smaller is accurate.

    Near 1, x has lost digits of y, or all of them if it is 1. Then the result is 1 -
    betainc(b, a, y), unless this difference is so small that it loses more digits.
    """
    rest = 1.0 - betainc(b, a, y)
    by_rest = ((x > 0.5) & (rest > y)) | (x == 1)
    return anp.where(by_rest, rest, betainc(a, b, x))


def chdtr(v: ArrayLike, x: ArrayLike) -> Array:
    """Return the probability of at most ``x`` in the chi-square distribution.

    ``v`` is the number of degrees of freedom.
    """
    return gammainc(anp.divide(v, 2), anp.divide(x, 2))


def chdtrc(v: ArrayLike, x: ArrayLike) -> Array:
    """Return 1 - chdtr(v, x), accurate for large x."""
    return gammaincc(anp.divide(v, 2), anp.divide(x, 2))


@quiet
def gdtr(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return the probability of at most ``x`` in the gamma distribution.

    ``a`` is the rate, and ``b`` the shape.
    """
    (a, b, x), dtype = in_float64("gdtr", a, b, x)
    return _where(~(x < 0), gammainc(b, a * x), dtype)


@quiet
def gdtrc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return 1 - gdtr(a, b, x), accurate for large x."""
    (a, b, x), dtype = in_float64("gdtrc", a, b, x)
    return _where(~(x < 0), gammaincc(b, a * x), dtype)


@quiet
def pdtr(k: ArrayLike, m: ArrayLike) -> Array:
    """Return the probability of at most ``k`` events in the Poisson distribution.

    ``m`` is the mean.
    """
    (k, m), dtype = in_float64("pdtr", k, m)
    return _where(~(k < 0), gammaincc(anp.floor(k) + 1.0, m), dtype)


@quiet
def pdtrc(k: ArrayLike, m: ArrayLike) -> Array:
    """Return 1 - pdtr(k, m), accurate for small probabilities."""
    (k, m), dtype = in_float64("pdtrc", k, m)
    return _where(~(k < 0), gammainc(anp.floor(k) + 1.0, m), dtype)


@quiet
def bdtr(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return the probability of at most ``k`` successes in ``n`` trials.

    ``p`` is the probability of a success. k and n are rounded down. The result is I(1 -
    p; n - k, k + 1), and 1 for k = n.
    """
    (k, n, p), dtype = in_float64("bdtr", k, n, p)
    k, n = anp.floor(k), anp.floor(n)
    inside = (k >= 0) & (k <= n) & (p >= 0) & (p <= 1)
    is_less = inside & (k < n)
    value = betaincc(
        anp.where(is_less, k + 1.0, 1.0), anp.where(is_less, n - k, 1.0), p
    )
    return _where(inside, anp.where(is_less, value, 1.0), dtype)


@quiet
def bdtrc(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return 1 - bdtr(k, n, p), accurate for small probabilities; 1 for negative k."""
    (k, n, p), dtype = in_float64("bdtrc", k, n, p)
    k, n = anp.floor(k), anp.floor(n)
    inside = k <= n
    is_less = (k >= 0) & (k < n)
    value = betainc(anp.where(is_less, k + 1.0, 1.0), anp.where(is_less, n - k, 1.0), p)
    value = anp.where(is_less, value, anp.where(k < 0, 1.0, 0.0))
    return _where(inside & (p >= 0) & (p <= 1), value, dtype)


@quiet
def nbdtr(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return the probability of at most ``k`` failures before ``n`` successes.

    ``p`` is the probability of a success.
    """
    (k, n, p), dtype = in_float64("nbdtr", k, n, p)
    return _where(
        (k >= 0) & (n >= 1), betainc(anp.floor(n), anp.floor(k) + 1.0, p), dtype
    )


@quiet
def nbdtrc(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return 1 - nbdtr(k, n, p), accurate for small probabilities."""
    (k, n, p), dtype = in_float64("nbdtrc", k, n, p)
    return _where(
        (k >= 0) & (n >= 1), betaincc(anp.floor(n), anp.floor(k) + 1.0, p), dtype
    )


@quiet
def fdtr(dfn: ArrayLike, dfd: ArrayLike, x: ArrayLike) -> Array:
    """Return the probability of at most ``x`` in the F distribution.

    ``dfn`` and ``dfd`` are the degrees of freedom.
    """
    (m, n, x), dtype = in_float64("fdtr", dfn, dfd, x)
    inside = (m > 0) & (n > 0) & (m < math.inf) & (n < math.inf) & (x >= 0)
    value = _probability(0.5 * m, 0.5 * n, _share(m, n, x), n / (n + m * x))
    return _where(inside, value, dtype)


def _share(m: Array | float, n: Array, x: Array) -> Array:
    """Return m x / (n + m x), and its limit 1 for infinite x."""
    finite = anp.where(anp.isinf(x), 0.0, x)
    return anp.where(anp.isinf(x), 1.0, m * finite / (n + m * finite))


@quiet
def fdtrc(dfn: ArrayLike, dfd: ArrayLike, x: ArrayLike) -> Array:
    """Return 1 - fdtr(dfn, dfd, x), accurate for large x."""
    (m, n, x), dtype = in_float64("fdtrc", dfn, dfd, x)
    inside = (m > 0) & (n > 0) & (m < math.inf) & (n < math.inf) & (x >= 0)
    value = _probability(0.5 * n, 0.5 * m, n / (n + m * x), _share(m, n, x))
    return _where(inside, value, dtype)


@quiet
def stdtr(df: ArrayLike, t: ArrayLike) -> Array:
    """Return the probability of at most ``t`` in Student's distribution.

    ``df`` is the number of degrees of freedom, and an infinite number gives the normal
    distribution. The tail beyond |t| is I(df / (df + t**2); df / 2, 1 / 2) / 2.
    """
    (df, t), dtype = in_float64("stdtr", df, t)
    finite = anp.where(anp.isinf(df), 1.0, df)
    square = t * t
    share = _share(1.0, finite, square)  # square / (finite + square)
    tail = 0.5 * _probability(0.5 * finite, 0.5, finite / (finite + square), share)
    value = anp.where(t < 0, tail, 1 - tail)
    value = anp.where(anp.isinf(df), ndtr(t), value)
    return _where(df > 0, anp.where(anp.isnan(t), t, value), dtype)


__all__ = [
    "bdtr",
    "bdtrc",
    "betaincc",
    "chdtr",
    "chdtrc",
    "fdtr",
    "fdtrc",
    "gdtr",
    "gdtrc",
    "nbdtr",
    "nbdtrc",
    "pdtr",
    "pdtrc",
    "stdtr",
]
