"""Reductions and cumulative functions that ignore NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import comparison
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.numpy.arithmetic import sqrt
from arrayfn.numpy.averages import mean, var
from arrayfn.numpy.comparison import isnan, logical_and, logical_not
from arrayfn.numpy.cumulative import cumprod, cumsum
from arrayfn.numpy.index_bounds import known_value
from arrayfn.numpy.reductions import (
    all,
    argmax,
    argmin,
    check_where,
    count_nonzero,
    max,
    min,
    prod,
    sum,
)


def is_inexact(name: str, x: ArrayLike) -> bool:
    """Return whether x has a float or complex dtype, and so can have NaN."""
    return ops.type_of_operand(name, x).dtype in dtypes.INEXACT


def without_nan(name: str, x: ArrayLike, instead: float) -> ArrayLike:
    """Return x with NaN replaced by ``instead``; x itself if it cannot have NaN."""
    return comparison.where(isnan(x), instead, x) if is_inexact(name, x) else x


def nansum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the sum over ``axis``, ignoring NaN.

    The parameters, dtypes and errors are those of ``sum``.
    """
    ops.refuse_out("nansum", out)
    a = without_nan("nansum", a, 0)
    return sum(a, axis, dtype, keepdims=keepdims, initial=initial, where=where)


def nanprod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the product over ``axis``, ignoring NaN.

    The parameters, dtypes and errors are those of ``prod``.
    """
    ops.refuse_out("nanprod", out)
    a = without_nan("nanprod", a, 1)  # NaN becomes 1
    return prod(a, axis, dtype, keepdims=keepdims, initial=initial, where=where)


def nancumsum(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None
) -> Array:
    """Return the running sums along ``axis``, with NaN replaced by 0.

    The parameters, dtypes and errors are those of ``cumsum``.
    """
    ops.refuse_out("nancumsum", out)
    return cumsum(without_nan("nancumsum", a, 0), axis, dtype)


def nancumprod(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None
) -> Array:
    """Return the running products along ``axis``, with NaN replaced by 1.

    The parameters, dtypes and errors are those of ``cumprod``.
    """
    ops.refuse_out("nancumprod", out)
    return cumprod(without_nan("nancumprod", a, 1), axis, dtype)


def _known_numbers(name: str, x: ArrayLike, where: ArrayLike | None) -> Array:
    """Return the mask of elements of ``x`` that are not NaN and where ``where`` holds.

    Raises DTypeError, about the function ``name``, unless ``where`` has bools.
    """
    if where is not None:
        check_where(name, where)
    numbers = logical_not(isnan(x))
    return numbers if where is None else logical_and(numbers, where)


def nanmean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    where: ArrayLike | None = None,
) -> Array:
    """Return the mean over ``axis``, ignoring NaN.

    It is NaN if all elements are NaN. The parameters, dtypes and errors are those of
    ``mean``.
    """
    ops.refuse_out("nanmean", out)
    if not is_inexact("nanmean", a):
        return mean(a, axis, dtype, keepdims=keepdims, where=where)
    numbers = _known_numbers("nanmean", a, where)
    a = without_nan("nanmean", a, 0)
    return mean(a, axis, dtype, keepdims=keepdims, where=numbers)


def nanvar(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    *,
    correction: float | None = None,
) -> Array:
    """Return the variance over ``axis``, ignoring NaN.

    It is NaN if at most ``ddof`` elements remain. The parameters, dtypes and errors are
    those of ``var``.
    """
    ops.refuse_out("nanvar", out)
    subtracted = ddof if correction is None else correction
    if not is_inexact("nanvar", a):
        return var(
            a, axis, dtype, ddof=subtracted, keepdims=keepdims, where=where, mean=mean
        )
    numbers = _known_numbers("nanvar", a, where)
    count = count_nonzero(numbers, axis, keepdims=keepdims)
    # Replace NaN before squaring: the derivative of the square would be NaN.
    a = without_nan("nanvar", a, 0)
    value = var(
        a, axis, dtype, ddof=subtracted, keepdims=keepdims, where=numbers, mean=mean
    )
    return comparison.where(count > subtracted, value, float("nan"))


def nanstd(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    *,
    correction: float | None = None,
) -> Array:
    """Return the standard deviation over ``axis``, ignoring NaN.

    It is the square root of ``nanvar``, whose parameters, dtypes and errors are the
    same.
    """
    ops.refuse_out("nanstd", out)
    subtracted = ddof if correction is None else correction
    value = nanvar(
        a, axis, dtype, ddof=subtracted, keepdims=keepdims, where=where, mean=mean
    )
    return sqrt(value)


def nanmax(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the maximum over ``axis``, ignoring NaN.

    It is NaN if all elements are NaN. The parameters, dtypes and errors are those of
    ``max``.
    """
    ops.refuse_out("nanmax", out)
    low = -float("inf")
    return _nan_if_all_are(max, "nanmax", a, axis, keepdims, low, initial, where)


def nanmin(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the minimum over ``axis``, ignoring NaN.

    It is NaN if all elements are NaN. The parameters, dtypes and errors are those of
    ``min``.
    """
    ops.refuse_out("nanmin", out)
    high = float("inf")
    return _nan_if_all_are(min, "nanmin", a, axis, keepdims, high, initial, where)


def _nan_if_all_are(
    extremum: Callable[..., Array],
    name: str,
    x: ArrayLike,
    axis: Axis,
    keepdims: bool,
    instead: float,
    initial: ArrayLike | None,
    where: ArrayLike | None,
) -> Array:
    """Return the extremum of elements that are not NaN; NaN if there are none.

    ``extremum`` is ``max`` or ``min``. Before it is called, ``instead`` (-inf or inf)
    replaces NaN. Errors call the function ``name``.
    """
    value = extremum(
        without_nan(name, x, instead),
        axis,
        keepdims=keepdims,
        initial=initial,
        where=where,
    )
    if value.dtype not in dtypes.INEXACT or initial is not None:
        return value
    return comparison.where(all(isnan(x), axis, keepdims=keepdims), float("nan"), value)


def nanargmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False
) -> Array:
    """Return the first position of the maximum along ``axis``, ignoring NaN (int64).

    ``axis=None`` means that ``a`` is flattened. Raises ArgumentError if all elements
    are known to be NaN. If that is not known, the result for such elements is -1.
    """
    ops.refuse_out("nanargmax", out)
    return _position(argmax, "nanargmax", a, axis, keepdims, -float("inf"))


def nanargmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False
) -> Array:
    """Return the first position of the minimum along ``axis``, ignoring NaN (int64).

    ``axis=None`` means that ``a`` is flattened. Raises ArgumentError if all elements
    are known to be NaN. If that is not known, the result for such elements is -1.
    """
    ops.refuse_out("nanargmin", out)
    return _position(argmin, "nanargmin", a, axis, keepdims, float("inf"))


def _position(
    position: Callable[..., Array],
    name: str,
    x: ArrayLike,
    axis: int | None,
    keepdims: bool,
    instead: float,
) -> Array:
    """Return the position of the extremum of elements that are not NaN.

    ``position`` is ``argmax`` or ``argmin``. Before it is called, ``instead`` (-inf or
    inf) replaces NaN. If all elements are NaN, the result is -1, or ArgumentError is
    raised if this is known while tracing. Errors call the function ``name``.
    """
    place = position(without_nan(name, x, instead), axis, keepdims=keepdims)
    if not is_inexact(name, x):
        return place
    all_nan = all(isnan(x), axis, keepdims=keepdims)
    known = known_value(all_nan)
    if known is not None and np.any(known):
        raise ArgumentError(f"{name}: all elements are NaN", user_location())
    return comparison.where(all_nan, -1, place)
