"""The binomial distribution: the number of successes in ``n`` trials.

``p`` is the probability of a success.
"""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import (
    count,
    counted,
    log_choices,
    probability,
    within,
)


@quiet
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of k in the binomial distribution.

    With y = k - loc, it is the logarithm of C(n, y) p**y (1 - p)**(n - y) for integers
    y from 0 to n, else -inf. It is NaN unless p is in [0, 1] and n a whole number.
    """
    (y, n, p), valid = counted("binom.logpmf", k, loc, n, p)
    n, p = count(n), probability(p)
    valid = valid & (y <= n)
    y = within(valid, y, 0)
    ways = log_choices(n, y)
    return within(valid, ways + special.xlogy(y, p) + special.xlog1py(n - y, -p))


@quiet
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of k in the binomial distribution.

    >>> pmf(1, 2, 0.5).round(12)
    np.float64(0.5)
    """
    return anp.exp(logpmf(k, n, p, loc))


@quiet
def cdf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of at most k in the binomial distribution.

    With y = floor(k - loc), it is the incomplete beta function I(1 - p; n - y, y + 1)
    for 0 <= y < n, 0 below and 1 above. It is NaN unless p is in [0, 1] and
    n is an integer >= 0.
    """
    k, loc, n, p = floats("binom.cdf", k, loc, n, p)
    n, p = count(n), probability(p)
    y = anp.floor(k - loc)
    is_inside = (y >= 0) & (y < n)
    failures = anp.where(is_inside, n - y, 1)
    value = special.betaincc(anp.where(is_inside, y, 0) + 1, failures, p)
    value = anp.where(is_inside, value, anp.where(y < 0, 0.0, 1.0))
    return anp.where(anp.isnan(y + n + p), math.nan, value)


__all__ = ["cdf", "logpmf", "pmf"]
