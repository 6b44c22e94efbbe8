"""Shapes, slices, reductions and contractions, under JAX's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn import numpy as anp
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError, user_location
from arrayfn.lax._operands import typed
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import expand_dims as _expand_dims
from arrayfn.numpy import linear_algebra
from arrayfn.numpy import squeeze as _squeeze
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.index_bounds import from_the_front, in_bounds, known_value
from arrayfn.numpy.representation import bits_as
from arrayfn.primitives import (
    cumulative,
    dynamic_slices,
    slicing,
    views,
)
from arrayfn.primitives import reductions as r
from arrayfn.tracing import apply
from arrayfn.tracing.frames import checks_indices
from arrayfn.transforms.custom import stop_gradient

DimensionNumbers = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Convert ``operand``, an array or a Python number, to ``new_dtype``.

    The shape stays. An array that has the dtype is returned itself.
    """
    wanted = dtypes.canonical(new_dtype)
    value = np.asarray(operand) if dtypes.is_python_scalar(operand) else operand
    return ops.as_array(ops.convert(value, wanted))


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Read the bits of ``operand`` as ``new_dtype``.

    For dtypes of the same size the shape stays. A narrower dtype adds a last axis with
    the parts of each element, the lowest bits first. A wider dtype removes such an
    axis.

    >>> import numpy as np
    >>> bitcast_convert_type(np.float32([1.0]), np.uint16)
    array([[    0, 16256]], dtype=uint16)
    """
    (operand,) = typed("bitcast_convert_type", operand)
    return bits_as(operand, dtypes.canonical(new_dtype))


# Shapes.


def broadcast(operand: ArrayLike, sizes: Sequence[int]) -> Array:
    """Repeat ``operand`` along new leading axes of extents ``sizes``.

    The result has shape (*sizes, *operand.shape).
    """
    shape = ops.type_of_operand("broadcast", operand).shape
    axes = range(len(sizes), len(sizes) + len(shape))
    return broadcast_in_dim(operand, (*sizes, *shape), tuple(axes))


def broadcast_in_dim(
    operand: ArrayLike, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> Array:
    """Broadcast ``operand`` to ``shape``; the dtype stays.

    Axis i of the operand becomes axis ``broadcast_dimensions[i]`` of the result, and is
    repeated if its extent is 1.
    """
    (operand,) = typed("broadcast_in_dim", operand)
    axes = tuple(broadcast_dimensions)
    return apply(views.broadcast_in_dim, operand, shape=tuple(shape), axes=axes)


def reshape(
    operand: ArrayLike,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
) -> Array:
    """Arrange the elements of ``operand`` in shape ``new_sizes``, in row-major order.

    With ``dimensions``, the axes of ``operand`` are first put into that order.
    """
    if dimensions is not None:
        operand = transpose(operand, dimensions)
    return apply(views.reshape, operand, shape=tuple(new_sizes))


def full_like(
    x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike = None, shape: Any = None
) -> Array:
    """Return an array filled with a number, by default of x's shape and dtype."""
    return anp.full_like(x, fill_value, dtype, shape=shape)


def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Array:
    """Put the axes of ``operand`` into the order ``permutation``.

    Axis i of the result is axis ``permutation[i]`` of the operand.
    """
    return apply(views.transpose, operand, permutation=tuple(permutation))


def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Add axes of extent 1 to ``array``, at positions ``dimensions`` of the result."""
    return _expand_dims(array, tuple(dimensions))


def squeeze(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Remove the axes ``dimensions``, which have extent 1, from ``array``."""
    return _squeeze(array, tuple(dimensions))


def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Reverse the order of ``operand`` along ``dimensions``."""
    return apply(views.rev, operand, axes=tuple(sorted(dimensions)))


def pad(
    operand: ArrayLike,
    padding_value: ArrayLike,
    padding_config: Sequence[tuple[int, int, int]],
) -> Array:
    """Pad ``operand`` with a value, by (low, high, interior) widths along each axis.

    low and high count elements before and after the array; negative widths remove
    elements. interior counts the elements that are put between neighbours. The value is
    a scalar of the dtype of ``operand``.
    """
    config = tuple((int(a), int(b), int(c)) for a, b, c in padding_config)
    return apply(slicing.pad, *typed("pad", operand, padding_value), config=config)


def concatenate(operands: Sequence[ArrayLike], dimension: int) -> Array:
    """Join arrays of one dtype along the axis ``dimension``.

    The other extents must be equal.
    """
    return apply(slicing.concatenate, *operands, axis=dimension)


def full(shape: Sequence[int], fill_value: ArrayLike, dtype: DTypeLike = None) -> Array:
    """Return an array of ``shape`` filled with the scalar ``fill_value``.

    By default, it has the dtype of ``fill_value``.
    """
    own_dtype = ops.type_of_operand("full", fill_value).dtype
    wanted = own_dtype if dtype is None else dtypes.canonical(dtype)
    return ops.full(ops.convert(fill_value, wanted), tuple(shape), wanted)


def iota(dtype: DTypeLike, size: int) -> Array:
    """Return the numbers 0, 1, 2, ... up to ``size`` (exclusive), of shape (size,)."""
    return broadcasted_iota(dtype, (size,), 0)


def broadcasted_iota(dtype: DTypeLike, shape: Sequence[int], dimension: int) -> Array:
    """Return an array of ``shape`` that holds the indices along ``dimension``."""
    wanted = dtypes.canonical(dtype)
    return apply(views.iota, shape=tuple(shape), axis=dimension, dtype=wanted)


# Slices.


def slice(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Array:
    """Slice ``operand`` from start to limit (exclusive) by strides, on every axis.

    The indices are ints, one for each axis, within the bounds of the array. Without
    ``strides``, all are 1.
    """
    steps = (1,) * len(start_indices) if strides is None else tuple(strides)
    start, limit = tuple(start_indices), tuple(limit_indices)
    return apply(slicing.slice_, operand, start=start, limit=limit, strides=steps)


def slice_in_dim(
    operand: ArrayLike,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Array:
    """Return ``operand[start_index:limit_index:stride]`` along ``axis``.

    Negative bounds count from the end. None means the start or the end of the axis.
    """
    shape = ops.type_of_operand("slice_in_dim", operand).shape
    place = ops.normalize_axis("slice_in_dim", axis, len(shape))
    extent = shape[place]
    start = 0 if start_index is None else start_index
    limit = extent if limit_index is None else limit_index
    start, limit = (n + extent if n < 0 else n for n in (start, limit))
    starts = [start if k == place else 0 for k in range(len(shape))]
    limits = [limit if k == place else n for k, n in enumerate(shape)]
    steps = [stride if k == place else 1 for k in range(len(shape))]
    return slice(operand, starts, limits, steps)


def _starts(
    x: ArrayLike,
    indices: Sequence[ArrayLike],
    lengths: Sequence[int],
    from_end: bool | Sequence[bool],
) -> list[Any]:
    """Return the index at which a slice of ``lengths`` begins along each axis of x.

    ``indices`` are scalars, one for each axis. ``from_end`` says, for all axes or for
    each, whether negative indices count from the end. If the number of indices or
    lengths is wrong, the indices are returned unchanged, and the type rule of the
    primitive raises.
    """
    shape = ops.type_of_operand("dynamic_slice", x).shape
    starts = typed("dynamic_slice", *indices) if len(indices) else []
    if not len(shape) == len(starts) == len(lengths):
        return starts  # the type rule raises
    flags = [from_end] * len(shape) if isinstance(from_end, bool) else list(from_end)
    return [
        _start(index, axis, extent, length, flag)
        for axis, (index, extent, length, flag) in enumerate(
            zip(starts, shape, lengths, flags, strict=True)
        )
    ]


def _start(index: Any, axis: int, extent: int, length: int, from_end: bool) -> Any:
    """Return the index at which a slice of ``length`` begins on an axis of ``extent``.

    With ``from_end``, a negative index counts from the end. If ``jit`` is asked to
    check indices, an index that may be out of bounds is checked while the program runs.
    """
    if index.shape or index.dtype not in dtypes.INTEGERS:
        return index  # the type rule raises
    if from_end and index.dtype in dtypes.SIGNED:
        index = from_the_front(index, extent)
    known = known_value(index)
    is_inside = known is not None and 0 <= known <= extent - length
    if is_inside or not checks_indices():
        return index
    return in_bounds(index, extent, axis, length)


def dynamic_slice(
    operand: ArrayLike,
    start_indices: Sequence[ArrayLike],
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Take the slice of ``slice_sizes`` at scalar indices, one for each axis.

    ``start_indices`` are integers and may be traced. A slice that is out of bounds is
    moved inside. Negative indices count from the end of their axis, unless
    ``allow_negative_indices`` is False, for all axes or for each. The result has the
    dtype of ``operand``.
    """
    sizes = tuple(map(ops.whole, slice_sizes))
    starts = _starts(operand, list(start_indices), sizes, allow_negative_indices)
    return apply(dynamic_slices.dynamic_slice, operand, *starts, sizes=sizes)


def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: Sequence[ArrayLike],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Copy ``operand``, and write ``update`` at scalar indices, one for each axis.

    ``update`` has the rank and dtype of ``operand``. An update that is out of bounds is
    moved inside. Indices are as for ``dynamic_slice``.
    """
    lengths = ops.type_of_operand("dynamic_update_slice", update).shape
    starts = _starts(operand, list(start_indices), lengths, allow_negative_indices)
    return apply(dynamic_slices.dynamic_update_slice, operand, update, *starts)


def dynamic_slice_in_dim(
    operand: ArrayLike,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Take ``slice_size`` elements from ``start_index`` on along ``axis``.

    Other axes are kept whole. Indices are as for ``dynamic_slice``.
    """
    shape = ops.type_of_operand("dynamic_slice_in_dim", operand).shape
    place = ops.normalize_axis("dynamic_slice_in_dim", axis, len(shape))
    zero = _zero_like(start_index)
    starts = [start_index if k == place else zero for k in range(len(shape))]
    sizes = [slice_size if k == place else n for k, n in enumerate(shape)]
    return dynamic_slice(
        operand, starts, sizes, allow_negative_indices=allow_negative_indices
    )


def dynamic_index_in_dim(
    operand: ArrayLike,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Take the slice of extent 1 at ``index`` along ``axis``; see ``dynamic_slice``.

    With ``keepdims=False``, the axis is removed.
    """
    value = dynamic_slice_in_dim(
        operand,
        index,
        slice_size=1,
        axis=axis,
        allow_negative_indices=allow_negative_indices,
    )
    return value if keepdims else _squeeze(value, axis)


def dynamic_update_slice_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Copy ``operand``, and write ``update`` from ``start_index`` on along ``axis``.

    Along other axes the update begins at 0. Indices are as for ``dynamic_slice``, and
    other requirements as for ``dynamic_update_slice``.
    """
    ndim = ops.type_of_operand("dynamic_update_slice_in_dim", operand).ndim
    place = ops.normalize_axis("dynamic_update_slice_in_dim", axis, ndim)
    zero = _zero_like(start_index)
    starts = [start_index if k == place else zero for k in range(ndim)]
    return dynamic_update_slice(
        operand, update, starts, allow_negative_indices=allow_negative_indices
    )


def _zero_like(index: ArrayLike) -> Any:
    """Return a zero of the dtype of ``index``, as all indices must have one dtype."""
    return np.zeros((), ops.type_of_operand("dynamic_slice", index).dtype)


# Reductions.


def reduce_sum(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the sum over ``axes``, which the result lacks; the dtype stays."""
    return apply(r.reduce_sum, operand, axes=_sorted(operand, axes))


def reduce_prod(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the product over ``axes``, which the result lacks; the dtype stays."""
    return apply(r.reduce_prod, operand, axes=_sorted(operand, axes))


def reduce_max(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the maximum over ``axes``, which the result lacks.

    The dtype stays. The maximum of no elements is -inf or the smallest integer.
    """
    return apply(r.reduce_max, operand, axes=_sorted(operand, axes))


def reduce_min(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the minimum over ``axes``, which the result lacks.

    The dtype stays. The minimum of no elements is inf or the largest integer.
    """
    return apply(r.reduce_min, operand, axes=_sorted(operand, axes))


def reduce_and(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the bits that are set in every element over ``axes``.

    The operand has integers or bools, and the dtype stays.
    """
    return apply(r.reduce_and, operand, axes=_sorted(operand, axes))


def reduce_or(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Return the bits that are set in at least one element over ``axes``.

    The operand has integers or bools, and the dtype stays.
    """
    return apply(r.reduce_or, operand, axes=_sorted(operand, axes))


def _sorted(x: ArrayLike, axes: Sequence[int]) -> tuple[int, ...]:
    """Return ``axes`` of x, counted from the front, in ascending order."""
    ndim = ops.type_of_operand("reduce", x).ndim
    return ops.normalize_axes("reduce", tuple(axes), ndim)


def argmax(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Array:
    """Return the first position of the maximum along ``axis``, in ``index_dtype``.

    The result lacks the axis. Raises DTypeError unless ``index_dtype`` is an integer's.
    """
    dtype = _index_dtype("argmax", index_dtype)
    return apply(r.argmax, operand, axis=axis, dtype=dtype)


def argmin(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Array:
    """Return the first position of the minimum along ``axis``, in ``index_dtype``.

    The result lacks the axis. Raises DTypeError unless ``index_dtype`` is an integer's.
    """
    dtype = _index_dtype("argmin", index_dtype)
    return apply(r.argmin, operand, axis=axis, dtype=dtype)


def _index_dtype(name: str, wanted: DTypeLike) -> DType:
    """Return the dtype that ``wanted`` names; DTypeError unless it is an integer's."""
    dtype = dtypes.canonical(wanted)
    if dtype not in dtypes.INTEGERS:
        raise DTypeError(
            f"{name} gives positions, whose index_dtype must be an integer, not "
            f"{dtype}",
            user_location(),
        )
    return dtype


def cumsum(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running sums along ``axis``; ``reverse`` begins at the end.

    The result has the shape and the dtype of ``operand``.
    """
    return apply(cumulative.cumsum, operand, axis=axis, reverse=reverse)


def cumprod(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running products along ``axis``; ``reverse`` begins at the end.

    The result has the shape and the dtype of ``operand``.
    """
    return apply(cumulative.cumprod, operand, axis=axis, reverse=reverse)


def cummax(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running maxima along ``axis``; ``reverse`` begins at the end.

    The result has the shape and the dtype of ``operand``.
    """
    return apply(cumulative.cummax, operand, axis=axis, reverse=reverse)


def cummin(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the running minima along ``axis``; ``reverse`` begins at the end.

    The result has the shape and the dtype of ``operand``.
    """
    return apply(cumulative.cummin, operand, axis=axis, reverse=reverse)


# Contractions.


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DimensionNumbers,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Sum products over contracted axes, for each index of the batch axes.

    ``dimension_numbers`` is a pair: the contracted axes of lhs and of rhs, and the
    batch axes of lhs and of rhs. The result has the batch axes, then the other axes of
    lhs, then those of rhs. The sums are computed in ``preferred_element_type``, if it
    is given. ``precision="tf32"`` lets a GPU round float32 operands to TensorFloat-32.
    A CPU ignores ``precision``.
    """
    (x_contract, y_contract), (x_batch, y_batch) = dimension_numbers
    return linear_algebra.dot_general(
        "dot_general",
        lhs,
        rhs,
        (tuple(x_contract), tuple(y_contract)),
        (tuple(x_batch), tuple(y_batch)),
        precision,
        preferred_element_type,
    )


def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: DimensionNumbers | None = None,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Sum products over the last axis of ``lhs`` and the first of ``rhs``.

    With ``dimension_numbers`` the result is that of ``dot_general``, whose parameters
    and errors these are.
    """
    if dimension_numbers is None:
        ndim = ops.type_of_operand("dot", lhs).ndim
        dimension_numbers = (((ndim - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


__all__ = [
    "argmax",
    "argmin",
    "bitcast_convert_type",
    "broadcast",
    "broadcast_in_dim",
    "broadcasted_iota",
    "concatenate",
    "convert_element_type",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dot",
    "dot_general",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "expand_dims",
    "full",
    "full_like",
    "iota",
    "pad",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reshape",
    "rev",
    "slice",
    "slice_in_dim",
    "squeeze",
    "stop_gradient",
    "transpose",
]
