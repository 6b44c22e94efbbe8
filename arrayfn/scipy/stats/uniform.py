"""The uniform distribution on [loc, loc + scale]."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats._arguments import between, quantile, standard, within


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the uniform distribution at x.

    It is -log(scale) for x in [loc, loc + scale], else -inf.
    """
    z, scale = standard("uniform.logpdf", x, loc, scale)
    return within(between(z, 0, 1), anp.where(anp.isnan(z), z, -anp.log(scale)))


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the uniform distribution at x.

    >>> pdf(1.5, 1.0, 2.0)
    array(0.5)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the uniform distribution.

    It is (x - loc) / scale, clipped to [0, 1].
    """
    z, _ = standard("uniform.cdf", x, loc, scale)
    return anp.clip(z, 0, 1)


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the uniform distribution."""
    return 1 - cdf(x, loc, scale)


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the uniform distribution: x with ``cdf(x)`` = q.

    It is loc + q scale, and NaN unless q is in [0, 1].
    """
    q, loc, scale = quantile("uniform.ppf", q, loc, scale)
    return within((q >= 0) & (q <= 1), loc + q * scale, math.nan)


__all__ = ["cdf", "logpdf", "pdf", "ppf", "sf"]
