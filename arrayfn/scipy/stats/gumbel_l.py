"""The Gumbel distribution of the smallest of many numbers."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats._arguments import quantile, standard


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density."""
    z, scale = standard("gumbel_l.logpdf", x, loc, scale)
    return z - anp.exp(z) - anp.log(scale)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density.

    >>> pdf(0.0)
    array(0.36787944)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    return -anp.exp(standard("gumbel_l.logsf", x, loc, scale)[0])


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than x."""
    return anp.exp(logsf(x, loc, scale))


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    return nn.log1mexp(anp.exp(standard("gumbel_l.logcdf", x, loc, scale)[0]))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most x."""
    return -anp.expm1(logsf(x, loc, scale))


@quiet
@also_takes(p="q")
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The inverse of ``cdf``."""
    q, loc, scale = quantile("gumbel_l.ppf", q, loc, scale)
    return loc + scale * anp.log(-anp.log1p(-q))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
