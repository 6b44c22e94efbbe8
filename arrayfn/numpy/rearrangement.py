"""Elements in another order, repeated, padded or compared with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.numpy.arithmetic import subtract
from arrayfn.numpy.comparison import not_equal
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    ravel,
    reshape,
    slice_along,
    swapaxes,
)
from arrayfn.primitives import views
from arrayfn.tracing import apply


def flip(x: ArrayLike, /, axis: Axis = None) -> Array:
    """x in reverse order along ``axis`` (None: all)."""
    axes = ops.normalize_axes("flip", axis, ops.type_of_operand("flip", x).ndim)
    return apply(views.rev, x, axes=axes)


def fliplr(x: ArrayLike, /) -> Array:
    """x in reverse order along axis 1."""
    return flip(x, 1)


def flipud(x: ArrayLike, /) -> Array:
    """x in reverse order along axis 0."""
    return flip(x, 0)


def rot90(x: ArrayLike, /, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """x turned by k quarters in the plane of ``axes``, from the first to the second."""
    first, second = axes
    turns = k % 4
    if turns == 0:
        return ops.same(x)
    if turns == 2:
        return flip(x, (first, second))
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second)


def roll(x: ArrayLike, /, shift: int | Sequence[int], axis: Axis = None) -> Array:
    """x shifted along ``axis``; what leaves at the end enters at the beginning.

    With ``axis=None``, x is shifted as a vector and keeps its shape.
    """
    shape = ops.type_of_operand("roll", x).shape
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    value = ops.same(x)
    for by, along in zip(shifts, axes, strict=True):
        place = ops.normalize_axis("roll", along, len(shape))
        extent = shape[place]
        cut = -ops.whole(by) % extent if extent else 0
        if cut:
            parts = (cut, extent), (0, cut)
            value = concatenate([slice_along(value, *p, place) for p in parts], place)
    return value


def repeat(x: ArrayLike, repeats: int, /, axis: int | None = None) -> Array:
    """Each element of x ``repeats`` times, along ``axis`` (None: of x as a vector)."""
    if axis is None:
        x, axis = ravel(x), 0
    shape = ops.type_of_operand("repeat", x).shape
    place = ops.normalize_axis("repeat", axis, len(shape))
    if not hasattr(repeats, "__index__"):
        raise ArgumentError(
            "repeat takes one number of repeats, for it decides the shape; use take "
            "with explicit indices for different numbers",
            user_location(),
        )
    count = int(repeats)
    wide = (*shape[: place + 1], count, *shape[place + 1 :])
    final = (*shape[:place], shape[place] * count, *shape[place + 1 :])
    return reshape(broadcast_to(expand_dims(x, place + 1), wide), final)


def tile(x: ArrayLike, repetitions: int | Sequence[int], /) -> Array:
    """x laid side by side, ``repetitions`` times along each of the last axes."""
    counts = (
        list(repetitions) if isinstance(repetitions, (tuple, list)) else [repetitions]
    )
    shape = list(ops.type_of_operand("tile", x).shape)
    ndim = max(len(shape), len(counts))
    shape = [1] * (ndim - len(shape)) + shape
    counts = [1] * (ndim - len(counts)) + [ops.whole(c) for c in counts]
    paired = [extent for pair in zip(counts, shape, strict=True) for extent in pair]
    spaced = [extent for n in shape for extent in (1, n)]
    final = tuple(c * n for c, n in zip(counts, shape, strict=True))
    return reshape(broadcast_to(reshape(x, tuple(spaced)), tuple(paired)), final)


def pad(
    x: ArrayLike,
    pad_width: Any,
    /,
    mode: str = "constant",
    *,
    constant_values: ArrayLike = 0,
) -> Array:
    """x with elements before and after along each axis.

    ``pad_width`` is a number for all, (before, after) for all, or such a pair for each
    axis. ``mode`` is "constant", "edge", "reflect", "symmetric" or "wrap".
    """
    type = ops.type_of_operand("pad", x)
    widths = _pad_widths(pad_width, type.ndim)
    if mode == "constant":
        value = ops.convert(constant_values, type.dtype)
        config = tuple((before, after, 0) for before, after in widths)
        return apply(views.pad, x, value, config=config)
    if mode not in _PADDING:
        raise ArgumentError(
            f"pad has no mode {mode!r}; it has 'constant', "
            + ", ".join(map(repr, _PADDING)),
            user_location(),
        )
    value = ops.same(x)
    for axis, (before, after) in enumerate(widths):
        value = _padded_along(value, before, after, axis, *_PADDING[mode])
    return value


# For each mode, which elements follow the last: those before it (skipping how many) in
# reverse, those from the beginning, or the last one repeated.
_PADDING = {
    "edge": ("edge", 0),
    "reflect": ("mirror", 1),
    "symmetric": ("mirror", 0),
    "wrap": ("wrap", 0),
}


def _pad_widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    given = pad_width if isinstance(pad_width, (tuple, list)) else (pad_width,)
    if all(hasattr(entry, "__index__") for entry in given):
        pair = (int(given[0]), int(given[-1]))
        return [pair] * ndim
    pairs = [(int(entry[0]), int(entry[-1])) for entry in given]
    return pairs * ndim if len(pairs) == 1 else pairs


def _padded_along(
    x: Array, before: int, after: int, axis: int, rule: str, skip: int
) -> Array:
    extent = x.shape[axis]
    period = extent if rule == "wrap" else extent - skip
    parts = [x]
    if rule == "edge":
        shape = list(x.shape)
        shape[axis] = before
        first = broadcast_to(slice_along(x, 0, 1, axis), tuple(shape))
        shape[axis] = after
        last = broadcast_to(slice_along(x, extent - 1, extent, axis), tuple(shape))
        parts = [first, x, last]
    elif max(before, after) > period:
        raise ArgumentError(
            f"pad by {max(before, after)} repeats axis {axis} of {x.shape} more than "
            "once, which this mode does not do here; pad in steps",
            user_location(),
        )
    elif rule == "wrap":
        first = slice_along(x, extent - before, extent, axis)
        parts = [first, x, slice_along(x, 0, after, axis)]
    else:
        first = slice_along(x, skip, skip + before, axis)
        last = slice_along(x, extent - skip - after, extent - skip, axis)
        parts = [flip(first, axis), x, flip(last, axis)]
    return concatenate([part for part in parts if part.shape[axis]], axis)


def diff(
    x: ArrayLike,
    /,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """The difference of neighbours along ``axis``, n times over; xor for bools."""
    type = ops.type_of_operand("diff", x)
    place = ops.normalize_axis("diff", axis, type.ndim)
    ends = [_edge(e, type.shape, place) for e in (prepend, append)]
    parts = [e for e in (ends[0], x, ends[1]) if e is not None]
    value = concatenate(parts, place) if len(parts) > 1 else x
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
    if value is None or ops.type_of_operand("diff", value).shape:
        return value
    one = tuple(1 if k == axis else n for k, n in enumerate(shape))
    return broadcast_to(value, one)


def ediff1d(x: ArrayLike, /) -> Array:
    """The differences of neighbours in x as a vector."""
    return diff(ravel(x))
