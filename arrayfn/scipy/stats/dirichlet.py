"""The Dirichlet distribution of vectors that add up to 1."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn.errors import ShapeError, user_location
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.scipy import special
from arrayfn.scipy.stats._arguments import within


@quiet
def logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Return the logarithm of the Dirichlet density at x [m, ...], for alpha [m].

    As in SciPy, the components are along the first axis. x may also be [m - 1, ...]:
    the last component may be omitted, because it follows from the sum 1. The result
    [...] is -inf if x is not on the simplex. Other shapes raise ShapeError.
    """
    size = anp.asarray(alpha).shape[0]
    points = anp.asarray(x)
    if points.shape[:1] == (size - 1,):
        rest = 1 - anp.sum(points, 0, keepdims=True)
        points = anp.concatenate([points, rest])
    if points.shape[:1] != (size,):
        raise ShapeError(
            f"dirichlet takes x of shape [{size}, ...] or [{size - 1}, ...] for alpha "
            f"[{size}], not {points.shape}",
            user_location(),
        )
    points, weights = floats("dirichlet.logpdf", points, _column(alpha, points.ndim))
    positive = anp.all((points >= 0) & (points <= 1), 0)
    simplex = positive & (anp.abs(anp.sum(points, 0) - 1) <= 1e-6)
    terms = special.xlogy(weights - 1, anp.where(points >= 0, points, 0.5))
    (alpha,) = floats("dirichlet.logpdf", alpha)
    mass = anp.sum(special.gammaln(alpha)) - special.gammaln(anp.sum(alpha))
    return within(simplex, anp.sum(terms, 0) - mass)


def _column(alpha: ArrayLike, ndim: int) -> Array:
    """Reshape alpha [m] to [m, 1, ..., 1] with ``ndim`` axes, to broadcast with x."""
    values = anp.asarray(alpha)
    return anp.reshape(values, (values.shape[0],) + (1,) * (ndim - 1))


@quiet
def pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Return the Dirichlet density at x [m, ...] (or [m - 1, ...]), for alpha [m].

    >>> import numpy as np
    >>> pdf(np.array([0.3, 0.7]), np.array([1.0, 1.0]))
    array(1.)
    """
    return anp.exp(logpdf(x, alpha))


__all__ = ["logpdf", "pdf"]
