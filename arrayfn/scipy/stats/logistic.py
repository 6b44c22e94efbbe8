"""The logistic distribution."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import quantile, standard


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the logistic distribution at x.

    It is log(s(z) s(-z) / scale) for s(z) = 1 / (1 + exp(-z)), with z = (x - loc) /
    scale. It is NaN unless scale > 0.
    """
    z, scale = standard("logistic.logpdf", x, loc, scale)
    return special.log_expit(z) + special.log_expit(-z) - anp.log(scale)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the logistic distribution at x.

    >>> pdf(0.0)
    array(0.25)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the logistic distribution."""
    z, _ = standard("logistic.cdf", x, loc, scale)
    return special.expit(z)


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the logistic distribution."""
    z, _ = standard("logistic.sf", x, loc, scale)
    return special.expit(-z)


@quiet
@also_takes(x="q")  # x is another name of q
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the logistic distribution: x with ``cdf(x)`` = q.

    It is loc + scale log(q / (1 - q)).
    """
    q, loc, scale = quantile("logistic.ppf", q, loc, scale)
    return loc + scale * special.logit(q)


@quiet
@also_takes(x="q")  # x is another name of q
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the x with ``sf(x)`` = q in the logistic distribution.

    It is loc - scale log(q / (1 - q)).
    """
    q, loc, scale = quantile("logistic.isf", q, loc, scale)
    return loc - scale * special.logit(q)


__all__ = ["cdf", "isf", "logpdf", "pdf", "ppf", "sf"]
