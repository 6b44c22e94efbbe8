"""Functions of shapes, and slices along one axis, under JAX's names."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Sequence

import numpy as np

from arrayfn import dtypes
from arrayfn import numpy as anp
from arrayfn.dtypes import DType
from arrayfn.errors import ShapeError, plural, user_location
from arrayfn.lax.structure import dynamic_update_slice_in_dim
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import (
    broadcast_shapes,
    broadcast_to,
    expand_dims,
    matmul,
    reshape,
)
from arrayfn.numpy import take as _take
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.manipulation import slice_along

stack = also_takes(operands="arrays")(anp.stack)
tile = also_takes(operand="A")(anp.tile)


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: str | None = None) -> Array:
    """Multiply matrices (..., m, k) by (..., k, n), with the same leading axes.

    The result is (..., m, n), in the dtype to which the operands promote. ``precision``
    is that of ``dot_general``.
    """
    return matmul(lhs, rhs, precision=precision)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices of x along ``axis`` as a tuple of arrays without that axis."""
    return anp.unstack(x, axis=axis)


def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """Broadcast ``arr`` to the shape of ``like_arr``; the dtype of ``arr`` stays."""
    return broadcast_to(arr, ops.type_of_operand("broadcast_like", like_arr).shape)


def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """Add leading axes of extent 1 to x, so that it has ``rank`` axes.

    Raises ShapeError if x has more axes.
    """
    shape = ops.type_of_operand("broadcast_to_rank", x).shape
    missing = rank - len(shape)
    if missing < 0:
        raise ShapeError(
            f"broadcast_to_rank: shape {shape} has more than {plural(rank, 'axis')}",
            user_location(),
        )
    return expand_dims(x, tuple(range(missing))) if missing else ops.same(x)


def collapse(
    operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None
) -> Array:
    """Merge the axes of ``operand`` from start to stop (exclusive; None: the end).

    Negative positions count from the end, as in slices. The merged axis has the product
    of their extents.
    """
    shape = ops.type_of_operand("collapse", operand).shape
    # indices() resolves negative positions and None.
    low, high, _ = builtins.slice(start_dimension, stop_dimension).indices(len(shape))
    middle = math.prod(shape[low:high])
    return reshape(operand, (*shape[:low], middle, *shape[max(high, low) :]))


def dtype(x: ArrayLike | DTypeLike) -> DType:
    """Return the dtype of an array or number x, or the dtype that x names.

    A Python number has its default dtype.

    >>> dtype(1.5), dtype("float32")
    (dtype('float64'), dtype('float32'))
    """
    if isinstance(x, type | str | np.dtype):
        return dtypes.canonical(x)
    return ops.type_of_operand("dtype", x).dtype


def empty(shape: Sequence[int], dtype: DTypeLike = None) -> Array:
    """Return an array of zeros of ``shape``, which is float64 if no dtype is given."""
    wanted = dtypes.float64 if dtype is None else dtypes.canonical(dtype)
    return ops.full(0, ops.as_shape("empty", tuple(shape)), wanted)


# Along one axis.


def index_in_dim(
    operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True
) -> Array:
    """Return the slice at position ``index`` along ``axis``, an int.

    A negative index counts from the end. With ``keepdims``, the result keeps the axis,
    with extent 1. Raises AxisError if the index or the axis is out of bounds.
    """
    shape = ops.type_of_operand("index_in_dim", operand).shape
    place = ops.normalize_axis("index_in_dim", axis, len(shape))
    position = ops.normalize_axis("index_in_dim", index, shape[place])
    value = slice_along(operand, position, position + 1, place)
    return value if keepdims else reshape(value, shape[:place] + shape[place + 1 :])


def index_take(src: ArrayLike, idxs: Sequence[ArrayLike], axes: Sequence[int]) -> Array:
    """Take elements of ``src`` at arrays of indices along ``axes``.

    ``idxs`` has an array of indices for each axis; they are (n,) and are used together,
    as in NumPy's src[i, j]. The result is (n, ...), with the other axes of ``src``.
    """
    type = ops.type_of_operand("index_take", src)
    places = [ops.normalize_axis("index_take", axis, type.ndim) for axis in axes]
    wanted = dict(zip(places, idxs, strict=True))
    if len(wanted) == 1:
        ((place, one),) = wanted.items()
        return np.moveaxis(_take(src, one, place), place, 0)
    # Move the indexed axes to the front, so that one index expression selects them.
    order = [*places, *(k for k in range(type.ndim) if k not in wanted)]
    transposed = np.transpose(ops.as_array(src), order)
    return transposed[tuple(wanted[place] for place in places)]


def dynamic_update_index_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Copy ``operand``, and replace the slice at ``index`` along ``axis``.

    ``update`` has the shape of the slice, with or without ``axis``, and is converted to
    the dtype of ``operand``. ``index`` may be traced. It is moved inside if it is out
    of bounds (see ``dynamic_update_slice``).
    """
    type = ops.type_of_operand("dynamic_update_index_in_dim", operand)
    place = ops.normalize_axis("dynamic_update_index_in_dim", axis, type.ndim)
    new = ops.as_array(ops.convert(update, type.dtype))
    if ops.type_of_operand("dynamic_update_index_in_dim", new).ndim != type.ndim:
        new = expand_dims(new, place)
    return dynamic_update_slice_in_dim(
        operand, new, index, place, allow_negative_indices=allow_negative_indices
    )


def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Split ``operand`` along ``axis``, and return a list of parts of ``sizes``.

    Raises ShapeError if the sizes do not add up to the extent of the axis.
    """
    shape = ops.type_of_operand("split", operand).shape
    place = ops.normalize_axis("split", axis, len(shape))
    if sum(sizes) != shape[place]:
        raise ShapeError(
            f"split: sizes {tuple(sizes)} do not add up to axis {place} of {shape}",
            user_location(),
        )
    return [
        slice_along(operand, end - size, end, place)
        for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)
    ]


__all__ = [
    "batch_matmul",
    "broadcast_like",
    "broadcast_shapes",
    "broadcast_to_rank",
    "collapse",
    "dtype",
    "dynamic_update_index_in_dim",
    "empty",
    "index_in_dim",
    "index_take",
    "split",
    "stack",
    "tile",
    "unstack",
]
