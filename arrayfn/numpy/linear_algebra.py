"""Products of matrices and vectors, contractions, and diagonals.

Products are ``dot_general`` equations. float16 and bfloat16 are summed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import conj, multiply, subtract
from arrayfn.numpy.comparison import not_equal, where
from arrayfn.numpy.creation import on_diagonal
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
    slice_along,
    squeeze,
)
from arrayfn.numpy.reductions import sum
from arrayfn.primitives import contraction, slicing, views
from arrayfn.primitives import reductions as r
from arrayfn.tracing import apply

Pair = tuple[tuple[int, ...], tuple[int, ...]]
_NO_AXES: Pair = ((), ())


def dot_general(
    name: str,
    x: ArrayLike,
    y: ArrayLike,
    contract: Pair,
    batch: Pair = _NO_AXES,
    precision: str | None = None,
) -> Array:
    """The contraction of promoted x and y; for bools, whether any product is true."""
    params = contraction.precision_params(name, precision)
    (x, y), types, dtype = ops.promoted(name, (x, y))
    first, second = types
    for a, b in zip(*contract, strict=True):
        if first.shape[a] != second.shape[b]:
            raise ShapeError(
                f"{name}: axis {a} of {first} has extent {first.shape[a]}, but axis "
                f"{b} of {second}, which it meets, has {second.shape[b]}",
                user_location(),
            )
    if dtype == dtypes.bool_:
        x, y = ops.convert(x, dtypes.int32), ops.convert(y, dtypes.int32)
    x, y = (ops.as_array(a) for a in (x, y))
    value = apply(
        contraction.dot_general, x, y, contract=contract, batch=batch, **params
    )
    return not_equal(value, 0) if dtype == dtypes.bool_ else value


def matmul(x: ArrayLike, y: ArrayLike, /, *, precision: str | None = None) -> Array:
    """The matrix product of x (..., n, k) and y (..., k, m): (..., n, m).

    A vector is a row on the left and a column on the right. The leading axes broadcast.
    ``precision="tf32"`` lets a GPU round float32 operands to TensorFloat-32; a CPU
    ignores it.
    """
    first, second = (ops.type_of_operand("matmul", a) for a in (x, y))
    if not first.shape or not second.shape:
        raise ShapeError(
            f"matmul takes no rank-0 operands, but was given {first} and {second}; "
            "use *",
            user_location(),
        )
    x_axis = first.ndim - 1
    y_axis = max(second.ndim - 2, 0)
    batches = max(first.ndim - 2, 0), max(second.ndim - 2, 0)
    if not batches[1]:
        return dot_general("matmul", x, y, ((x_axis,), (y_axis,)), _NO_AXES, precision)
    if not batches[0]:
        value = dot_general("matmul", x, y, ((x_axis,), (y_axis,)), _NO_AXES, precision)
        return value if first.ndim == 1 else moveaxis(value, 0, -2)
    leading = ops.broadcast_shape("matmul", (first.shape[:-2], second.shape[:-2]))
    x = broadcast_to(x, (*leading, *first.shape[-2:]))
    y = broadcast_to(y, (*leading, *second.shape[-2:]))
    count = len(leading)
    axes = tuple(range(count))
    pairs = ((count + 1,), (count,)), (axes, axes)
    return dot_general("matmul", x, y, *pairs, precision)


def matvec(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The product of x (..., n, m) and vectors y (..., m): (..., n)."""
    return squeeze(matmul(x, expand_dims(y, -1)), -1)


def vecmat(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The product of conjugated vectors x (..., n) and y (..., n, m): (..., m)."""
    return squeeze(matmul(expand_dims(conj(x), -2), y), -2)


def dot(x: ArrayLike, y: ArrayLike, /, *, precision: str | None = None) -> Array:
    """The sum over x's last axis and y's second to last (or only); scalars multiply.

    ``precision`` is as in ``matmul``.
    """
    first, second = (ops.type_of_operand("dot", a) for a in (x, y))
    if not first.shape or not second.shape:
        return multiply(x, y)
    axes = (first.ndim - 1,), (max(second.ndim - 2, 0),)
    return dot_general("dot", x, y, axes, _NO_AXES, precision)


def vdot(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The sum of conj(x) * y over all elements: a scalar."""
    return dot(conj(ravel(x)), ravel(y))


def vecdot(x: ArrayLike, y: ArrayLike, /, *, axis: int = -1) -> Array:
    """The sum of conj(x) * y over ``axis`` of each, the other axes broadcasting.

    >>> import numpy as np
    >>> vecdot(np.ones((2, 3, 2)), np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0).shape
    (3, 2)
    """
    (x, y), types, dtype = ops.promoted("vecdot", (x, y))
    first, second = (ops.normalize_axis("vecdot", axis, t.ndim) for t in types)
    if types[0].shape[first] != types[1].shape[second]:
        raise ShapeError(
            f"vecdot: axis {axis} of {types[0]} and of {types[1]} differ",
            user_location(),
        )
    from_end = first - types[0].ndim
    if second - types[1].ndim != from_end:
        x, y, from_end = moveaxis(x, first, -1), moveaxis(y, second, -1), -1
    wide = dtypes.compute_dtype(dtype)
    product = multiply(conj(ops.convert(x, wide)), ops.convert(y, wide))
    place = len(product.shape) + from_end
    return ops.convert(apply(r.reduce_sum, product, axes=(place,)), dtype)


def inner(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The sum over the last axes of x and y; scalars multiply."""
    first, second = (ops.type_of_operand("inner", a) for a in (x, y))
    if not first.shape or not second.shape:
        return multiply(x, y)
    return dot_general("inner", x, y, ((first.ndim - 1,), (second.ndim - 1,)))


def outer(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The products of each element of x (n in all) with each of y (m): (n, m)."""
    return multiply(expand_dims(ravel(x), 1), ravel(y))


def tensordot(x: ArrayLike, y: ArrayLike, /, axes: int | Sequence[Any] = 2) -> Array:
    """The sum over the last ``axes`` axes of x and the first of y, or over pairs."""
    first, second = (ops.type_of_operand("tensordot", a) for a in (x, y))
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise _bad_axes(axes)
        left, right = (a if isinstance(a, (tuple, list)) else (a,) for a in axes)
    else:
        if not isinstance(axes, (int, np.integer)) or axes < 0:
            raise _bad_axes(axes)
        count = int(axes)
        left, right = range(first.ndim - count, first.ndim), range(count)
    if len(left) != len(right):
        raise ShapeError(
            f"tensordot: as many axes of x as of y are summed, not {axes}",
            user_location(),
        )
    contract = (
        tuple(ops.normalize_axis("tensordot", a, first.ndim) for a in left),
        tuple(ops.normalize_axis("tensordot", a, second.ndim) for a in right),
    )
    return dot_general("tensordot", x, y, contract)


def _bad_axes(axes: Any) -> ArgumentError:
    return ArgumentError(
        "tensordot: axes is how many are summed, or a pair of axes (or of lists of "
        f"them) of x and of y, not {axes!r}",
        user_location(),
    )


def kron(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The Kronecker product: each element of x is replaced by its product with y."""
    first, second = (ops.type_of_operand("kron", a).shape for a in (x, y))
    ndim = max(len(first), len(second))
    first = (1,) * (ndim - len(first)) + first
    second = (1,) * (ndim - len(second)) + second
    blocks = reshape(x, tuple(n for extent in first for n in (extent, 1)))
    block = reshape(y, tuple(n for extent in second for n in (1, extent)))
    final = tuple(a * b for a, b in zip(first, second, strict=True))
    return reshape(multiply(blocks, block), final)


def cross(x: ArrayLike, y: ArrayLike, /, axis: int = -1) -> Array:
    """The cross product of vectors of three elements along ``axis``."""
    shapes = [ops.type_of_operand("cross", a).shape for a in (x, y)]
    if any(len(s) == 0 or s[axis] != 3 for s in shapes):
        raise ShapeError(
            f"cross takes vectors of 3 elements along axis {axis}, but was given "
            f"shapes {shapes[0]} and {shapes[1]}",
            user_location(),
        )

    def part(a: ArrayLike, shape: tuple[int, ...], k: int) -> Array:
        return slice_along(a, k, k + 1, ops.normalize_axis("cross", axis, len(shape)))

    xs = [part(x, shapes[0], k) for k in range(3)]
    ys = [part(y, shapes[1], k) for k in range(3)]
    parts = [
        subtract(multiply(xs[a], ys[b]), multiply(xs[b], ys[a]))
        for a, b in ((1, 2), (2, 0), (0, 1))
    ]
    return concatenate(parts, axis)


# Diagonals.


def diagonal(x: ArrayLike, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Diagonal ``offset`` of the matrices in ``axis1``, ``axis2``, as the last axis."""
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    *leading, rows, columns = x.shape
    first_row = min(max(-offset, 0), rows)
    first_column = min(max(offset, 0), columns)
    count = min(rows - first_row, columns - first_column)
    ndim = len(leading) + 2
    x = slice_along(x, first_row, first_row + count, ndim - 2)
    x = slice_along(x, first_column, first_column + count, ndim - 1)
    flat = reshape(x, (*leading, count * count))
    return apply(
        slicing.slice_,
        flat,
        start=(0,) * (ndim - 1),
        limit=flat.shape,
        strides=(*(1 for _ in leading), count + 1),
    )


def diag(x: ArrayLike, /, k: int = 0) -> Array:
    """Diagonal k of a matrix; for a vector, the matrix with that diagonal k."""
    k = ops.whole(k)
    type = ops.type_of_operand("diag", x)
    if type.ndim != 1:
        return diagonal(x, k)
    side = type.shape[0] + abs(k)
    nothing = ops.scalar(0, type.dtype)
    padded = apply(slicing.pad, x, nothing, config=((0, abs(k), 0),))
    shape = (side, side)
    along = 0 if k >= 0 else 1
    filled = apply(views.broadcast_in_dim, padded, shape=shape, axes=(along,))
    return where(on_diagonal(shape, k), filled, nothing)


def diagflat(x: ArrayLike, /, k: int = 0) -> Array:
    """The matrix with x's elements on diagonal k."""
    return diag(ravel(x), k)


def trace(
    x: ArrayLike,
    /,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike = None,
) -> Array:
    """The sum of diagonal ``offset`` of the matrices in ``axis1`` and ``axis2``."""
    return sum(diagonal(x, offset, axis1, axis2), -1, dtype)


def matrix_power(x: ArrayLike, n: int, /) -> Array:
    """The n-th power of x (..., m, m), for n >= 0."""
    if n < 0:
        raise ShapeError(
            "matrix_power takes n >= 0; invert the matrix first", user_location()
        )
    type = ops.type_of_operand("matrix_power", x)
    side = type.shape[-1]
    result = broadcast_to(
        ops.convert(on_diagonal((side, side), 0), type.dtype), type.shape
    )
    factor = x
    while n:
        if n & 1:
            result = matmul(result, factor)
        n >>= 1
        factor = matmul(factor, factor) if n else factor
    return result
