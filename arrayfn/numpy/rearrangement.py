"""flip, rot90, roll, tile, diff and ediff1d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.numpy.arithmetic import remainder, subtract
from arrayfn.numpy.comparison import not_equal
from arrayfn.numpy.indexing import take
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    ravel,
    reshape,
    slice_along,
    swapaxes,
)
from arrayfn.primitives import views
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import ImmutableArray, apply


def flip(m: ArrayLike, axis: Axis = None) -> Array:
    """Reverse the order of m along ``axis``; ``axis=None`` means all axes.

    ``axis`` may be a tuple of axes.
    """
    axes = ops.normalize_axes("flip", axis, ops.type_of_operand("flip", m).ndim)
    return apply(views.rev, m, axes=axes)


def fliplr(m: ArrayLike) -> Array:
    """Reverse the order of m along axis 1."""
    return flip(m, 1)


def flipud(m: ArrayLike) -> Array:
    """Reverse the order of m along axis 0."""
    return flip(m, 0)


def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Rotate m by k * 90 degrees from the first to the second of ``axes``.

    Negative k rotates in the other direction.
    """
    first, second = axes
    quarters = k % 4
    if quarters == 0:
        return ops.same(m)
    if quarters == 2:
        return flip(m, (first, second))
    if quarters == 1:
        return swapaxes(flip(m, second), first, second)
    return flip(swapaxes(m, first, second), second)


def roll(
    a: ArrayLike, shift: ArrayLike | Sequence[ArrayLike], axis: Axis = None
) -> Array:
    """Shift ``a`` cyclically along ``axis``: the last elements move to the front.

    With ``axis=None``, ``a`` is shifted as a vector and keeps its shape. Several axes
    have one ``shift`` each, or one for all of them. Several shifts of one axis add up.
    A shift may be a traced integer, and several shifts may be a traced array.

    >>> import numpy as np
    >>> roll(np.arange(4), 1)
    array([3, 0, 1, 2])
    """
    shape = ops.type_of_operand("roll", a).shape
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), shape)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    shifts = _shifts(shift)
    # Repeat a single axis, or a single shift.
    if len(shifts) != len(axes):
        axes = axes * len(shifts) if len(axes) == 1 else axes
        shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    value = ops.same(a)
    for by, along in zip(shifts, axes, strict=True):
        place = ops.normalize_axis("roll", along, len(shape))
        extent = shape[place]
        if isinstance(by, ImmutableArray):  # not known while tracing
            value = _rolled(value, by, place)
            continue
        cut = -ops.whole(by) % extent if extent else 0
        if cut:
            parts = (cut, extent), (0, cut)
            value = concatenate([slice_along(value, *p, place) for p in parts], place)
    return value


def _shifts(shift: Any) -> tuple[Any, ...]:
    """Return the shifts in ``shift``, a number, a sequence or an array, as a tuple."""
    if isinstance(shift, (tuple, list)):
        return tuple(shift)
    if isinstance(shift, np.ndarray):
        return tuple(shift.ravel().tolist())
    if isinstance(shift, ImmutableArray) and shift.ndim == 1:
        return tuple(shift[k] for k in range(shift.shape[0]))
    return (shift,)


def _rolled(x: Array, shift: ArrayLike, axis: int) -> Array:
    """Shift x cyclically along ``axis`` by a number that is not known while tracing.

    Raises ArgumentError unless ``shift`` is a scalar integer.
    """
    type = ops.type_of_operand("roll", shift)
    if type.shape or type.dtype not in dtypes.INTEGERS:
        raise ArgumentError(
            f"roll shifts an axis by an integer, not by {type}; give a tuple of "
            "integers for several axes",
            user_location(),
        )
    extent = x.shape[axis]
    by = ops.convert(shift, dtypes.int64)
    places = apply(views.iota, shape=(extent,), axis=0, dtype=dtypes.int64)
    return take(x, remainder(subtract(places, by), max(extent, 1)), axis, mode="clip")


def tile(A: ArrayLike, reps: int | Sequence[int]) -> Array:
    """Repeat A as often as ``reps`` says along each of its last axes.

    If ``reps`` has more entries than A has axes, A gets leading axes.
    """
    counts = as_list(reps)
    shape = list(ops.type_of_operand("tile", A).shape)
    ndim = max(len(shape), len(counts))
    shape = [1] * (ndim - len(shape)) + shape
    counts = [1] * (ndim - len(counts)) + [ops.whole(c) for c in counts]
    # Broadcast (1, n0, 1, n1, ...) to (c0, n0, c1, n1, ...), and merge pairs of axes.
    paired = [extent for pair in zip(counts, shape, strict=True) for extent in pair]
    spaced = [extent for n in shape for extent in (1, n)]
    final = tuple(c * n for c, n in zip(counts, shape, strict=True))
    return reshape(broadcast_to(reshape(A, tuple(spaced)), tuple(paired)), final)


def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """Return the n-th difference of neighbours along ``axis``: x[1] - x[0], ...

    The axis becomes shorter by n, and the dtype stays. For bools, the difference is
    xor. ``prepend`` and ``append`` are first added at the ends of the axis; a number is
    broadcast.
    """
    type = ops.type_of_operand("diff", a)
    place = ops.normalize_axis("diff", axis, type.ndim)
    before, after = (_edge(e, type.shape, place) for e in (prepend, append))
    parts = [e for e in (before, a, after) if e is not None]
    value = concatenate(parts, place) if len(parts) > 1 else ops.as_array(a)
    for _ in range(n):
        extent = value.shape[place]
        later = slice_along(value, min(1, extent), extent, place)
        earlier = slice_along(value, 0, max(extent - 1, 0), place)
        of_bools = value.dtype == dtypes.bool_
        value = (not_equal if of_bools else subtract)(later, earlier)
    return value if n else ops.same(value)


def _edge(
    value: ArrayLike | None, shape: tuple[int, ...], axis: int
) -> ArrayLike | None:
    """Return ``value`` as a slice that can be joined to an array along ``axis``.

    ``shape`` is that of the array. None and arrays with axes are returned unchanged,
    and a scalar is broadcast.
    """
    if value is None or ops.type_of_operand("diff", value).shape:
        return value
    if dtypes.is_python_scalar(value):
        value = np.asarray(value)  # as NumPy, which gives it a dtype of its own
    one = tuple(1 if k == axis else n for k, n in enumerate(shape))
    return broadcast_to(value, one)


def ediff1d(
    ary: ArrayLike,
    to_end: ArrayLike | None = None,
    to_begin: ArrayLike | None = None,
) -> Array:
    """Return the differences of neighbours in ``ary``, flattened.

    ``to_begin`` and ``to_end`` are added at the ends, in the dtype of ``ary``.
    """
    value = diff(ravel(ary))
    before, after = (
        [] if e is None else [ravel(ops.as_array(ops.convert(e, value.dtype)))]
        for e in (to_begin, to_end)
    )
    parts = [*before, value, *after]
    return concatenate(parts) if len(parts) > 1 else value
