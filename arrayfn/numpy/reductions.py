"""Reductions over axes: sums, products, extrema and their positions, logic.

``axis`` is an axis, a tuple of them, or None for all; ``keepdims`` leaves the reduced
axes with extent 1. Only elements where ``where`` is true count; ``initial`` counts as
another element. float16 and bfloat16 are summed in float32; integer sums are int64 or
uint64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import other_axes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import comparison
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.numpy.arithmetic import add, maximum, minimum, multiply, subtract
from arrayfn.numpy.comparison import isclose, isnan, logical_not, not_equal, truth
from arrayfn.primitives import complex_numbers as c
from arrayfn.primitives import reductions as r
from arrayfn.primitives import views
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import apply


def _reduce(
    primitive: Primitive, x: ArrayLike, axes: tuple[int, ...], keepdims: bool
) -> Array:
    """Reduce x by ``primitive`` over ``axes``, which keep extent 1 if ``keepdims``."""
    value = apply(primitive, x, axes=axes) if axes else ops.same(x)
    return _keep(value, ops.type_of_operand("reduce", x), axes) if keepdims else value


def _keep(value: Array, like: ArrayType, axes: tuple[int, ...]) -> Array:
    """Put the reduced ``axes`` back into ``value``, with extent 1.

    ``like`` is the type of the array before the reduction.
    """
    extents = tuple(1 if k in axes else n for k, n in enumerate(like.shape))
    others = other_axes(like.ndim, axes)
    return apply(views.broadcast_in_dim, value, shape=extents, axes=others)


def _axes(name: str, x: ArrayLike, axis: Axis) -> tuple[int, ...]:
    """Return ``axis`` as ascending axes of x; None means all."""
    return ops.normalize_axes(name, axis, ops.type_of_operand(name, x).ndim)


def accumulation_dtype(
    dtype: DType, wanted: DTypeLike, promote_integers: bool = True
) -> DType:
    """Return the dtype of a sum or product of ``dtype``, as NumPy chooses it.

    ``wanted`` is the dtype that the user asks for, if any. By default, bools and
    integers widen to 64 bits, unless ``promote_integers`` is false, when only bools do.
    """
    if wanted is not None:
        return dtypes.canonical(wanted)
    if not promote_integers and dtype != dtypes.bool_:
        return dtype
    if dtype in dtypes.UNSIGNED:
        return dtypes.uint64
    if dtype in dtypes.SIGNED or dtype == dtypes.bool_:
        return dtypes.int64
    return dtype


def _chosen(
    name: str, x: ArrayLike, condition: ArrayLike | None, instead: ArrayLike
) -> ArrayLike:
    """Return x with ``instead`` where an optional ``condition`` is false.

    Raises DTypeError, about the function ``name``, unless the condition has bools.
    """
    if condition is None:
        return x
    check_where(name, condition)
    return comparison.where(condition, x, instead)


def check_where(name: str, condition: ArrayLike) -> None:
    """Raise DTypeError, about ``name``, unless ``condition`` has bools."""
    type = ops.type_of_operand(name, condition)
    if type.dtype != dtypes.bool_:
        raise DTypeError(
            f"{name}: where must be an array of bools, not {type}; write "
            "where=(weights != 0), or multiply by weights",
            user_location(),
        )


def _start(name: str, initial: ArrayLike, dtype: DType) -> ArrayLike:
    """Convert the value ``initial`` of a reduction to ``dtype``.

    Raises ShapeError, about ``name``, unless it is a scalar.
    """
    type = ops.type_of_operand(name, initial)
    if type.shape:
        raise ShapeError(
            f"{name}: initial must be a scalar, not {type}; combine an array with the "
            "result",
            user_location(),
        )
    return ops.convert(initial, dtype)


def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Return the sum over ``axis``; it is 0 for no elements.

    ``axis`` is an axis, several, or None for all. ``keepdims`` keeps these axes with
    extent 1. ``dtype`` is that of the sum; by default bools and integers are summed as
    int64 or uint64. With ``promote_integers=False``, small integers keep their dtype.
    Only elements where ``where`` is true count, and ``initial`` is added. A sum of
    dtype bool says whether any element is not 0. Raises AxisError for a missing axis,
    ArgumentError if ``out`` is given, DTypeError if ``where`` has no bools, and
    ShapeError if ``initial`` is no scalar.
    """
    ops.refuse_out("sum", out)
    axes = _axes("sum", a, axis)
    own_dtype = ops.type_of_operand("sum", a).dtype
    wanted = accumulation_dtype(own_dtype, dtype, promote_integers)
    a = _chosen("sum", ops.convert(a, wanted), where, ops.scalar(0, wanted))
    by = r.reduce_or if wanted == dtypes.bool_ else r.reduce_sum
    value = _reduce(by, a, axes, keepdims)
    return value if initial is None else add(value, _start("sum", initial, wanted))


def prod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Return the product over ``axis``; it is 1 for no elements.

    The result is multiplied by ``initial``. A product of dtype bool says whether all
    elements are not 0. Other parameters, dtypes and errors are those of ``sum``.
    """
    ops.refuse_out("prod", out)
    axes = _axes("prod", a, axis)
    own_dtype = ops.type_of_operand("prod", a).dtype
    wanted = accumulation_dtype(own_dtype, dtype, promote_integers)
    a = _chosen("prod", ops.convert(a, wanted), where, ops.scalar(1, wanted))
    by = r.reduce_and if wanted == dtypes.bool_ else r.reduce_prod
    value = _reduce(by, a, axes, keepdims)
    if initial is None:
        return value
    return multiply(value, _start("prod", initial, wanted))


def _extremum(
    name: str,
    x: ArrayLike,
    axis: Axis,
    keepdims: bool,
    initial: ArrayLike | None,
    condition: ArrayLike | None,
) -> Array:
    """Return the extremum over ``axis`` that ``name`` says, "max" or "min".

    Only elements with a true ``condition`` count. Raises ShapeError for no elements,
    and ArgumentError for a condition, unless there is an ``initial`` value.
    """
    primitive, of_bools, combine = _EXTREMA[name]
    type = ops.type_of_operand(name, x)
    axes = ops.normalize_axes(name, axis, type.ndim)
    if initial is None:
        if condition is not None:
            raise ArgumentError(
                f"{name} with where needs an initial value, for rows in which where "
                "is false everywhere",
                user_location(),
            )
        if 0 in [type.shape[k] for k in axes]:
            raise ShapeError(
                f"{name} of no elements: axes {axes} of {type} are empty",
                user_location(),
            )
    chosen = of_bools if type.dtype == dtypes.bool_ else primitive
    reduce = _reduce_complex if type.dtype in dtypes.COMPLEX else _reduce
    if initial is None:
        return reduce(chosen, x, axes, keepdims)
    start = _start(name, initial, type.dtype)
    value = reduce(chosen, _chosen(name, x, condition, start), axes, keepdims)
    return combine(value, start)


def _reduce_complex(
    primitive: Primitive, x: ArrayLike, axes: tuple[int, ...], keepdims: bool
) -> Array:
    """Return the extremum of complex x by real parts, then by imaginary parts.

    ``primitive`` is reduce_max or reduce_min. The result is NaN if an element is NaN.
    The axes stay with extent 1 if ``keepdims``.
    """
    real, imaginary = apply(c.real, x), apply(c.imag, x)
    best = _reduce(primitive, real, axes, keepdims=True)
    # Only elements with the extreme real part compete by their imaginary parts.
    loser = float("-inf") if primitive is r.reduce_max else float("inf")
    imaginary = comparison.where(comparison.equal(real, best), imaginary, loser)
    value = apply(
        c.make_complex,
        _reduce(primitive, real, axes, keepdims),
        _reduce(primitive, imaginary, axes, keepdims),
    )
    undefined = _reduce(r.reduce_or, isnan(x), axes, keepdims)
    return comparison.where(undefined, float("nan"), value)


# The primitive, the primitive for bools, and the function that adds an initial value.
_EXTREMA: dict[str, tuple[Primitive, Primitive, Callable[..., Array]]] = {
    "max": (r.reduce_max, r.reduce_or, maximum),
    "min": (r.reduce_min, r.reduce_and, minimum),
}


def max(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the maximum over ``axis``; it is NaN if an element is NaN.

    The dtype stays, and bools are reduced by logical or. Raises ShapeError if there are
    no elements and no ``initial`` value. ``where`` needs an ``initial`` value, too;
    ArgumentError otherwise. Other parameters and errors are those of ``sum``.
    """
    ops.refuse_out("max", out)
    return _extremum("max", a, axis, keepdims, initial, where)


amax = max


def min(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the minimum over ``axis``; it is NaN if an element is NaN.

    The dtype stays, and bools are reduced by logical and. Raises ShapeError if there
    are no elements and no ``initial`` value. ``where`` needs an ``initial`` value, too;
    ArgumentError otherwise. Other parameters and errors are those of ``sum``.
    """
    ops.refuse_out("min", out)
    return _extremum("min", a, axis, keepdims, initial, where)


amin = min


def ptp(
    a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False
) -> Array:
    """Return the largest minus the smallest element over ``axis``; the dtype stays.

    The parameters and errors are those of ``max``.
    """
    ops.refuse_out("ptp", out)
    largest = max(a, axis, keepdims=keepdims)
    return subtract(largest, min(a, axis, keepdims=keepdims))


def all(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return whether all elements over ``axis`` are true (not 0), as bools.

    The result is true for no elements. The parameters and errors are those of ``sum``.
    """
    ops.refuse_out("all", out)
    chosen = _chosen("all", truth(a, "all"), where, ops.scalar(True, dtypes.bool_))
    return _reduce(r.reduce_and, chosen, _axes("all", a, axis), keepdims)


def any(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return whether any element over ``axis`` is true (not 0), as bools.

    The result is false for no elements. The parameters and errors are those of ``sum``.
    """
    ops.refuse_out("any", out)
    chosen = _chosen("any", truth(a, "any"), where, ops.scalar(False, dtypes.bool_))
    return _reduce(r.reduce_or, chosen, _axes("any", a, axis), keepdims)


def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the number of nonzero elements over ``axis``, as int64.

    ``axis`` and ``keepdims`` are as in ``sum``.
    """
    return sum(truth(a, "count_nonzero"), axis, dtypes.int64, keepdims=keepdims)


def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Return whether ``isclose`` holds for all elements, as one bool.

    The parameters are those of ``isclose``.
    """
    return all(isclose(a, b, rtol, atol, equal_nan))


def shape(a: ArrayLike) -> tuple[int, ...]:
    """Return the extents of the axes of ``a``, an array, number or list of numbers."""
    return _type_of("shape", a).shape


def ndim(a: ArrayLike) -> int:
    """Return the number of axes of ``a``, an array, number or list of numbers."""
    return _type_of("ndim", a).ndim


def _type_of(name: str, a: Any) -> ArrayType:
    """Return the type of ``a``, which may be a list of numbers."""
    return ops.type_of_operand(name, np.asarray(a) if isinstance(a, list) else a)


def size(a: ArrayLike, axis: Axis = None) -> int:
    """Return the number of elements of ``a``, or of those along ``axis``.

    ``axis`` is an axis or several; the result is the product of their extents.
    """
    type = _type_of("size", a)
    axes = ops.normalize_axes("size", axis, type.ndim)
    return math.prod(type.shape[k] for k in axes)


def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Return whether ``a1`` and ``a2`` have one shape and equal elements, as one bool.

    With ``equal_nan``, NaN equals NaN.
    """
    a1, a2 = ops.from_lists(a1), ops.from_lists(a2)
    if shape(a1) != shape(a2):
        return ops.full(False, (), dtypes.bool_)
    unequal = not_equal(a1, a2)
    if equal_nan:
        unequal = unequal & logical_not(isnan(a1) & isnan(a2))
    return logical_not(any(unequal))


def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return whether ``a1`` and ``a2`` are equal after broadcasting, as one bool.

    One of them must have the shape to which both broadcast.
    """
    a1, a2 = ops.from_lists(a1), ops.from_lists(a2)
    first, second = shape(a1), shape(a2)
    try:
        common = ops.broadcast_shape("array_equiv", (first, second))
    except ShapeError:
        common = None
    if common not in (first, second):
        return ops.full(False, (), dtypes.bool_)
    return logical_not(any(not_equal(a1, a2)))


# Positions.


def _position(
    primitive: Primitive, name: str, x: ArrayLike, axis: int | None, keepdims: bool
) -> Array:
    """Return the first position of an extremum along ``axis``, as int64.

    ``primitive`` is argmax or argmin. ``axis=None`` flattens x. Errors call the
    function ``name``.
    """
    type = ops.type_of_operand(name, x)
    if axis is None:
        flat = apply(views.reshape, x, shape=(type.size,))
        value = apply(primitive, flat, axis=0, dtype=dtypes.int64)
        return _keep(value, type, tuple(range(type.ndim))) if keepdims else value
    place = ops.normalize_axis(name, axis, type.ndim)
    value = apply(primitive, x, axis=place, dtype=dtypes.int64)
    return _keep(value, type, (place,)) if keepdims else value


def argmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False
) -> Array:
    """Return the first position of the maximum along ``axis``, as int64.

    ``axis=None`` means that ``a`` is flattened. ``keepdims`` keeps the axes with extent
    1. Raises AxisError for a missing axis, ArgumentError if ``out`` is given.
    """
    ops.refuse_out("argmax", out)
    return _position(r.argmax, "argmax", a, axis, keepdims)


def argmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False
) -> Array:
    """Return the first position of the minimum along ``axis``, as int64.

    ``axis=None`` means that ``a`` is flattened. ``keepdims`` keeps the axes with extent
    1. Raises AxisError for a missing axis, ArgumentError if ``out`` is given.
    """
    ops.refuse_out("argmin", out)
    return _position(r.argmin, "argmin", a, axis, keepdims)
