"""Roots of polynomials, and polynomial fits, by linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import divide, multiply, negative, sqrt
from arrayfn.numpy.creation import zeros
from arrayfn.numpy.grids import vander
from arrayfn.numpy.linalg.decompositions import eigvals
from arrayfn.numpy.linalg.solutions import inv, lstsq
from arrayfn.numpy.linear_algebra import diag, matmul
from arrayfn.numpy.manipulation import (
    concatenate,
    expand_dims,
    matrix_transpose,
    ravel,
)
from arrayfn.numpy.reductions import sum as sum_
from arrayfn.tracing import ImmutableArray


def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """Return the complex roots of polynomial p, whose highest power comes first.

    The roots are the eigenvalues of the companion matrix of p (Horn and Johnson, Matrix
    Analysis, section 3.3). Leading and trailing zeros are removed first, which needs
    the value of p, and decides the number of roots. With ``strip_zeros=False``, the
    first coefficient of p must not be 0. Raises ShapeError if p is no vector.
    """
    type = ops.type_of_operand("roots", p)
    if type.ndim != 1:
        raise ShapeError(f"roots takes a vector, not {type}", user_location())
    trailing = 0
    if strip_zeros:
        p, trailing = _stripped(p)
    inexact = ops.inexact_dtype("roots", type.dtype)
    wide = dtypes.complex_of(dtypes.compute_dtype(inexact))
    count = p.shape[0] - 1
    zero_roots = zeros((trailing,), wide)  # one for each trailing zero of p
    if count < 1:
        return zero_roots
    p = ops.convert(p, dtypes.compute_dtype(inexact))
    # The companion matrix: -p[1:] / p[0] in the first row, ones below the diagonal.
    first = expand_dims(negative(divide(p[1:], p[0])), 0)
    below = diag(ops.full(1, (count,), p.dtype))[: count - 1]
    values = eigvals(concatenate([first, below], 0))
    return concatenate([ops.convert(values, wide), zero_roots])


def _stripped(p: ArrayLike) -> tuple[Array, int]:
    """Return p without zeros at both ends, and the number of zeros at its end.

    Raises AbstractValueError if the value of p is not known while tracing.
    """
    value = p
    if isinstance(p, ImmutableArray):
        value = p.concrete(
            "roots, which takes zeros off both ends,",
            "Give it strip_zeros=False, and a first coefficient that is not 0",
        )
    nonzeros = np.flatnonzero(value)
    if not nonzeros.size:
        return ops.as_array(p)[:0], 0
    first, last = int(nonzeros[0]), int(nonzeros[-1])
    return ops.as_array(p)[first : last + 1], len(value) - 1 - last


def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any:
    """Fit a polynomial of degree ``deg`` to the points (x, y) by least squares.

    The result has the coefficients (deg + 1, ...), the highest power first. x is a
    vector (n,). y is (n,), or a matrix (n, k), whose columns are fitted separately.
    ``w`` (n,) weights the errors. Singular values below ``rcond`` times the largest
    count as 0. With ``full``, the result also has the residuals, rank, singular values
    and ``rcond``. With ``cov``, the result also has the covariance of the coefficients,
    which is scaled by the errors unless ``cov`` is "unscaled". Integers give floats.
    Raises ShapeError for other shapes, ArgumentError if there are too few points for
    ``cov``.

    >>> import numpy as np
    >>> np.round(polyfit(np.arange(4.0), 3.0 * np.arange(4.0) + 1.0, 1), 12)
    array([3., 1.])
    """
    (x, y), types, dtype = ops.promoted("polyfit", (x, y))
    if types[0].ndim != 1 or types[1].ndim not in (1, 2) or deg < 0:
        raise ShapeError(
            f"polyfit takes a vector x, y of one or two axes and deg >= 0, not "
            f"{types[0]}, {types[1]} and {deg}",
            user_location(),
        )
    wide = ops.inexact_dtype("polyfit", dtype)
    x, y = (ops.as_array(ops.convert(v, wide)) for v in (x, y))
    count = types[0].shape[0]
    if types[1].shape[0] != count:
        raise ShapeError(
            f"polyfit: x and y have {count} and {types[1].shape[0]} points",
            user_location(),
        )
    limit = count * float(np.finfo(wide).eps) if rcond is None else rcond
    left, right = vander(x, deg + 1), y
    if w is not None:
        weights = ops.convert(w, wide)
        left = multiply(left, expand_dims(weights, 1))
        right = multiply(y, expand_dims(weights, 1) if y.ndim == 2 else weights)
    # Normalised columns improve the condition of the equations.
    scale = sqrt(sum_(multiply(left, left), 0))
    left = divide(left, scale)
    solution, residuals, rank, singular = lstsq(left, right, limit)
    along = expand_dims(scale, 1) if y.ndim == 2 else scale
    coefficients = divide(solution, along)
    if full:
        return coefficients, residuals, rank, singular, limit
    if not cov:
        return coefficients
    # The variance of the errors: a number, or one for each column of y.
    if cov == "unscaled":
        # NumPy gives one matrix for all columns of y.
        variance = ops.full(1, (1,) * (y.ndim - 1), wide, like=y)
    elif count > deg + 1:
        variance = divide(residuals, float(count - deg - 1))
        variance = variance if y.ndim == 2 else ravel(variance)[0]
    else:
        raise ArgumentError(
            f"polyfit: the covariance of {deg + 1} coefficients needs more points "
            f"than coefficients, not {count}",
            user_location(),
        )
    return coefficients, _covariance(left, scale, variance)


def _covariance(left: Array, scale: Array, variance: Array) -> Array:
    """Return the covariance of coefficients, for a ``variance`` of the errors.

    It is ``variance`` times the inverse of the Gram matrix of ``left``, after the
    columns of ``left`` are multiplied by ``scale``. A vector of variances gives one
    covariance for each, along a new last axis.
    """
    normalised = inv(matmul(matrix_transpose(left), left))
    unscaled = divide(divide(normalised, expand_dims(scale, 1)), expand_dims(scale, 0))
    if variance.ndim:
        unscaled = expand_dims(unscaled, -1)
    return multiply(unscaled, variance)
