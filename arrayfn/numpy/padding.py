"""The function ``pad`` and its modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.application import apply_along_axis
from arrayfn.numpy.arithmetic import add, floor, multiply, rint, subtract
from arrayfn.numpy.averages import mean
from arrayfn.numpy.indexing import take
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    reshape,
    slice_along,
    squeeze,
)
from arrayfn.numpy.quantiles import median
from arrayfn.numpy.rearrangement import flip
from arrayfn.numpy.reductions import max as max_
from arrayfn.numpy.reductions import min as min_
from arrayfn.primitives import slicing
from arrayfn.tracing import apply

Pairs = list[tuple[Any, Any]]

_MODES = (
    "constant",
    "edge",
    "empty",
    "linear_ramp",
    "maximum",
    "mean",
    "median",
    "minimum",
    "reflect",
    "symmetric",
    "wrap",
)


def pad(
    array: ArrayLike,
    pad_width: Any,
    mode: str | Callable[..., Any] = "constant",
    **options: Any,
) -> Array:
    """Pad ``array`` before and after along each axis, and keep its dtype.

    ``pad_width`` is one number, one pair (before, after) for all axes, or such a pair
    for each axis. Each mode has its own options, which take the same forms:

    * "constant" has ``constant_values`` (0), and "empty" pads with zeros;
    * "linear_ramp" has ``end_values`` (0), which are the ends of straight lines;
    * "maximum", "mean", "median" and "minimum" have ``stat_length``, which is the
      number of elements at the edge to use (None: all);
    * "reflect" (about the last element) and "symmetric" (about the edge) have
      ``reflect_type``: "odd" subtracts the mirrored elements from twice the edge's
      value, "even" (the default) does not;
    * "edge" and "wrap" have none.

    ``mode`` may also be a function of a vector, its pair of widths, its axis and a dict
    of ``options``. The function is called for the vectors of each axis, padded with
    zeros, and returns them with other values in the padding. The vectors are traced, so
    the function writes ``vector = vector.at[:width[0]].set(value)``.

    >>> import numpy as np
    >>> pad(np.array([1.0, 2.0, 3.0]), (2, 1), mode="reflect")
    array([3., 2., 1., 2., 3., 2.])
    """
    type = ops.type_of_operand("pad", array)
    pairs = _pairs("pad_width", pad_width, type.ndim)
    widths = [(ops.whole(before), ops.whole(after)) for before, after in pairs]
    if any(before < 0 or after < 0 for before, after in widths):
        raise ArgumentError("pad widths must not be negative", user_location())
    if callable(mode):
        return _by_function(array, widths, mode, options)
    if mode not in _MODES:
        raise ArgumentError(
            f"pad has no mode {mode!r}; it has {', '.join(_MODES)}", user_location()
        )
    _check_options(mode, options)
    constant_values = options.get("constant_values", 0)
    end_values = options.get("end_values", 0)
    stat_length = options.get("stat_length")
    reflect_type = options.get("reflect_type", "even")
    if mode == "empty":
        mode, constant_values = "constant", 0
    if mode == "constant":
        return _constant(
            array, widths, _pairs("constant_values", constant_values, type.ndim)
        )
    value = array
    for axis, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        if not type.shape[axis]:
            raise ArgumentError(
                f"pad: axis {axis} of {type} is empty, and {mode!r} pads with its "
                "elements; use mode='constant'",
                user_location(),
            )
        if mode == "linear_ramp":
            ends = _pairs("end_values", end_values, type.ndim)[axis]
            value = _ramped(value, (before, after), axis, ends)
        elif mode in _STATISTICS:
            lengths = _pairs("stat_length", stat_length, type.ndim)[axis]
            value = _of_statistic(value, (before, after), axis, mode, lengths)
        elif reflect_type == "odd" and mode in ("reflect", "symmetric"):
            value = _mirrored_oddly(value, before, after, axis, mode)
        else:
            value = _repeated(value, before, after, axis, mode)
    return ops.same(value) if value is array else value


# The option that each mode takes.
_OPTIONS = {
    "constant": "constant_values",
    "linear_ramp": "end_values",
    "maximum": "stat_length",
    "mean": "stat_length",
    "median": "stat_length",
    "minimum": "stat_length",
    "reflect": "reflect_type",
    "symmetric": "reflect_type",
}


def _check_options(mode: str, options: dict[str, Any]) -> None:
    """Raise ArgumentError for options that ``mode`` does not use."""
    for option in options:
        if _OPTIONS.get(mode) != option:
            own = f"only {_OPTIONS[mode]}" if mode in _OPTIONS else "no options"
            raise ArgumentError(
                f"pad in mode {mode!r} takes {own}, not {option}", user_location()
            )


def _by_function(
    x: Array,
    widths: list[tuple[int, int]],
    function: Callable[..., Any],
    options: dict[str, Any],
) -> Array:
    """Pad x with zeros, and let ``function`` change the vectors along each axis.

    ``widths`` has a pair (before, after) for each axis. ``function`` is the ``mode`` of
    ``pad``, which gets ``options``. Raises ArgumentError unless it returns a vector of
    the same length.
    """
    # A further axis, so that a single vector is mapped, and so traced, too.
    value = expand_dims(_constant(x, widths, [(0, 0)] * len(widths)), 0)
    for axis, width in enumerate(widths):

        def padded(vector: Array, axis: int = axis, width: Any = width) -> Array:
            """Call ``function`` for one vector along ``axis``, and check its result."""
            result = function(vector, width, axis, options)
            if getattr(result, "shape", None) != vector.shape:
                raise ArgumentError(
                    "pad: the function returns its vector, with other values in the "
                    "padding: vector = vector.at[:width[0]].set(...); return vector",
                    user_location(),
                )
            return result

        value = apply_along_axis(padded, axis + 1, value)
    return squeeze(value, 0)


def _pairs(name: str, given: Any, ndim: int) -> Pairs:
    """Return ``given`` as a pair (before, after) for each of ``ndim`` axes.

    ``given`` is a value, a pair for all axes, or a pair for each axis. It may also be a
    dict of values or pairs by axis; other axes then get (0, 0). Raises ArgumentError,
    which calls the argument ``name``, for other forms.
    """
    if isinstance(given, dict):
        pairs: Pairs = [(0, 0)] * ndim
        for axis, pair in given.items():
            both = pair if isinstance(pair, (tuple, list)) else (pair, pair)
            pairs[ops.normalize_axis("pad", axis, ndim)] = (both[0], both[1])
        return pairs
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, (tuple, list)):
        return [(given, given)] * ndim
    if not any(isinstance(entry, (tuple, list)) for entry in given):
        if len(given) not in (1, 2):
            raise ArgumentError(
                f"pad: {name} must be a value, a pair, or a pair for each axis, not "
                f"{given}",
                user_location(),
            )
        return [(given[0], given[-1])] * ndim
    pairs = [(entry[0], entry[-1]) for entry in given]
    pairs = pairs * ndim if len(pairs) == 1 else pairs
    if len(pairs) != ndim:
        raise ArgumentError(
            f"pad: {name} has {len(pairs)} pairs for {ndim} axes", user_location()
        )
    return pairs


def _constant(x: ArrayLike, widths: Pairs, values: Pairs) -> Array:
    """Pad x with constants: ``values`` has a pair (before, after) for each axis."""
    dtype = ops.type_of_operand("pad", x).dtype
    # Arrays cannot be hashed, so tell them apart by identity. One value for all sides
    # needs a single equation.
    distinct = {id(v) if hasattr(v, "dtype") else v for pair in values for v in pair}
    if len(distinct) <= 1:
        value = ops.convert(values[0][0] if values else 0, dtype)
        config = tuple((before, after, 0) for before, after in widths)
        return apply(slicing.pad, ops.as_array(x), value, config=config)
    result = ops.as_array(x)
    ndim = len(widths)
    for axis, (width, pair) in enumerate(zip(widths, values, strict=True)):
        for side, value in enumerate(pair):
            config = [(0, 0, 0)] * ndim
            config[axis] = (width[0], 0, 0) if side == 0 else (0, width[1], 0)
            filler = ops.convert(value, dtype)
            result = apply(slicing.pad, result, filler, config=tuple(config))
    return result


def _repeated(x: Array, before: int, after: int, axis: int, mode: str) -> Array:
    """Pad x along ``axis`` with its own elements.

    ``before`` and ``after`` are the numbers of added elements. ``mode`` is "edge",
    "wrap", "reflect" or "symmetric". If no element is needed more than once on a side,
    the padding is made of slices, otherwise of a gather.
    """
    extent = x.shape[axis]
    skip = int(mode == "reflect")  # "reflect" does not repeat the element at the edge
    period = extent if mode == "wrap" else extent - skip
    if mode == "edge":
        shape = list(x.shape)
        shape[axis] = before
        first = broadcast_to(slice_along(x, 0, 1, axis), tuple(shape))
        shape[axis] = after
        last = broadcast_to(slice_along(x, extent - 1, extent, axis), tuple(shape))
        parts = [first, x, last]
    elif max(before, after) > period:
        places = np.pad(np.arange(extent), (before, after), mode=mode)  # type: ignore[call-overload]
        return take(x, places, axis)
    elif mode == "wrap":
        first = slice_along(x, extent - before, extent, axis)
        parts = [first, x, slice_along(x, 0, after, axis)]
    else:
        first = slice_along(x, skip, skip + before, axis)
        last = slice_along(x, extent - skip - after, extent - skip, axis)
        parts = [flip(first, axis), x, flip(last, axis)]
    return concatenate([part for part in parts if part.shape[axis]], axis)


def _mirrored_oddly(x: Array, before: int, after: int, axis: int, mode: str) -> Array:
    """Pad x with twice the edge minus the mirrored elements.

    ``before`` and ``after`` are the numbers of added elements along ``axis``. ``mode``
    is "reflect" or "symmetric". If more elements are needed than x has, the padded
    array is padded again, until it is long enough.
    """
    skip = int(mode == "reflect")  # "reflect" does not repeat the element at the edge
    value = x
    while before or after:
        extent = value.shape[axis]
        period = extent - skip
        if not period:
            return _repeated(value, before, after, axis, "edge")
        low, high = min(before, period), min(after, period)
        parts = [value]
        if low:
            edge = slice_along(value, 0, 1, axis)
            mirrored = flip(slice_along(value, skip, skip + low, axis), axis)
            parts.insert(0, subtract(multiply(2, edge), mirrored))
        if high:
            edge = slice_along(value, extent - 1, extent, axis)
            part = slice_along(value, extent - skip - high, extent - skip, axis)
            parts.append(subtract(multiply(2, edge), flip(part, axis)))
        value = concatenate(parts, axis)
        before, after = before - low, after - high
    return value


def _ramped(
    x: Array, widths: tuple[int, int], axis: int, ends: tuple[Any, Any]
) -> Array:
    """Pad x along ``axis`` with straight lines from its edges to ``ends``.

    ``widths`` are the numbers of elements before and after x, and ``ends`` the values
    at the ends of the lines. In integer arrays the lines are rounded down.
    """
    extent = x.shape[axis]
    whole = x.dtype in dtypes.INTEGERS
    wide = dtypes.float64 if whole else x.dtype
    parts = [x]
    for side, (width, end) in enumerate(zip(widths, ends, strict=True)):
        if not width:
            continue
        place = 0 if side == 0 else extent - 1
        edge = ops.convert(slice_along(x, place, place + 1, axis), wide)
        shape = [1] * x.ndim
        shape[axis] = width
        steps = np.arange(width) / width  # from the end to (almost) the edge
        steps = steps if side == 0 else 1.0 - (np.arange(width) + 1.0) / width
        weights = reshape(steps.astype(dtypes.real_of(wide)), tuple(shape))
        final = ops.convert(end, wide)
        ramp = add(final, multiply(weights, subtract(edge, final)))
        ramp = ops.convert(floor(ramp) if whole else ramp, x.dtype)
        parts = [ramp, *parts] if side == 0 else [*parts, ramp]
    return concatenate(parts, axis)


_STATISTICS: dict[str, Callable[..., Array]] = {
    "maximum": max_,
    "mean": mean,
    "median": median,
    "minimum": min_,
}


def _of_statistic(
    x: Array,
    widths: tuple[int, int],
    axis: int,
    mode: str,
    lengths: tuple[Any, Any],
) -> Array:
    """Pad x along ``axis`` with the statistic ``mode`` of elements at its ends.

    ``widths`` are the numbers of added elements before and after x. ``lengths`` are the
    numbers of elements at each end of x that count; None means all. In integer arrays
    the statistic is rounded.
    """
    extent = x.shape[axis]
    parts = [x]
    for side, (width, length) in enumerate(zip(widths, lengths, strict=True)):
        if not width:
            continue
        count = extent if length is None else min(ops.whole(length), extent)
        begin = 0 if side == 0 else extent - count
        value = _STATISTICS[mode](
            slice_along(x, begin, begin + count, axis), axis, keepdims=True
        )
        if x.dtype in dtypes.INTEGERS:
            value = ops.convert(rint(value), x.dtype)
        shape = list(x.shape)
        shape[axis] = width
        filler = broadcast_to(value, tuple(shape))
        parts = [filler, *parts] if side == 0 else [*parts, filler]
    return concatenate(parts, axis)
