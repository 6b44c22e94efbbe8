"""The Poisson distribution with mean ``mu``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import counted, floats, within

_LARGE_MEAN = 100.0
_NEGLIGIBLE = 80.0  # probabilities below exp(-80) are negligible
_TERMS = 240


@quiet
def logpmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of k."""
    (n, mu), valid = counted("poisson.logpmf", k, loc, mu)
    return within(valid, special.xlogy(n, mu) - special.gammaln(n + 1) - mu)


@quiet
def pmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of k.

    >>> pmf(0, 1.0)
    array(0.36787944)
    """
    return anp.exp(logpmf(k, mu, loc))


@quiet
def cdf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of at most k."""
    k, mu, loc = floats("poisson.cdf", k, mu, loc)
    n = anp.floor(k - loc)
    possible = n >= 0
    value = special.gammaincc(anp.where(possible, n, 0) + 1, mu)
    return within(possible, value, 0.0)


@quiet
def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The entropy in nats.

    Up to ``mu`` = 100 it is computed by its sum, and above by its expansion.

    >>> entropy(0.0)
    array(0.)
    """
    mu, loc = floats("poisson.entropy", mu, loc)
    mu = anp.add(mu, anp.multiply(0, loc))
    small = mu < _LARGE_MEAN
    few = anp.expand_dims(anp.where(small, mu, 1), -1)
    k = anp.astype(anp.arange(_TERMS), few.dtype)
    log = special.xlogy(k, few) - special.gammaln(k + 1) - few
    likely = log > -_NEGLIGIBLE
    log = anp.where(likely, log, 0)
    below = anp.sum(anp.where(likely, -anp.exp(log) * log, 0), -1)
    many = anp.where(small, _LARGE_MEAN, mu)
    inverse = 1 / many
    series = inverse * (1 / 12 + inverse * (1 / 24 + inverse * (19 / 360)))
    above = 0.5 * anp.log(2.0 * math.pi * math.e * many) - series
    return within(mu >= 0, anp.where(small, below, above), math.nan)


__all__ = ["cdf", "entropy", "logpmf", "pmf"]
