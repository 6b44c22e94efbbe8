"""The Gumbel distribution of the largest of many numbers."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats._arguments import quantile, standard


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the right-skewed Gumbel distribution at x.

    It is -z - exp(-z) - log(scale) with z = (x - loc) / scale. It is NaN unless scale >
    0.
    """
    z, scale = standard("gumbel_r.logpdf", x, loc, scale)
    return -z - anp.exp(-z) - anp.log(scale)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the right-skewed Gumbel distribution at x.

    >>> pdf(0.0)
    array(0.36787944)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``cdf`` of the right-skewed Gumbel distribution at x.

    It is -exp(-z) with z = (x - loc) / scale. It is NaN unless scale > 0.
    """
    z, _ = standard("gumbel_r.logcdf", x, loc, scale)
    return -anp.exp(-z)


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the right-skewed Gumbel distribution."""
    return anp.exp(logcdf(x, loc, scale))


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``sf`` of the right-skewed Gumbel distribution at x."""
    z, _ = standard("gumbel_r.logsf", x, loc, scale)
    return nn.log1mexp(anp.exp(-z))


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the right-skewed Gumbel distribution."""
    return -anp.expm1(logcdf(x, loc, scale))


@quiet
@also_takes(p="q")  # p is another name of q
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the x with ``cdf(x)`` = q in the right-skewed Gumbel distribution.

    It is loc - scale log(-log(q)).
    """
    q, loc, scale = quantile("gumbel_r.ppf", q, loc, scale)
    return loc - scale * anp.log(-anp.log(q))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
