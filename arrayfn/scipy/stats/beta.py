"""The beta distribution with shapes ``a`` and ``b`` on [loc, loc + scale]."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import between, positive, standard, within


@quiet
def logpdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the logarithm of the density of the beta distribution at x.

    It is (a - 1) log(z) + (b - 1) log(1 - z) - log(B(a, b) scale) for z in [0, 1], else
    -inf, with z = (x - loc) / scale. It is NaN unless a, b and scale are positive.
    """
    z, scale, a, b = standard("beta.logpdf", x, loc, scale, a, b)
    a, b = positive(a), positive(b)
    inside = between(z, 0, 1)
    y = anp.where(inside, z, 0.5)
    powers = special.xlogy(a - 1, y) + special.xlog1py(b - 1, -y)
    return within(inside, powers - special.betaln(a, b) - anp.log(scale))


@quiet
def pdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the density of the beta distribution at x.

    >>> pdf(0.5, 2.0, 2.0)
    array(1.5)
    """
    return anp.exp(logpdf(x, a, b, loc, scale))


@quiet
def cdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the probability of at most x in the beta distribution.

    It is the regularized incomplete beta function of the shapes ``a`` and ``b``, at (x
    - loc) / scale clipped to [0, 1].
    """
    z, _, a, b = standard("beta.cdf", x, loc, scale, a, b)
    return special.betainc(positive(a), positive(b), anp.clip(z, 0, 1))


@quiet
def logcdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the logarithm of ``cdf`` of the beta distribution at x."""
    return anp.log(cdf(x, a, b, loc, scale))


@quiet
def sf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the probability of more than x in the beta distribution.

    It is 1 less the incomplete beta function of (a, b) at z.
    """
    z, _, a, b = standard("beta.sf", x, loc, scale, a, b)
    return special.betaincc(positive(a), positive(b), anp.clip(z, 0, 1))


@quiet
def logsf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the logarithm of ``sf`` of the beta distribution at x."""
    return anp.log(sf(x, a, b, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
