"""Cumulative sums, products and extrema along an axis."""

from __future__ import annotations

from arrayfn import dtypes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.manipulation import concatenate, reshape
from arrayfn.numpy.reductions import accumulation_dtype
from arrayfn.primitives import cumulative as c
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import apply


def _along(primitive: Primitive, name: str, x: ArrayLike, axis: int | None) -> Array:
    if axis is None:
        x, axis = reshape(x, -1), 0
    ndim = ops.type_of_operand(name, x).ndim
    place = ops.normalize_axis(name, axis, ndim)
    return apply(primitive, x, axis=place, reverse=False)


def cumsum(x: ArrayLike, /, axis: int | None = None, dtype: DTypeLike = None) -> Array:
    """Sums of the elements up to each along ``axis`` (None: of x as a vector)."""
    wanted = accumulation_dtype(ops.type_of_operand("cumsum", x).dtype, dtype)
    return _along(c.cumsum, "cumsum", ops.convert(x, wanted), axis)


def cumprod(x: ArrayLike, /, axis: int | None = None, dtype: DTypeLike = None) -> Array:
    """Products of the elements up to each along ``axis`` (None: of x as a vector)."""
    wanted = accumulation_dtype(ops.type_of_operand("cumprod", x).dtype, dtype)
    return _along(c.cumprod, "cumprod", ops.convert(x, wanted), axis)


def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    include_initial: bool = False,
) -> Array:
    """As ``cumsum``; with ``include_initial`` beginning with 0, one element longer."""
    sums = cumsum(x, axis, dtype)
    return _with_initial(sums, axis, 0) if include_initial else sums


def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    include_initial: bool = False,
) -> Array:
    """As ``cumprod``; with ``include_initial`` beginning with 1, one element longer."""
    products = cumprod(x, axis, dtype)
    return _with_initial(products, axis, 1) if include_initial else products


def _with_initial(x: Array, axis: int | None, value: int) -> Array:
    place = ops.normalize_axis("cumulative", axis or 0, x.ndim)
    shape = tuple(1 if k == place else n for k, n in enumerate(x.shape))
    return concatenate([ops.full(value, shape, x.dtype), x], place)


def cummax(x: ArrayLike, /, axis: int | None = None) -> Array:
    """The largest element up to each along ``axis``; NaN from the first NaN on."""
    return _along(c.cummax, "cummax", _as_number(x), axis)


def cummin(x: ArrayLike, /, axis: int | None = None) -> Array:
    """The smallest element up to each along ``axis``; NaN from the first NaN on."""
    return _along(c.cummin, "cummin", _as_number(x), axis)


def _as_number(x: ArrayLike) -> ArrayLike:
    is_bool = ops.type_of_operand("cumulative", x).dtype == dtypes.bool_
    return ops.convert(x, dtypes.int8) if is_bool else x
