"""Reductions and accumulations that leave NaN out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.numpy.arithmetic import absolute, divide, sqrt, square, subtract
from arrayfn.numpy.averages import mean, std, var
from arrayfn.numpy.comparison import isnan, logical_not, where
from arrayfn.numpy.cumulative import cumprod, cumsum
from arrayfn.numpy.reductions import (
    all,
    argmax,
    argmin,
    max,
    min,
    prod,
    sum,
)
from arrayfn.tracing import Tracer


def is_inexact(name: str, x: ArrayLike) -> bool:
    """Whether x can have NaN."""
    return ops.type_of_operand(name, x).dtype in dtypes.INEXACT


def without_nan(name: str, x: ArrayLike, instead: float) -> ArrayLike:
    """x with ``instead`` in the place of NaN."""
    return where(isnan(x), instead, x) if is_inexact(name, x) else x


def nansum(
    x: ArrayLike, /, axis: Axis = None, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """The sum over ``axis`` of what is not NaN."""
    return sum(without_nan("nansum", x, 0), axis, dtype, keepdims)


def nanprod(
    x: ArrayLike, /, axis: Axis = None, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """The product over ``axis`` of what is not NaN."""
    return prod(without_nan("nanprod", x, 1), axis, dtype, keepdims)


def nancumsum(
    x: ArrayLike, /, axis: int | None = None, dtype: DTypeLike = None
) -> Array:
    """``cumsum`` with 0 in the place of NaN."""
    return cumsum(without_nan("nancumsum", x, 0), axis, dtype)


def nancumprod(
    x: ArrayLike, /, axis: int | None = None, dtype: DTypeLike = None
) -> Array:
    """``cumprod`` with 1 in the place of NaN."""
    return cumprod(without_nan("nancumprod", x, 1), axis, dtype)


def _numbers(x: ArrayLike, axis: Axis, keepdims: bool, like: Array) -> Array:
    """How many elements over ``axis`` are not NaN, in the real dtype of ``like``."""
    count = sum(logical_not(isnan(x)), axis, keepdims=keepdims)
    return ops.convert(count, dtypes.real_of(like.dtype))


def nanmean(
    x: ArrayLike, /, axis: Axis = None, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """The mean over ``axis`` of what is not NaN; NaN where all is."""
    if not is_inexact("nanmean", x):
        return mean(x, axis, dtype, keepdims)
    total = nansum(x, axis, dtype, keepdims)
    return divide(total, _numbers(x, axis, keepdims, total))


def nanvar(
    x: ArrayLike,
    /,
    axis: Axis = None,
    dtype: DTypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Array:
    """The variance over ``axis`` of what is not NaN; NaN of less than ``ddof`` + 1."""
    if not is_inexact("nanvar", x):
        return var(x, axis, dtype, ddof, keepdims)
    if dtype is not None:
        x = ops.convert(x, dtypes.canonical(dtype))
    centred = subtract(x, nanmean(x, axis, keepdims=True))
    size = absolute(centred) if centred.dtype in dtypes.COMPLEX else centred
    # NaN is left out before the square, whose derivative would spread it.
    total = sum(square(where(isnan(x), 0, size)), axis, keepdims=keepdims)
    count = _numbers(x, axis, keepdims, total) - ddof
    return divide(total, where(count > 0, count, float("nan")))


def nanstd(
    x: ArrayLike,
    /,
    axis: Axis = None,
    dtype: DTypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Array:
    """The standard deviation over ``axis`` of what is not NaN."""
    if not is_inexact("nanstd", x):
        return std(x, axis, dtype, ddof, keepdims)
    return sqrt(nanvar(x, axis, dtype, ddof, keepdims))


def nanmax(x: ArrayLike, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """The largest element over ``axis`` that is not NaN; NaN if all are."""
    return _nan_if_all_are(max, "nanmax", x, axis, keepdims, -float("inf"))


def nanmin(x: ArrayLike, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """The smallest element over ``axis`` that is not NaN; NaN if all are."""
    return _nan_if_all_are(min, "nanmin", x, axis, keepdims, float("inf"))


def _nan_if_all_are(
    extremum: Callable[..., Array],
    name: str,
    x: ArrayLike,
    axis: Axis,
    keepdims: bool,
    instead: float,
) -> Array:
    value = extremum(without_nan(name, x, instead), axis, keepdims)
    if value.dtype not in dtypes.INEXACT:
        return value
    return where(all(isnan(x), axis, keepdims), float("nan"), value)


def nanargmax(
    x: ArrayLike, /, axis: int | None = None, keepdims: bool = False
) -> Array:
    """Where the largest element that is not NaN is first: int64.

    ArgumentError if all are known to be NaN; where that is not known, -1.
    """
    return _position(argmax, "nanargmax", x, axis, keepdims, -float("inf"))


def nanargmin(
    x: ArrayLike, /, axis: int | None = None, keepdims: bool = False
) -> Array:
    """Where the smallest element that is not NaN is first: int64.

    ArgumentError if all are known to be NaN; where that is not known, -1.
    """
    return _position(argmin, "nanargmin", x, axis, keepdims, float("inf"))


def _position(
    position: Callable[..., Array],
    name: str,
    x: ArrayLike,
    axis: int | None,
    keepdims: bool,
    instead: float,
) -> Array:
    place = position(without_nan(name, x, instead), axis, keepdims)
    if not is_inexact(name, x):
        return place
    nothing = all(isnan(x), axis, keepdims)
    known = nothing.value if isinstance(nothing, Tracer) else nothing
    if known is not None and np.any(known):
        raise ArgumentError(f"{name}: all elements are NaN", user_location())
    return where(nothing, -1, place)
