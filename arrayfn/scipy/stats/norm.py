"""The normal distribution with mean ``loc`` and standard deviation ``scale``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import quantile, standard


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the normal distribution at x.

    It is -z**2 / 2 - log(scale) - log(2 pi) / 2 with z = (x - loc) / scale. It is NaN
    unless scale > 0.
    """
    z, scale = standard("norm.logpdf", x, loc, scale)
    return -0.5 * (z * z) - anp.log(scale) - 0.5 * math.log(2.0 * math.pi)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the normal distribution at x.

    >>> pdf(0.0)
    array(0.39894228)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the normal distribution.

    ``loc`` is the mean, and ``scale`` the standard deviation.
    """
    z, _ = standard("norm.cdf", x, loc, scale)
    return special.ndtr(z)


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``cdf`` of the normal distribution at x.

    It is accurate in both tails.
    """
    z, _ = standard("norm.logcdf", x, loc, scale)
    return special.log_ndtr(z)


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the normal distribution."""
    z, _ = standard("norm.sf", x, loc, scale)
    return special.ndtr(-z)


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``sf`` of the normal distribution at x.

    It is accurate in both tails.
    """
    z, _ = standard("norm.logsf", x, loc, scale)
    return special.log_ndtr(-z)


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the normal distribution: x with ``cdf(x)`` = q.

    It is NaN unless q is in [0, 1] and scale > 0.
    """
    q, loc, scale = quantile("norm.ppf", q, loc, scale)
    return special.ndtri(q) * scale + loc


@quiet
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the x with ``sf(x)`` = q in the normal distribution.

    It is NaN unless q is in [0, 1] and scale > 0.
    """
    q, loc, scale = quantile("norm.isf", q, loc, scale)
    return loc - special.ndtri(q) * scale


__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
