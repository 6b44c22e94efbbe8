"""The Bernoulli distribution: 1 with probability ``p``, otherwise 0."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import probability, within


@quiet
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of k in the Bernoulli distribution.

    It is log(p) for k - loc = 1, log(1 - p) for k - loc = 0, else -inf. It is NaN
    unless p is in [0, 1].
    """
    k, p, loc = floats("bernoulli.logpmf", k, p, loc)
    n, p = k - loc, probability(p)
    one = n == 1
    value = special.xlogy(one, p) + special.xlog1py(~one, -p)
    return within(one | (n == 0), anp.where(anp.isnan(n), math.nan, value))


@quiet
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of k in the Bernoulli distribution.

    >>> pmf(1, 0.25)
    array(0.25)
    """
    return anp.exp(logpmf(k, p, loc))


@quiet
def cdf(k: ArrayLike, p: ArrayLike) -> Array:
    """Return the probability of at most k in the Bernoulli distribution.

    It is 0 for k < 0, 1 - p for 0 <= k < 1, else 1. It is NaN unless p is in [0, 1].
    """
    k, p = floats("bernoulli.cdf", k, p)
    value = anp.where(k < 0, 0, anp.where(k < 1, 1 - p, 1))
    return within((p >= 0) & (p <= 1) & ~anp.isnan(k), value, math.nan)


@quiet
def ppf(q: ArrayLike, p: ArrayLike) -> Array:
    """Return the smallest k with ``cdf(k)`` >= q in the Bernoulli distribution.

    It is -1 for q = 0 and 1 for q = 1, the ends of the support for any p. Between, it
    is 0 for q <= 1 - p, else 1. It is NaN unless q and p are in [0, 1].
    """
    q, p = floats("bernoulli.ppf", q, p)
    valid = (q >= 0) & (q <= 1) & (p >= 0) & (p <= 1)
    value = anp.where(q == 0, -1, anp.where((q <= 1 - p) & (q < 1), 0, 1))
    return within(valid, anp.astype(value, q.dtype), math.nan)


__all__ = ["cdf", "logpmf", "pmf", "ppf"]
