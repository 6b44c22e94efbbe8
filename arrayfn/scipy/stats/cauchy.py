"""The Cauchy distribution."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.scipy.stats._arguments import quantile, standard, within


@quiet
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Cauchy distribution at x.

    It is -log(pi scale (1 + z**2)) with z = (x - loc) / scale. It is NaN unless scale >
    0.
    """
    z, scale = standard("cauchy.logpdf", x, loc, scale)
    return -anp.log1p(z * z) - anp.log(scale) - math.log(math.pi)


@quiet
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Cauchy distribution at x.

    >>> pdf(0.0)
    array(0.31830989)
    """
    return anp.exp(logpdf(x, loc, scale))


@quiet
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most x in the Cauchy distribution.

    It is accurate in the lower tail.
    """
    z, _ = standard("cauchy.cdf", x, loc, scale)
    return _lower(z)


@quiet
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``cdf`` of the Cauchy distribution at x."""
    z, _ = standard("cauchy.logcdf", x, loc, scale)
    return anp.where(z < 0, anp.log(_lower(z)), anp.log1p(-_lower(-z)))


@quiet
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than x in the Cauchy distribution.

    It is accurate in the upper tail.
    """
    z, _ = standard("cauchy.sf", x, loc, scale)
    return _lower(-z)


@quiet
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of ``sf`` of the Cauchy distribution at x."""
    z, _ = standard("cauchy.logsf", x, loc, scale)
    return anp.where(z > 0, anp.log(_lower(-z)), anp.log1p(-_lower(z)))


def _lower(z: Array) -> Array:
    """Return 1/2 + arctan(z) / pi, accurate for very negative z.

    It is the angle of the point (-z, 1) over pi.
    """
    return anp.arctan2(anp.ones_like(z), -z) / math.pi


@quiet
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile of the Cauchy distribution: x with ``cdf(x)`` = q.

    It is loc + scale tan(pi (q - 1/2)), and NaN unless q is in [0, 1].
    """
    q, loc, scale = quantile("cauchy.ppf", q, loc, scale)
    inside = (q >= 0) & (q <= 1)
    # In the tails, use the cotangent of pi q or pi (1 - q), which is exact there.
    tail = anp.minimum(q, 1 - q)
    far = tail < 0.25
    size = 1 / anp.tan(math.pi * anp.where(far, tail, 0.25))
    center = anp.tan(math.pi * (anp.clip(q, 0.2, 0.8) - 0.5))
    value = loc + scale * anp.where(far, anp.where(q < 0.5, -size, size), center)
    edge = loc + anp.where(q == 0, -scale, scale) * math.inf
    return within(inside, anp.where((q > 0) & (q < 1), value, edge), math.nan)


@quiet
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the x with ``sf(x)`` = q in the Cauchy distribution.

    The distribution is symmetric about ``loc``, so it is 2 loc - ppf(q).
    """
    q, loc, scale = quantile("cauchy.isf", q, loc, scale)
    return loc - scale * ppf(q)


__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
