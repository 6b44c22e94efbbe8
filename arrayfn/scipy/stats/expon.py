"""The exponential distribution on x >= ``loc``, with mean ``loc`` + ``scale``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats._arguments import between, quantile, standard, within


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density."""
    z, scale = standard("expon.logpdf", x, loc, scale)
    return within(between(z, 0), -z - anp.log(scale))


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density.

    >>> pdf(0.0, scale=2.0)
    array(0.5)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most x."""
    z = anp.maximum(standard("expon.cdf", x, loc, scale)[0], 0)
    return -anp.expm1(-z)


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    z = standard("expon.logcdf", x, loc, scale)[0]
    return within(z > 0, nn.log1mexp(anp.where(z <= 0, 1, z)))


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than x."""
    return anp.exp(logsf(x, loc, scale))


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    return -anp.maximum(standard("expon.logsf", x, loc, scale)[0], 0)


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The inverse of ``cdf``; NaN unless q is in [0, 1]."""
    q, loc, scale = quantile("expon.ppf", q, loc, scale)
    return within((q >= 0) & (q <= 1), loc - scale * anp.log1p(-q), math.nan)


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
