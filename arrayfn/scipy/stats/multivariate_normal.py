"""The normal distribution of vectors, with mean [n] and covariance [n, n]."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn import lax, linalg
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet


@quiet
def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """Return the logarithm of the multivariate normal density at x [..., n].

    ``mean`` is [..., n] or a number. ``cov`` is [..., n, n] and positive definite, or a
    number, which stands for that multiple of the unit matrix. With cov = L L^T and w =
    L^-1 (x - mean), it is -(w . w + n log(2 pi)) / 2 - sum(log(diagonal of L)).
    """
    (cov,) = floats("multivariate_normal.logpdf", cov)
    x, mean = floats("multivariate_normal.logpdf", x, mean)
    centred = x - mean
    if cov.ndim < 2:
        n = centred.shape[-1] if centred.ndim else 1
        size = anp.sum(anp.square(centred), -1) if centred.ndim else centred**2
        return -0.5 * (size / cov + n * anp.log(2.0 * math.pi * cov))
    factor = linalg.cholesky(cov)
    n = cov.shape[-1]
    batch = anp.broadcast_shapes(centred.shape[:-1], cov.shape[:-2])
    columns = anp.broadcast_to(centred, (*batch, n))[..., None]
    square = anp.broadcast_to(factor, (*batch, n, n))
    whitened = lax.linalg.triangular_solve(square, columns, left_side=True, lower=True)
    size = anp.sum(anp.square(whitened[..., 0]), -1)
    logs = anp.log(anp.diagonal(factor, axis1=-2, axis2=-1))
    return -0.5 * (size + n * math.log(2.0 * math.pi)) - anp.sum(logs, -1)


@quiet
def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """Return the multivariate normal density at x [..., n]: see ``logpdf``.

    >>> import numpy as np
    >>> pdf(np.zeros(2), np.zeros(2), np.eye(2))
    array(0.15915494)
    """
    return anp.exp(logpdf(x, mean, cov))


__all__ = ["logpdf", "pdf"]
