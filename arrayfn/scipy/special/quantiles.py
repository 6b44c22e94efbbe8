"""Inverses of the incomplete gamma and beta functions, and the quantiles made of them.

Each is found by bisection of the logarithm of x for gamma functions, of the logit of x
for beta functions, so that also tiny results are accurate. The derivative is that of an
implicit function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.elementary import expit
from arrayfn.scipy.special.gamma_functions import betainc, gammainc, gammaincc
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import custom_jvp

_STEPS: Final = 64  # after them the interval of logarithms is below 1e-16
_SMALLEST: Final = -745.0  # of logarithms of float64 numbers


def _bisected(is_below: Callable[[Array], Array], low: Any, high: Any) -> Array:
    """Where ``is_below`` changes from true to false, between ``low`` and ``high``."""

    def halved(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = 0.5 * (low + high)
        below = is_below(middle)
        return anp.where(below, middle, low), anp.where(below, high, middle)

    low, high = lax.fori_loop(0, _STEPS, halved, (low, high))
    return 0.5 * (low + high)


def _inverse(
    function: Callable[..., Array], find: Callable[..., Array]
) -> Callable[..., Array]:
    """``find(*parameters, y)``, with the derivatives of ``function``'s inverse.

    ``function(*parameters, x)`` is y where ``find`` gives x.
    """
    inverse = custom_jvp(find)

    @inverse.defjvp
    def _rule(primals: Any, tangents: Any) -> tuple[Array, Array]:  # pyright: ignore[reportUnusedFunction]
        parameters, changes = primals[:-1], tangents[:-1]
        x = inverse(*primals)
        _, moved = jvp(lambda *p: function(*p, x), tuple(parameters), tuple(changes))
        slope = jvp(lambda x: function(*parameters, x), (x,), (anp.ones_like(x),))[1]
        return x, (tangents[-1] - moved) / slope

    return inverse


def _gamma_inverse(a: Array, y: Array, tail: bool) -> Array:
    # Beyond a + 60 sqrt(a) + 800 the tail is below the smallest float64.
    high = anp.log(a + 60.0 * anp.sqrt(a) + 800.0)
    upper = y if tail else 1.0 - y
    lower = 1.0 - y if tail else y

    def is_below(u: Array) -> Array:
        x = anp.exp(u)
        # The smaller of the two is compared.
        by_tail = gammaincc(a, x) > upper
        return anp.where(lower < 0.5, gammainc(a, x) < lower, by_tail)

    x = anp.exp(_bisected(is_below, anp.full_like(a, _SMALLEST), high))
    x = anp.where(lower == 0, 0.0, anp.where(upper == 0, math.inf, x))
    return anp.where((a > 0) & (y >= 0) & (y <= 1), x, math.nan)


def _beta_inverse(a: Array, b: Array, y: Array) -> Array:
    def is_below(u: Array) -> Array:
        # From the middle on by 1 - x, which is expit(-u).
        by_tail = betainc(b, a, expit(-u)) > 1.0 - y
        return anp.where(u < 0, betainc(a, b, expit(u)) < y, by_tail)

    ends = anp.full_like(a, _SMALLEST)
    x = expit(_bisected(is_below, ends, -ends))
    x = anp.where(y == 0, 0.0, anp.where(y == 1, 1.0, x))
    return anp.where((a > 0) & (b > 0) & (y >= 0) & (y <= 1), x, math.nan)


_gammaincinv = _inverse(gammainc, lambda a, y: _gamma_inverse(a, y, tail=False))
_gammainccinv = _inverse(gammaincc, lambda a, y: _gamma_inverse(a, y, tail=True))
_betaincinv = _inverse(betainc, _beta_inverse)


@quiet
def gammaincinv(a: ArrayLike, y: ArrayLike) -> Array:
    """x with gammainc(a, x) = y, for y between 0 and 1.

    >>> gammaincinv(1.0, 0.5)
    array(0.69314718)
    """
    (a, y), dtype = in_float64("gammaincinv", a, y)
    return ops.convert(_gammaincinv(a, y), dtype)


@quiet
def gammainccinv(a: ArrayLike, y: ArrayLike) -> Array:
    """x with gammaincc(a, x) = y, for y between 0 and 1."""
    (a, y), dtype = in_float64("gammainccinv", a, y)
    return ops.convert(_gammainccinv(a, y), dtype)


@quiet
def betaincinv(a: ArrayLike, b: ArrayLike, y: ArrayLike) -> Array:
    """x with betainc(a, b, x) = y, for y between 0 and 1."""
    (a, b, y), dtype = in_float64("betaincinv", a, b, y)
    return ops.convert(_betaincinv(a, b, y), dtype)


def chdtri(v: ArrayLike, p: ArrayLike) -> Array:
    """x with chdtrc(v, x) = p."""
    return anp.multiply(2, gammainccinv(anp.divide(v, 2), p))


def pdtri(k: ArrayLike, y: ArrayLike) -> Array:
    """The mean m with pdtr(k, m) = y."""
    below = anp.less(k, 0)
    return anp.where(below, math.nan, gammainccinv(anp.floor(k) + 1, y))


@quiet
def bdtri(k: ArrayLike, n: ArrayLike, y: ArrayLike) -> Array:
    """p with bdtr(k, n, p) = y."""
    (k, n, y), dtype = in_float64("bdtri", k, n, y)
    k, n = anp.floor(k), anp.floor(n)
    inside = (k >= 0) & (k < n)
    a, b = anp.where(inside, k + 1.0, 1.0), anp.where(inside, n - k, 1.0)
    return ops.convert(anp.where(inside, _betaincinv(a, b, 1.0 - y), math.nan), dtype)


@quiet
def nbdtri(k: ArrayLike, n: ArrayLike, y: ArrayLike) -> Array:
    """p with nbdtr(k, n, p) = y."""
    (k, n, y), dtype = in_float64("nbdtri", k, n, y)
    p = _betaincinv(anp.floor(n), anp.floor(k) + 1.0, y)
    return ops.convert(anp.where(k >= 0, p, math.nan), dtype)


@quiet
def fdtri(dfn: ArrayLike, dfd: ArrayLike, p: ArrayLike) -> Array:
    """x with fdtr(dfn, dfd, x) = p."""
    (m, n, p), dtype = in_float64("fdtri", dfn, dfd, p)
    # Of the two parts of 1 the smaller is found, and subtracted.
    lower = _betaincinv(0.5 * m, 0.5 * n, p)
    upper = _betaincinv(0.5 * n, 0.5 * m, 1.0 - p)
    small = lower < 0.5
    ratio = anp.where(small, lower / (1.0 - lower), (1.0 - upper) / upper)
    return ops.convert(ratio * n / m, dtype)


@quiet
def stdtrit(df: ArrayLike, p: ArrayLike) -> Array:
    """t with stdtr(df, t) = p.

    >>> stdtrit(1.0, 0.75).round(12)
    np.float64(1.0)
    """
    (df, p), dtype = in_float64("stdtrit", df, p)
    tail = anp.minimum(p, 1.0 - p)
    # The parts of the square of t and of df in their sum: the smaller is accurate.
    of_square = betaincinv(0.5, 0.5 * df, 1.0 - 2.0 * tail)
    of_df = betaincinv(0.5 * df, 0.5, 2.0 * tail)
    near = of_square < 0.5
    middle = p == 0.5
    z = anp.where(near & ~middle, of_square, 0.5)
    w = anp.where(near, 0.5, of_df)
    size = anp.sqrt(df * anp.where(near, z / (1.0 - z), (1.0 - w) / w))
    size = anp.where(middle & (df > 0), 0.0, size)
    return ops.convert(anp.where(p < 0.5, -size, size), dtype)


__all__ = [
    "bdtri",
    "betaincinv",
    "chdtri",
    "fdtri",
    "gammainccinv",
    "gammaincinv",
    "nbdtri",
    "pdtri",
    "stdtrit",
]
