"""Student's distribution with ``df`` degrees of freedom."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats import norm
from arrayfn.scipy.stats._arguments import standard


@quiet
def logpdf(
    x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the density of the Student's distribution at x.

    It is -(df + 1) / 2 log(1 + z**2 / df) - log(B(df / 2, 1 / 2) sqrt(df) scale), with
    z = (x - loc) / scale. ``df`` is the number of degrees of freedom. For infinite
    ``df`` it is the normal distribution.
    """
    z, scale, df = standard("t.logpdf", x, loc, scale, df)
    is_normal = df == math.inf
    df = anp.where(is_normal, 1, df)
    # gamma((df + 1) / 2) / gamma(df / 2), by beta(df / 2, 1 / 2).
    factor = -special.betaln(0.5 * df, 0.5) - 0.5 * anp.log(df)
    value = factor - 0.5 * (df + 1) * anp.log1p(z * z / df)
    return anp.where(is_normal, norm.logpdf(z), value) - anp.log(scale)


@quiet
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Student's distribution at x.

    >>> pdf(0.0, 1.0)
    array(0.31830989)
    """
    return anp.exp(logpdf(x, df, loc, scale))


@quiet
def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the Student's distribution.

    ``df`` is the number of degrees of freedom.
    """
    z, _, df = standard("t.cdf", x, loc, scale, df)
    return special.stdtr(df, z)


@quiet
def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the Student's distribution.

    The distribution is symmetric, so it is ``cdf`` at -(x - loc) / scale.
    """
    z, _, df = standard("t.sf", x, loc, scale, df)
    return cdf(-z, df)


__all__ = ["cdf", "logpdf", "pdf", "sf"]
