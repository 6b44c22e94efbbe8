"""Kernel density estimation with a Gaussian kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import arrayfn.numpy as anp
from arrayfn import lax, linalg, nn, random, tree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats, quiet
from arrayfn.records import frozen
from arrayfn.scipy.stats import norm

Bandwidth = str | float | Callable[["gaussian_kde"], Any] | None


@frozen(eq=False)
class gaussian_kde:  # noqa: N801 - SciPy's name
    """A mixture of normal distributions around the points of ``dataset``.

    ``dataset`` is [n] or [d, n]. The bandwidth follows Scott's rule ("scott", the
    default) or Silverman's ("silverman"). It may also be a number or a function of the
    estimate. The points have ``weights`` [n], equal by default. ``factor`` is the
    bandwidth in units of the data's standard deviation, and ``covariance`` [d, d] that
    of each normal distribution: the data's covariance times ``factor**2``. Raises
    ShapeError for other shapes, or fewer than two points. See Scott, Multivariate
    density estimation, 1992.

    An estimate is a pytree, so it can be created inside ``jit`` and passed to it.

    >>> import numpy as np
    >>> gaussian_kde(np.array([-1.0, 0.0, 1.0])).pdf(0.0).round(4)
    array([0.3182])
    """

    dataset: Array
    weights: Array
    covariance: Array
    factor: Array

    def __init__(
        self,
        dataset: ArrayLike,
        bw_method: Bandwidth = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """Compute the normalised weights, the bandwidth and the covariance.

        Raises ShapeError for a dataset or weights of other shapes.
        """
        (points,) = floats("gaussian_kde", dataset)
        points = anp.atleast_2d(points)
        if points.ndim != 2 or points.shape[1] < 2:
            raise ShapeError(
                "gaussian_kde takes a dataset [n] or [d, n] of two points or more, not "
                f"{points.shape}",
                user_location(),
            )
        count = points.shape[1]
        if weights is None:
            share = anp.full((count,), 1.0 / count, dtype=points.dtype)
        else:
            (given,) = floats("gaussian_kde", weights)
            if given.shape != (count,):
                raise ShapeError(
                    f"gaussian_kde: weights are [{count}], as the points, not "
                    f"{given.shape}",
                    user_location(),
                )
            share = anp.astype(given / anp.sum(given), points.dtype)
        # A frozen dataclass allows no plain assignment.
        object.__setattr__(self, "dataset", points)
        object.__setattr__(self, "weights", share)
        mean = anp.sum(points * share, 1, keepdims=True)
        centred = points - mean
        # The unbiased covariance of weighted points.
        spread = (centred * share) @ centred.T / (1.0 - anp.sum(share * share))
        factor = anp.astype(self._bandwidth(bw_method), points.dtype)
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "covariance", spread * factor**2)

    @property
    def d(self) -> int:
        """The number of dimensions of the points."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of points."""
        return self.dataset.shape[1]

    @property
    def neff(self) -> Array:
        """The effective number of points: 1 / sum(weights**2)."""
        return 1.0 / anp.sum(self.weights * self.weights)

    def _bandwidth(self, method: Bandwidth) -> Array:
        """Return the factor of the bandwidth by ``method``.

        It is a rule's name, a number, or a function of this estimate. Scott's factor is
        neff**(-1 / (d + 4)), and Silverman's (neff (d + 2) / 4)**(-1 / (d + 4)).
        Another name raises ArgumentError.
        """
        exponent = -1.0 / (self.d + 4.0)
        if method is None or method == "scott":
            return anp.power(self.neff, exponent)
        if method == "silverman":
            return anp.power(self.neff * (self.d + 2.0) / 4.0, exponent)
        if callable(method):
            return anp.asarray(method(self))
        if isinstance(method, str):
            raise ArgumentError(
                "gaussian_kde: bw_method must be scott, silverman, a number or a "
                f"function, not {method!r}",
                user_location(),
            )
        return anp.asarray(method)

    def _points(self, points: ArrayLike) -> Array:
        """Return ``points`` as an array [d, m] of floating-point numbers.

        In one dimension they may be [m], and a single point may be [d]. Other shapes
        raise ShapeError.
        """
        # The dataset's dtype takes part in the promotion.
        _, given = floats("gaussian_kde", anp.zeros((), self.dataset.dtype), points)
        given = anp.atleast_2d(given)
        if given.shape[0] != self.d and given.shape == (1, self.d):
            given = given.T
        if given.shape[0] != self.d:
            raise ShapeError(
                f"gaussian_kde: points are [{self.d}, m], as the dataset, not "
                f"{given.shape}",
                user_location(),
            )
        return given

    def evaluate(self, points: ArrayLike) -> Array:
        """Return the density at points [d, m], or [m] in one dimension."""
        return anp.exp(self.logpdf(points))

    def __call__(self, points: ArrayLike) -> Array:
        """Return the density at points [d, m]: see ``evaluate``."""
        return self.evaluate(points)

    def pdf(self, x: ArrayLike) -> Array:
        """Return the density at points [d, m]: see ``evaluate``."""
        return self.evaluate(x)

    @quiet
    def logpdf(self, x: ArrayLike) -> Array:
        """Return the logarithm of the density [m] at points [d, m]."""
        return _log_mixture(
            self._points(x), self.dataset, self.covariance, self.weights
        )

    @quiet
    def integrate_gaussian(self, mean: ArrayLike, cov: ArrayLike) -> Array:
        """Return the integral of the density times a normal density.

        ``mean`` is [d] and ``cov`` [d, d]. The integral is the density at ``mean`` of
        the mixture whose covariance is increased by ``cov``.
        """
        center = anp.reshape(mean, (self.d, 1))
        spread = anp.reshape(cov, (self.d, self.d)) + self.covariance
        (log,) = _log_mixture(center, self.dataset, spread, self.weights)  # one point
        return anp.exp(log)

    @quiet
    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Array:
        """Return the probability of [low, high]; ShapeError unless d is 1."""
        if self.d != 1:
            raise ShapeError(
                f"integrate_box_1d is for one dimension, not {self.d}", user_location()
            )
        scale = anp.sqrt(self.covariance[0, 0])
        ends = (anp.subtract(x, self.dataset[0]) / scale for x in (low, high))
        below, above = (norm.cdf(end) for end in ends)
        return anp.sum(self.weights * (above - below))

    @quiet
    def integrate_kde(self, other: gaussian_kde) -> Array:
        """Return the integral of the product of two densities of the same dimension.

        It is the weighted sum, over the other's points, of the mixture with both
        covariances.
        """
        logs = _log_mixture(
            other.dataset,
            self.dataset,
            self.covariance + other.covariance,
            self.weights,
        )
        return anp.sum(other.weights * anp.exp(logs))

    def resample(self, key: Any, shape: Any = ()) -> Array:
        """Draw points [d, *shape] from the density, by the random ``key``.

        Each is a point of the dataset, chosen by weight, plus normal noise.
        """
        wanted = shape if isinstance(shape, tuple) else (shape,)
        choice_key, noise_key = random.split(key)
        index = random.choice(choice_key, self.n, wanted, p=self.weights)
        zero = anp.zeros(self.d, dtype=self.dataset.dtype)
        noise = random.multivariate_normal(
            noise_key, zero, self.covariance, wanted, self.dataset.dtype
        )
        return anp.take(self.dataset, index, axis=1) + anp.moveaxis(noise, -1, 0)


def _log_mixture(points: Array, centers: Array, cov: Array, weights: Array) -> Array:
    """Return the log density of a weighted normal mixture at points [d, m].

    ``centers`` are [d, n], ``cov`` [d, d] is the covariance of each, and ``weights``
    are [n]. With cov = L L^T, squared distances are those of the points L^-1 x.
    """
    factor = linalg.cholesky(cov)
    points, centers = (
        lax.linalg.triangular_solve(factor, x, left_side=True, lower=True)
        for x in (points, centers)
    )
    difference = points[:, :, None] - centers[:, None, :]
    squared_distances = anp.sum(anp.square(difference), 0)
    logs = anp.sum(anp.log(anp.diagonal(factor)))  # half of log(det(cov))
    constant = 0.5 * cov.shape[0] * math.log(2.0 * math.pi) + logs
    return nn.logsumexp(-0.5 * squared_distances, -1, weights) - constant


def _flatten(estimate: gaussian_kde) -> tuple[tuple[Array, ...], None]:
    """Return the arrays of an estimate, for the pytree, and no auxiliary data."""
    return (
        estimate.dataset,
        estimate.weights,
        estimate.covariance,
        estimate.factor,
    ), None


def _unflatten(_: None, children: tuple[Array, ...]) -> gaussian_kde:
    """Return the estimate with these arrays, without computing them again."""
    estimate = object.__new__(gaussian_kde)
    names = ("dataset", "weights", "covariance", "factor")
    for name, value in zip(names, children, strict=True):
        object.__setattr__(estimate, name, value)
    return estimate


tree.register_node(gaussian_kde, _flatten, _unflatten)

__all__ = ["gaussian_kde"]
