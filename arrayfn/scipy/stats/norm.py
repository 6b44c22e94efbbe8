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
    """The logarithm of the density."""
    z, scale = standard("norm.logpdf", x, loc, scale)
    return -0.5 * (z * z) - anp.log(scale) - 0.5 * math.log(2.0 * math.pi)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density.

    >>> pdf(0.0)
    array(0.39894228)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most x."""
    return special.ndtr(standard("norm.cdf", x, loc, scale)[0])


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``, accurate in both tails."""
    return special.log_ndtr(standard("norm.logcdf", x, loc, scale)[0])


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than x."""
    return special.ndtr(-standard("norm.sf", x, loc, scale)[0])


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``, accurate in both tails."""
    return special.log_ndtr(-standard("norm.logsf", x, loc, scale)[0])


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The inverse of ``cdf``."""
    q, loc, scale = quantile("norm.ppf", q, loc, scale)
    return special.ndtri(q) * scale + loc


@quiet
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The inverse of ``sf``."""
    q, loc, scale = quantile("norm.isf", q, loc, scale)
    return loc - special.ndtri(q) * scale


__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
