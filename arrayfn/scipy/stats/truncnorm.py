"""The standard normal distribution truncated to [a, b], then scaled and shifted.

Hence x is in [loc + a * scale, loc + b * scale].
"""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats import norm
from arrayfn.scipy.stats._arguments import between, standard, within


def _log_mass(a: Array, b: Array) -> Array:
    """Return the logarithm of the normal probability of [a, b], accurate in the tails.

    For a <= 0 < b it is log1p of minus the two tails. On one side of 0, it is
    log(Phi(b) - Phi(a)), from the logarithms of Phi.
    """
    # In the upper tail use [-b, -a], which has the same probability.
    upper = a > 0
    low, high = anp.where(upper, -b, a), anp.where(upper, -a, b)
    across = (low <= 0) & (high > 0)
    two_tails = special.ndtr(anp.where(across, low, -1))
    two_tails = two_tails + special.ndtr(anp.where(across, -high, -1))
    # On one side of 0: log(Phi(high) - Phi(low)).
    log_high = special.log_ndtr(anp.where(across, 0, high))
    log_low = special.log_ndtr(anp.where(across, -1, low))
    distance = log_high - log_low
    empty = (distance <= 0) | (high <= low)
    side = log_high + nn.log1mexp(anp.where(empty, 1, distance))
    return anp.where(across, anp.log1p(-two_tails), within(~empty, side))


def _arguments(
    name: str,
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike,
    scale: ArrayLike,
) -> list[Array]:
    """Return z = (x - loc) / scale, the scale, and the bounds a and b, broadcast.

    The bound a is NaN unless a < b. Errors call the function ``name``.
    """
    z, scale, a, b = standard(f"truncnorm.{name}", x, loc, scale, a, b)
    a = anp.where(a < b, a, math.nan)
    return list(anp.broadcast_arrays(z, scale, a, b))


@quiet
def logpdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the logarithm of the density of the truncated normal distribution at x.

    It is the normal density at z minus the log probability of [a, b] for z in [a, b],
    else -inf, with z = (x - loc) / scale. It is NaN unless a < b and scale > 0.
    """
    z, scale, a, b = _arguments("logpdf", x, a, b, loc, scale)
    value = norm.logpdf(z) - anp.log(scale) - _log_mass(a, b)
    return within(between(z, a, b), value)


@quiet
def pdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the density of the truncated normal distribution at x.

    >>> pdf(0.0, 0.0, 40.0)
    array(0.79788456)
    """
    return anp.exp(logpdf(x, a, b, loc, scale))


@quiet
def logcdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the logarithm of ``cdf`` of the truncated normal distribution at x.

    It is the log probability of [a, z] minus that of [a, b].
    """
    z, _, a, b = _arguments("logcdf", x, a, b, loc, scale)
    return _log_mass(a, anp.clip(z, a, b)) - _log_mass(a, b)


@quiet
def cdf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the probability of at most x in the truncated normal distribution."""
    return anp.exp(logcdf(x, a, b, loc, scale))


@quiet
def logsf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the logarithm of ``sf`` of the truncated normal distribution at x.

    It is the log probability of [z, b] minus that of [a, b].
    """
    z, _, a, b = _arguments("logsf", x, a, b, loc, scale)
    return _log_mass(anp.clip(z, a, b), b) - _log_mass(a, b)


@quiet
def sf(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    loc: ArrayLike = 0,
    scale: ArrayLike = 1,
) -> Array:
    """Return the probability of more than x in the truncated normal distribution."""
    return anp.exp(logsf(x, a, b, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
