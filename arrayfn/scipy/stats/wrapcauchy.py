"""The wrapped Cauchy distribution of angles in [0, 2 pi], with concentration ``c``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy.stats._arguments import between, within


@quiet
def logpdf(x: ArrayLike, c: ArrayLike) -> Array:
    """Return the logarithm of the density of the wrapped Cauchy distribution at x.

    The density is (1 - c**2) / (2 pi (1 + c**2 - 2 c cos(x))) for an angle x in [0, 2
    pi], else 0. It is NaN unless c is in (0, 1).
    """
    x, c = floats("wrapcauchy.logpdf", x, c)
    inside = between(x, 0, 2.0 * math.pi)
    spread = 1 + c * c - 2 * c * anp.cos(anp.where(inside, x, 0))
    value = anp.log1p(-c * c) - math.log(2.0 * math.pi) - anp.log(spread)
    value = within(inside, value)
    return within((c > 0) & (c < 1), value, math.nan)


@quiet
def pdf(x: ArrayLike, c: ArrayLike) -> Array:
    """Return the density of the wrapped Cauchy distribution at x.

    >>> pdf(0.0, 0.5)
    array(0.47746483)
    """
    return anp.exp(logpdf(x, c))


__all__ = ["logpdf", "pdf"]
