"""The geometric distribution: the number of trials up to the first success.

``p`` is the probability of a success.
"""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import counted, positive, probability, within


@quiet
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of k in the geometric distribution.

    It is (n - 1) log(1 - p) + log(p) for integers n = k - loc >= 1, else -inf. It is
    NaN unless p is in (0, 1].
    """
    # The number of failures, n - 1.
    (failures, p), valid = counted("geom.logpmf", k, anp.add(loc, 1), p)
    p = positive(probability(p))
    return within(valid, special.xlog1py(failures, -p) + anp.log(p))


@quiet
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of k in the geometric distribution.

    >>> pmf(2, 0.5)
    array(0.25)
    """
    return anp.exp(logpmf(k, p, loc))


__all__ = ["logpmf", "pmf"]
