"""Arguments of distributions: promotion, location and scale."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import floats
from arrayfn.scipy import special


def standard(
    name: str, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
) -> list[Array]:
    """Return z = (x - loc) / scale, then the scale, then ``shapes``.

    All are arrays of one floating-point dtype. z and the scale are NaN unless the scale
    is positive. ``shapes`` are the shape parameters of a distribution. Errors call the
    function ``name``.
    """
    x, loc, scale, *others = floats(name, x, loc, scale, *shapes)
    scale = positive(scale)
    return [(x - loc) / scale, scale, *others]


def quantile(
    name: str, q: ArrayLike, loc: ArrayLike, scale: ArrayLike
) -> tuple[Array, Array, Array]:
    """Return q, loc and scale as arrays of one floating-point dtype.

    The scale is NaN unless it is positive. Errors call the function ``name``.
    """
    q, loc, scale = floats(name, q, loc, scale)
    return q, loc, positive(scale)


def probability(p: Array) -> Array:
    """Return p if it is in [0, 1], else NaN."""
    return anp.where((p >= 0) & (p <= 1), p, math.nan)


def count(n: Array) -> Array:
    """Return n if it is an integer >= 0, else NaN."""
    return anp.where((n >= 0) & (anp.floor(n) == n), n, math.nan)


def positive(x: Array) -> Array:
    """Return x if it is positive, else NaN, so that invalid parameters give NaN."""
    return anp.where(x > 0, x, math.nan)


def between(z: Array, low: ArrayLike, high: ArrayLike = math.inf) -> Array:
    """Return whether z is in [low, high].

    It is also true for NaN, so that the formula inside the interval gives NaN.
    """
    return ~((z < low) | (z > high))


def counted(
    name: str, k: ArrayLike, loc: ArrayLike, *shapes: ArrayLike
) -> tuple[list[Array], Array]:
    """Return [k - loc, *shapes], and whether k - loc is an integer >= 0.

    Elsewhere, 0 replaces k - loc, but NaN stays. All are arrays of one floating-point
    dtype. ``shapes`` are the shape parameters of a distribution. Errors call the
    function ``name``.
    """
    k, loc, *others = floats(name, k, loc, *shapes)
    number = k - loc
    valid = (anp.floor(number) == number) & (number >= 0)
    return [within(valid, number, 0), *others], valid


def log_choices(n: Array, k: Array) -> Array:
    """Return the logarithm of C(n, k), which is 1 / ((n + 1) B(n - k + 1, k + 1))."""
    return -anp.log1p(n) - special.betaln(n - k + 1, k + 1)


def within(inside: Array, value: Array, outside: float = -math.inf) -> Array:
    """Return ``value`` where ``inside`` is true or it is NaN, else ``outside``."""
    return anp.where(inside | anp.isnan(value), value, outside)
