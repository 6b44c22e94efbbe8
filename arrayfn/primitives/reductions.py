"""Reductions over axes, and the positions of extrema.

Sums run in a fixed order that does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import other_axes
from arrayfn.primitives import conversion, discrete, factors, families, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Composition,
    Primitive,
    Reduction,
    Sample,
    Tolerance,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along, jvp_alone, shifted, transposed_first
from arrayfn.primitives.slicing import concatenate, slice_along

Axes = tuple[int, ...]
_BLOCK: Final = 128  # terms of a block that is added in order
_FEW: Final = 1024  # terms up to which there are no blocks


def spread_back(value: Atom, like: ArrayType, axes: Axes) -> Atom:
    """Broadcast a reduction's result ``value`` along the reduced axes of ``like``."""
    kept = other_axes(like.ndim, axes)
    return views.broadcast_in_dim(value, shape=like.shape, axes=kept)


def _reduced_shape(name: str, x: ArrayType, axes: Axes) -> tuple[int, ...]:
    """Return the shape of ``x`` reduced over ``axes``.

    Raises ShapeError unless the axes are ascending axes of ``x``.
    """
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < x.ndim for a in axes):
        raise ShapeError(f"{name} cannot reduce axes {axes} of {x}")
    return tuple(x.shape[axis] for axis in other_axes(x.ndim, axes))


def _reduction(
    name: str,
    reference: Callable[..., Any],
    function: str,
    identity: Callable[[DType], PythonScalar],
    *,
    accepts: Iterable[DType],
    jvp: Any,
    transpose: Any = NOT_LINEAR,
    doc: str,
) -> Primitive:
    """Make a reduction Primitive.

    Args:
        name: the primitive's name, "reduce_" and an operation.
        reference: the NumPy function; it gets 16-bit floats as float32.
        function: the name of the scalar function that accumulates in kernels.
        identity: maps a dtype to the result over no elements.
        accepts: the dtypes that the primitive takes.
        jvp: the jvp rule, or a marker.
        transpose: the transpose rule, or a marker.
        doc: what the primitive computes.
    """
    allowed = frozenset(accepts)

    def types(x: ArrayType, *, axes: Axes) -> ArrayType:
        """Type rule: ``x`` without the axes that are reduced."""
        families.check_defined(name, x, allowed)
        return ArrayType(_reduced_shape(name, x, axes), x.dtype)

    def reduce(x: Array, *, axes: Axes) -> Array:
        """Apply ``reference`` in the compute dtype; round to the operand's dtype."""
        with np.errstate(all="ignore"):
            widened = x.astype(dtypes.compute_dtype(x.dtype))
            return np.asarray(reference(widened, axis=axes)).astype(x.dtype)

    def samples() -> Iterable[Sample]:
        """Yield samples of several sets of axes over all dtypes, for table tests."""
        for position, dtype in enumerate(d for d in dtypes.SHORT_NAMES if d in allowed):
            x = families.random_array(dtype, (3, 4, 5), 31 + position, -1.5, 1.5)
            yield Sample((x,), {"axes": [(2,), (0,), (0, 2), (0, 1, 2)][position % 4]})

    primitive = Emitter(name)
    return Primitive(
        name=name,
        family="reduction",
        types=types,
        reference=reduce,
        kernel=Reduction(function, identity),
        jvp=jvp,
        transpose=transpose,
        batch=batched_along(lambda x, axes: primitive(x, axes=shifted(axes))),
        samples=samples,
        tolerance=Tolerance(float32=4e-6, float64=1e-14),
        doc=doc,
        factors=factors.reduction(name.removeprefix("reduce_")),
    )


def _sum(x: Array, axis: Axes) -> Array:
    """Sum in NumPy, in blocks along axes on which NumPy does not sum pairwise.

    NumPy sums pairwise only along the contiguous axis, and in order along others, where
    the error of a long sum is large. Sums of blocks of 128, which are summed again in
    blocks, have a small error.
    """
    if x.size <= _FEW or x.dtype not in dtypes.INEXACT:
        return np.sum(x, axis=axis, dtype=x.dtype)
    if all(x.shape[k] <= _FEW for k in axis):
        return np.sum(x, axis=axis, dtype=x.dtype)
    for k in sorted(axis, reverse=True):
        # Later axes have been reduced already. Axis k is summed in blocks unless it is
        # the contiguous axis.
        while x.shape[k] > _BLOCK and (k < x.ndim - 1 or x.strides[k] != x.itemsize):
            count = x.shape[k] // _BLOCK
            leading = (slice(None),) * k
            blocked = x[(*leading, slice(count * _BLOCK))]
            parts = blocked.reshape(*x.shape[:k], count, _BLOCK, *x.shape[k + 1 :])
            sums = np.sum(parts, axis=k + 1, dtype=x.dtype)
            remainder = x[(*leading, slice(count * _BLOCK, None))]
            if remainder.shape[k]:
                last = np.sum(remainder, axis=k, keepdims=True, dtype=x.dtype)
                sums = np.concatenate((sums, last), axis=k)
            x = sums
        x = np.asarray(np.sum(x, axis=k, dtype=x.dtype))
    return x


def _extremum_jvp(x: Atom, y: Atom, t: Atom, *, axes: Axes) -> Atom:
    """The tangent of an extremum: ``dy = sum(dx * (x == y)) / sum(x == y)``.

    Elements that equal the extremum share the derivative.
    """
    is_extremum = conversion.convert(
        discrete.eq(x, spread_back(y, x.type, axes)), x.type.dtype
    )
    count = reduce_sum(is_extremum, axes=axes)
    return e.div(reduce_sum(e.mul(t, is_extremum), axes=axes), count)


def _prod_jvp(x: Atom, y: Atom, t: Atom, *, axes: Axes) -> Atom:
    """The tangent of a product, by a tree of pairwise products.

    ``d(a * b) = da * b + a * db``, where a and b are the products of two equal parts
    of the elements. It is applied until one element is left. The tangent is right for
    zero factors, and so are higher derivatives.
    """
    kept = other_axes(x.type.ndim, axes)
    last = len(kept)
    outer = tuple(x.type.shape[axis] for axis in kept)
    count = math.prod(x.type.shape[axis] for axis in axes)
    x, t = (
        views.reshape(
            views.transpose(v, permutation=(*kept, *axes)), shape=(*outer, count)
        )
        for v in (x, t)
    )
    while count > 1:
        half = count // 2
        (a, b), (da, db) = (
            (slice_along(v, last, 0, half), slice_along(v, last, half, 2 * half))
            for v in (x, t)
        )
        remainder = (
            [slice_along(v, last, 2 * half, count) for v in (x, t)] if count % 2 else []
        )
        x, t = e.mul(a, b), e.add(e.mul(da, b), e.mul(a, db))
        if remainder:  # the last element of an odd number
            x, t = (
                concatenate(v, one, axis=last)
                for v, one in zip((x, t), remainder, strict=True)
            )
        count -= half
    return reduce_sum(t, axes=(last,))  # of one element, or of none


def _lowest(dtype: DType) -> PythonScalar:
    """Return the identity of a maximum: -inf, the smallest integer, or False."""
    if dtype == dtypes.bool_:
        return False
    return -float("inf") if dtype in dtypes.FLOATS else int(np.iinfo(dtype).min)


def _highest(dtype: DType) -> PythonScalar:
    """Return the identity of a minimum: inf, the largest integer, or True."""
    if dtype == dtypes.bool_:
        return True
    return float("inf") if dtype in dtypes.FLOATS else int(np.iinfo(dtype).max)


def _all_ones(dtype: DType) -> PythonScalar:
    """Return the identity of a bitwise "and": all bits set."""
    if dtype == dtypes.bool_:
        return True
    return -1 if dtype in dtypes.SIGNED else int(np.iinfo(dtype).max)


reduce_sum = _reduction(
    "reduce_sum",
    _sum,
    "accumulate_add",
    lambda dtype: 0,
    accepts=dtypes.NUMBERS,
    jvp=LINEAR,
    transpose=transposed_first(spread_back),
    doc="The sum over axes; 0 for no elements.",
)
reduce_prod = _reduction(
    "reduce_prod",
    lambda x, axis: np.prod(x, axis=axis, dtype=x.dtype),
    "accumulate_mul",
    lambda dtype: 1,
    accepts=dtypes.NUMBERS,
    jvp=jvp_alone(_prod_jvp),
    doc="The product over axes; 1 for no elements.",
)
reduce_max = _reduction(
    "reduce_max",
    lambda x, axis: np.max(x, axis=axis, initial=_lowest(x.dtype)),
    "accumulate_max",
    _lowest,
    accepts=dtypes.REALS,
    jvp=jvp_alone(_extremum_jvp),
    doc="The maximum over axes, NaN if there is one; equal elements share the "
    "derivative.",
)
reduce_min = _reduction(
    "reduce_min",
    lambda x, axis: np.min(x, axis=axis, initial=_highest(x.dtype)),
    "accumulate_min",
    _highest,
    accepts=dtypes.REALS,
    jvp=jvp_alone(_extremum_jvp),
    doc="The minimum over axes, NaN if there is one; equal elements share the "
    "derivative.",
)
reduce_and = _reduction(
    "reduce_and",
    np.bitwise_and.reduce,
    "accumulate_and",
    _all_ones,
    accepts=dtypes.BITS,
    jvp=ZERO_TANGENT,
    doc="The bitwise (of bools: logical) and over axes.",
)
reduce_or = _reduction(
    "reduce_or",
    np.bitwise_or.reduce,
    "accumulate_or",
    lambda dtype: 0,
    accepts=dtypes.BITS,
    jvp=ZERO_TANGENT,
    doc="The bitwise (of bools: logical) or over axes.",
)


# Positions of extrema.


def _first_position(extremum: Primitive) -> Callable[..., Atom]:
    """Make the function that emits the first position of the extremum, or of NaN.

    ``extremum`` is the primitive reduce_max or reduce_min.
    """

    def expand(x: Atom, *, axis: int, dtype: DType) -> Atom:
        """Emit the smallest position along ``axis`` whose element is the extremum.

        Elements that are not the extremum or NaN count as having the largest integer as
        position.
        """
        if x.type.dtype == dtypes.bool_:
            x = conversion.convert(x, dtypes.uint8)
        y = spread_back(extremum(x, axes=(axis,)), x.type, (axis,))
        matches = discrete.eq(x, y)
        if x.type.dtype in dtypes.FLOATS:
            matches = discrete.bitwise_or(matches, discrete.isnan(x))
        position_dtype = dtypes.int32 if x.type.shape[axis] < 2**31 else dtypes.int64
        position = views.iota(shape=x.type.shape, axis=axis, dtype=position_dtype)
        no_position = conversion.literal(np.iinfo(position_dtype).max, position_dtype)
        first = reduce_min(e.select(matches, position, no_position), axes=(axis,))
        return conversion.convert(first, dtype)

    return expand


def _arg_reduction(
    name: str, reference: Callable[..., Any], extremum: Primitive
) -> Primitive:
    """Make the Primitive of the first position of an extremum along an axis.

    ``reference`` is NumPy's function, ``extremum`` the reduction whose result is
    searched.
    """

    def types(x: ArrayType, *, axis: int, dtype: DType) -> ArrayType:
        """Type rule: ``x`` without the axis, of an integer dtype."""
        families.check_defined(name, x, dtypes.REALS | {dtypes.bool_})
        shape = _reduced_shape(name, x, (axis,))
        if x.shape[axis] == 0:
            raise ShapeError(f"{name} of an empty axis: {x}, axis {axis}")
        return ArrayType(shape, dtype)

    def samples() -> Iterable[Sample]:
        """Yield samples of each axis and each real dtype, for the table tests."""
        ordered = (d for d in dtypes.COMPUTED if d not in dtypes.COMPLEX)
        for position, dtype in enumerate(ordered):
            x = families.random_array(dtype, (4, 5, 3), 41 + position)
            yield Sample((x,), {"axis": position % 3, "dtype": dtypes.int64})

    primitive = Emitter(name)
    return Primitive(
        name=name,
        family="reduction",
        types=types,
        reference=lambda x, axis, dtype: np.asarray(reference(x, axis)).astype(dtype),
        kernel=Composition(_first_position(extremum)),
        jvp=ZERO_TANGENT,
        transpose=NOT_LINEAR,
        batch=batched_along(  # with the mapped axis in front of the others
            lambda x, axis, dtype: primitive(x, axis=axis + 1, dtype=dtype)
        ),
        samples=samples,
        doc="The first position of the extremum, or of the first NaN.",
        factors=factors.index_reduction,
    )


argmax = _arg_reduction("argmax", np.argmax, reduce_max)
argmin = _arg_reduction("argmin", np.argmin, reduce_min)
