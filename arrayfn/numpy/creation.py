"""Creates arrays: from data, filled, ranges, and grids.

Inside ``jit`` these are equations (``broadcast_in_dim``, ``iota``), so the Program has
no large constants. Under ``grad`` without ``jit``, values are known while tracing. Then
new arrays are traced constants with their values, so that a library that asks an array
for its namespace gets traced arrays from every function of that namespace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from arrayfn import dtypes
from arrayfn.array_likes import adopted
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import add, divide, multiply, power, subtract
from arrayfn.numpy.comparison import equal, where
from arrayfn.primitives import discrete, slicing, views
from arrayfn.tracing import (
    ArrayOnDevice,
    ImmutableArray,
    Key,
    apply,
    constant,
    device_of,
    is_made_of_equations,
    is_staged,
)
from arrayfn.tracing.value import STATIC_REMEDY


def asarray(
    a: Any,
    dtype: DTypeLike = None,
    order: str | None = None,
    *,
    device: Any = None,
    copy: bool | None = None,
) -> Array:
    """Convert ``a``, an array, a number or nested sequences of them, to an array.

    ``dtype`` is that of the result, by default that of ``a``. Sequences may contain
    traced arrays, which are stacked. Outside a trace, the result is a new array. With
    ``copy=False``, it is ``a`` itself, and ValueError is raised if that is impossible.
    Inside a trace, the result is a traced array. A traced array is immutable and can be
    indexed by traced arrays. An array of another library on a GPU stays there.
    ``device`` is as for ``full``. Raises ArgumentError for an ``order`` that is not
    row-major and for objects that are no arrays.

    >>> import arrayfn as af
    >>> table = np.array([10.0, 20.0, 30.0])
    >>> af.jit(lambda i: asarray(table)[i])(np.array([2, 0]))
    array([30., 10.])
    """
    ops.check_order("asarray", order)
    if device is not None:
        return ops.placed("asarray", asarray(a, dtype, copy=copy), device)
    wanted = None if dtype is None else dtypes.canonical(dtype)
    if isinstance(a, (list, tuple)) and holds_tracers(a):
        parts = [asarray(part, dtype) for part in a]
        return stack_parts(parts)
    if isinstance(a, ImmutableArray):
        return cast(Array, a) if wanted is None else ops.convert(a, wanted)
    if wanted is not None:
        dtypes.check_numeric(wanted)
    a = adopted(a)
    if isinstance(a, ImmutableArray):  # it is on a GPU
        return asarray(a if copy is False else a.copy(), dtype)
    if wanted is None and isinstance(a, np.ndarray) and not a.dtype.isnative:
        wanted = dtypes.canonical(a.dtype)
    if copy is False:
        value = np.asarray(a, dtype=wanted, copy=False)
    else:
        value = np.array(a, dtype=wanted, order="C")
    ops.type_of_operand("asarray", value)
    return constant(value)


def array(
    object: Any,
    dtype: DTypeLike = None,
    *,
    copy: bool | None = True,
    order: str | None = "K",
    ndmin: int = 0,
    device: Any = None,
) -> Array:
    """Convert ``object`` to an array, as ``asarray`` does, by default to a new one.

    Leading axes of extent 1 are added up to ``ndmin`` axes.
    """
    value = asarray(object, dtype, order, device=device, copy=copy)
    missing = ndmin - len(value.shape)
    return value if missing <= 0 else value[(None,) * missing]


def copy(a: ArrayLike, order: str | None = "K") -> Array:
    """Return a copy of ``a``, which is row-major and stays on its device."""
    ops.check_order("copy", order)
    return a.copy() if isinstance(a, ArrayOnDevice) else asarray(a)


def holds_tracers(x: Any) -> bool:
    """Return whether nested lists hold a traced value, or an array on a device."""
    if isinstance(x, (list, tuple)):
        return any(holds_tracers(part) for part in x)
    return isinstance(x, ImmutableArray)


def stack_parts(parts: Sequence[ArrayLike]) -> Array:
    """Stack arrays of one shape along a new first axis, in their promoted dtype."""
    converted, types, _ = ops.promoted("stack", parts)
    rows = [
        apply(
            views.broadcast_in_dim,
            x,
            shape=(1, *t.shape),
            axes=tuple(range(1, t.ndim + 1)),
        )
        for x, t in zip(converted, types, strict=True)
    ]
    return apply(slicing.concatenate, *rows, axis=0)


# Filled.


def full(
    shape: Any,
    fill_value: ArrayLike,
    dtype: DTypeLike = None,
    order: str | None = "C",
    *,
    device: Any = None,
) -> Array:
    """Return an array of ``shape`` that is filled with ``fill_value``.

    ``fill_value`` is a number, or an array that is broadcast. The result has its dtype
    by default. If ``dtype`` is that of keys, the number fills every word of every key.
    ``device`` is where the array is made. It is a backend's name, one of
    ``af.devices()``, or a NamedSharding, which cuts the array over a mesh. Raises
    ArgumentError for another device or order, ShapeError if an array does not
    broadcast.
    """
    if ops.is_sharding(device):
        return ops.placed("full", full(shape, fill_value, dtype, order), device)
    ops.check_order("full", order)
    extents = ops.as_shape("full", shape)
    filler = ops.type_of_operand("full", fill_value)
    wanted = filler.dtype if dtype is None else dtypes.canonical(dtype)
    if wanted is dtypes.KEY and not isinstance(fill_value, Key):
        # A key consists of two uint32 words.
        return cast(Array, Key(full((*extents, 2), fill_value, dtypes.uint32)))
    value = ops.placed("full", ops.convert(fill_value, wanted), device)
    if filler.shape:
        if ops.broadcast_shape("full", (filler.shape, extents)) != extents:
            raise ShapeError(
                f"full: fill_value of shape {filler.shape} does not broadcast to "
                f"{extents}",
                user_location(),
            )
        # Traced values are broadcast by an equation, others by a view of NumPy, which
        # ``same`` copies.
        by_equation = is_made_of_equations((value,))
        broadcast = ops.spread(value, filler.shape, extents, by_equation)
        return _as_constant(ops.same(broadcast))
    return _as_constant(ops.full(value, extents, wanted))


def _as_constant(value: Array) -> Array:
    """Return ``value``, a new array; inside a trace, as a traced constant."""
    return constant(value) if type(value) is np.ndarray else value


def zeros(
    shape: Any, dtype: DTypeLike = None, order: str | None = "C", *, device: Any = None
) -> Array:
    """Return an array of zeros of ``shape``, float64 by default.

    ``device`` and the errors are those of ``full``.
    """
    return full(shape, 0.0, _or_float64(dtype), order, device=device)


def ones(
    shape: Any, dtype: DTypeLike = None, order: str | None = "C", *, device: Any = None
) -> Array:
    """Return an array of ones of ``shape``, float64 by default.

    ``device`` and the errors are those of ``full``.
    """
    return full(shape, 1.0, _or_float64(dtype), order, device=device)


def empty(
    shape: Any, dtype: DTypeLike = None, order: str | None = "C", *, device: Any = None
) -> Array:
    """Return an array of zeros of ``shape``, as ``zeros`` does.

    Pure functions have no use for undefined elements. The parameters are those of
    ``zeros``.
    """
    return zeros(shape, dtype, order, device=device)


def full_like(
    a: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike = None,
    order: str | None = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Array:
    """Return an array filled with a number, by default of the shape and dtype of ``a``.

    ``subok`` has no effect, because arrays have no subclasses. If ``a`` is distributed
    over a mesh, the result is distributed too, unless it has another ``shape``.
    """
    like: ArrayType | None = getattr(a, "__arrayfn_type__", None)
    if like is None:  # an array; a ShapeDtypeStruct has the attribute
        like = ops.type_of_operand("full_like", a)
    around = like.sharding if shape is None else None
    device = device or around or device_of((a,)) or None
    extents = like.shape if shape is None else shape
    wanted = like.dtype if dtype is None else dtype
    return full(extents, fill_value, wanted, order, device=device)


def zeros_like(
    a: ArrayLike,
    dtype: DTypeLike = None,
    order: str | None = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Array:
    """Return an array of zeros, by default of the shape and dtype of ``a``.

    The parameters are those of ``full_like``.
    """
    return full_like(a, 0, dtype, order, subok, shape, device=device)


def ones_like(
    a: ArrayLike,
    dtype: DTypeLike = None,
    order: str | None = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Array:
    """Return an array of ones, by default of the shape and dtype of ``a``.

    The parameters are those of ``full_like``.
    """
    return full_like(a, 1, dtype, order, subok, shape, device=device)


def empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike = None,
    order: str | None = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Array:
    """Return an array of zeros, as ``zeros_like`` does; see ``empty``."""
    return zeros_like(prototype, dtype, order, subok, shape, device=device)


def _or_float64(dtype: DTypeLike) -> DType:
    """Return ``dtype`` as a NumPy dtype; float64 for None."""
    return dtypes.float64 if dtype is None else dtypes.canonical(dtype)


# Counting.


def _iota(count: int, dtype: DType) -> Array:
    """Return the vector 0, 1, ..., count - 1 of ``dtype``."""
    return apply(views.iota, shape=(count,), axis=0, dtype=dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DTypeLike = None,
    *,
    device: Any = None,
) -> Array:
    """Return the numbers start, start + step, ... up to stop, which is excluded.

    With one argument, start is 0. The arguments must be known while tracing, because
    they decide the shape. Integers give int64, and floats float64, unless ``dtype``
    says otherwise. ``device`` is as for ``full``. Raises ArgumentError if step is 0, or
    an argument is infinite or no real number.
    """
    if device is not None:
        return ops.placed("arange", arange(start, stop, step, dtype), device)
    if stop is None:
        start, stop = 0, start
    first, last, by = (_number(x) for x in (start, stop, step))
    if not by or not all(math.isfinite(x) for x in (first, last, by)):
        raise ArgumentError(
            f"arange from {first} to {last} by {by} does not end", user_location()
        )
    wanted = np.result_type(first, last, by) if dtype is None else dtype
    target = dtypes.canonical(wanted)
    if not is_staged(()):
        return _as_constant(np.arange(first, last, by, dtype=target))
    # Inside jit: first + by * iota, as equations.
    count = max(0, math.ceil((last - first) / by))
    steps = _iota(count, target)
    if by != 1:
        steps = multiply(steps, ops.scalar(_cast(by, target), target))
    return steps if first == 0 else add(steps, ops.scalar(_cast(first, target), target))


def _number(x: Any) -> Any:
    """Return the value of x, a real number for ``arange`` that is known while tracing.

    Raises ArgumentError if x is no real number, and AbstractValueError if its value is
    not known.
    """
    if isinstance(x, ImmutableArray):
        return x.concrete("arange: a shape", STATIC_REMEDY)
    if np.asarray(x).dtype.kind not in "biuf":
        raise ArgumentError(
            f"arange takes real numbers as bounds and step, not {x!r}", user_location()
        )
    return x


def _cast(value: Any, dtype: DType) -> Any:
    """Return ``value`` as a Python int or float, as ``dtype`` needs."""
    return int(value) if dtype in dtypes.INTEGERS else float(value)


def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """Return ``num`` evenly spaced numbers from start to stop.

    ``stop`` is the last number if ``endpoint``. Otherwise, it would be the next one. If
    start or stop is an array, the numbers lie along a new ``axis``. Integers give
    float64, and ``dtype`` is that of the result. With ``retstep``, the result is the
    pair of the numbers and the step. ``device`` is as for ``full``.
    """
    if ops.is_sharding(device):
        numbers = linspace(start, stop, num, endpoint, retstep, dtype, axis)
        values, *step = numbers if retstep else (numbers,)
        values = ops.placed("linspace", values, device)
        return (values, *step) if retstep else values
    num = ops.whole(num)
    start = ops.placed("linspace", start, device)
    inexact = ops.inexact_dtype("linspace", ops.common_dtype("linspace", (start, stop)))
    start, stop = ops.convert(start, inexact), ops.convert(stop, inexact)
    gaps = num - 1 if endpoint else num
    step = divide(subtract(stop, start), max(gaps, 1))
    ndim = ops.type_of_operand("linspace", step).ndim
    place = ops.normalize_axis("linspace", axis, ndim + 1)
    count = _as_constant(_iota(num, dtypes.real_of(inexact)))
    count = _alone_on_axis(count, place, ndim + 1)
    first, last, gap = (_with_axis(v, place, ndim) for v in (start, stop, step))
    values = add(multiply(count, gap), first)
    if endpoint and num > 1:  # the last number is exactly stop, without rounding
        values = where(equal(count, num - 1), last, values)
    if dtype is not None:
        values = ops.convert(values, dtypes.canonical(dtype))
    return (values, step) if retstep else values


def _with_axis(x: ArrayLike, axis: int, ndim: int) -> ArrayLike:
    """Return x with leading axes of extent 1 up to ``ndim``, and one more at ``axis``.

    Scalars are returned unchanged.
    """
    own = ops.type_of_operand("linspace", x).shape
    if not own:
        return x
    missing = ndim - len(own)
    shape = [1] * missing + list(own)
    shape.insert(axis, 1)
    # Axes from ``axis`` on move back by one.
    axes = tuple(k + 1 if k >= axis else k for k in range(missing, ndim))
    return apply(views.broadcast_in_dim, x, shape=tuple(shape), axes=axes)


def _alone_on_axis(x: ArrayLike, axis: int, ndim: int) -> ArrayLike:
    """Return the vector x as an array of ``ndim`` axes, along ``axis``.

    The other axes have extent 1.
    """
    shape = tuple(x.shape[0] if k == axis else 1 for k in range(ndim))
    return (
        x if ndim == 1 else apply(views.broadcast_in_dim, x, shape=shape, axes=(axis,))
    )


def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Array:
    """Raise ``base`` to the powers ``linspace(start, stop, num, endpoint)``.

    ``dtype`` is that of the result, and the powers lie along ``axis`` as in
    ``linspace``.
    """
    values = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return values if dtype is None else ops.convert(values, dtypes.canonical(dtype))


# Matrices and grids.


def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike = None,
    order: str | None = "C",
    *,
    device: Any = None,
) -> Array:
    """Return an N by M matrix with ones on diagonal k and zeros elsewhere.

    M is N by default. A positive k is a diagonal above the main diagonal. The dtype is
    float64 by default. ``device`` and the errors are those of ``full``.
    """
    ops.check_order("eye", order)
    if ops.is_sharding(device):
        return ops.placed("eye", eye(N, M, k, dtype), device)
    shape = (N, N if M is None else M)
    diagonal = ops.placed("eye", on_diagonal(shape, k), device)
    return _as_constant(ops.convert(diagonal, _or_float64(dtype)))


def identity(n: int, dtype: DTypeLike = None) -> Array:
    """Return the n by n identity matrix, float64 by default."""
    return eye(n, dtype=dtype)


def on_diagonal(shape: tuple[int, int], k: int) -> Array:
    """Return the mask column - row == k of a matrix of ``shape``."""
    return equal(*_rows_and_columns(shape, k))


def _rows_and_columns(shape: tuple[int, int], k: int) -> tuple[Array, Array]:
    """Return two int64 matrices of ``shape``: row + ``k``, and column."""
    shape = (ops.whole(shape[0]), ops.whole(shape[1]))
    if not isinstance(k, ImmutableArray):  # else it is not known while tracing
        k = max(min(ops.whole(k), shape[1]), -shape[0])  # clamp to just outside
    rows = apply(views.iota, shape=shape, axis=0, dtype=dtypes.int64)
    columns = apply(views.iota, shape=shape, axis=1, dtype=dtypes.int64)
    adds = isinstance(k, ImmutableArray) or k != 0
    return (add(rows, k) if adds else rows), columns


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = None) -> Array:
    """Return an N by M matrix with ones on and below diagonal k, and zeros above.

    M is N, and the dtype float64, by default.
    """
    below = _below((N, N if M is None else M), k)
    return _as_constant(ops.convert(below, _or_float64(dtype)))


def _below(shape: tuple[int, int], k: int) -> Array:
    """Return the mask of elements on and below diagonal ``k``: row + k >= column."""
    rows, columns = _rows_and_columns(shape, k)
    return apply(discrete.ge, rows, columns)


def tril(m: ArrayLike, k: int = 0) -> Array:
    """Replace the elements of m (..., n, m) above diagonal k by zeros.

    Raises AxisError if m has less than two axes.
    """
    type = ops.type_of_operand("tril", m)
    return where(_below(_matrix_shape("tril", type.shape), k), m, _zero(type.dtype))


def triu(m: ArrayLike, k: int = 0) -> Array:
    """Replace the elements of m (..., n, m) below diagonal k by zeros.

    Raises AxisError if m has less than two axes.
    """
    type = ops.type_of_operand("triu", m)
    below = _below(_matrix_shape("triu", type.shape), k - 1)
    return where(below, _zero(type.dtype), m)


def _zero(dtype: DType) -> ArrayLike:
    """Return the zero of ``dtype`` as a Literal."""
    return ops.scalar(0, dtype)


def _matrix_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the last two extents of ``shape``; AxisError if there are fewer."""
    ops.normalize_axis(name, -2, len(shape))
    return shape[-2], shape[-1]


def meshgrid(
    *xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> list[Array]:
    """Make grids from vectors: one array per vector, which varies along one axis.

    With ``indexing="ij"``, axis k belongs to vector k. With ``"xy"``, the first two
    axes are exchanged, as for plots. Each grid has the extents of all vectors, but with
    ``sparse`` extent 1 along the axes of other vectors. Grids keep the vectors' dtypes.
    They are always new arrays, so ``copy`` has no effect.
    """
    vectors = [a if a.ndim else ops.full(a, (1,), a.dtype) for a in map(asarray, xi)]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(vectors)
    for vector, axis in zip(vectors, order, strict=True):
        shape[axis] = vector.shape[0]
    grids: list[Array] = []
    for vector, axis in zip(vectors, order, strict=True):
        own = [n if sparse is False or k == axis else 1 for k, n in enumerate(shape)]
        grids.append(
            apply(views.broadcast_in_dim, vector, shape=tuple(own), axes=(axis,))
        )
    return grids
