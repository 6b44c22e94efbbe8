"""Means, variances and standard deviations over axes.

``axis`` is an axis, a tuple of them, or None for all; ``keepdims`` leaves the reduced
axes with extent 1. Only elements where ``where`` is true count. Integers are converted
to float64; float16 and bfloat16 are summed in float32.
"""

from __future__ import annotations

import math
from typing import Any

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ShapeError, user_location
from arrayfn.ir.layout import ascending
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import comparison
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.numpy.arithmetic import absolute, divide, multiply, sqrt, square, subtract
from arrayfn.numpy.manipulation import broadcast_to
from arrayfn.numpy.reductions import count_nonzero, shape, sum
from arrayfn.primitives import conversion, views
from arrayfn.tracing import apply


def _wide(name: str, x: ArrayLike, dtype: DTypeLike) -> tuple[ArrayLike, DType]:
    """Return x in the dtype to compute in, and the dtype of the result.

    ``dtype`` is that of the result, if given. Half precision is computed in float32: if
    the kernel that computes x also computes the mean, x is not rounded to 16 bits
    before (``excess``). Errors call the function ``name``.
    """
    own_dtype = ops.type_of_operand(name, x).dtype
    if dtype is not None:
        result = dtypes.canonical(dtype)
    else:
        result = ops.inexact_dtype(name, own_dtype)
    wide = dtypes.compute_dtype(result)
    if own_dtype in dtypes.HALF_PRECISION and wide == dtypes.float32:
        convert = conversion.convert_element_type
        return apply(convert, x, dtype=wide, excess=True), result
    return ops.convert(x, wide), result


def _count(x: ArrayLike, axis: Axis, keepdims: bool, where: ArrayLike | None) -> Any:
    """Return the number of elements over ``axis`` that count.

    This is a float without a mask ``where``, and otherwise an array, which ``keepdims``
    shapes as in ``mean``.
    """
    extents = shape(x)
    if where is not None:
        dtype = dtypes.real_of(ops.type_of_operand("mean", x).dtype)
        number = count_nonzero(broadcast_to(where, extents), axis, keepdims=keepdims)
        return ops.convert(number, dtype)
    axes = ops.normalize_axes("mean", axis, len(extents))
    return float(math.prod(extents[k] for k in axes))


def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return the arithmetic mean over ``axis``, in the dtype of ``a`` or float64.

    ``axis`` is an axis, several, or None for all. Integers give a float64 mean.
    ``dtype`` is that of the result. Only elements where ``where`` is true count. The
    mean of no elements is NaN. ``keepdims`` leaves the reduced axes with extent 1.
    Raises ArgumentError if ``out`` is given.
    """
    ops.refuse_out("mean", out)
    wide, result = _wide("mean", a, dtype)
    return ops.convert(_mean(wide, axis, keepdims, where), result)


def _mean(x: ArrayLike, axis: Axis, keepdims: bool, where: ArrayLike | None) -> Array:
    """Return the mean of x, in its dtype; the parameters are those of ``mean``."""
    total = sum(x, axis, keepdims=keepdims, where=where)
    return divide(total, _count(x, axis, keepdims, where))


def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> Any:
    """Return the mean over ``axis``, weighted by ``weights``.

    ``weights`` has the shape of ``a``, or one extent for each axis in ``axis``;
    ShapeError otherwise. With ``returned``, the result is the pair of the mean and the
    sum of the weights, both of one shape. ``axis`` and ``keepdims`` are as in ``mean``.
    """
    if weights is None:
        plain = mean(a, axis, keepdims=keepdims)
        if not returned:
            return plain
        count = _count(a, axis, keepdims, None)
        return plain, ops.full(count, plain.shape, plain.dtype)
    type, weight_type = (ops.type_of_operand("average", v) for v in (a, weights))
    if axis is not None and weight_type.shape != type.shape:
        places = ops.each_axis("average", axis, type.ndim)
        if weight_type.shape != tuple(type.shape[place] for place in places):
            raise ShapeError(
                f"average over axes {tuple(places)} of {type} takes weights for "
                f"these axes or for all axes, not {weight_type}",
                user_location(),
            )
        # Put the axes of the weights into the order of ``a``, and broadcast them.
        in_order = apply(views.transpose, weights, permutation=ascending(places))
        weights = apply(
            views.broadcast_in_dim,
            in_order,
            shape=type.shape,
            axes=tuple(sorted(places)),
        )
    total = sum(weights, axis, keepdims=keepdims)
    value = divide(sum(multiply(a, weights), axis, keepdims=keepdims), total)
    return (value, broadcast_to(total, value.shape)) if returned else value


def _variance(
    name: str,
    a: ArrayLike,
    axis: Axis,
    dtype: DTypeLike,
    correction: float,
    keepdims: bool,
    where: ArrayLike | None,
    mean: ArrayLike | None,
) -> tuple[Array, DType]:
    """Return the variance in the dtype to compute in, and the dtype of the result.

    The divisor is the count minus ``correction``. Errors call the function ``name``.
    The other parameters are those of ``var``.
    """
    x, result = _wide(name, a, dtype)
    if mean is None:
        mean = _mean(x, axis, keepdims=True, where=where)
    centred = subtract(x, mean)
    distance = absolute(centred) if centred.dtype in dtypes.COMPLEX else centred
    total = sum(square(distance), axis, keepdims=keepdims, where=where)
    count = _count(x, axis, keepdims, where) - correction
    # As in NumPy, a divisor below 0 counts as 0: the result is NaN or infinite.
    if where is None:
        value = divide(total, count if count > 0 else 0.0)
    else:
        value = divide(total, comparison.where(count > 0, count, 0.0))
    return value, dtypes.real_of(result)


def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Return the variance over ``axis``: the mean squared distance from the mean.

    The divisor is the count minus ``correction``, which NumPy also calls ``ddof``.
    ``mean`` is the mean, if it was computed before with ``keepdims=True``. The result
    is real. The other parameters, dtypes and errors are those of the function ``mean``.
    """
    ops.refuse_out("var", out)
    subtracted = ddof if correction is None else correction
    value, result_dtype = _variance(
        "var", a, axis, dtype, subtracted, keepdims, where, mean
    )
    return ops.convert(value, result_dtype)


def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Return the standard deviation over ``axis``: the square root of ``var``.

    The parameters, dtypes and errors are those of ``var``.
    """
    ops.refuse_out("std", out)
    subtracted = ddof if correction is None else correction
    value, wanted = _variance("std", a, axis, dtype, subtracted, keepdims, where, mean)
    return ops.convert(sqrt(value), wanted)
