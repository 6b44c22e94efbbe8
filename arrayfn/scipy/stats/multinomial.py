"""The multinomial distribution: the counts of outcomes in ``n`` trials."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import within


@quiet
def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return the log probability of counts x [..., m] in ``n`` trials.

    ``p`` [..., m] are the probabilities of the outcomes. The result is log(n!) +
    sum(x log(p) - log(x!)), and -inf unless the counts are integers >= 0 that add up to
    ``n``.
    """
    (n,) = floats("multinomial.logpmf", n)
    x, p = floats("multinomial.logpmf", x, p)
    whole = anp.all((x >= 0) & (anp.floor(x) == x), -1)
    counts = anp.where(x >= 0, x, 0)
    terms = special.xlogy(counts, p) - special.gammaln(counts + 1)
    value = special.gammaln(n + 1) + anp.sum(terms, -1)
    return within(whole & (anp.sum(x, -1) == n), value)


@quiet
def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return the probability of counts x [..., m], for probabilities ``p`` [..., m].

    >>> import numpy as np
    >>> pmf(np.array([1, 1]), 2, np.array([0.5, 0.5])).round(12)
    np.float64(0.5)
    """
    return anp.exp(logpmf(x, n, p))


__all__ = ["logpmf", "pmf"]
