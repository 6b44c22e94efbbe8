"""Cumulative sums, products and extrema along an axis."""

from __future__ import annotations

from arrayfn import dtypes
from arrayfn.errors import ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.manipulation import concatenate, reshape
from arrayfn.numpy.reductions import accumulation_dtype
from arrayfn.primitives import cumulative as c
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import apply


def _along(primitive: Primitive, name: str, x: ArrayLike, axis: int | None) -> Array:
    """Apply the cumulative ``primitive`` along ``axis``.

    ``axis=None`` flattens x first. Errors call the function ``name``.
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    ndim = ops.type_of_operand(name, x).ndim
    place = ops.normalize_axis(name, axis, ndim)
    return apply(primitive, x, axis=place, reverse=False)


def cumsum(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None
) -> Array:
    """Return the running sums along ``axis``, or of flattened ``a`` if it is None.

    The dtype is ``dtype``, or that of ``sum``: small integers are summed as int64 or
    uint64. A sum of dtype bool is true from the first true element on. Raises
    ArgumentError if ``out`` is given.
    """
    ops.refuse_out("cumsum", out)
    wanted = accumulation_dtype(ops.type_of_operand("cumsum", a).dtype, dtype)
    if wanted == dtypes.bool_:
        return ops.convert(cummax(ops.convert(a, wanted), axis), wanted)
    return _along(c.cumsum, "cumsum", ops.convert(a, wanted), axis)


def cumprod(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None
) -> Array:
    """Return the running products along ``axis``, or of flattened ``a`` if it is None.

    The dtype is ``dtype``, or that of ``prod``: small integers are multiplied as int64
    or uint64. A product of dtype bool is false from the first false element on. Raises
    ArgumentError if ``out`` is given.
    """
    ops.refuse_out("cumprod", out)
    wanted = accumulation_dtype(ops.type_of_operand("cumprod", a).dtype, dtype)
    if wanted == dtypes.bool_:
        return ops.convert(cummin(ops.convert(a, wanted), axis), wanted)
    return _along(c.cumprod, "cumprod", ops.convert(a, wanted), axis)


def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    out: None = None,
    include_initial: bool = False,
) -> Array:
    """Return the running sums along ``axis``, like ``cumsum``.

    ``include_initial`` adds a 0 at the beginning, so the axis is longer by one.
    ``axis`` may be omitted only for a vector; ShapeError otherwise.
    """
    ops.refuse_out("cumulative_sum", out)
    axis = _only_axis("cumulative_sum", x, axis)
    sums = cumsum(x, axis, dtype)
    return _with_initial(sums, axis, 0) if include_initial else sums


def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    out: None = None,
    include_initial: bool = False,
) -> Array:
    """Return the running products along ``axis``, like ``cumprod``.

    ``include_initial`` adds a 1 at the beginning, so the axis is longer by one.
    ``axis`` may be omitted only for a vector; ShapeError otherwise.
    """
    ops.refuse_out("cumulative_prod", out)
    axis = _only_axis("cumulative_prod", x, axis)
    products = cumprod(x, axis, dtype)
    return _with_initial(products, axis, 1) if include_initial else products


def _only_axis(name: str, x: ArrayLike, axis: int | None) -> int:
    """Return ``axis``, which may be None only for a vector, as in the array API.

    Raises ShapeError, about the function ``name``, otherwise and for scalars.
    """
    type = ops.type_of_operand(name, x)
    if type.ndim == 1 and axis is None:
        return 0
    if not type.ndim or axis is None:
        remedy = "give it an axis" if type.ndim else "an array has an axis at least"
        raise ShapeError(
            f"{name} of {type}: {remedy} (cumsum takes any array as a vector)",
            user_location(),
        )
    return axis


def _with_initial(x: Array, axis: int, value: int) -> Array:
    """Insert ``value`` before the first element of x along ``axis``."""
    place = ops.normalize_axis("cumulative", axis, x.ndim)
    shape = tuple(1 if k == place else n for k, n in enumerate(x.shape))
    return concatenate([ops.full(value, shape, x.dtype), x], place)


def cummax(x: ArrayLike, /, axis: int | None = None) -> Array:
    """Return the running maxima along ``axis``; they are NaN from the first NaN on.

    ``axis=None`` flattens x. The dtype stays, but bools become int8.
    """
    return _along(c.cummax, "cummax", _as_number(x), axis)


def cummin(x: ArrayLike, /, axis: int | None = None) -> Array:
    """Return the running minima along ``axis``; they are NaN from the first NaN on.

    ``axis=None`` flattens x. The dtype stays, but bools become int8.
    """
    return _along(c.cummin, "cummin", _as_number(x), axis)


def _as_number(x: ArrayLike) -> ArrayLike:
    """Convert bools to int8; return other arrays unchanged."""
    is_bool = ops.type_of_operand("cumulative", x).dtype == dtypes.bool_
    return ops.convert(x, dtypes.int8) if is_bool else x
