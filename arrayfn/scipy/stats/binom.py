"""The binomial distribution: the number of successes in ``n`` trials.

``p`` is the probability of a success.
"""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import counted, probability, within


@quiet
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of k."""
    (y, n, p), valid = counted("binom.logpmf", k, loc, n, p)
    n, p = anp.where(n >= 0, n, math.nan), probability(p)
    valid = valid & (y <= n)
    y = anp.where(valid, y, 0)
    ways = -anp.log1p(n) - special.betaln(n - y + 1, y + 1)
    return within(valid, ways + special.xlogy(y, p) + special.xlog1py(n - y, -p))


@quiet
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of k.

    >>> pmf(1, 2, 0.5).round(12)
    np.float64(0.5)
    """
    return anp.exp(logpmf(k, n, p, loc))


@quiet
def cdf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of at most k."""
    (y, n, p), _ = counted("binom.cdf", anp.floor(k), loc, n, p)
    n, p = anp.where(n >= 0, n, math.nan), probability(p)
    given = anp.floor(anp.subtract(k, loc))
    some = (given >= 0) & (given < n)
    y = anp.where(some, y, 0)
    value = special.betainc(anp.where(some, n - y, 1), y + 1, 1 - p)
    edge = anp.where(given < 0, 0.0, 1.0)
    return anp.where(some | anp.isnan(n + p), value + 0 * (n + p), edge)


__all__ = ["cdf", "logpmf", "pmf"]
