"""The chi-square distribution with ``df`` degrees of freedom."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats import gamma


def _gamma_parameters(df: ArrayLike, scale: ArrayLike) -> tuple[Array, Array]:
    """Return the shape and the scale of the equivalent gamma distribution."""
    return df * 0.5, scale * 2.0  # Python numbers keep their weak types


@quiet
def logpdf(
    x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the density of the chi-square distribution at x.

    ``df`` is the number of degrees of freedom. The distribution is a gamma distribution
    of shape df / 2 and scale 2 scale.
    """
    a, scale = _gamma_parameters(df, scale)
    return gamma.logpdf(x, a, loc, scale)


@quiet
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the chi-square distribution at x.

    >>> pdf(0.0, 2)
    array(0.5)
    """
    return anp.exp(logpdf(x, df, loc, scale))


@quiet
def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the chi-square distribution.

    ``df`` is the number of degrees of freedom.
    """
    a, scale = _gamma_parameters(df, scale)
    return gamma.cdf(x, a, loc, scale)


@quiet
def logcdf(
    x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of ``cdf`` of the chi-square distribution at x."""
    return anp.log(cdf(x, df, loc, scale))


@quiet
def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the chi-square distribution.

    ``df`` is the number of degrees of freedom.
    """
    a, scale = _gamma_parameters(df, scale)
    return gamma.sf(x, a, loc, scale)


@quiet
def logsf(
    x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of ``sf`` of the chi-square distribution at x."""
    return anp.log(sf(x, df, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
