"""Quantiles, percentiles and medians, with and without NaN.

Methods: Hyndman and Fan, Sample Quantiles in Statistical Packages (1996), and NumPy's
discontinuous variants of "linear".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.numpy.arithmetic import (
    add,
    ceil,
    clip,
    divide,
    floor,
    multiply,
    rint,
    subtract,
)
from arrayfn.numpy.comparison import (
    equal,
    greater,
    greater_equal,
    isnan,
    less,
    logical_and,
    logical_not,
    where,
)
from arrayfn.numpy.creation import full
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.indexing import getitem, take_along_axis
from arrayfn.numpy.manipulation import (
    broadcast_to,
    expand_dims,
    moveaxis,
    reshape,
    transpose,
)
from arrayfn.numpy.reductions import any as any_
from arrayfn.numpy.reductions import argmax
from arrayfn.numpy.reductions import sum as sum_
from arrayfn.numpy.sorting import argsort, sort

# The continuous methods: the plotting positions (alpha, beta) of each.
_CONTINUOUS = {
    "linear": (1.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0.0, 1.0),
}


def _fraction_at_boundary(place: Array, instead: Callable[[Array], Array]) -> Array:
    """``instead`` where the position ``place`` is an integer, else 1."""
    low = floor(place)
    return where(equal(place, low), instead(low), 1.0)


def _place(method: str, count: Any, q: Array) -> tuple[Array, Array]:
    """Return the index of the element below the quantile, and the fraction above it.

    ``q`` is the fraction of ``count`` elements, ``method`` one of ``METHODS``.
    """
    last = subtract(count, 1)
    if method in _CONTINUOUS:
        alpha, beta = _CONTINUOUS[method]
        position = multiply(count, q) + (alpha + q * (1.0 - alpha - beta)) - 1.0
        position = clip(position, 0.0, last)
        low = floor(position)
        return low, position - low
    position = multiply(last, q)
    if method in ("lower", "higher", "nearest"):
        rounding = {"lower": floor, "higher": ceil, "nearest": rint}[method]
        return rounding(position), multiply(0.0, position)
    if method == "midpoint":
        low = floor(position)
        return low, where(equal(position, low), 0.0, 0.5)
    if method in ("inverted_cdf", "averaged_inverted_cdf"):
        position = multiply(count, q) - 1.0
        at = 0.0 if method == "inverted_cdf" else 0.5
        step = _fraction_at_boundary(position, lambda low: multiply(0.0, low) + at)
    elif method == "closest_observation":
        position = multiply(count, q) - 1.5
        # Halfway between two, the even position, counted from 1.
        step = _fraction_at_boundary(position, lambda low: 1.0 - low % 2.0)
    else:
        raise ArgumentError(
            f"there is no method {method!r} of quantiles; there are "
            + ", ".join(map(repr, METHODS)),
            user_location(),
        )
    low = floor(position)
    below = less(low, 0.0)
    return where(below, 0.0, low), where(below, 0.0, step)


METHODS = (
    *_CONTINUOUS,
    "lower",
    "higher",
    "nearest",
    "midpoint",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
)


def _flat_along(name: str, x: ArrayLike, axis: Axis) -> tuple[Array, tuple[int, ...]]:
    """x with the reduced axes merged into its last axis; and those axes.

    Errors call the function ``name``.
    """
    type = ops.type_of_operand(name, x)
    axes = ops.normalize_axes(name, axis, type.ndim)
    kept = [k for k in range(type.ndim) if k not in axes]
    moved = transpose(x, [*kept, *axes])
    length = math.prod(type.shape[k] for k in axes)
    return reshape(moved, (*(type.shape[k] for k in kept), length)), axes


def _quantile(
    name: str,
    x: ArrayLike,
    q: ArrayLike,
    axis: Axis,
    method: str,
    keepdims: bool,
    weights: ArrayLike | None,
    skip_nan: bool,
) -> Array:
    """Return the quantiles ``q`` over ``axis``, as ``numpy.quantile`` gives them.

    With ``skip_nan`` NaN is left out, else it makes the result NaN. Errors call it
    ``name``. Of no elements, all but ``quantile`` and ``percentile`` give NaN.
    """
    if isinstance(q, (list, tuple)):
        q = np.asarray(q)
    _check_fractions(name, q)
    type, fractions = (ops.type_of_operand(name, a) for a in (x, q))
    common, _ = dtypes.promote(
        [(type.dtype, type.weak), (fractions.dtype, fractions.weak)]
    )
    result = ops.floating_dtype(common)
    if result in dtypes.COMPLEX:
        raise ArgumentError(f"{name} takes real numbers", user_location())
    flat, axes = _flat_along(name, x, axis)
    if flat.shape[-1] == 0:
        if name in ("quantile", "percentile"):  # as in NumPy
            raise ArgumentError(f"{name} of no elements: {type}", user_location())
        nothing = full((*fractions.shape, *flat.shape[:-1]), np.nan, result)
        return _with_axes(nothing, fractions.ndim, axes, keepdims)
    if weights is not None:
        by_weight = _weighted(name, x, flat, q, axis, method, weights, skip_nan)
        return _with_axes(by_weight, fractions.ndim, axes, keepdims)
    ordered = sort(ops.convert(flat, result))
    lead = ordered.shape[:-1]
    extent = ordered.shape[-1]
    inexact = type.dtype in dtypes.INEXACT
    wide = ops.as_array(ops.convert(q, dtypes.float64))
    wide = reshape(wide, (-1,))
    wanted = (*lead, wide.shape[0])
    count: Any = float(extent)
    if skip_nan and inexact:
        numbers = sum_(logical_not(isnan(ordered)), -1, keepdims=True)
        count = ops.convert(numbers, dtypes.float64)
    low, step = (broadcast_to(v, wanted) for v in _place(method, count, wide))
    first = ops.convert(clip(low, 0, extent - 1), dtypes.int64)
    second = ops.convert(clip(low + 1.0, 0.0, subtract(count, 1.0)), dtypes.int64)
    a = take_along_axis(ordered, first, -1)
    b = take_along_axis(ordered, clip(second, 0, extent - 1), -1)
    value = _between(a, b, ops.convert(step, result))
    if inexact and not skip_nan:
        # NaN sorts to the end.
        last = getitem(ordered, (..., slice(-1, None)))
        value = where(isnan(last), last, value)
    value = reshape(moveaxis(value, -1, 0), (*fractions.shape, *lead))
    return _with_axes(value, fractions.ndim, axes, keepdims)


def _with_axes(value: Array, ndim: int, axes: tuple[int, ...], keepdims: bool) -> Array:
    """``value``, with the reduced axes behind the first ``ndim`` if ``keepdims``."""
    if not keepdims or not axes:
        return value
    return expand_dims(value, tuple(ndim + k for k in axes))


def _weighted(
    name: str,
    x: ArrayLike,
    flat: Array,
    q: ArrayLike,
    axis: Axis,
    method: str,
    weights: ArrayLike,
    skip_nan: bool,
) -> Array:
    """Return the first elements up to which the weights are at least q of their sum.

    ``flat`` is x with the reduced axes merged. With ``skip_nan`` NaN weighs nothing.
    Raises ArgumentError, about ``name``, for a ``method`` without weights.
    """
    if method != "inverted_cdf":
        raise ArgumentError(
            f"{name}: weights are for method='inverted_cdf', not {method!r}",
            user_location(),
        )
    type, given = (ops.type_of_operand(name, v) for v in (x, weights))
    if given.shape != type.shape:
        if given.ndim != 1 or not isinstance(axis, int):
            raise ShapeError(
                f"{name}: weights {given} have neither the shape of {type} nor one "
                "axis, along the axis of the quantiles",
                user_location(),
            )
        place = ops.normalize_axis(name, axis, type.ndim)
        weights = expand_dims(weights, tuple(range(1, type.ndim - place)))
        weights = broadcast_to(weights, type.shape)
    weight, _ = _flat_along(name, ops.convert(weights, dtypes.float64), axis)
    nan = isnan(flat) if type.dtype in dtypes.INEXACT else None
    if skip_nan and nan is not None:
        weight = where(nan, 0.0, weight)
    order = argsort(flat)
    ordered = take_along_axis(flat, order, -1)
    total = cumsum(take_along_axis(weight, order, -1), -1)
    wide = reshape(ops.as_array(ops.convert(q, dtypes.float64)), (-1, 1))
    target = expand_dims(getitem(total, (..., slice(-1, None))), -1) * wide
    # Elements without weight have no share, not even at q = 0.
    reached = greater_equal(expand_dims(total, -2), target)
    reached = logical_and(reached, greater(expand_dims(total, -2), 0.0))
    value = take_along_axis(ordered, argmax(reached, -1), -1)
    if nan is not None and not skip_nan:
        value = where(any_(nan, -1, keepdims=True), float("nan"), value)
    lead = value.shape[:-1]
    shape = ops.type_of_operand(name, q).shape
    return reshape(moveaxis(value, -1, 0), (*shape, *lead))


def _between(a: Array, b: Array, step: Array) -> Array:
    """a + (b - a) step; exactly b for step 1, and infinities are kept."""
    difference = subtract(b, a)
    near_a = add(a, multiply(difference, step))
    near_b = subtract(b, multiply(difference, subtract(1.0, step)))
    value = where(less(step, 0.5), near_a, near_b)
    # The difference of equal infinities is NaN.
    return where(equal(a, b), a, where(equal(step, 0.0), a, value))


def _check_fractions(name: str, q: ArrayLike) -> None:
    """ArgumentError, about ``name``, if known values of q are not from 0 to 1."""
    value = q.value if hasattr(q, "value") else q
    if value is not None and not np.all(
        (np.asarray(value) >= 0) & (np.asarray(value) <= 1)
    ):
        raise ArgumentError(
            f"{name} takes fractions from 0 to 1 (percentages from 0 to 100)",
            user_location(),
        )


def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """The quantile q of the elements over ``axis``; it is NaN if an element is NaN.

    If q is an array, its axes come first in the result. ``method`` is the interpolation
    between elements, by default "linear". Its names are NumPy's. ``weights`` has the
    shape of ``a``, or is a vector along ``axis``. With weights, the method must be
    "inverted_cdf". ``overwrite_input`` has no effect.

    >>> import numpy as np
    >>> quantile(np.array([1.0, 2.0, 3.0, 4.0]), 0.5)
    array(2.5)
    """
    ops.refuse_out("quantile", out)
    return _quantile("quantile", a, q, axis, method, keepdims, weights, skip_nan=False)


def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Compute ``quantile``, ignoring NaN.

    The result is NaN if all elements are NaN, or if there are no elements.
    """
    ops.refuse_out("nanquantile", out)
    return _quantile(
        "nanquantile", a, q, axis, method, keepdims, weights, skip_nan=True
    )


def _hundredths(q: ArrayLike) -> ArrayLike:
    """Percentages as fractions."""
    if isinstance(q, (list, tuple)):
        q = np.asarray(q)
    return q / 100 if ops.is_number(q) else divide(q, 100.0)


def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Compute ``quantile`` with q in hundredths."""
    ops.refuse_out("percentile", out)
    return _quantile(
        "percentile", a, _hundredths(q), axis, method, keepdims, weights, skip_nan=False
    )


def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Compute ``nanquantile`` with q in hundredths."""
    ops.refuse_out("nanpercentile", out)
    return _quantile(
        "nanpercentile",
        a,
        _hundredths(q),
        axis,
        method,
        keepdims,
        weights,
        skip_nan=True,
    )


def median(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Return the middle element over ``axis``, or the mean of the two middle elements.

    The median is NaN if an element is NaN. The median of no elements is NaN.
    """
    ops.refuse_out("median", out)
    return _quantile("median", a, 0.5, axis, "linear", keepdims, None, skip_nan=False)


def nanmedian(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Compute ``median``, ignoring NaN; the result is NaN if all elements are NaN."""
    ops.refuse_out("nanmedian", out)
    return _quantile("nanmedian", a, 0.5, axis, "linear", keepdims, None, skip_nan=True)
