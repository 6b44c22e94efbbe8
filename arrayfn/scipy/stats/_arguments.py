"""Arguments of distributions: promoted to one floating-point dtype, located, scaled."""

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
    """(x - loc) / scale, the scale, and the ``shapes``; NaN of no positive scale."""
    x, loc, scale, *others = floats(name, x, loc, scale, *shapes)
    scale = positive(scale)
    return [(x - loc) / scale, scale, *others]


def quantile(
    name: str, q: ArrayLike, loc: ArrayLike, scale: ArrayLike
) -> tuple[Array, Array, Array]:
    """q, loc and the scale, NaN of a scale that is not positive."""
    q, loc, scale = floats(name, q, loc, scale)
    return q, loc, positive(scale)


def probability(p: Array) -> Array:
    """p where it is in [0, 1], else NaN."""
    return anp.where((p >= 0) & (p <= 1), p, math.nan)


def positive(x: Array) -> Array:
    """x where it is positive, else NaN: an invalid parameter's results are NaN."""
    return anp.where(x > 0, x, math.nan)


def between(z: Array, low: ArrayLike, high: ArrayLike = math.inf) -> Array:
    """Whether z is from low to high, or NaN: NaN gives NaN."""
    return ~((z < low) | (z > high))


def counted(
    name: str, k: ArrayLike, loc: ArrayLike, *shapes: ArrayLike
) -> tuple[list[Array], Array]:
    """k - loc (0 where that is no count) and the ``shapes``; whether it is a count."""
    k, loc, *others = floats(name, k, loc, *shapes)
    number = k - loc
    valid = (anp.floor(number) == number) & (number >= 0)
    return [anp.where(valid, number, 0), *others], valid


def within(inside: Array, value: Array, outside: float = -math.inf) -> Array:
    """``value`` where ``inside`` or NaN, ``outside`` elsewhere."""
    return anp.where(inside | anp.isnan(value), value, outside)
