"""sort, argsort, lexsort, partition.

NaN counts as largest: it comes last in ascending and first in descending order. Complex
numbers are ordered by their real, then by their imaginary parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.arithmetic import subtract
from arrayfn.numpy.indexing import take_along_axis
from arrayfn.numpy.manipulation import moveaxis, ravel
from arrayfn.numpy.rearrangement import flip
from arrayfn.primitives import sorting as primitives
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply


def _along(name: str, x: ArrayLike, axis: int | None) -> tuple[Array, int]:
    """Move ``axis`` of x to the end; return x and the original position of the axis.

    ``axis=None`` flattens x first. Errors call the function ``name``.
    """
    if axis is None:
        x, axis = ravel(x), 0
    type = ops.type_of_operand(name, x)
    place = ops.normalize_axis(name, axis, type.ndim)
    return moveaxis(x, place, -1), place


def sort(
    a: ArrayLike,
    axis: int | None = -1,
    kind: str | None = None,
    *,
    descending: bool = False,
    stable: bool = True,
) -> Array:
    """Sort the elements of ``a`` along ``axis`` in ascending order, NaN last.

    ``axis=None`` flattens ``a`` first. The dtype stays. Every sort is stable, so
    ``kind`` and ``stable`` have no effect.

    >>> import numpy as np
    >>> sort(np.array([3.0, 1.0, 2.0]), descending=True)
    array([3., 2., 1.])
    """
    along, place = _along("sort", a, axis)
    value = apply(primitives.sort, along)
    return moveaxis(flip(value, -1) if descending else value, -1, place)


def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    kind: str | None = None,
    *,
    descending: bool = False,
    stable: bool = True,
    dtype: DTypeLike = None,
) -> Array:
    """Return the indices that sort ``a`` along ``axis`` in ascending order.

    ``axis=None`` flattens ``a`` first. The indices have dtype int64, or ``dtype``.
    Every sort is stable, so ``kind`` and ``stable`` have no effect.
    """
    along, place = _along("argsort", a, axis)
    if descending:
        # Sort the reversed row, and reverse the result. So equal elements keep their
        # order. Position k of the reversed row is position n - 1 - k of the row.
        backwards = apply(primitives.argsort, flip(along, -1))
        order = subtract(max(along.shape[-1] - 1, 0), flip(backwards, -1))
    else:
        order = apply(primitives.argsort, along)
    if dtype is not None:
        order = ops.convert(order, dtypes.canonical(dtype))
    return moveaxis(order, -1, place)


def lexsort(keys: Any, axis: int = -1) -> Array:
    """Return the indices (int64) that sort by the last of ``keys`` along ``axis``.

    Ties are ordered by the key before the last one, and so on. ``keys`` are arrays of
    one shape, or the rows of one array. Raises ArgumentError if there is no key.
    """
    columns = [*keys]
    if not columns:
        raise ArgumentError("lexsort takes at least one key", user_location())
    # Keys of lower priority come first. Stable sorts keep their order in ties.
    order = argsort(columns[0], axis)
    for key in columns[1:]:
        order = take_along_axis(
            order, argsort(take_along_axis(key, order, axis), axis), axis
        )
    return order


def _check_kth(name: str, kth: int | Sequence[int], extent: int) -> None:
    """Raise ShapeError, about ``name``, if ``kth`` is out of bounds.

    ``kth`` is a position or several, on an axis of ``extent``.
    """
    for k in as_list(kth):
        if not -extent <= ops.whole(k) < extent:
            raise ShapeError(
                f"{name}: kth={k} is out of bounds for an axis of extent {extent}",
                user_location(),
            )


@also_takes("kind")
def partition(a: ArrayLike, kth: int | Sequence[int], axis: int | None = -1) -> Array:
    """Return ``a`` with its kth element in place, between smaller and larger elements.

    The result is sorted along ``axis`` (None: flattened). Raises ShapeError if ``kth``
    is out of bounds.
    """
    along, _ = _along("partition", a, axis)
    _check_kth("partition", kth, along.shape[-1])
    return sort(a, axis)


@also_takes("kind")
def argpartition(
    a: ArrayLike, kth: int | Sequence[int], axis: int | None = -1
) -> Array:
    """Return the int64 indices that partition ``a`` along ``axis``; they also sort it.

    Raises ShapeError if ``kth`` is out of bounds.
    """
    along, _ = _along("argpartition", a, axis)
    _check_kth("argpartition", kth, along.shape[-1])
    return argsort(a, axis)


def sort_complex(a: ArrayLike) -> Array:
    """Convert ``a`` to complex numbers, and sort them along the last axis.

    Real numbers that float32 can hold (float16, bfloat16, float32, and integers of up
    to 16 bits) become complex64, others complex128.
    """
    dtype = ops.type_of_operand("sort_complex", a).dtype
    inexact = ops.floating_dtype(dtype)
    return sort(ops.convert(a, dtypes.complex_of(dtypes.compute_dtype(inexact))))
