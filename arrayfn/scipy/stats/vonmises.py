"""The von Mises distribution of angles around 0, with concentration ``kappa``."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special


@quiet
def logpdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Return the logarithm of the density of the von Mises distribution at x.

    It is kappa cos(x) - log(2 pi I0(kappa)), for an angle x in radians and the
    concentration ``kappa`` >= 0, else NaN.
    """
    x, kappa = floats("vonmises.logpdf", x, kappa)
    kappa = anp.where(kappa >= 0, kappa, math.nan)
    # log(I0(kappa)) - kappa. At 0 i0e is not differentiable, but I0 is.
    small = (kappa >= 0) & (kappa < 1)
    near = anp.where(small, kappa, 0.0)
    series = anp.log(special.i0(near)) - near
    scaled = anp.log(special.i0e(anp.where(small, 1.0, kappa)))
    normalisation = math.log(2.0 * math.pi) + anp.where(small, series, scaled)
    # cos x - 1, without cancellation near 0.
    return -2 * kappa * anp.square(anp.sin(0.5 * x)) - normalisation


@quiet
def pdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Return the density of the von Mises distribution at x.

    >>> pdf(1.0, 0.0)
    array(0.15915494)
    """
    return anp.exp(logpdf(x, kappa))


__all__ = ["logpdf", "pdf"]
