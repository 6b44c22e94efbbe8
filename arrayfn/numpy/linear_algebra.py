"""Products of matrices and vectors, contractions, and diagonals.

Products are ``dot_general`` equations. float16 and bfloat16 are summed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import conj, multiply, subtract
from arrayfn.numpy.comparison import not_equal, where
from arrayfn.numpy.creation import on_diagonal
from arrayfn.numpy.manipulation import (
    broadcast_to,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
    slice_along,
    squeeze,
    stack,
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
    preferred: DTypeLike = None,
) -> Array:
    """Promote x and y, and sum their products over the ``contract`` axes.

    ``contract`` and ``batch`` are pairs of axes of x and of y. The result has the batch
    axes, then the other axes of x and of y. For bools, it says whether any product is
    true. The sums are computed in the dtype ``preferred``, if one is given. Storage
    types, such as float8, stay as they are. Raises ShapeError, about the function
    ``name``, if extents differ.
    """
    params: dict[str, Any] = dict(contraction.precision_params(name, precision))
    if all(getattr(a, "dtype", None) in dtypes.STORAGE for a in (x, y)):
        types = [ops.type_of_operand(name, a) for a in (x, y)]
        dtype = types[0].dtype
    else:
        (x, y), types, dtype = ops.promoted(name, (x, y))
    if preferred is not None and dtypes.canonical(preferred) != dtype:
        params["preferred_element_type"] = dtypes.canonical(preferred)
    first, second = types
    for a, b in zip(*contract, strict=True):
        if first.shape[a] != second.shape[b]:
            raise ShapeError(
                f"{name}: axis {a} of {first} has extent {first.shape[a]}, but axis "
                f"{b} of {second}, which it meets, has {second.shape[b]}",
                user_location(),
            )
    if dtype == dtypes.bool_:  # count the true products
        x, y = ops.convert(x, dtypes.int32), ops.convert(y, dtypes.int32)
    x, y = (ops.as_array(a) for a in (x, y))
    value = apply(
        contraction.dot_general, x, y, contract=contract, batch=batch, **params
    )
    return not_equal(value, 0) if dtype == dtypes.bool_ else value


@operator(
    name="numpy.matmul",
    static_argnames=("precision", "preferred_element_type"),
    inline=True,
)
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Return the matrix product (..., n, m) of ``a`` (..., n, k) and b (..., k, m).

    A vector is a row on the left and a column on the right, and the result lacks its
    axis. The leading axes broadcast. The result has the dtype to which ``a`` and b
    promote. ``precision="tf32"`` lets a GPU round float32 operands to TensorFloat-32. A
    CPU ignores ``precision``. The product is computed in ``preferred_element_type``, if
    it is given. Raises ShapeError for scalars, or if the shapes do not fit.
    """
    how = precision, preferred_element_type
    first, second = (ops.type_of_operand("matmul", v) for v in (a, b))
    if not first.shape or not second.shape:
        raise ShapeError(
            f"matmul takes no rank-0 operands, but was given {first} and {second}; "
            "use *",
            user_location(),
        )
    x_axis = first.ndim - 1
    y_axis = max(second.ndim - 2, 0)
    batches = max(first.ndim - 2, 0), max(second.ndim - 2, 0)
    # If one operand has no leading axes, they need not be broadcast.
    if not batches[1]:
        return dot_general("matmul", a, b, ((x_axis,), (y_axis,)), _NO_AXES, *how)
    if not batches[0]:
        value = dot_general("matmul", a, b, ((x_axis,), (y_axis,)), _NO_AXES, *how)
        return value if first.ndim == 1 else moveaxis(value, 0, -2)
    leading = ops.broadcast_shape("matmul", (first.shape[:-2], second.shape[:-2]))
    a = broadcast_to(a, (*leading, *first.shape[-2:]))
    b = broadcast_to(b, (*leading, *second.shape[-2:]))
    count = len(leading)
    axes = tuple(range(count))
    pairs = ((count + 1,), (count,)), (axes, axes)
    return dot_general("matmul", a, b, *pairs, *how)


def matvec(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the products (..., n) of matrices x (..., n, m) and vectors y (..., m)."""
    return squeeze(matmul(x, expand_dims(y, -1)), -1)


def vecmat(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the products (..., m) of vectors x (..., n) and matrices y (..., n, m).

    Complex x is conjugated.
    """
    return squeeze(matmul(expand_dims(conj(x), -2), y), -2)


def dot(
    a: ArrayLike,
    b: ArrayLike,
    out: None = None,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Sum products over the last axis of ``a`` and an axis of b.

    The axis of b is the second to last, or the only one. The result has the other axes
    of ``a``, then those of b. Scalars are multiplied. ``precision`` and
    ``preferred_element_type`` are as in ``matmul``. Raises ShapeError if the extents
    differ, and ArgumentError if ``out`` is given.
    """
    ops.refuse_out("dot", out)
    first, second = (ops.type_of_operand("dot", v) for v in (a, b))
    if not first.shape or not second.shape:
        return _scaled(a, b, preferred_element_type)
    axes = (first.ndim - 1,), (max(second.ndim - 2, 0),)
    return dot_general("dot", a, b, axes, _NO_AXES, precision, preferred_element_type)


def _scaled(a: ArrayLike, b: ArrayLike, preferred: DTypeLike) -> Array:
    """Return a * b, of which one is a scalar, in the dtype ``preferred`` if given."""
    wanted = None if preferred is None else dtypes.canonical(preferred)
    (a, b), _, _ = ops.promoted("dot", (a, b), wanted)
    return multiply(a, b)


def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Return the sum of ``conj(a) * b`` over all elements, a scalar.

    Both arrays are flattened and promoted. ``precision`` and ``preferred_element_type``
    are as in ``matmul``. Raises ShapeError if the numbers of elements differ.
    """
    return dot(
        conj(ravel(a)),
        ravel(b),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def vecdot(
    x: ArrayLike,
    y: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Return the sum of conj(x) * y over ``axis`` of both; the other axes broadcast.

    The sum is computed in ``preferred_element_type``, if that is given. ``precision``
    has no effect, because no matrix product is computed.

    >>> import numpy as np
    >>> vecdot(np.ones((2, 3, 2)), np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0).shape
    (3, 2)
    """
    contraction.precision_params("vecdot", precision)  # raises if it is unknown
    preferred = preferred_element_type
    wanted = None if preferred is None else dtypes.canonical(preferred)
    (x, y), types, dtype = ops.promoted("vecdot", (x, y), wanted)
    first, second = (ops.normalize_axis("vecdot", axis, t.ndim) for t in types)
    if types[0].shape[first] != types[1].shape[second]:
        raise ShapeError(
            f"vecdot: axis {axis} of {types[0]} and of {types[1]} differ",
            user_location(),
        )
    # If the axis has another position from the end in x and y, move it to the end.
    from_end = first - types[0].ndim
    if second - types[1].ndim != from_end:
        x, y, from_end = moveaxis(x, first, -1), moveaxis(y, second, -1), -1
    wide = dtypes.compute_dtype(dtype)
    product = multiply(conj(ops.convert(x, wide)), ops.convert(y, wide))
    place = len(product.shape) + from_end
    return ops.convert(apply(r.reduce_sum, product, axes=(place,)), dtype)


def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Sum products over the last axes of ``a`` and b; scalars are multiplied.

    The result has the other axes of ``a``, then those of b. ``precision`` and
    ``preferred_element_type`` are as in ``matmul``. Raises ShapeError if the extents
    differ.
    """
    first, second = (ops.type_of_operand("inner", v) for v in (a, b))
    if not first.shape or not second.shape:
        return _scaled(a, b, preferred_element_type)
    axes = (first.ndim - 1,), (second.ndim - 1,)
    return dot_general("inner", a, b, axes, _NO_AXES, precision, preferred_element_type)


def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """Multiply each of the n elements of ``a`` by each of the m elements of b.

    The result is (n, m).
    """
    ops.refuse_out("outer", out)
    return multiply(expand_dims(ravel(a), 1), ravel(b))


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[Any] = 2,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Sum products over the last ``axes`` axes of ``a`` and the first of b.

    ``axes`` may instead be a pair: the axes of ``a``, and the axes of b. The result has
    the other axes of ``a``, then those of b. ``precision`` and
    ``preferred_element_type`` are as in ``matmul``. Raises ArgumentError for bad
    ``axes``, ShapeError if extents differ.
    """
    first, second = (ops.type_of_operand("tensordot", v) for v in (a, b))
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise _bad_axes(axes)
        left, right = (k if isinstance(k, (tuple, list)) else (k,) for k in axes)
    else:
        if not isinstance(axes, (int, np.integer)) or axes < 0:
            raise _bad_axes(axes)
        count = int(axes)
        left, right = range(first.ndim - count, first.ndim), range(count)
    if len(left) != len(right):
        raise ShapeError(
            f"tensordot: axes must name as many axes of a as of b, not {axes}",
            user_location(),
        )
    contract = (
        tuple(ops.normalize_axis("tensordot", k, first.ndim) for k in left),
        tuple(ops.normalize_axis("tensordot", k, second.ndim) for k in right),
    )
    return dot_general(
        "tensordot", a, b, contract, _NO_AXES, precision, preferred_element_type
    )


def _bad_axes(axes: Any) -> ArgumentError:
    """Return the error for ``axes`` that tensordot does not understand."""
    return ArgumentError(
        "tensordot: axes is how many are summed, or a pair of axes (or of lists of "
        f"them) of a and of b, not {axes!r}",
        user_location(),
    )


def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the Kronecker product, in which element x of a becomes the block x * b.

    The extents of the result are the products of the extents of ``a`` and b.
    """
    first, second = (ops.type_of_operand("kron", v).shape for v in (a, b))
    ndim = max(len(first), len(second))
    first = (1,) * (ndim - len(first)) + first
    second = (1,) * (ndim - len(second)) + second
    # a becomes (n0, 1, n1, 1, ...) and b (1, m0, 1, m1, ...), and they broadcast.
    blocks = reshape(a, tuple(n for extent in first for n in (extent, 1)))
    block = reshape(b, tuple(n for extent in second for n in (1, extent)))
    final = tuple(n * m for n, m in zip(first, second, strict=True))
    return reshape(multiply(blocks, block), final)


def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """Return the cross product of vectors of three elements.

    The vectors lie along ``axisa`` of ``a`` and along ``axisb`` of b, and the other
    axes broadcast. The products lie along ``axisc`` of the result. ``axis`` stands for
    all three axes. Raises ShapeError for other numbers of elements.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    vectors = ((a, axisa), (b, axisb))
    shapes = [ops.type_of_operand("cross", v).shape for v in (a, b)]
    if any(len(s) == 0 or s[k] != 3 for s, (_, k) in zip(shapes, vectors, strict=True)):
        raise ShapeError(
            f"cross takes vectors of 3 elements along axes {axisa} and {axisb}, but "
            f"was given shapes {shapes[0]} and {shapes[1]}",
            user_location(),
        )
    u, v = (moveaxis(vector, k, -1) for vector, k in vectors)
    (u0, u1, u2), (v0, v1, v2) = ([w[..., k] for k in range(3)] for w in (u, v))
    parts = [
        subtract(multiply(u1, v2), multiply(u2, v1)),
        subtract(multiply(u2, v0), multiply(u0, v2)),
        subtract(multiply(u0, v1), multiply(u1, v0)),
    ]
    return stack(parts, axisc)


# Diagonals.


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return diagonal ``offset`` of the matrices in ``axis1`` and ``axis2``.

    The diagonals lie along the last axis of the result. A positive offset is above the
    main diagonal.
    """
    a = moveaxis(a, (axis1, axis2), (-2, -1))
    *leading, rows, columns = a.shape
    first_row = min(max(-offset, 0), rows)
    first_column = min(max(offset, 0), columns)
    count = min(rows - first_row, columns - first_column)
    ndim = len(leading) + 2
    # Cut out the square with this diagonal. In the flattened square, its elements are
    # count + 1 apart.
    a = slice_along(a, first_row, first_row + count, ndim - 2)
    a = slice_along(a, first_column, first_column + count, ndim - 1)
    flat = reshape(a, (*leading, count * count))
    return apply(
        slicing.slice_,
        flat,
        start=(0,) * (ndim - 1),
        limit=flat.shape,
        strides=(*(1 for _ in leading), count + 1),
    )


def diag(v: ArrayLike, k: int = 0) -> Array:
    """Return diagonal k of a matrix, or the matrix that has a vector v as diagonal k.

    The other elements of the matrix are 0. A positive k is above the main diagonal.
    """
    k = ops.whole(k)
    type = ops.type_of_operand("diag", v)
    if type.ndim != 1:
        return diagonal(v, k)
    side = type.shape[0] + abs(k)
    zero = ops.scalar(0, type.dtype)
    padded = apply(slicing.pad, v, zero, config=((0, abs(k), 0),))
    shape = (side, side)
    # Element i of v is in row i of an upper diagonal, or in column i of a lower one.
    along = 0 if k >= 0 else 1
    filled = apply(views.broadcast_in_dim, padded, shape=shape, axes=(along,))
    return where(on_diagonal(shape, k), filled, zero)


def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """Return the matrix that has the elements of v, flattened, on diagonal k."""
    return diag(ravel(v), k)


def trace(
    a: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike = None,
    out: None = None,
) -> Array:
    """Return the sum of diagonal ``offset`` of matrices, in the axes of ``a``.

    The matrices lie in ``axis1`` and ``axis2``, which the result lacks. ``dtype`` is
    that of ``sum``. Raises ArgumentError if ``out`` is given.
    """
    ops.refuse_out("trace", out)
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def matrix_power(x: ArrayLike, n: int, /) -> Array:
    """Return the n-th power of x (..., m, m), for n >= 0, in the dtype of x.

    Raises ShapeError for negative n.
    """
    if n < 0:
        raise ShapeError(
            "matrix_power takes n >= 0; invert the matrix first", user_location()
        )
    type = ops.type_of_operand("matrix_power", x)
    side = type.shape[-1]
    result = broadcast_to(
        ops.convert(on_diagonal((side, side), 0), type.dtype), type.shape
    )
    # factor is x, x**2, x**4, ...; the result has those of the bits set in n.
    factor = x
    while n:
        if n & 1:
            result = matmul(result, factor)
        n >>= 1
        factor = matmul(factor, factor) if n else factor
    return result
