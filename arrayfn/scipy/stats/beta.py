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
    """The logarithm of the density."""
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
    """The density.

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
    """The probability of at most x."""
    z, _, a, b = standard("beta.cdf", x, loc, scale, a, b)
    return special.betainc(a, b, anp.clip(z, 0, 1))


@quiet
def logcdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """The logarithm of ``cdf``."""
    return anp.log(cdf(x, a, b, loc, scale))


@quiet
def sf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """The probability of more than x."""
    z, _, a, b = standard("beta.sf", x, loc, scale, a, b)
    return special.betainc(b, a, 1 - anp.clip(z, 0, 1))


@quiet
def logsf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """The logarithm of ``sf``."""
    return anp.log(sf(x, a, b, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
