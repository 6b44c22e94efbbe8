"""Reshaping, broadcasting, joining and splitting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, plural, user_location
from arrayfn.ir.layout import Shape, other_axes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.primitives import slicing, views
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply


def astype(
    x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None
) -> Array:
    """Convert x to ``dtype``; the shape stays.

    Conversion of floats to integers truncates. Conversion of complex to real numbers
    raises DTypeError. With ``copy=False``, the result is x itself if x has that dtype.
    ``device`` moves the result there.
    """
    ops.type_of_operand("astype", x)
    x = ops.placed("astype", x, device)
    converted = ops.as_array(ops.convert(x, dtypes.canonical(dtype)))
    return ops.same(converted) if converted is x and copy else converted


# Shapes.


def reshape(
    a: ArrayLike, shape: Any, order: str = "C", *, copy: bool | None = None
) -> Array:
    """Arrange the elements of ``a`` in ``shape``, in row-major order.

    ``order="F"`` means column-major order. One extent may be -1; it follows from the
    others. ``copy`` has no effect, because results never share writable memory with
    ``a``. Raises ShapeError if the number of elements differs.
    """
    type = ops.type_of_operand("reshape", a)
    wanted = _completed_shape(type.size, type.shape, shape)
    if not ops.is_row_major("reshape", order):
        # Column-major order is the row-major order of the transpose.
        reversed_shape = wanted[::-1]
        return transpose(apply(views.reshape, transpose(a), shape=reversed_shape))
    if wanted == type.shape:
        return ops.same(a)
    return apply(views.reshape, a, shape=wanted)


def _completed_shape(size: int, have: Shape, shape: Any) -> Shape:
    """Return ``shape`` with -1 replaced by the extent that gives ``size`` elements.

    Raises ShapeError if ``shape`` does not fit. ``have`` is the shape of the array, for
    the error.
    """
    entries = as_list(shape)
    extents = [ops.whole(entry) for entry in entries]
    if extents.count(-1) == 1:
        known = math.prod(extent for extent in extents if extent != -1)
        if known and size % known == 0:
            extents[extents.index(-1)] = size // known
    if any(extent < 0 for extent in extents) or math.prod(extents) != size:
        raise ShapeError(
            f"reshape: an array of shape {have} has {plural(size, 'element')} and "
            f"does not reshape to {tuple(entries)}",
            user_location(),
        )
    return tuple(extents)


def ravel(a: ArrayLike, order: str = "C") -> Array:
    """Flatten ``a`` to a vector, in row-major order.

    ``order="F"`` means column-major order.
    """
    return reshape(a, -1, order)


def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Reverse the axes of ``a``, or put them into the order ``axes``.

    Axis i of the result is axis ``axes[i]`` of ``a``. Raises AxisError for a missing
    axis.
    """
    ndim = ops.type_of_operand("transpose", a).ndim
    if axes is None:
        permutation = tuple(reversed(range(ndim)))
    else:
        permutation = tuple(ops.normalize_axis("transpose", k, ndim) for k in axes)
    if permutation == tuple(range(ndim)):
        return ops.same(a)
    return apply(views.transpose, a, permutation=permutation)


permute_dims = transpose


def matrix_transpose(x: ArrayLike, /) -> Array:
    """Exchange the last two axes of x (..., n, m); the result is (..., m, n)."""
    return swapaxes(x, -1, -2)


def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Exchange the axes ``axis1`` and ``axis2`` of ``a``."""
    ndim = ops.type_of_operand("swapaxes", a).ndim
    first = ops.normalize_axis("swapaxes", axis1, ndim)
    second = ops.normalize_axis("swapaxes", axis2, ndim)
    order = list(range(ndim))
    order[first], order[second] = second, first
    return transpose(a, order)


def moveaxis(
    a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]
) -> Array:
    """Move the axes ``source`` of ``a`` to the positions ``destination``.

    Each is an axis or several. The other axes stay in order.
    """
    ndim = ops.type_of_operand("moveaxis", a).ndim
    sources = ops.each_axis("moveaxis", source, ndim)
    destinations = ops.each_axis("moveaxis", destination, ndim)
    # Insert in ascending order of destinations, so that earlier ones do not move.
    order = list(other_axes(ndim, sources))
    for place, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(place, axis)
    return transpose(a, order)


def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """Move ``axis`` of ``a`` before the axis that is at position ``start``."""
    ndim = ops.type_of_operand("rollaxis", a).ndim
    place = ops.normalize_axis("rollaxis", axis, ndim)
    before = start if start == ndim else ops.normalize_axis("rollaxis", start, ndim)
    # Removing an axis that is in front of ``start`` shifts ``start`` by one.
    return moveaxis(a, place, before - 1 if place < before else before)


def expand_dims(a: ArrayLike, axis: int | tuple[int, ...]) -> Array:
    """Add axes of extent 1 to ``a``, at the positions ``axis`` of the result.

    Raises ShapeError if a position repeats, AxisError if it is out of bounds.
    """
    type = ops.type_of_operand("expand_dims", a)
    count = len(as_list(axis))
    new_axes = set(ops.each_axis("expand_dims", axis, type.ndim + count))
    old_axes = other_axes(type.ndim + count, new_axes)
    if len(old_axes) != type.ndim:
        raise ShapeError(f"expand_dims: an axis repeats in {axis}", user_location())
    shape = [1] * (type.ndim + count)
    for extent, k in zip(type.shape, old_axes, strict=True):
        shape[k] = extent
    return apply(views.broadcast_in_dim, a, shape=tuple(shape), axes=old_axes)


def squeeze(a: ArrayLike, axis: Axis = None) -> Array:
    """Remove all axes of extent 1 from ``a``, or only those in ``axis``.

    Raises ShapeError if an axis in ``axis`` has another extent.
    """
    shape = ops.type_of_operand("squeeze", a).shape
    if axis is None:
        dropped = {k for k, extent in enumerate(shape) if extent == 1}
    else:
        dropped = set(ops.normalize_axes("squeeze", axis, len(shape)))
        if any(shape[k] != 1 for k in dropped):
            raise ShapeError(
                f"squeeze: axis {axis} of shape {shape} has an extent other than 1",
                user_location(),
            )
    return reshape(a, tuple(n for k, n in enumerate(shape) if k not in dropped))


def atleast_1d(*x: ArrayLike) -> Any:
    """Return x with at least one axis; a scalar becomes a vector of one element.

    Several arguments give a tuple.
    """
    return _each([_atleast(a, (0,)) for a in x])


def atleast_2d(*x: ArrayLike) -> Any:
    """Return x with at least two axes; axes of extent 1 are added in front.

    Several arguments give a tuple.
    """
    return _each([_atleast(a, (0, 0)) for a in x])


def atleast_3d(*x: ArrayLike) -> Any:
    """Return x with at least three axes; a vector is (1, n, 1), a matrix (n, m, 1).

    Several arguments give a tuple.
    """
    return _each([_atleast(a, (0, 0, 2)) for a in x])


def _atleast(x: ArrayLike, places: tuple[int, ...]) -> Array:
    """Add axes of extent 1 to x, until it has ``len(places)`` axes.

    An array of k axes gets the next axis at position ``places[k]``.
    """
    value = ops.same(x) if not dtypes.is_python_scalar(x) else np.asarray(x)
    for ndim in range(value.ndim, len(places)):
        value = expand_dims(value, places[ndim])
    return value


def _each(values: list[Array]) -> Any:
    """Return the only value, or a tuple of several."""
    return values[0] if len(values) == 1 else tuple(values)


# Broadcasting.


def broadcast_to(array: ArrayLike, shape: Any) -> Array:
    """Broadcast ``array`` to ``shape``: add leading axes, and repeat axes of extent 1.

    Raises ShapeError if ``array`` does not broadcast to ``shape``.
    """
    own_shape = ops.type_of_operand("broadcast_to", array).shape
    wanted = ops.as_shape("broadcast_to", shape)
    if ops.broadcast_shape("broadcast_to", (own_shape, wanted)) != wanted:
        raise ShapeError(
            f"broadcast_to: shape {own_shape} does not broadcast to {wanted}",
            user_location(),
        )
    if own_shape == wanted:
        return ops.same(array)
    axes = tuple(range(len(wanted) - len(own_shape), len(wanted)))
    return apply(views.broadcast_in_dim, array, shape=wanted, axes=axes)


def broadcast_arrays(*x: ArrayLike) -> list[Array]:
    """Return the arrays, each broadcast to their common shape.

    Raises ShapeError if they do not broadcast.
    """
    shapes = [ops.type_of_operand("broadcast_arrays", a).shape for a in x]
    shape = ops.broadcast_shape("broadcast_arrays", shapes)
    return [broadcast_to(a, shape) for a in x]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that ``shapes`` broadcast to.

    Raises ShapeError if they do not broadcast.
    """
    return ops.broadcast_shape("broadcast_shapes", shapes)


# Joining.


def concatenate(
    arrays: Sequence[ArrayLike],
    axis: int | None = 0,
    out: None = None,
    *,
    dtype: DTypeLike = None,
    casting: str = "same_kind",
) -> Array:
    """Join arrays along ``axis``; ``axis=None`` flattens them first.

    The result has the dtype that the arrays promote to, or ``dtype``. ``casting``, one
    of NumPy's rules, says which conversions to ``dtype`` are allowed; DTypeError for
    others. The other extents must be equal. Raises ArgumentError for no arrays, or if
    ``out`` is given.
    """
    ops.refuse_out("concatenate", out)
    if getattr(axis, "ndim", 0):
        raise ArgumentError(
            "concatenate takes one sequence of arrays, and then an axis: write "
            "concatenate((x, y))",
            user_location(),
        )
    parts = [*arrays]
    if not parts:
        raise ArgumentError("concatenate takes at least one array", user_location())
    if axis is None:
        parts, axis = [ravel(part) for part in parts], 0
    wanted = None if dtype is None else dtypes.canonical(dtype)
    converted, types, common = ops.promoted("concatenate", parts, wanted)
    if wanted is not None:
        ops.check_cast("concatenate", types, common, casting)
    place = ops.normalize_axis("concatenate", axis, types[0].ndim)
    if len(parts) == 1:
        return ops.same(converted[0])
    return apply(slicing.concatenate, *converted, axis=place)


concat = concatenate


def stack(
    arrays: Sequence[ArrayLike],
    axis: int = 0,
    out: None = None,
    *,
    dtype: DTypeLike = None,
    casting: str = "same_kind",
) -> Array:
    """Join arrays of one shape along a new ``axis``; see ``concatenate``.

    Raises ShapeError if the shapes differ.
    """
    ops.refuse_out("stack", out)
    parts = [*arrays]
    if not parts:
        raise ArgumentError("stack takes at least one array", user_location())
    shapes = {ops.type_of_operand("stack", part).shape for part in parts}
    if len(shapes) > 1:
        shapes_text = ", ".join(map(str, sorted(shapes)))
        raise ShapeError(
            f"stack takes arrays of one shape, but was given {shapes_text}",
            user_location(),
        )
    place = ops.normalize_axis("stack", axis, len(shapes.pop()) + 1)
    rows = [expand_dims(part, place) for part in parts]
    return concatenate(rows, place, dtype=dtype, casting=casting)


def vstack(
    tup: Sequence[ArrayLike], *, dtype: DTypeLike = None, casting: str = "same_kind"
) -> Array:
    """Join arrays along axis 0; a vector counts as a row (1, n).

    ``dtype`` and ``casting`` are those of ``concatenate``.
    """
    parts = [atleast_2d(part) for part in tup]
    return concatenate(parts, 0, dtype=dtype, casting=casting)


def hstack(
    tup: Sequence[ArrayLike], *, dtype: DTypeLike = None, casting: str = "same_kind"
) -> Array:
    """Join arrays along axis 1, but vectors along axis 0.

    ``dtype`` and ``casting`` are those of ``concatenate``.
    """
    parts = [atleast_1d(part) for part in tup]
    axis = 0 if parts and parts[0].ndim == 1 else 1
    return concatenate(parts, axis, dtype=dtype, casting=casting)


def dstack(
    tup: Sequence[ArrayLike], *, dtype: DTypeLike = None, casting: str = "same_kind"
) -> Array:
    """Join arrays along axis 2; vectors count as (1, n, 1), and matrices as (n, m, 1).

    ``dtype`` and ``casting`` are those of ``concatenate``.
    """
    parts = [atleast_3d(part) for part in tup]
    return concatenate(parts, 2, dtype=dtype, casting=casting)


def column_stack(tup: Sequence[ArrayLike]) -> Array:
    """Join matrices along axis 1; a vector counts as a column (n, 1)."""
    parts = [atleast_1d(part) for part in tup]
    return concatenate([p if p.ndim > 1 else expand_dims(p, 1) for p in parts], 1)


def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """Append ``values`` to ``arr`` along ``axis``; ``axis=None`` flattens both."""
    return concatenate([arr, values], axis)


# Splitting.


def slice_along(x: ArrayLike, begin: int, end: int, axis: int) -> Array:
    """Return elements ``begin`` to ``end`` (exclusive) of x along ``axis``."""
    shape = ops.type_of_operand("slice", x).shape
    start = tuple(begin if k == axis else 0 for k in range(len(shape)))
    limit = tuple(end if k == axis else n for k, n in enumerate(shape))
    return apply(slicing.slice_, x, start=start, limit=limit, strides=(1,) * len(shape))


def array_split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[Array]:
    """Split ``ary`` along ``axis`` at the given indices, or into nearly equal parts.

    Returns a list. If an extent n is split into k parts, the first n % k parts are
    longer by one.
    """
    shape = ops.type_of_operand("array_split", ary).shape
    place = ops.normalize_axis("array_split", axis, len(shape))
    extent = shape[place]
    count = _sections(indices_or_sections)
    if count is None:
        indices: Any = indices_or_sections
        # As in slices, negative indices count from the end, and others are clamped.
        cuts = [slice(0, index).indices(extent)[1] for index in indices]
    else:
        each, extra = divmod(extent, count)
        cuts = [k * each + min(k, extra) for k in range(1, count)]
    bounds = [0, *cuts, extent]
    return [
        slice_along(ary, begin, max(begin, end), place)
        for begin, end in itertools.pairwise(bounds)
    ]


def _sections(given: Any) -> int | None:
    """Return the number of sections if ``given`` is one, and None for indices."""
    if isinstance(given, (tuple, list)) or getattr(given, "ndim", 0):
        return None
    return int(given)


def split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[Array]:
    """Split ``ary`` along ``axis`` at the given indices, or into equal parts.

    Returns a list. Raises ShapeError if the axis does not divide into equal parts.
    """
    shape = ops.type_of_operand("split", ary).shape
    place = ops.normalize_axis("split", axis, len(shape))
    count = _sections(indices_or_sections)
    if count is not None and shape[place] % count:
        raise ShapeError(
            f"split: axis {place} of shape {shape} does not divide into "
            f"{indices_or_sections} equal parts; array_split allows unequal ones",
            user_location(),
        )
    return array_split(ary, indices_or_sections, place)


def vsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Split ``ary`` along axis 0, as ``split`` does."""
    return split(ary, indices_or_sections, 0)


def hsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Split ``ary`` along axis 1, or a vector along axis 0, as ``split`` does."""
    one_axis = ops.type_of_operand("hsplit", ary).ndim == 1
    return split(ary, indices_or_sections, 0 if one_axis else 1)


def dsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Split ``ary`` along axis 2, as ``split`` does."""
    return split(ary, indices_or_sections, 2)


def unstack(x: ArrayLike, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices of x along ``axis``, without that axis, as a tuple.

    This is the inverse of ``stack``.
    """
    shape = ops.type_of_operand("unstack", x).shape
    place = ops.normalize_axis("unstack", axis, len(shape))
    return tuple(
        squeeze(slice_along(x, k, k + 1, place), place) for k in range(shape[place])
    )
