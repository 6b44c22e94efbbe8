"""The binomial distribution: the number of successes in ``n`` trials.

``p`` is the probability of a success.
"""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
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
    y = anp.where(valid, y, 0)
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
    (y, n, p), _ = counted("binom.cdf", anp.floor(k), loc, n, p)
    n, p = count(n), probability(p)
    successes = anp.floor(anp.subtract(k, loc))
    is_inside = (successes >= 0) & (successes < n)
    y = anp.where(is_inside, y, 0)
    value = special.betaincc(y + 1, anp.where(is_inside, n - y, 1), p)
    edge = anp.where(successes < 0, 0.0, 1.0)
    # 0 * (n + p) passes on the NaN of invalid n or p.
    return anp.where(is_inside | anp.isnan(n + p), value + 0 * (n + p), edge)


__all__ = ["cdf", "logpmf", "pmf"]
