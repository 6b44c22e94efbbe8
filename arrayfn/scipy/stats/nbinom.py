"""The negative binomial distribution: the number of failures before ``n`` successes."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import counted, positive, probability, within


@quiet
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the log probability of k in the negative binomial distribution.

    It is the logarithm of C(n + y - 1, y) p**n (1 - p)**y for integers y = k - loc >=
    0, else -inf. ``p`` is the probability of a success. The result is NaN unless n
    is positive and p is in (0, 1].
    """
    (y, n, p), valid = counted("nbinom.logpmf", k, loc, n, p)
    n, p = positive(n), positive(probability(p))
    # gamma(n + y) / (gamma(n) y!)
    ways = -anp.log(n + y) - special.betaln(n, y + 1)
    value = ways + special.xlogy(n, p) + special.xlog1py(y, -p)
    return within(valid, value)


@quiet
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of k in the negative binomial distribution.

    >>> pmf(1, 1, 0.5).round(12)
    np.float64(0.25)
    """
    return anp.exp(logpmf(k, n, p, loc))


__all__ = ["logpmf", "pmf"]
