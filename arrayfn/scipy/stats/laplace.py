"""The Laplace distribution."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats._arguments import quantile, standard, within


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Laplace distribution at x.

    It is -|z| - log(2 scale) with z = (x - loc) / scale. It is NaN unless scale > 0.
    """
    z, scale = standard("laplace.logpdf", x, loc, scale)
    return -anp.abs(z) - anp.log(2 * scale)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Laplace distribution at x.

    >>> pdf(0.0)
    array(0.5)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the Laplace distribution.

    It is exp(-|z|) / 2 for z < 0, else 1 - exp(-|z|) / 2, with z = (x - loc) / scale.
    """
    z, _ = standard("laplace.cdf", x, loc, scale)
    tail = 0.5 * anp.exp(-anp.abs(z))
    return anp.where(z < 0, tail, 1 - tail)


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the Laplace distribution.

    The distribution is symmetric, so it is ``cdf`` at -(x - loc) / scale.
    """
    z, _ = standard("laplace.sf", x, loc, scale)
    return cdf(-z)


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the Laplace distribution: x with ``cdf(x)`` = q.

    It is NaN unless q is in [0, 1] and scale > 0.
    """
    q, loc, scale = quantile("laplace.ppf", q, loc, scale)
    distance = -anp.log(2 * anp.minimum(q, 1 - q))
    value = anp.where(q < 0.5, loc - scale * distance, loc + scale * distance)
    return within((q >= 0) & (q <= 1), value, math.nan)


__all__ = ["cdf", "logpdf", "pdf", "ppf", "sf"]
