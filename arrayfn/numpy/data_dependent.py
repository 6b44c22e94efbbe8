"""Functions whose results' shapes depend on values, and searching sorted vectors.

Those of the first kind need their arguments' values: outside ``jit``, or of arguments
that are not traced. No derivative passes through them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.comparison import isnan, less, less_equal, where
from arrayfn.numpy.indexing import take
from arrayfn.tracing import Tracer

_REMEDY = "Call it outside jit, or write where(condition, x, y) to keep the shape"


class UniqueAll(NamedTuple):
    """The distinct values, where each is first, which each element is, how many."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The distinct values and how many there are of each."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The distinct values and which of them each element is."""

    values: Array
    inverse_indices: Array


def _value(name: str, x: ArrayLike) -> Any:
    ops.type_of_operand(name, x)
    if isinstance(x, Tracer):
        return x.concrete(f"{name}(), whose result's shape depends on it,", _REMEDY)
    return np.asarray(x)


def nonzero(x: ArrayLike, /) -> tuple[Array, ...]:
    """The indices where x is not 0: an int64 array for each axis."""
    return tuple(np.nonzero(_value("nonzero", x)))


def flatnonzero(x: ArrayLike, /) -> Array:
    """The indices where x as a vector is not 0: int64."""
    return np.flatnonzero(_value("flatnonzero", x))


def argwhere(x: ArrayLike, /) -> Array:
    """The indices where x is not 0, one a row: int64."""
    return np.ascontiguousarray(np.argwhere(_value("argwhere", x)))


def unique_all(x: ArrayLike, /) -> UniqueAll:
    """x's distinct values in order, and what ``UniqueAll`` says of them."""
    return UniqueAll(*np.unique_all(_value("unique_all", x)))


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """x's distinct values in order, and how many there are of each: int64."""
    return UniqueCounts(*np.unique_counts(_value("unique_counts", x)))


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """x's distinct values in order, and which of them each element is: int64."""
    return UniqueInverse(*np.unique_inverse(_value("unique_inverse", x)))


def unique_values(x: ArrayLike, /) -> Array:
    """x's distinct values in order."""
    return np.unique_values(_value("unique_values", x))


def searchsorted(
    x: ArrayLike,
    values: ArrayLike,
    /,
    side: str = "left",
    sorter: ArrayLike | None = None,
) -> Array:
    """Where ``values`` belong in the ascending vector x: int64.

    With ``side="left"`` before the elements that are equal, with "right" after them.
    ``sorter`` holds the order in which x ascends. NaN is greater than all else. By
    bisection, in log2(len(x)) gathers.
    """
    type = ops.type_of_operand("searchsorted", x)
    if type.ndim != 1:
        raise ShapeError(
            f"searchsorted searches in a vector, not in {type}", user_location()
        )
    if side not in ("left", "right"):
        raise ArgumentError(
            f"searchsorted has the sides 'left' and 'right', not {side!r}",
            user_location(),
        )
    x = x if sorter is None else take(x, sorter)
    (x, values), types, _ = ops.promoted("searchsorted", (x, values))
    extent = type.shape[0]
    # The place is in [low, high]; the interval shrinks to nothing.
    low: Any = ops.full(0, types[1].shape, dtypes.int64)
    high: Any = ops.full(extent, types[1].shape, dtypes.int64)
    for _ in range(extent.bit_length()):
        middle = (low + high) // 2
        after = _belongs_after(take(x, middle, mode="clip"), values, side)
        open_ = low < high
        low = where(open_ & after, middle + 1, low)
        high = where(open_ & ~after, middle, high)
    return low


def _belongs_after(x: Array, values: ArrayLike, side: str) -> Array:
    if side == "left":
        return less(x, values) | (isnan(values) & ~isnan(x))
    return less_equal(x, values) | isnan(values)


def from_dlpack(x: Any, /) -> Array:
    """The array that an object with ``__dlpack__`` holds: a copy."""
    return np.array(np.from_dlpack(x), order="C")
