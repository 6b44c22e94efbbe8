"""The Poisson distribution with mean ``mu``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import counted, within

_LARGE_MEAN = 100.0  # the entropy is an asymptotic expansion from this mean on
_NEGLIGIBLE = 80.0  # probabilities below exp(-80) are negligible
_TERMS = 240  # counts from here on are negligible for means up to 100


@quiet
def logpmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of k in the Poisson distribution.

    It is y log(mu) - log(y!) - mu for integers y = k - loc >= 0, else -inf. It is
    NaN for negative ``mu``.
    """
    (n, mu), valid = counted("poisson.logpmf", k, loc, mu)
    mu = anp.where(mu >= 0, mu, math.nan)
    return within(valid, special.xlogy(n, mu) - special.gammaln(n + 1) - mu)


@quiet
def pmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of k in the Poisson distribution.

    >>> pmf(0, 1.0)
    array(0.36787944)
    """
    return anp.exp(logpmf(k, mu, loc))


@quiet
def cdf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of at most k in the Poisson distribution.

    It is the upper incomplete gamma function of floor(k - loc) + 1 and mu.
    """
    k, mu, loc = floats("poisson.cdf", k, mu, loc)
    n = anp.floor(k - loc)
    possible = n >= 0
    value = special.gammaincc(within(possible, n, 0) + 1, mu)
    return within(possible, value, 0.0)


@quiet
def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the entropy of the Poisson distribution in nats.

    Up to ``mu`` = 100 it is the sum of -p log(p), and above, the expansion log(2 pi e
    mu) / 2 - 1 / (12 mu) - 1 / (24 mu**2) - 19 / (360 mu**3). ``loc`` only takes part
    in broadcasting. It is NaN for negative ``mu``.

    >>> entropy(0.0)
    array(0.)
    """
    mu, loc = floats("poisson.entropy", mu, loc)
    mu = anp.add(mu, anp.multiply(0, loc))
    small = mu < _LARGE_MEAN
    small_mean = anp.expand_dims(anp.where(small, mu, 1), -1)
    k = anp.astype(anp.arange(_TERMS), small_mean.dtype)
    log = special.xlogy(k, small_mean) - special.gammaln(k + 1) - small_mean
    likely = log > -_NEGLIGIBLE
    log = anp.where(likely, log, 0)
    below = anp.sum(anp.where(likely, -anp.exp(log) * log, 0), -1)
    large_mean = anp.where(small, _LARGE_MEAN, mu)
    inverse = 1 / large_mean
    series = inverse * (1 / 12 + inverse * (1 / 24 + inverse * (19 / 360)))
    above = 0.5 * anp.log(2.0 * math.pi * math.e * large_mean) - series
    return within(mu >= 0, anp.where(small, below, above), math.nan)


__all__ = ["cdf", "entropy", "logpmf", "pmf"]
