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
    """(x - loc) / scale, and the scale, and the ``shapes``."""
    x, loc, scale, *others = floats(name, x, loc, scale, *shapes)
    return [(x - loc) / scale, scale, *others]


def counted(
    name: str, k: ArrayLike, loc: ArrayLike, *shapes: ArrayLike
) -> tuple[list[Array], Array]:
    """k - loc (0 where that is no count) and the ``shapes``; whether it is a count."""
    k, loc, *others = floats(name, k, loc, *shapes)
    number = k - loc
    valid = (anp.floor(number) == number) & (number >= 0)
    return [anp.where(valid, number, 0), *others], valid


def within(inside: Array, value: Array, outside: float = -math.inf) -> Array:
    """``value`` where ``inside``, ``outside`` elsewhere."""
    return anp.where(inside, value, outside)
