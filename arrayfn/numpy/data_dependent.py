"""Functions whose result's shape depends on values: nonzero, compress, repeat, ...

They need values that are known while tracing: outside ``jit``, or under ``grad``
without ``jit``. With ``size``, the result's shape is known beforehand, so they work
under ``jit`` too: surplus elements are dropped, and missing ones are ``fill_value``.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from arrayfn import dtypes
from arrayfn.array_likes import adopted
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import comparison
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.numpy.comparison import truth
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.indexing import getitem, take
from arrayfn.numpy.manipulation import (
    atleast_1d,
    concatenate,
    ravel,
    reshape,
    stack,
)
from arrayfn.numpy.updates import scatter_windows
from arrayfn.primitives import indexing, views
from arrayfn.primitives.windows import Windows
from arrayfn.tracing import ImmutableArray, apply


def known(name: str, x: ArrayLike, remedy: str) -> Any:
    """Return the value of x as an array.

    Raises AbstractValueError, about the function ``name``, if it is not known while
    tracing. ``remedy`` is the advice in the error.
    """
    ops.type_of_operand(name, x)
    if isinstance(x, ImmutableArray):
        return x.concrete(f"{name}(), whose result's shape depends on it,", remedy)
    return np.asarray(ops.as_array(x))


def _size_remedy(name: str) -> str:
    """Return the advice for errors: give the size of the result of ``name``."""
    return (
        f"Give it the size of the result, {name}(..., size=n), or write "
        "where(condition, x, y) to keep the shape"
    )


def true_positions(mask: ArrayLike, size: int, fill_value: Any) -> Array:
    """Return the first ``size`` true positions of the vector ``mask`` (int64).

    If there are fewer, ``fill_value`` stands for the missing ones.
    """
    extent = ops.type_of_operand("nonzero", mask).size
    places = apply(views.iota, shape=(extent,), axis=0, dtype=dtypes.int64)
    # The k-th true element writes its position to element k of the result. False ones
    # write to ``size``, out of bounds, where writes are dropped.
    targets = comparison.where(mask, cumsum(mask) - 1, size)
    filler = ops.full(fill_value, (size,), dtypes.int64)
    return scatter_windows(
        indexing.scatter,
        filler,
        reshape(targets, (extent, 1)),
        places,
        Windows(window_axes=(), collapsed_axes=(0,), indexed_axes=(0,)),
        unique_indices=True,  # among those that are kept
    )


def flatnonzero(
    a: ArrayLike, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """Return the int64 indices of the nonzero elements of ``a``, flattened.

    With ``size``, the result has exactly that many indices, and ``fill_value`` (0 by
    default) stands for missing ones. ``fill_value`` is a number or a tuple of one.

    >>> import numpy as np
    >>> flatnonzero(np.array([0.0, 3.0, 0.0, 4.0]), size=3, fill_value=-1)
    array([ 1,  3, -1])
    """
    if size is None:
        remedy = _size_remedy("flatnonzero")
        # ``beside`` puts the result where ``a`` is: into its trace or on its device.
        return ops.beside(np.flatnonzero(known("flatnonzero", a, remedy)), a)
    filler = fill_value[0] if isinstance(fill_value, tuple) else fill_value
    filler = 0 if filler is None else filler
    return true_positions(truth(ravel(a), "flatnonzero"), ops.whole(size), filler)


def nonzero(
    a: ArrayLike, *, size: int | None = None, fill_value: Any = None
) -> tuple[Array, ...]:
    """Return the indices of the nonzero elements, one int64 array for each axis.

    With ``size``, each array has exactly that many indices, and ``fill_value`` (0 by
    default) stands for missing ones. ``fill_value`` is one number, or one per axis.
    Raises ArgumentError if ``a`` is a scalar.
    """
    return _nonzero("nonzero", a, size, fill_value)


def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Take x where ``condition`` is true (not 0), and y elsewhere.

    All three broadcast, and the result has the dtype to which x and y promote. Without
    x and y, the result is ``nonzero(condition)``, and ``size`` and ``fill_value`` are
    those of ``nonzero``. Raises ArgumentError for other combinations.

    >>> import numpy as np
    >>> where(np.array([True, False]), np.array([1.0, 2.0]), 0.0)
    array([1., 0.])
    """
    if x is None and y is None:
        return _nonzero("where", condition, size, fill_value)
    if x is None or y is None:
        raise ArgumentError("where takes both x and y, or neither", user_location())
    if size is not None or fill_value is not None:
        raise ArgumentError(
            "where takes size and fill_value with the condition alone", user_location()
        )
    return comparison.where(condition, x, y)


def _nonzero(
    name: str, x: ArrayLike, size: int | None, fill_value: Any
) -> tuple[Array, ...]:
    """Return the indices of elements of ``x`` that are not 0, an array for each axis.

    Without ``size``, x must be known while tracing. With ``size``, there are so many
    indices, and ``fill_value`` stands for missing ones. Errors call the function
    ``name``.
    """
    type = ops.type_of_operand(name, x)
    value = known(name, x, _size_remedy(name)) if size is None else None
    if not type.shape:
        raise ArgumentError(
            f"{name} takes arrays with axes, not a single number; use atleast_1d",
            user_location(),
        )
    if value is not None:
        return ops.beside(tuple(np.nonzero(value)), x)
    # Compute flat indices, in which type.size marks the missing ones. Then divide by
    # the extents, the last axis first, to get the index along each axis.
    places: Any = flatnonzero(x, size=size, fill_value=type.size)
    fillers = fill_value if isinstance(fill_value, tuple) else (fill_value,) * type.ndim
    beyond = places >= type.size
    columns: list[Array] = []
    for extent, filler in zip(type.shape[::-1], fillers[::-1], strict=True):
        column = places % max(extent, 1)
        instead = 0 if filler is None else filler
        columns.append(comparison.where(beyond, instead, column))
        places = places // max(extent, 1)
    return tuple(columns[::-1])


def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the int64 indices of the nonzero elements of ``a``, one row for each.

    With ``size``, the result has exactly that many rows, and ``fill_value`` (0 by
    default) stands for missing ones.
    """
    if size is None:
        value = known("argwhere", a, _size_remedy("argwhere"))
        return ops.beside(np.ascontiguousarray(np.argwhere(value)), a)
    if not ops.type_of_operand("argwhere", a).shape:
        return ops.full(0, (size, 0), dtypes.int64)
    return stack(nonzero(a, size=size, fill_value=fill_value), -1)


def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | None = None,
    out: None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
) -> Array:
    """Return the slices of ``a`` along ``axis`` where ``condition``, a vector, is true.

    ``axis=None`` means that ``a`` is flattened. A short condition leaves out the
    remaining slices. With ``size``, the result has exactly that many slices, and
    ``fill_value`` stands for missing ones. Raises ArgumentError if ``out`` is given.
    """
    ops.refuse_out("compress", out)
    if axis is None:
        a, axis = ravel(a), 0
    type = ops.type_of_operand("compress", a)
    place = ops.normalize_axis("compress", axis, type.ndim)
    condition = ops.as_array(condition)
    if isinstance(condition, (list, tuple)):
        condition = np.asarray(condition)
    count = ops.type_of_operand("compress", condition).size
    if size is None:
        chosen = known("compress", condition, _size_remedy("compress"))
        return take(a, np.flatnonzero(chosen), place)
    # Missing positions are out of bounds, where mode "fill" reads the fill value.
    rest = ops.full(False, (max(type.shape[place] - count, 0),), dtypes.bool_)
    mask = concatenate([truth(ravel(condition), "compress"), rest])
    places = true_positions(mask, ops.whole(size), type.shape[place])
    filler = ops.as_array(ops.convert(fill_value, type.dtype))
    return take(a, places, place, mode="fill", fill_value=filler.item())


def extract(
    condition: ArrayLike,
    arr: ArrayLike,
    *,
    size: int | None = None,
    fill_value: Any = 0,
) -> Array:
    """Return the elements of ``arr`` where ``condition`` is true, as a vector.

    With ``size``, the result has exactly that many elements, and ``fill_value`` stands
    for missing ones.
    """
    return compress(ravel(condition), ravel(arr), 0, size=size, fill_value=fill_value)


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: Axis = None) -> Array:
    """Remove leading ("f") and trailing ("b") zeros of ``filt`` along ``axis``.

    ``axis`` is an axis, several, or None for all; a slice along an axis is removed if
    all its elements are 0. Raises AbstractValueError if values are not known while
    tracing.
    """
    value = known(
        "trim_zeros", filt, "Write where or a slice of static extent to keep the shape"
    )
    index = [slice(None)] * value.ndim
    places = np.argwhere(value)  # (number of nonzero elements, ndim)
    # The initial values make the slice empty if all elements are 0.
    for k in ops.normalize_axes("trim_zeros", axis, value.ndim):
        along = places[:, k]
        first = int(along.min(initial=value.shape[k])) if "f" in trim.lower() else 0
        last = int(along.max(initial=-1)) + 1 if "b" in trim.lower() else None
        index[k] = slice(first, last)
    return getitem(filt, tuple(index))


def repeat(
    a: ArrayLike,
    repeats: Any,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
) -> Array:
    """Repeat each element of ``a`` ``repeats`` times along ``axis``.

    ``axis=None`` means that ``a`` is flattened. ``repeats`` is one number, or one for
    each element. The counts decide the shape. The counts may be unknown under ``jit``,
    so give ``total_repeat_length`` there. Then the last element is repeated up to that
    length, or surplus elements are dropped. Raises ArgumentError if ``repeats`` is one
    negative number.
    """
    if axis is None:
        a, axis = ravel(a), 0
    a = atleast_1d(a)
    shape = ops.type_of_operand("repeat", a).shape
    place = ops.normalize_axis("repeat", axis, len(shape))
    if isinstance(repeats, (list, tuple)):
        repeats = np.asarray(repeats, np.int64)
    if total_repeat_length is not None:
        return _repeated_to(a, repeats, place, ops.whole(total_repeat_length))
    counts = known(
        "repeat", repeats, "Give the length of the result, total_repeat_length=n"
    )
    if counts.size == 1:
        return _repeated(a, int(counts.reshape(())), place)
    sources = np.repeat(np.arange(shape[place]), counts)
    return take(a, sources, place)


def _repeated(x: ArrayLike, count: int, place: int) -> Array:
    """Repeat each element ``count`` times along the axis ``place``.

    The element is broadcast along a new axis after ``place``, which is then merged with
    it.
    """
    shape = x.shape
    if count < 0:
        raise ArgumentError("repeat: counts may not be negative", user_location())
    wide = (*shape[: place + 1], count, *shape[place + 1 :])
    final = (*shape[:place], shape[place] * count, *shape[place + 1 :])
    axes = tuple(k for k in range(len(wide)) if k != place + 1)
    spread = apply(views.broadcast_in_dim, x, shape=wide, axes=axes)
    return reshape(spread, final)


def _repeated_to(x: ArrayLike, repeats: Any, place: int, length: int) -> Array:
    """Repeat elements as often as ``repeats`` says, up to ``length`` elements in all.

    The counts may be traced. If their sum is less than ``length``, the last element
    fills the rest.
    """
    extent = x.shape[place]
    counts = ops.full(0, (extent,), dtypes.int64) + repeats
    ends = cumsum(counts)
    # The source of position p is the number of elements that end at or before p: a
    # running sum of the number of elements that end at each position.
    starts = scatter_windows(
        indexing.scatter_add,
        ops.full(0, (length,), dtypes.int64),
        reshape(ends, (extent, 1)),
        ops.full(1, (extent,), dtypes.int64),
        Windows(window_axes=(), collapsed_axes=(0,), indexed_axes=(0,)),
        unique_indices=False,
    )
    return take(x, cumsum(starts), place, mode="clip")


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Copy the array that an object with ``__dlpack__`` holds.

    With ``copy=False``, the result shares the object's memory. An array on a GPU stays
    there, and is shared unless ``copy=True``. ``device`` is as for ``full``.
    """
    if device is not None:
        return ops.placed("from_dlpack", from_dlpack(x, copy=copy), device)
    if isinstance(x, ImmutableArray):
        return cast(Array, x)
    shared = adopted(x)
    if isinstance(shared, ImmutableArray):  # it is on a GPU
        return cast(Array, shared.copy() if copy else shared)
    return shared if copy is False else np.array(shared, order="C")
