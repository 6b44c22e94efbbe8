"""Inverses of the incomplete gamma and beta functions, and the quantiles made of them.

The equation is solved for the logarithm of x for gamma functions, for the logit of x
for beta functions, so that also tiny results are accurate. What is compared is the
logarithm of the smaller tail, which is a concave function: Newton's method converges
from a bound of the solution, and bisection replaces steps that leave the interval. The
derivative is that of an implicit function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.lax import special_incomplete_beta as of_beta
from arrayfn.lax import special_incomplete_gamma as of_gamma
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.distribution_functions import betaincc
from arrayfn.scipy.special.elementary import expit
from arrayfn.scipy.special.error_functions import ndtri
from arrayfn.scipy.special.gamma_functions import (
    betainc,
    gammainc,
    gammaincc,
    gammaln,
)
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import SymbolicZero, custom_jvp

_STEPS: Final = 128  # 64 halvings reach the smallest interval
_CLOSE: Final = 1e-9  # the error after a step of this length is its square
_SMALLEST: Final = -745.0  # of logarithms of float64 numbers


def _solved(
    equation: Callable[[Array], tuple[Array, Array]], start: Any, low: Any, high: Any
) -> Array:
    """Find the zero, between ``low`` and ``high``, of an increasing function.

    ``equation(u)`` returns the function's value and derivative at u, and ``start`` is a
    guess of the zero. The method is Newton's, safeguarded by bisection: ``low`` and
    ``high`` always enclose the zero, and a step that leaves this interval is replaced
    by its middle. One loop solves all elements.
    """

    def step(state: Any) -> Any:
        """Take Newton's step, or go to the middle, in elements that still move.

        The state is the count, u, the interval, and which elements still move.
        """
        k, u, low, high, moving = state
        value, slope = equation(u)
        below = value < 0
        low, high = anp.where(below, u, low), anp.where(below, high, u)
        after = u - value / slope
        inside = (after >= low) & (after <= high)
        after = anp.where(inside, after, 0.5 * (low + high))
        after = anp.where(moving & (value != 0), after, u)
        moving = anp.abs(after - u) > _CLOSE * anp.maximum(1.0, anp.abs(u))
        return k + 1, after, low, high, moving

    start = anp.clip(start, low, high)
    state = (
        ops.as_array(ops.scalar(0, dtypes.int64)),
        start,
        low,
        high,
        # All but NaN still move.
        start == start,
    )
    # Run while any element moves (s[4]), for at most _STEPS iterations (s[0]).
    _, solution, *_ = lax.while_loop(
        lambda s: anp.any(s[4]) & (s[0] < _STEPS), step, state
    )
    return solution


def _inverse(
    function: Callable[..., Array], find: Callable[..., Array]
) -> Callable[..., Array]:
    """Give ``find`` the derivatives of the inverse of ``function``.

    ``find(*parameters, y)`` returns the x for which ``function(*parameters, x)`` is y.
    By implicit differentiation, dx = (dy - sum of df/dp dp) / (df/dx) for the function
    f and its parameters p.
    """
    inverse = custom_jvp(find)

    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        """Return x and its tangent; symbolic zeros among ``tangents`` add no term.

        x = ``inverse(*parameters, y)`` solves ``function(*parameters, x)`` = y. So dx
        is dy less the change of the function by its parameters, divided by its slope
        in x.
        """
        (*parameters, _), x = primals, inverse(*primals)
        *changes, dy = tangents
        one = anp.ones_like(x)
        _, slope = jvp(lambda x: function(*parameters, x), (x,), (one,))
        total: Any = anp.zeros_like(x)
        if not isinstance(dy, SymbolicZero):
            total = total + dy
        for k, tangent in enumerate(changes):
            if not isinstance(tangent, SymbolicZero):

                def of_one(parameter: Array, k: int = k) -> Array:
                    """Return the function's value with ``parameter`` at position k."""
                    return function(*parameters[:k], parameter, *parameters[k + 1 :], x)

                _, by_parameter = jvp(of_one, (parameters[k],), (one,))
                total = total - by_parameter * tangent
        return x, total / slope

    inverse.defjvp(rule, symbolic_zeros=True)
    return inverse


def _gamma_inverse(a: Array, y: Array, tail: bool) -> Array:
    """Return the x with P(a, x) = y, or Q(a, x) = y if ``tail``.

    It is NaN for y outside of [0, 1]. The unknown of the equation is u = log(x).
    Invalid elements are solved with harmless parameters.
    """
    upper = y if tail else 1.0 - y
    lower = 1.0 - y if tail else y
    valid = (a > 0) & (a < math.inf) & (lower > 0) & (upper > 0)
    b = anp.where(valid, a, 1.0)
    p, q = anp.where(valid, lower, 0.5), anp.where(valid, upper, 0.5)
    by_lower = p < 0.5
    log_p, log_q = anp.log(p), anp.log(q)

    def equation(u: Array) -> tuple[Array, Array]:
        """Return log(tail) - log(target) for the smaller tail, and its slope.

        The difference is negated for the upper tail, so that the function increases
        with u.
        """
        x = anp.exp(u)
        below, above = of_gamma.tails(b, x)
        value = anp.where(by_lower, anp.log(below) - log_p, log_q - anp.log(above))
        return value, of_gamma.log_density(b, x) / anp.where(by_lower, below, above)

    # P(a, x) is at most x**a / gamma(a + 1) (DLMF 8.10), and a sample is beyond
    # a - sqrt(2 a t), or below a + sqrt(2 a t) + t, with a probability of at least
    # 1 - exp(-t) (Laurent and Massart, 2000, lemma 1).
    near_0 = (log_p + gammaln(b + 1.0)) / b
    left = b - anp.sqrt(-2.0 * b * log_p)
    left = anp.maximum(near_0, anp.log(anp.where(left > 0, left, 1e-323)))
    right = anp.log(b + anp.sqrt(-2.0 * b * log_q) - log_q)
    low = anp.full_like(a, _SMALLEST)
    u = _solved(equation, anp.where(by_lower, left, right), low, right + 1.0)
    x = anp.where(valid, anp.exp(u), math.nan)
    # Below the smallest float64 number, x is 0 (and stays NaN).
    x = anp.where(by_lower & (near_0 < _SMALLEST), 0.0 * x, x)
    inside = (a >= 0) & (y >= 0) & (y <= 1)
    x = anp.where(inside & (lower == 0), 0.0, x)
    return anp.where(inside & (upper == 0), math.inf, x)


def _beta_inverse(a: Array, b: Array, y: Array, tail: bool) -> Array:
    """Return the x with I_x(a, b) = y, or 1 - I_x(a, b) = y if ``tail``.

    It is NaN for y outside of [0, 1]. The unknown is the logit u of x. If I_x(a, b) >
    1/2, the equation is solved for 1 - x instead, which has the parameters (b, a).
    """
    upper = y if tail else 1.0 - y
    lower = 1.0 - y if tail else y
    exchanged = lower > 0.5
    p = anp.where(exchanged, upper, lower)
    valid = (a > 0) & (a < math.inf) & (b > 0) & (b < math.inf) & (p > 0)
    c, d = anp.where(exchanged, b, a), anp.where(exchanged, a, b)
    c, d, p = (anp.where(valid, v, 0.5) for v in (c, d, p))
    log_p = anp.log(p)

    def equation(u: Array) -> tuple[Array, Array]:
        """Return log(tail) - log_p at the logit u, and the derivative by u.

        For u > 0, the tails are computed at 1 - x, which is accurate near x = 1.
        """
        beyond = u > 0
        x = expit(-anp.abs(u))
        first, second = anp.where(beyond, d, c), anp.where(beyond, c, d)
        lower, upper = of_beta.tails(first, second, x)
        tail = anp.where(beyond, upper, lower)
        slope = of_beta.logit_density(first, second, x) / tail
        return anp.log(tail) - log_p, slope

    # For d >= 1 the tail is at most x**c / (c B(c, d)).
    log_x = (log_p + anp.log(c) + of_beta.log_beta(c, d)) / c
    is_tiny = log_x < _SMALLEST
    log_x = anp.minimum(log_x, anp.log(c / (c + d)))
    start = log_x - anp.log(-anp.expm1(log_x))
    low = anp.full_like(p, _SMALLEST)
    u = _solved(equation, start, low, -low)
    u = anp.where(is_tiny, -math.inf, u)
    x = anp.where(valid, expit(anp.where(exchanged, -u, u)), math.nan)
    x = anp.where(lower == 0, 0.0, anp.where(upper == 0, 1.0, x))
    return anp.where((a > 0) & (b > 0) & (y >= 0) & (y <= 1), x, math.nan)


_gammaincinv = _inverse(gammainc, lambda a, y: _gamma_inverse(a, y, tail=False))
_gammainccinv = _inverse(gammaincc, lambda a, y: _gamma_inverse(a, y, tail=True))
_betaincinv = _inverse(betainc, lambda a, b, y: _beta_inverse(a, b, y, tail=False))
_betainccinv = _inverse(betaincc, lambda a, b, y: _beta_inverse(a, b, y, tail=True))


@quiet
def gammaincinv(a: ArrayLike, y: ArrayLike) -> Array:
    """Find x with gammainc(a, x) = y, for y between 0 and 1; else NaN."""
    (a, y), dtype = in_float64("gammaincinv", a, y)
    return ops.convert(_gammaincinv(a, y), dtype)


@quiet
def gammainccinv(a: ArrayLike, y: ArrayLike) -> Array:
    """Find x with gammaincc(a, x) = y, for y between 0 and 1; else NaN."""
    (a, y), dtype = in_float64("gammainccinv", a, y)
    return ops.convert(_gammainccinv(a, y), dtype)


@quiet
def betaincinv(a: ArrayLike, b: ArrayLike, y: ArrayLike) -> Array:
    """Find x with betainc(a, b, x) = y, for y between 0 and 1; else NaN."""
    (a, b, y), dtype = in_float64("betaincinv", a, b, y)
    return ops.convert(_betaincinv(a, b, y), dtype)


def chdtri(v: ArrayLike, p: ArrayLike) -> Array:
    """Find x with chdtrc(v, x) = p, for v degrees of freedom."""
    return anp.multiply(2, gammainccinv(anp.divide(v, 2), p))


@quiet
def pdtri(k: ArrayLike, y: ArrayLike) -> Array:
    """Find the mean m with pdtr(k, m) = y; NaN for k < 0."""
    (k, y), dtype = in_float64("pdtri", k, y)
    mean = _gammainccinv(anp.floor(k) + 1.0, y)
    return ops.convert(anp.where(k < 0, math.nan, mean), dtype)


@quiet
def bdtri(k: ArrayLike, n: ArrayLike, y: ArrayLike) -> Array:
    """Find the probability p with bdtr(k, n, p) = y; NaN unless 0 <= k < n.

    k and n are rounded down.
    """
    (k, n, y), dtype = in_float64("bdtri", k, n, y)
    k, n = anp.floor(k), anp.floor(n)
    inside = (k >= 0) & (k < n)
    a, b = anp.where(inside, k + 1.0, 1.0), anp.where(inside, n - k, 1.0)
    return ops.convert(anp.where(inside, _betainccinv(a, b, y), math.nan), dtype)


@quiet
def nbdtri(k: ArrayLike, n: ArrayLike, y: ArrayLike) -> Array:
    """Find the probability p with nbdtr(k, n, p) = y; NaN for k < 0.

    k and n are rounded down.
    """
    (k, n, y), dtype = in_float64("nbdtri", k, n, y)
    p = _betaincinv(anp.floor(n), anp.floor(k) + 1.0, y)
    return ops.convert(anp.where(k >= 0, p, math.nan), dtype)


@quiet
def fdtri(dfn: ArrayLike, dfd: ArrayLike, p: ArrayLike) -> Array:
    """Find x with fdtr(dfn, dfd, x) = p.

    ``dfn`` and ``dfd`` are the degrees of freedom of the F distribution.
    """
    (m, n, p), dtype = in_float64("fdtri", dfn, dfd, p)
    # I(z) = p for z = m x / (n + m x). Of z and 1 - z the smaller is accurate.
    lower = _betaincinv(0.5 * m, 0.5 * n, p)
    upper = _betainccinv(0.5 * n, 0.5 * m, p)
    small = lower < 0.5
    ratio = anp.where(small, lower / (1.0 - lower), (1.0 - upper) / upper)
    return ops.convert(ratio * n / m, dtype)


@quiet
def stdtrit(df: ArrayLike, p: ArrayLike) -> Array:
    """Find t with stdtr(df, t) = p.

    It is the quantile of Student's distribution, and of the normal distribution for
    infinite df. It is computed from the inverse incomplete beta function, and from
    leading terms in the middle and far out.
    """
    (df, p), dtype = in_float64("stdtrit", df, p)
    is_normal = df == math.inf
    d = anp.where(is_normal, 1.0, df)
    tail, c = anp.minimum(p, 1.0 - p), 0.5 * d
    half = anp.full_like(c, 0.5)
    beta = anp.exp(of_beta.log_beta(c, half))
    # Far out the tail is (d / t**2)**c / (2 c B(c, 1/2)) (DLMF 8.17.8), and in the
    # middle t is linear in p.
    leading = 2.0 * tail * c * beta
    far = (leading ** (1.0 / c) < 1e-17) & (tail > 0)
    middle = anp.abs(p - 0.5) < 1e-9
    base = anp.where(far, leading, 1.0)
    tail = anp.where(far | middle, 0.25, tail)
    # t**2 / (d + t**2) and d / (d + t**2): the smaller one is accurate.
    of_square = _betainccinv(half, c, 2.0 * tail)
    of_d = _betaincinv(c, half, 2.0 * tail)
    near = of_square < 0.5
    z, w = anp.where(near, of_square, 0.5), anp.where(near, 0.5, of_d)
    size = anp.sqrt(d * anp.where(near, z / (1.0 - z), (1.0 - w) / w))
    size = anp.where(far, anp.sqrt(d) * base ** (-1.0 / d), size)
    value = anp.where(p < 0.5, -size, size)
    value = anp.where(middle & (d > 0), (p - 0.5) * anp.sqrt(d) * beta, value)
    return ops.convert(anp.where(is_normal, ndtri(p), value), dtype)


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
