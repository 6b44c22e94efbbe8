"""Helpers of special functions, which compute in float64 for all dtypes."""

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


def in_float64(name: str, *operands: ArrayLike) -> tuple[list[Array], DType]:
    """Convert ``operands`` to float64 arrays of one shape.

    Returns these arrays, and the floating-point dtype of the result, to which the
    operands promote. Scalars stay scalars. Errors call the function ``name``.
    """
    converted = ops.floated(name, *operands)
    dtype = ops.type_of_operand(name, converted[0]).dtype
    wide = [ops.as_array(ops.convert(x, dtypes.float64)) for x in converted]
    return list(broadcast_arrays(*wide)), dtype


def horner(x: Array, coefficients: Any) -> Array:
    """Evaluate the polynomial with these ``coefficients`` at x, the constant first."""
    *others, last = coefficients
    total: Any = last
    for coefficient in reversed(others):
        total = x * total + coefficient
    return total
