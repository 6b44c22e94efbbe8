"""Norms of vectors and matrices, and condition numbers."""

from __future__ import annotations

import math
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.numpy.arithmetic import (
    absolute,
    conj,
    divide,
    multiply,
    power,
    real,
    sqrt,
)
from arrayfn.numpy.comparison import where
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.linalg.decompositions import svdvals
from arrayfn.numpy.linalg.solutions import inv
from arrayfn.numpy.manipulation import expand_dims, moveaxis
from arrayfn.numpy.reductions import max, min, sum
from arrayfn.primitives.rules import as_list

Order = float | str | None


def _inexact(name: str, x: ArrayLike) -> Array:
    """Convert ``x`` to an array of floating-point numbers.

    float16 and bfloat16 stay. Errors call the function ``name``.
    """
    type = ops.type_of_operand(name, x)
    return m.as_array(x, ops.inexact_dtype(name, type.dtype))


def _squares(x: Array) -> Array:
    """Return the squared absolute values of the elements of x."""
    return real(x * conj(x)) if x.dtype in dtypes.COMPLEX else x * x


def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Array:
    """Return the ``ord`` norm over ``axis``: sum(abs(x)**ord)**(1/ord).

    ``axis`` is an axis, several, or None for all. ``keepdims`` keeps them with extent
    1. Order infinity gives the largest absolute value, and minus infinity the smallest.
    Order 0 counts the nonzero elements. The result is real, and integers give floats.
    Raises ArgumentError for an order that is text.

    >>> import numpy as np
    >>> vector_norm(np.array([3.0, -4.0])), vector_norm(np.array([3.0, -4.0]), ord=1)
    (array(5.), array(7.))
    """
    x = _inexact("vector_norm", x)
    axes = ops.normalize_axes("vector_norm", axis, len(x.shape))
    return _vector_norm(x, axes, keepdims, ord)


def _largest(sizes: Array, **options: Any) -> Array:
    """Return the largest of ``sizes``, which are absolute values; 0 for no elements.

    ``options`` are the ``axis`` and ``keepdims`` of ``max``.
    """
    initial = None if sizes.size else 0
    return max(sizes, initial=initial, **options)


def _vector_norm(
    x: Array, axes: tuple[int, ...], keepdims: bool, order: float
) -> Array:
    """Return the norm of x over ``axes``, of the number ``order``.

    Raises ArgumentError for an order that is text.
    """
    if isinstance(order, str):
        raise ArgumentError(
            f"the order of a vector's norm must be a number, not {order!r}",
            user_location(),
        )
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if order == 2:
        return sqrt(sum(_squares(x), **options))
    sizes = absolute(x)
    if order == math.inf:
        return _largest(sizes, **options)
    if order == -math.inf:
        return min(sizes, **options)
    if order == 0:
        return sum(sizes != 0, dtype=sizes.dtype, **options)
    if order == 1:
        return sum(sizes, **options)
    return power(sum(sizes**order, **options), 1.0 / order)


def matrix_norm(
    x: ArrayLike, /, *, keepdims: bool = False, ord: Order = "fro"
) -> Array:
    """Return the ``ord`` norm of the matrices x (..., m, n), with shape (...).

    The order "fro" is the root of the sum of squares, and "nuc" is the sum of singular
    values. The orders 2 and -2 are the largest and smallest singular value. The orders
    1 and -1 are the largest and smallest sum of the absolute values of a column.
    Infinity and minus infinity are the same for rows. ``keepdims`` keeps the axes with
    extent 1. The result is real. Raises ShapeError for fewer than two axes,
    ArgumentError for another order.

    >>> import numpy as np
    >>> matrix_norm(np.diag([3.0, -4.0])), matrix_norm(np.diag([3.0, -4.0]), ord=2)
    (array(5.), array(4.))
    """
    x = _inexact("matrix_norm", x)
    m.check_matrix("matrix_norm", x.shape)
    return _matrix_norm(x, (-2, -1), keepdims, ord)


def _matrix_norm(
    x: Array, axes: tuple[int, int], keepdims: bool, order: Order
) -> Array:
    """Return the norm of the matrices in two ``axes`` of x.

    ``order`` is "fro", "f" or None (the Frobenius norm), "nuc", 1, -1, 2, -2, inf or
    -inf; ArgumentError for others.
    """
    ndim = len(x.shape)
    row, column = (ops.normalize_axis("matrix_norm", a, ndim) for a in axes)
    if row == column:
        raise ShapeError(f"a matrix's norm is over two axes, not {axes}")
    if order in (None, "fro", "f"):
        return sqrt(sum(_squares(x), axis=(row, column), keepdims=keepdims))
    if order in ("nuc", 2, -2):
        values = svdvals(moveaxis(x, (row, column), (-2, -1)))
        reduction = sum if order == "nuc" else _largest if order == 2 else min
        result = reduction(values, axis=-1)
    elif order in (1, -1, math.inf, -math.inf):
        # Sum over the first of the two axes, then take the extremum over the second,
        # whose number may be one less without the first axis.
        first, second = (row, column) if order in (1, -1) else (column, row)
        sums = sum(absolute(x), axis=first)
        remaining = second - 1 if second > first else second
        positive = not isinstance(order, str) and order > 0
        result = (_largest if positive else min)(sums, axis=remaining)
    else:
        raise ArgumentError(
            "the order of a matrix's norm must be 'fro', 'nuc', 1, -1, 2, -2, inf or "
            f"-inf, not {order!r}",
            user_location(),
        )
    return expand_dims(result, tuple(sorted((row, column)))) if keepdims else result


def norm(
    x: ArrayLike,
    ord: Order = None,
    axis: Axis = None,
    keepdims: bool = False,
) -> Array:
    """Return the norm of vectors over one axis, or of matrices over two.

    Without ``axis``, x is a vector or a matrix. Without ``axis`` and ``ord``, the norm
    is the root of the sum of all squares. The orders are those of ``vector_norm`` and
    ``matrix_norm``. ``keepdims`` keeps the axes with extent 1. The result is real.
    Raises ShapeError for other numbers of axes, ArgumentError for another order.

    >>> import numpy as np
    >>> norm(np.array([[3.0, 0.0], [0.0, 4.0]]))
    array(5.)
    """
    x = _inexact("norm", x)
    ndim = len(x.shape)
    if axis is None and ord is None:
        return _vector_norm(x, tuple(range(ndim)), keepdims, 2)
    if axis is None:
        axis = tuple(range(ndim))
    axes = as_list(axis)
    if len(axes) == 1:
        places = ops.normalize_axes("norm", tuple(axes), ndim)
        return _vector_norm(x, places, keepdims, 2 if ord is None else ord)  # type: ignore[arg-type]
    if len(axes) != 2:
        raise ShapeError(
            f"norm is over one axis or two, not over {len(axes)} of shape {x.shape}",
            user_location(),
        )
    return _matrix_norm(x, (axes[0], axes[1]), keepdims, ord)


def cond(x: ArrayLike, p: Order = None) -> Array:
    """Return the condition number (...) of x (..., m, n).

    It is the norm of x times the norm of its inverse, where ``p`` is the order of
    ``matrix_norm``. If p is None or 2, the number is the largest singular value divided
    by the smallest. If p is -2, the number is the smallest divided by the largest.
    Singular matrices have an infinite condition number. Raises ShapeError if x is not
    square and p is another order.
    """
    x = m.matrix("cond", x)
    if p in (None, 2, -2):
        s = svdvals(x)
        large, small = s[..., 0], s[..., -1]
        return divide(small, large) if p == -2 else divide(large, small)
    m.check_square("cond", x.shape)
    value = multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))
    # The inverse of a singular matrix may have NaN. The result is infinite then, and
    # NaN only if x itself has NaN, and so its total. NaN is not equal to itself.
    total = sum(absolute(x), axis=(-2, -1))
    return where((value != value) & (total == total), math.inf, value)
