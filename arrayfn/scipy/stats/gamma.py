"""The gamma distribution with shape ``a``."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import between, positive, standard, within


@quiet
def logpdf(
    x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the density of the gamma distribution at x.

    It is (a - 1) log(z) - z - log(gamma(a) scale) for z >= 0, else -inf, with z = (x -
    loc) / scale. It is NaN unless a and scale are positive.
    """
    z, scale, a = standard("gamma.logpdf", x, loc, scale, a)
    a, inside = positive(a), between(z, 0)
    y = anp.where(inside, z, 1)
    value = special.xlogy(a - 1, y) - y - special.gammaln(a) - anp.log(scale)
    return within(inside, value)


@quiet
def pdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the gamma distribution at x.

    >>> pdf(1.0, 2.0)
    array(0.36787944)
    """
    return anp.exp(logpdf(x, a, loc, scale))


@quiet
def cdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the gamma distribution.

    It is the regularized incomplete gamma function of the shape ``a`` and (x - loc) /
    scale.
    """
    z, _, a = standard("gamma.cdf", x, loc, scale, a)
    return special.gammainc(positive(a), anp.maximum(z, 0))


@quiet
def logcdf(
    x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of ``cdf`` of the gamma distribution at x."""
    return anp.log(cdf(x, a, loc, scale))


@quiet
def sf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the gamma distribution."""
    z, _, a = standard("gamma.sf", x, loc, scale, a)
    return special.gammaincc(positive(a), anp.maximum(z, 0))


@quiet
def logsf(
    x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of ``sf`` of the gamma distribution at x."""
    return anp.log(sf(x, a, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
