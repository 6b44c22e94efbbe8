"""Indexing: ``x[index]`` as views if possible, otherwise as gathers.

Outside ``jit`` an index out of bounds raises IndexError, as in NumPy. Inside ``jit``,
and on a device, unknown indices that are out of bounds read a fill value (NaN, or the
smallest integer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.creation import asarray, holds_tracers
from arrayfn.numpy.index_bounds import (
    from_the_front,
    index_error,
    known_value,
    out_of_bounds,
    within,
)
from arrayfn.numpy.manipulation import broadcast_to, concatenate, expand_dims, reshape
from arrayfn.primitives import (
    dynamic_slices,
    indexing_semantics,
    slicing,
    views,
)
from arrayfn.primitives import indexing as primitives
from arrayfn.primitives.windows import Windows
from arrayfn.records import frozen
from arrayfn.tracing import (
    ArrayOnDevice,
    ImmutableArray,
    apply,
    is_made_of_equations,
)


@frozen(slots=True)
class Cut:
    """A normalised slice of one axis: ``count`` elements from ``low`` by ``step``.

    ``low`` is not negative, and ``step`` is positive. With ``reverse`` the elements are
    reversed: x[5:0:-2] is low 1, count 3, step 2, reversed.
    """

    low: int
    count: int
    step: int
    reverse: bool

    @property
    def limit(self) -> int:
        """One past the index of the last element."""
        return self.low + (self.count - 1) * self.step + 1 if self.count else self.low

    def is_whole(self, extent: int) -> bool:
        """Return whether this is the whole of an axis of ``extent``, in order."""
        return self.count == extent and self.step == 1 and not self.reverse


# An entry of an index: an axis indexed by a Cut, by an integer, or by an array of
# positions; or None, a new axis.
Entry = Cut | int | Array | None


def parse(index: Any, shape: Shape, bounded: bool = True) -> list[Entry]:
    """Return the entries of ``index``: one for each axis of ``shape`` and new axis.

    A mask becomes an array of positions for each of its axes, "..." and missing entries
    become whole Cuts, and None stays. Raises IndexingError if a known position is out
    of bounds, unless the index is not ``bounded``; such a number then becomes an array.
    """
    raw = [
        asarray(e) if isinstance(e, (list, tuple)) and holds_tracers(e) else e
        for e in (index if isinstance(index, tuple) else [index])
    ]
    plain: list[Any] = []
    # For each entry, the extent of the mask's axis that it comes from, if it does.
    extents: list[int | None] = []
    for entry in raw:
        if _is_mask(entry):
            mask = _known_mask(entry)
            plain += np.nonzero(mask)
            extents += mask.shape
        else:
            plain.append(_plain(entry))
            extents.append(None)
    consumed = sum(entry is not None and entry is not Ellipsis for entry in plain)
    dots = [k for k, entry in enumerate(plain) if entry is Ellipsis]
    if len(dots) > 1:
        raise index_error("an index can only have a single ellipsis ('...')")
    if consumed > len(shape):
        raise index_error(
            f"too many indices for array: array is {len(shape)}-dimensional, but "
            f"{consumed} were indexed"
        )
    # Replace the ellipsis by whole slices. Without one, they come last.
    place = dots[0] if dots else len(plain)
    between = len(shape) - consumed
    filled = [*plain[:place], *[slice(None)] * between, *plain[place + 1 :]]
    of_masks = [*extents[:place], *[None] * between, *extents[place + 1 :]]
    entries: list[Entry] = []
    axis = 0
    for entry, extent in zip(filled, of_masks, strict=True):
        if entry is None:
            entries.append(None)
            continue
        if extent is not None and extent != shape[axis]:
            raise index_error(
                f"a mask of {extent} elements does not fit axis {axis}, which has "
                f"{shape[axis]}; make it as long as the axis"
            )
        entries.append(_entry(entry, shape[axis], axis, bounded))
        axis += 1
    return entries


def _plain(entry: Any) -> Any:
    """Return ``entry``, a list as an array, and an array of one integer as an int."""
    if isinstance(entry, (list, tuple)):
        # NumPy would make floats of an empty list.
        entry = np.asarray(entry, dtype=None if entry else np.int64)
    if isinstance(entry, (np.ndarray, np.generic)) and entry.ndim == 0:
        return int(entry) if entry.dtype.kind in "iu" else entry
    return entry


def _is_mask(entry: Any) -> bool:
    """Return whether an entry of an index has bools (also a list or a single bool)."""
    if isinstance(entry, (list, tuple)):
        entry = np.asarray(entry)
    if isinstance(entry, (ImmutableArray, np.ndarray, np.generic)):
        return entry.dtype == dtypes.bool_
    return isinstance(entry, bool)


def _known_mask(mask: Any) -> np.ndarray[Any, Any]:
    """Return the mask as a NumPy array.

    Raises AbstractValueError if it is not known while tracing.
    """
    if isinstance(mask, ImmutableArray):
        mask = mask.concrete(
            "indexing by a mask, whose number of true elements decides a shape,",
            "Write arrayfn.numpy.where(mask, x, y) to choose between values",
        )
    return np.asarray(mask)


def without_bools(index: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Split ``index`` in two steps that handle single bools, as in x[True].

    Returns (first, second) with x[index] = x[first][second], or None if the index has
    no single bool whose value is known. The first step adds an axis of extent 1 for
    each bool. The second takes the element of this axis if the bool is true, and no
    element if it is false.
    """
    entries: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    bools = [_single_bool(entry) for entry in entries]
    if all(chosen is None for chosen in bools):
        return None
    # One bool next to slices becomes a slice, 0:1 or 0:0. Otherwise, as in NumPy, bools
    # are broadcast with the arrays of the index: they become [0] or [].
    pairs = list(zip(entries, bools, strict=True))
    others = [entry for entry, chosen in pairs if chosen is None]
    only_slices = len(others) == len(entries) - 1 and all(
        e is None or e is Ellipsis or isinstance(e, slice) for e in others
    )
    first: list[Any] = []
    second: list[Any] = []
    for entry, chosen in pairs:
        if chosen is not None:
            first.append(None)
            second.append(
                slice(0, int(chosen))
                if only_slices
                else np.zeros(int(chosen), np.int64)
            )
            continue
        second.append(entry)
        if entry is Ellipsis:
            first.append(Ellipsis)
        elif entry is not None:
            first += [slice(None)] * (np.ndim(entry) if _is_mask(entry) else 1)
    return tuple(first), tuple(second)


def _single_bool(entry: Any) -> bool | None:
    """Return the value of ``entry`` if it is one bool that is known, else None.

    The bool may be an array without axes.
    """
    if isinstance(entry, ImmutableArray) and not entry.ndim:
        entry = known_value(entry)
    if isinstance(entry, (np.ndarray, np.generic)) and not entry.ndim:
        entry = entry.item()
    return entry if isinstance(entry, bool) else None


def _entry(entry: Any, extent: int, axis: int, bounded: bool) -> Entry:
    """Normalise the entry of an index for axis ``axis``, which has ``extent`` elements.

    The result is a Cut for a slice, a number from 0 to extent - 1, or an array of
    positions. If ``bounded``, known positions out of bounds raise IndexingError, and
    others may be checked at run time (see ``within``). Otherwise, a number out of
    bounds becomes an array.
    """
    if isinstance(entry, slice):
        return _cut(entry, extent)
    if ops.is_array(entry):
        if entry.dtype not in dtypes.INTEGERS:
            raise index_error(
                "arrays used as indices must be of integer (or boolean) type, not "
                f"{entry.dtype}"
            )
        return within(entry, extent, axis) if bounded else entry
    if not hasattr(entry, "__index__"):
        raise ArgumentError(
            f"an array is not indexed by {type(entry).__name__}; indices are integers, "
            "slices, ..., None, and arrays of integers or bools",
            user_location(),
        )
    position = entry.__index__()
    if not -extent <= position < extent:
        if bounded:
            raise out_of_bounds(position, extent, axis)
        return np.asarray(position, np.int64)
    return position % extent


def _cut(entry: slice, extent: int) -> Cut:
    """Return the Cut for a slice of an axis of ``extent``."""
    low, high, step = entry.indices(extent)
    count = len(range(low, high, step))
    if count == 0:
        return Cut(low=0, count=0, step=1, reverse=False)
    if step > 0:
        return Cut(low, count, step, reverse=False)
    # A negative step: begin with the last element, which has the smallest index.
    return Cut(low + (count - 1) * step, count, -step, reverse=True)


# Reading.


def getitem(
    x: ArrayLike, index: Any, /, mode: str | None = None, fill_value: Any = None
) -> Array:
    """Return ``x[index]``.

    An index has integers, slices, ``...``, None, and arrays of integers or bools. With
    a ``mode``, a position out of bounds reads ``fill_value`` ("fill") or the nearest
    element ("clip"), even if the position is known. Without a ``mode``, a known
    position out of bounds raises IndexingError, and others read NaN or the smallest
    integer. The dtype is that of x.
    """
    type = ops.type_of_operand("indexing", x)
    x = ops.as_array(x)
    steps = without_bools(index)
    if steps is not None:
        inserted, taken = steps
        return getitem(getitem(x, inserted), taken, mode, fill_value)
    entries = parse(index, type.shape, bounded=mode is None)
    arrays = [entry for entry in entries if ops.is_array(entry)]
    if not is_made_of_equations((x, *arrays)) and not (arrays and mode):
        return np.array(x[index], order="C")  # NumPy arrays only
    if not arrays:
        return ops.same(_basic(x, entries, type))
    # First apply slices and numbers (which drop their axes), as views. Axes that arrays
    # index stay whole. Then gather along these axes.
    whole = [
        Cut(low=0, count=n, step=1, reverse=False) if ops.is_array(entry) else entry
        for entry, n in zip(entries, _extents(entries, type.shape), strict=True)
    ]
    viewed = _basic(x, whole, type)
    axes: list[int] = []
    axis = 0
    for entry in entries:
        if ops.is_array(entry):
            axes.append(axis)
        axis += 0 if isinstance(entry, int) else 1
    place = place_of_arrays(entries)
    return _gathered(viewed, axes, arrays, place, mode, fill_value)


def _extents(entries: Sequence[Entry], shape: Shape) -> list[int]:
    """Return the extent of the axis of each entry; 1 for a new axis."""
    extents = iter(shape)
    return [1 if entry is None else next(extents) for entry in entries]


def cuts_of(entries: Sequence[Entry]) -> list[Cut]:
    """Return the Cuts and numbers among ``entries``; a number is a Cut of one."""
    return [
        Cut(low=entry, count=1, step=1, reverse=False)
        if isinstance(entry, int)
        else entry
        for entry in entries
        if isinstance(entry, (Cut, int))
    ]


def _basic(x: ArrayLike, entries: Sequence[Entry], type: ArrayType) -> ArrayLike:
    """Index ``x`` by Cuts, numbers and None: emit a slice, a reverse and a reshape.

    Equations that would change nothing are left out. ``type`` is the type of ``x``.
    """
    cuts = cuts_of(entries)
    pairs = list(zip(cuts, type.shape, strict=True))
    if all((cut.low, cut.limit, cut.step) == (0, extent, 1) for cut, extent in pairs):
        pass  # all elements
    elif isinstance(x, ArrayOnDevice) and all(cut.step == 1 for cut in cuts):
        # The start is an operand, so that one Program serves all positions.
        x = apply(
            dynamic_slices.dynamic_slice,
            x,
            *[np.asarray(cut.low, np.int64) for cut in cuts],
            sizes=tuple(cut.count for cut in cuts),
        )
    else:
        x = apply(
            slicing.slice_,
            x,
            start=tuple(cut.low for cut in cuts),
            limit=tuple(cut.limit for cut in cuts),
            strides=tuple(cut.step for cut in cuts),
        )
    reverse = tuple(axis for axis, cut in enumerate(cuts) if cut.reverse)
    if reverse:
        x = apply(views.rev, x, axes=reverse)
    # Numbers drop their axes, and None adds axes.
    shape = tuple(
        1 if entry is None else entry.count
        for entry in entries
        if entry is None or isinstance(entry, Cut)
    )
    cut_shape = tuple(cut.count for cut in cuts)
    return x if shape == cut_shape else apply(views.reshape, x, shape=shape)


def place_of_arrays(entries: Sequence[Entry]) -> int:
    """Return the axis of the result at which the axes of the index arrays begin.

    The index arrays broadcast, and their axes replace the indexed axes. As in NumPy,
    numbers count as arrays here. If all of them are adjacent, the new axes stand in
    their place. Otherwise, the new axes come first.
    """
    indexed = [
        k for k, e in enumerate(entries) if isinstance(e, int) or ops.is_array(e)
    ]
    if indexed[-1] - indexed[0] + 1 != len(indexed):  # not adjacent
        return 0
    return sum(not isinstance(entry, int) for entry in entries[: indexed[0]])


def index_columns(
    arrays: Sequence[ArrayLike], extents: Sequence[int], normalize: bool = True
) -> tuple[Array, Shape]:
    """Broadcast arrays of positions, and join them as columns (..., number of arrays).

    Returns these index vectors, and the shape to which the arrays broadcast.
    ``extents`` has the extent of the axis that each array indexes. If ``normalize``,
    negative positions count from its end. The columns have the arrays' dtype, or int64
    if it differs.
    """
    shape = ops.broadcast_shape(
        "indexing", [ops.type_of_operand("indexing", a).shape for a in arrays]
    )
    array_dtypes = {a.dtype for a in arrays if ops.is_array(a)}
    dtype = array_dtypes.pop() if len(array_dtypes) == 1 else dtypes.int64
    columns: list[Array] = []
    for array, extent in zip(arrays, extents, strict=True):
        column = ops.convert(array, dtype)
        if normalize and ops.is_array(array) and dtype in dtypes.SIGNED:
            column = from_the_front(column, extent)
        columns.append(expand_dims(broadcast_to(column, shape), -1))
    return (columns[0] if len(columns) == 1 else concatenate(columns, -1)), shape


def _gathered(
    x: ArrayLike,
    axes: Sequence[int],
    arrays: Sequence[Array],
    place: int,
    mode: str | None,
    fill_value: Any,
) -> Array:
    """Index each of ``axes`` of ``x`` by the array of ``arrays``, by a gather.

    The arrays broadcast. In the result their axes stand together, from axis ``place``
    on, before and after the axes of ``x`` that are not indexed. Without a ``mode``,
    positions whose values are not known read ``fill_value`` if they are out of bounds.
    Known positions have been checked.
    """
    type = ops.type_of_operand("indexing", x)
    columns, shape = index_columns(arrays, [type.shape[axis] for axis in axes])
    ndim = type.ndim - len(axes) + len(shape)
    # The axes of the result that come from axes of x that are not indexed.
    windows = tuple(k for k in range(ndim) if not place <= k < place + len(shape))
    if mode is None:
        known = all(known_value(a) is not None for a in arrays)
        mode = "promise_in_bounds" if known else "fill"
    return gather(
        ops.as_array(x),
        columns,
        Windows(
            window_axes=windows, collapsed_axes=tuple(axes), indexed_axes=tuple(axes)
        ),
        tuple(1 if axis in axes else n for axis, n in enumerate(type.shape)),
        mode,
        fill_value,
    )


def gather(
    x: ArrayLike,
    columns: Array,
    windows: Windows,
    sizes: Shape,
    mode: str,
    fill_value: Any = None,
) -> Array:
    """Emit a gather equation, which reads windows of ``sizes`` of ``x``.

    ``columns`` has index vectors along its last axis, and ``windows`` says which axes
    they index. In mode "fill", positions out of bounds read ``fill_value``, by default
    NaN or the smallest integer.
    """
    if mode == "fill" and fill_value is None:
        dtype = ops.type_of_operand("gather", x).dtype
        fill_value = indexing_semantics.default_fill(dtype)
    return apply(
        primitives.gather,
        x,
        columns,
        sizes=sizes,
        mode=mode,
        fill_value=fill_value if mode == "fill" else None,
        **windows.params(),
    )


def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """Return the elements or slices of ``a`` at ``indices`` along ``axis``.

    The axes of ``indices`` replace ``axis``, and the dtype is that of ``a``.
    ``axis=None`` means that ``a`` is flattened. ``mode`` is "fill", "clip" or "wrap";
    ArgumentError for others. "fill" uses ``fill_value``, which is by default NaN or the
    smallest integer. Without ``mode``, indices out of bounds are handled as in
    ``a[indices]``. ``unique_indices`` and ``indices_are_sorted`` have no effect. Raises
    ArgumentError if ``out`` is given.
    """
    ops.refuse_out("take", out)
    if axis is None:
        a, axis = reshape(a, -1), 0
    type = ops.type_of_operand("take", a)
    place = ops.normalize_axis("take", axis, type.ndim)
    if isinstance(indices, (list, tuple)):
        indices = np.asarray(indices)
    if mode is None:
        return getitem(a, (*[slice(None)] * place, indices))
    extent = type.shape[place]
    if mode == "wrap":
        return take(a, np.remainder(indices, extent), place)
    if mode not in ("fill", "clip"):
        raise ArgumentError(
            f"take has no mode {mode!r}; it has 'fill', 'clip' and 'wrap'",
            user_location(),
        )
    index = ops.convert(indices, ops.common_dtype("take", (indices,)))
    index = np.asarray(indices) if dtypes.is_python_scalar(indices) else index
    columns, shape = index_columns([index], [extent], normalize=mode == "fill")
    ndim = type.ndim - 1 + len(shape)
    # The axes of the result that come from axes of ``a``.
    window_axes = tuple(k for k in range(ndim) if not place <= k < place + len(shape))
    sizes = tuple(1 if k == place else n for k, n in enumerate(type.shape))
    windows = Windows(
        window_axes=window_axes, collapsed_axes=(place,), indexed_axes=(place,)
    )
    return gather(a, columns, windows, sizes, mode, fill_value)


def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: str | None = None,
    fill_value: Any = None,
) -> Array:
    """Return the elements of ``arr`` whose position along ``axis`` is in ``indices``.

    Along the other axes, ``indices`` broadcasts with ``arr``, and positions do not
    change. So for axis 1, result[i, j] is arr[i, indices[i, j]]. ``axis=None`` means
    that ``arr`` is flattened. ``mode`` and ``fill_value`` are as for ``take``, but
    ``mode`` cannot be "wrap". The mode "one_hot" reads 0 at positions out of bounds.
    Raises ShapeError if the numbers of axes differ.
    """
    if mode == "one_hot":  # another library's way to compute the same
        mode, fill_value = "fill", 0
    if mode not in (None, "fill", "clip", "promise_in_bounds"):
        raise ArgumentError(
            f"take_along_axis has no mode {mode!r}; it has 'fill' and 'clip'",
            user_location(),
        )
    if axis is None:
        arr, axis = reshape(arr, -1), 0
    type, wanted = (ops.type_of_operand("take_along_axis", a) for a in (arr, indices))
    if type.ndim != wanted.ndim:
        raise ShapeError(
            f"take_along_axis takes an array and indices with the same number of "
            f"axes, but was given {type} and {wanted}",
            user_location(),
        )
    place = ops.normalize_axis("take_along_axis", axis, type.ndim)
    index = np.asarray(indices) if dtypes.is_python_scalar(indices) else indices
    if mode is None:
        index = within(index, type.shape[place], place)
    others = tuple(k for k in range(type.ndim) if k != place)
    shape = ops.broadcast_shape(
        "take_along_axis",
        [tuple(t.shape[k] for k in others) for t in (type, wanted)],
    )
    # Broadcast both along the other axes, which then are batch axes of the gather.
    full = list(shape)
    full.insert(place, type.shape[place])
    arr = broadcast_to(arr, tuple(full)) if tuple(full) != type.shape else arr
    full[place] = wanted.shape[place]
    index = broadcast_to(index, tuple(full)) if tuple(full) != wanted.shape else index
    columns, _ = index_columns([index], [type.shape[place]])
    windows = Windows(
        window_axes=(),
        collapsed_axes=(place,),
        indexed_axes=(place,),
        batch=(others, others),
    )
    if mode is None:
        mode = "fill" if known_value(index) is None else "promise_in_bounds"
    return gather(
        ops.as_array(arr), columns, windows, (1,) * type.ndim, mode, fill_value
    )
