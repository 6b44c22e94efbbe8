"""The generalized normal distribution: density proportional to exp(-abs(x)**beta)."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import positive


def _power(x: Array, p: Array) -> Array:
    """Return abs(x)**p, with a derivative of 0 at 0."""
    zero = x == 0
    return anp.where(zero, 0, anp.power(anp.abs(anp.where(zero, 1, x)), p))


@quiet
def logpdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """Return the logarithm of the density of the generalized normal distribution at x.

    The density is beta / (2 gamma(1 / beta)) exp(-abs(x)**beta).
    """
    x, p = floats("gennorm.logpdf", x, beta)
    p = positive(p)
    return anp.log(p) - math.log(2.0) - special.gammaln(1 / p) - _power(x, p)


@quiet
def pdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """Return the density of the generalized normal distribution at x.

    >>> pdf(0.0, 1.0)
    array(0.5)
    """
    return anp.exp(logpdf(x, beta))


@quiet
def cdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """Return the probability of at most x in the generalized normal distribution.

    The tail beyond |x| is half the upper incomplete gamma function of 1 / beta and
    |x|**beta.
    """
    x, p = floats("gennorm.cdf", x, beta)
    p = positive(p)
    power = _power(x, p)
    tail = 0.5 * special.gammaincc(1 / p, power)
    return anp.where(x < 0, tail, 1 - tail)


__all__ = ["cdf", "logpdf", "pdf"]
