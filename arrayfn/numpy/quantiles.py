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
from arrayfn.ir.layout import other_axes
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
    isfinite,
    isinf,
    isnan,
    less,
    logical_and,
    logical_not,
    logical_or,
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

# The continuous methods, with the parameters (alpha, beta) of their plotting positions:
# q of n sorted elements is at n q + alpha + q (1 - alpha - beta), counted from 1.
_CONTINUOUS = {
    "linear": (1.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0.0, 1.0),
}


def _fraction_at_boundary(place: Array, instead: Callable[[Array], Array]) -> Array:
    """Return ``instead(floor(place))`` where ``place`` is an integer, else 1.

    ``place`` is the position of a quantile among sorted elements.
    """
    low = floor(place)
    return where(equal(place, low), instead(low), 1.0)


def _place(method: str, count: Any, q: Array) -> tuple[Array, Array]:
    """Return the position ``low`` of the element below the quantile, and a fraction.

    The quantile is x[low] + fraction (x[low + 1] - x[low]), for sorted elements x.
    ``q`` is the quantile's fraction of ``count`` elements, and ``method`` one of
    ``METHODS``; ArgumentError for others.
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
        # The constant ``at``, in the shape of low.
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
    """Merge the reduced axes of x into one, the last; return it and the reduced axes.

    ``axis`` is as in ``quantile``. Errors call the function ``name``.
    """
    type = ops.type_of_operand(name, x)
    axes = ops.normalize_axes(name, axis, type.ndim)
    others = other_axes(type.ndim, axes)
    transposed = transpose(x, [*others, *axes])
    length = math.prod(type.shape[k] for k in axes)
    return reshape(transposed, (*(type.shape[k] for k in others), length)), axes


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
    """Return the quantiles ``q`` of x over ``axis``, as ``numpy.quantile`` does.

    ``name`` is the public function, for errors. With ``skip_nan``, NaN is ignored.
    Otherwise, it makes the result NaN. Without elements, "quantile" and "percentile"
    raise ArgumentError, and other functions return NaN. The other parameters are those
    of ``quantile``.
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
        all_nan = full((*fractions.shape, *flat.shape[:-1]), np.nan, result)
        return _with_axes(all_nan, fractions.ndim, axes, keepdims)
    if weights is not None:
        by_weight = _weighted(name, x, flat, q, axis, method, weights, skip_nan)
        return _with_axes(by_weight, fractions.ndim, axes, keepdims)
    ordered = sort(ops.convert(flat, result))
    lead = ordered.shape[:-1]
    extent = ordered.shape[-1]
    inexact = type.dtype in dtypes.INEXACT
    # Compute positions in float64, for a vector of all q.
    wide = ops.as_array(ops.convert(q, dtypes.float64))
    wide = reshape(wide, (-1,))
    wanted = (*lead, wide.shape[0])
    count: Any = float(extent)
    if skip_nan and inexact:  # NaN is sorted to the end; count the numbers before
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
    """Put the reduced ``axes`` back into ``value`` with extent 1, if ``keepdims``.

    The first ``ndim`` axes of ``value`` are those of q.
    """
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
    """Return the weighted quantiles, by the method "inverted_cdf".

    A quantile is the first sorted element up to which the weights sum to at least q
    times their total. ``flat`` is x with the reduced axes merged into its last. With
    ``skip_nan``, NaN has no weight. The other parameters are those of ``_quantile``.
    Raises ArgumentError, about ``name``, for another ``method``, and ShapeError for
    weights that do not fit.
    """
    if method != "inverted_cdf":
        raise ArgumentError(
            f"{name}: weights are for method='inverted_cdf', not {method!r}",
            user_location(),
        )
    type, weight_type = (ops.type_of_operand(name, v) for v in (x, weights))
    if weight_type.shape != type.shape:
        if weight_type.ndim != 1 or not isinstance(axis, int):
            raise ShapeError(
                f"{name}: weights {weight_type} have neither the shape of {type} nor "
                "one axis, along the axis of the quantiles",
                user_location(),
            )
        place = ops.normalize_axis(name, axis, type.ndim)
        # (n,) becomes (n, 1, ..., 1), which broadcasts along ``axis``.
        weights = expand_dims(weights, tuple(range(1, type.ndim - place)))
        weights = broadcast_to(weights, type.shape)
    weight, _ = _flat_along(name, ops.convert(weights, dtypes.float64), axis)
    nan = isnan(flat) if type.dtype in dtypes.INEXACT else None
    if skip_nan and nan is not None:
        weight = where(nan, 0.0, weight)
    order = argsort(flat)
    ordered = take_along_axis(flat, order, -1)
    total = cumsum(take_along_axis(weight, order, -1), -1)
    # The axes of ``reached`` are (..., q, sorted elements).
    wide = reshape(ops.as_array(ops.convert(q, dtypes.float64)), (-1, 1))
    target = expand_dims(getitem(total, (..., slice(-1, None))), -1) * wide
    # Elements without weight have no share, not even at q = 0.
    reached = greater_equal(expand_dims(total, -2), target)
    reached = logical_and(reached, greater(expand_dims(total, -2), 0.0))
    value = take_along_axis(ordered, argmax(reached, -1), -1)  # the first true one
    if nan is not None and not skip_nan:
        value = where(any_(nan, -1, keepdims=True), float("nan"), value)
    lead = value.shape[:-1]
    shape = ops.type_of_operand(name, q).shape
    return reshape(moveaxis(value, -1, 0), (*shape, *lead))


def _between(a: Array, b: Array, step: Array) -> Array:
    """Return a + (b - a) step, which is exactly b for step 1.

    Infinities are kept. From step 0.5 on, the sum is computed from b, so that rounding
    errors are smallest at both ends. But if only one of a and b is infinite, the sum is
    computed from the other.
    """
    difference = subtract(b, a)
    near_a = add(a, multiply(difference, step))
    near_b = subtract(b, multiply(difference, subtract(1.0, step)))
    from_a = logical_or(logical_and(less(step, 0.5), isfinite(a)), isinf(b))
    value = where(from_a, near_a, near_b)
    # The difference of equal infinities is NaN.
    return where(equal(a, b), a, where(equal(step, 0.0), a, value))


def _check_fractions(name: str, q: ArrayLike) -> None:
    """Raise ArgumentError, about ``name``, if a known value of q is not from 0 to 1."""
    value = q.value if hasattr(q, "value") else q  # None: traced and not known
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
    """Return the quantile q of the elements over ``axis``.

    q is a number from 0 to 1, or an array, whose axes come first in the result.
    ``axis`` is an axis, several, or None for all. ``keepdims`` keeps these axes with
    extent 1. The result is NaN if an element is NaN. Integers give floats. ``method``
    is the interpolation between elements, by default "linear". Its names are NumPy's.
    ``weights`` has the shape of ``a``, or is a vector along ``axis``. With weights, the
    method must be "inverted_cdf". ``overwrite_input`` has no effect. Raises
    ArgumentError for no elements, complex numbers, another q or method, or if ``out``
    is given.

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
    """Return the quantile q of the elements over ``axis``, ignoring NaN.

    The result is NaN if all elements are NaN, or if there are no elements. The
    parameters and other errors are those of ``quantile``.
    """
    ops.refuse_out("nanquantile", out)
    return _quantile(
        "nanquantile", a, q, axis, method, keepdims, weights, skip_nan=True
    )


def _hundredths(q: ArrayLike) -> ArrayLike:
    """Return the percentages q as fractions."""
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
    """Return the percentile q (from 0 to 100) of the elements over ``axis``.

    It is ``quantile`` of q / 100, whose parameters and errors are the same.
    """
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
    """Return the percentile q (from 0 to 100) over ``axis``, ignoring NaN.

    It is ``nanquantile`` of q / 100, whose parameters and errors are the same.
    """
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

    The median is NaN if an element is NaN, or if there are no elements. The parameters
    are those of ``quantile``, and integers give floats.
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
    """Return the median over ``axis``, ignoring NaN.

    The result is NaN if all elements are NaN, or if there are none. The parameters are
    those of ``median``.
    """
    ops.refuse_out("nanmedian", out)
    return _quantile("nanmedian", a, 0.5, axis, "linear", keepdims, None, skip_nan=True)
