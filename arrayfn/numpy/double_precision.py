"""Helpers of special functions, most of which compute in float64 for all dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.manipulation import broadcast_arrays

# On NumPy arrays, ignore overflow in a branch that is not selected.
quiet = np.errstate(all="ignore")

_SPLITTER = 2.0**27 + 1.0  # splits the 53 bits of a float64 in two parts


def floats(name: str, *operands: ArrayLike) -> list[Array]:
    """Convert ``operands`` to arrays of one floating-point dtype.

    Errors call the function ``name``.
    """
    return [ops.as_array(x) for x in ops.floated(name, *operands)]


def in_float64(name: str, *operands: ArrayLike) -> tuple[list[Array], DType]:
    """Convert ``operands`` to float64 arrays of one shape.

    Returns these arrays, and the floating-point dtype of the result, to which the
    operands promote. Scalars stay scalars. Errors call the function ``name``.
    """
    converted = ops.floated(name, *operands)
    dtype = ops.type_of_operand(name, converted[0]).dtype
    wide = [ops.as_array(ops.convert(x, dtypes.float64)) for x in converted]
    return list(broadcast_arrays(*wide)), dtype


def exact_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded product x y, and its exact rounding error (Dekker, 1971).

    x and y are float64, below 1e300.
    """
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    product = x * y
    error = x_high * y_high - product + x_high * y_low + x_low * y_high
    return product, error + x_low * y_low


def _split(x: Array) -> tuple[Array, Array]:
    """Return high and low with x = high + low, each with half of the bits of x.

    The method is Veltkamp's splitting. Products of such parts have no rounding error.
    """
    wide = _SPLITTER * x
    high = wide - (wide - x)
    return high, x - high


def horner(x: Array, coefficients: Any) -> Array:
    """Evaluate the polynomial with these ``coefficients`` at x, the constant first."""
    *others, last = coefficients
    total: Any = last
    for coefficient in reversed(others):
        total = x * total + coefficient
    return total
