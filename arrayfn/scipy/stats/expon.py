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
    """Return the logarithm of the density of the exponential distribution at x.

    It is -z - log(scale) for z >= 0, else -inf, with z = (x - loc) / scale. It is NaN
    unless scale > 0.
    """
    z, scale = standard("expon.logpdf", x, loc, scale)
    return within(between(z, 0), -z - anp.log(scale))


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the exponential distribution at x.

    >>> pdf(0.0, scale=2.0)
    array(0.5)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the exponential distribution.

    The distribution is on x >= ``loc``, and has the mean ``loc`` + ``scale``.
    """
    z, _ = standard("expon.cdf", x, loc, scale)
    z = anp.maximum(z, 0)
    return -anp.expm1(-z)


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``cdf`` of the exponential distribution at x."""
    z, _ = standard("expon.logcdf", x, loc, scale)
    return within(z > 0, nn.log1mexp(anp.where(z <= 0, 1, z)))


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the exponential distribution."""
    return anp.exp(logsf(x, loc, scale))


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``sf`` of the exponential distribution at x."""
    z, _ = standard("expon.logsf", x, loc, scale)
    return -anp.maximum(z, 0)


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the exponential distribution: x with ``cdf(x)`` = q.

    It is loc - scale log(1 - q), and NaN unless q is in [0, 1].
    """
    q, loc, scale = quantile("expon.ppf", q, loc, scale)
    return within((q >= 0) & (q <= 1), loc - scale * anp.log1p(-q), math.nan)


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
