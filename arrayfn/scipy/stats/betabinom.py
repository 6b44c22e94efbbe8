"""The binomial distribution of ``n`` trials whose probability is beta-distributed."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import (
    count,
    counted,
    log_choices,
    positive,
    within,
)


@quiet
def logpmf(
    k: ArrayLike,
    n: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
) -> Array:
    """Return the logarithm of the probability of k in the beta-binomial distribution.

    With y = k - loc, it is the logarithm of C(n, y) B(y + a, n - y + b) / B(a, b) for
    integers y from 0 to n, else -inf. The result is NaN unless n is an integer >=
    0, and a and b are positive.
    """
    (y, n, a, b), valid = counted("betabinom.logpmf", k, loc, n, a, b)
    n, a, b = count(n), positive(a), positive(b)
    valid = valid & (y <= n)
    y = within(valid, y, 0)
    ratio = special.betaln(y + a, n - y + b) - special.betaln(a, b)
    return within(valid, log_choices(n, y) + ratio)


@quiet
def pmf(
    k: ArrayLike,
    n: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
) -> Array:
    """Return the probability of k in the beta-binomial distribution.

    >>> pmf(1, 1, 1.0, 1.0).round(12)
    np.float64(0.5)
    """
    return anp.exp(logpmf(k, n, a, b, loc))


__all__ = ["logpmf", "pmf"]
