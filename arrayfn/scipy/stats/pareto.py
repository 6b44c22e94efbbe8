"""The Pareto distribution with exponent ``b``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy.stats._arguments import positive, standard, within


@quiet
def logpdf(
    x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the density of the Pareto distribution at x.

    It is log(b) - (b + 1) log(z) - log(scale) for z >= 1, else -inf, with z = (x - loc)
    / scale. It is NaN unless b and scale are positive.
    """
    z, scale, b = standard("pareto.logpdf", x, loc, scale, b)
    b = positive(b)
    log = anp.log(anp.maximum(z, 1))
    return within(z >= 1, anp.log(b) - (b + 1) * log - anp.log(scale))


@quiet
def pdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Pareto distribution at x.

    >>> pdf(1.0, 3.0)
    array(3.)
    """
    return anp.exp(logpdf(x, b, loc, scale))


@quiet
def logsf(
    x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of ``sf`` of the Pareto distribution at x.

    It is -b log(z) for z >= 1, else 0, with z = (x - loc) / scale.
    """
    z, _, b = standard("pareto.logsf", x, loc, scale, b)
    b = positive(b)
    return -b * anp.log(anp.maximum(z, 1))


@quiet
def sf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the Pareto distribution."""
    return anp.exp(logsf(x, b, loc, scale))


@quiet
def cdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the Pareto distribution."""
    return -anp.expm1(logsf(x, b, loc, scale))


@quiet
def logcdf(
    x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of ``cdf`` of the Pareto distribution at x."""
    tail = logsf(x, b, loc, scale)
    return within(tail < 0, nn.log1mexp(anp.where(tail >= 0, 1, -tail)))


@quiet
def ppf(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the Pareto distribution: x with ``cdf(x)`` = q.

    It is loc + scale (1 - q)**(-1 / b), and NaN unless q is in [0, 1], and b and scale
    are positive.
    """
    q, loc, scale, b = floats("pareto.ppf", q, loc, scale, b)
    scale, b = positive(scale), positive(b)
    value = loc + scale * anp.exp(-anp.log1p(-q) / b)
    return within((q >= 0) & (q <= 1), value, math.nan)


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
