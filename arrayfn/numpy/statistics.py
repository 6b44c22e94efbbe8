"""Covariance and correlation."""

from __future__ import annotations

from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import (
    clip,
    conj,
    divide,
    imag,
    multiply,
    real,
    sqrt,
    subtract,
)
from arrayfn.numpy.averages import average
from arrayfn.numpy.linear_algebra import diagonal, matmul
from arrayfn.numpy.manipulation import (
    atleast_2d,
    concatenate,
    expand_dims,
    matrix_transpose,
    squeeze,
)
from arrayfn.numpy.reductions import sum as sum_
from arrayfn.primitives import complex_numbers
from arrayfn.tracing import apply


def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return the covariance matrix (v, v) of v variables; a number for one variable.

    The variables are the rows of ``m``, or its columns if ``rowvar`` is False. ``y``
    has further variables. The divisor is the number of observations minus ``ddof``. The
    default of ``ddof`` is 0 with ``bias``, otherwise 1. ``fweights`` are the integer
    counts of observations, and ``aweights`` are their weights. The result has
    ``dtype``, or the operands' dtype; integers give float64. Raises DTypeError,
    ShapeError or ArgumentError for another ``dtype``, rank or ``ddof``.

    >>> import numpy as np
    >>> cov(np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    arrays = [m] if y is None else [m, y]
    common = dtypes.canonical(dtype) if dtype is not None else None
    if common is not None and common not in dtypes.INEXACT:
        raise DTypeError(
            f"a covariance must be floating-point or complex, not {common}",
            user_location(),
        )
    values, types, common = ops.promoted("cov", arrays, common)
    if any(t.ndim > 2 for t in types):
        raise ShapeError("cov takes matrices and vectors", user_location())
    wide = ops.inexact_dtype("cov", common)
    rows: list[Array] = []
    for value, t in zip(values, types, strict=True):
        value = atleast_2d(ops.as_array(ops.convert(value, wide)))
        rows.append(value if rowvar or t.ndim < 2 else matrix_transpose(value))
    x = concatenate(rows) if len(rows) > 1 else rows[0]
    subtracted = (0 if bias else 1) if ddof is None else ddof
    if subtracted != int(subtracted):
        raise ArgumentError("cov: ddof must be an integer", user_location())
    weights: Any = None
    if fweights is not None:
        weights = ops.convert(fweights, dtypes.real_of(wide))
    if aweights is not None:
        weights = aweights if weights is None else multiply(weights, aweights)
    mean = average(x, 1, weights)
    if weights is None:
        divisor: Any = float(max(x.shape[1] - subtracted, 0))
    else:
        # The divisor of weighted observations, as in NumPy.
        total = sum_(weights)
        lost: Any = subtracted
        if subtracted and aweights is not None:
            lost = subtracted * sum_(multiply(weights, aweights)) / total
        divisor = subtract(total, lost)
    centred = subtract(x, expand_dims(mean, 1))
    other = centred if weights is None else multiply(centred, weights)
    return squeeze(divide(matmul(centred, conj(matrix_transpose(other))), divisor))


def corrcoef(
    x: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    dtype: DTypeLike = None,
) -> Array:
    """Return the correlation matrix: ``cov`` divided by the standard deviations.

    Its elements are limited to [-1, 1]. The parameters and errors are those of ``cov``.
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.shape:
        return divide(c, c)  # one variable: 1, or NaN if it does not vary
    deviation = sqrt(real(diagonal(c)))
    c = divide(divide(c, expand_dims(deviation, 1)), expand_dims(deviation, 0))
    if c.dtype in dtypes.COMPLEX:
        parts = [clip(part, -1.0, 1.0) for part in (real(c), imag(c))]
        return apply(complex_numbers.make_complex, *parts)
    return clip(c, -1.0, 1.0)
