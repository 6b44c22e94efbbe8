"""Arguments of distributions: promotion, location and scale."""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike


def floats(name: str, *operands: ArrayLike) -> list[Array]:
    """``operands`` as arrays of one floating-point dtype, of one shape or rank 0."""
    return [ops.as_array(x) for x in ops.floated(name, *operands)]


def standard(
    name: str, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
) -> list[Array]:
    """(x - loc) / scale, the scale, and the ``shapes``; NaN unless scale > 0."""
    x, loc, scale, *others = floats(name, x, loc, scale, *shapes)
    scale = positive(scale)
    return [(x - loc) / scale, scale, *others]


def quantile(
    name: str, q: ArrayLike, loc: ArrayLike, scale: ArrayLike
) -> tuple[Array, Array, Array]:
    """q, loc and the scale; NaN unless scale is positive."""
    q, loc, scale = floats(name, q, loc, scale)
    return q, loc, positive(scale)


def probability(p: Array) -> Array:
    """p if it is in [0, 1], else NaN."""
    return anp.where((p >= 0) & (p <= 1), p, math.nan)


def positive(x: Array) -> Array:
    """x if it is positive, else NaN, so that invalid parameters give NaN."""
    return anp.where(x > 0, x, math.nan)


def between(z: Array, low: ArrayLike, high: ArrayLike = math.inf) -> Array:
    """Whether z is in [low, high], or NaN, which gives NaN."""
    return ~((z < low) | (z > high))


def counted(
    name: str, k: ArrayLike, loc: ArrayLike, *shapes: ArrayLike
) -> tuple[list[Array], Array]:
    """k - loc (0 if it is not a count), the ``shapes``, and whether it is a count."""
    k, loc, *others = floats(name, k, loc, *shapes)
    number = k - loc
    valid = (anp.floor(number) == number) & (number >= 0)
    return [anp.where(valid, number, 0), *others], valid


def within(inside: Array, value: Array, outside: float = -math.inf) -> Array:
    """``value`` if it is ``inside`` or NaN, else ``outside``."""
    return anp.where(inside | anp.isnan(value), value, outside)
