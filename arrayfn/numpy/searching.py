"""searchsorted, digitize, bincount and histograms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import add, divide, subtract
from arrayfn.numpy.comparison import (
    equal,
    greater_equal,
    isnan,
    less,
    less_equal,
    logical_and,
    where,
)
from arrayfn.numpy.creation import linspace
from arrayfn.numpy.data_dependent import known
from arrayfn.numpy.indexing import getitem, take
from arrayfn.numpy.manipulation import ravel, reshape, stack, unstack
from arrayfn.numpy.rearrangement import diff, flip
from arrayfn.numpy.reductions import max as max_
from arrayfn.numpy.reductions import min as min_
from arrayfn.numpy.reductions import sum as sum_
from arrayfn.numpy.updates import scatter_windows
from arrayfn.primitives import indexing
from arrayfn.primitives.windows import Windows
from arrayfn.tracing import constant, is_made_of_equations


def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
    *,
    method: str | None = None,
) -> Array:
    """Return the positions (int64) where ``v`` can be inserted into the vector ``a``.

    ``a`` ascends, and stays sorted after an insertion. The result has the shape of
    ``v``. With ``side="left"``, a position is before equal elements. With "right", it
    is after them. ``sorter`` is an order that sorts ``a``. NaN counts as the largest
    number. Bisection takes log2(len(a)) gathers. ``method`` has no effect: it names
    another library's algorithm. Raises ShapeError if ``a`` is no vector, ArgumentError
    for another side.

    >>> import numpy as np
    >>> searchsorted(np.array([1.0, 2.0, 4.0]), 2.0, side="right")
    array(2)
    """
    type = ops.type_of_operand("searchsorted", a)
    if type.ndim != 1:
        raise ShapeError(
            f"searchsorted searches in a vector, not in {type}", user_location()
        )
    if side not in ("left", "right"):
        raise ArgumentError(
            f"searchsorted has the sides 'left' and 'right', not {side!r}",
            user_location(),
        )
    a = a if sorter is None else take(a, sorter)
    (a, v), types, dtype = ops.promoted("searchsorted", (a, v))
    # NumPy does not order bfloat16 NaN last.
    if dtype != dtypes.bfloat16 and not is_made_of_equations((a, v)):
        return np.asarray(np.searchsorted(a, ops.as_array(v), side))
    extent = type.shape[0]
    # ``count`` is the number of elements that are known to come before v. Set its bits
    # from the highest to the lowest.
    index = dtypes.int32 if 2 * extent < 2**31 else dtypes.int64
    count: Any = ops.full(0, types[1].shape, index)
    for bit in reversed(range(extent.bit_length())):
        more = count + (1 << bit)
        after = _belongs_after(take(a, more - 1, mode="clip"), v, side)
        count = where((more <= extent) & after, more, count)
    result = ops.convert(count, dtypes.int64)
    return constant(result) if isinstance(result, np.ndarray) else result


def _belongs_after(x: Array, values: ArrayLike, side: str) -> Array:
    """Return whether ``values`` are inserted after x; NaN counts as the largest number.

    If a value equals x, it is inserted after x only if ``side`` is "right".
    """
    if side == "left":
        return less(x, values) | (isnan(values) & ~isnan(x))
    return less_equal(x, values) | isnan(values)


def digitize(
    x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None
) -> Array:
    """Return the number of the bin that contains each x, as int64.

    The edges ``bins``, a vector, ascend or descend. Bin i lies between edges i - 1 and
    i, and bin 0 before the first edge. A bin includes its lower edge. With ``right`` it
    includes its upper edge instead. The result has the shape of x. ``method`` is as for
    ``searchsorted``.
    """
    extent = ops.type_of_operand("digitize", bins).size
    side = "left" if right else "right"
    ascending = searchsorted(bins, x, side, method=method)
    if extent < 2:
        return ascending
    # Search descending edges from the end, and count bins from the other end.
    descending = extent - searchsorted(flip(bins), x, side, method=method)
    return where(getitem(bins, 0) <= getitem(bins, -1), ascending, descending)


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Array:
    """Count how many elements of the vector x are 0, 1, 2, ..., as int64.

    x has integers that are not negative. With ``weights``, an array like x, the weights
    of these elements are summed, in their dtype. The length of the result follows from
    the largest element and ``minlength``. x may be unknown under ``jit``, so give
    ``length`` there. Larger elements are then not counted. Raises ShapeError if x is no
    vector, ArgumentError for negative elements.

    >>> import numpy as np
    >>> bincount(np.array([0, 2, 2]), length=4)
    array([1, 0, 2, 0])
    """
    type = ops.type_of_operand("bincount", x)
    if type.ndim != 1:
        raise ShapeError(f"bincount counts in a vector, not in {type}", user_location())
    if length is None:
        remedy = "Give the length of the result, bincount(..., length=n)"
        value = known("bincount", x, remedy)
        if value.size and int(value.min()) < 0:
            raise ArgumentError(
                "bincount takes elements that are not negative", user_location()
            )
        length = max(int(value.max()) + 1 if value.size else 0, minlength)
    length = ops.whole(length)
    added = ops.full(1, type.shape, dtypes.int64) if weights is None else weights
    return _counted(x, added, length)


def _counted(places: ArrayLike, weights: ArrayLike, length: int) -> Array:
    """Return, for each number below ``length``, the sum of the weights at it.

    ``places`` are the numbers, one for each of ``weights``. Others are dropped:
    negative ones and those from ``length`` on.
    """
    dtype = ops.type_of_operand("bincount", weights).dtype
    extent = ops.type_of_operand("bincount", places).size
    return scatter_windows(
        indexing.scatter_add,
        ops.full(0, (length,), dtype),
        reshape(ops.convert(places, dtypes.int64), (extent, 1)),
        weights,
        Windows(window_axes=(), collapsed_axes=(0,), indexed_axes=(0,)),
        unique_indices=False,
    )


# Histograms.


def histogram_bin_edges(
    a: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    weights: ArrayLike | None = None,
) -> Array:
    """Return the edges of ``bins`` equal bins from the minimum of ``a`` to its maximum.

    The result has ``bins`` + 1 floats. ``range`` is a pair of other bounds. ``bins``
    may also be the edges, or the name of one of NumPy's rules. A rule needs the value
    of ``a``, and also gets ``weights``.
    """
    if isinstance(bins, str):
        remedy = "Give the number of bins, or their edges"
        value = known("histogram", a, remedy)
        edges = np.histogram_bin_edges(value, bins, range, weights)
        return ops.beside(edges, a)
    if isinstance(bins, (list, tuple)):
        bins = np.asarray(bins)
    if ops.type_of_operand("histogram", bins).ndim == 1:
        return ops.same(bins)
    type = ops.type_of_operand("histogram", a)
    dtype = ops.inexact_dtype("histogram", type.dtype)
    if range is not None:
        low, high = (ops.as_array(ops.convert(v, dtype)) for v in range)
    elif type.size == 0:
        low, high = (np.asarray(v, dtype) for v in (0.0, 1.0))
    else:
        low, high = (ops.convert(end(a), dtype) for end in (min_, max_))
    # An empty range is extended by 1/2 on either side.
    half = ops.convert(where(equal(low, high), 0.5, 0.0), dtype)
    return linspace(subtract(low, half), add(high, half), ops.whole(bins) + 1)


def histogram(
    a: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Return the number of elements of ``a`` in each bin (int64), and the bins' edges.

    The bins are those of ``histogram_bin_edges``. A bin includes its lower edge, and
    the last bin also its upper edge. Elements outside are not counted. With
    ``weights``, an array like ``a``, the weights are summed. ``density`` divides by the
    total and the widths, and gives floats.
    """
    edges = histogram_bin_edges(a, bins, range, weights)
    counts, (edges,) = histogramdd(
        reshape(a, (-1, 1)),
        [edges],
        None,
        density=density,
        weights=None if weights is None else ravel(weights),
    )
    if weights is None and not density:
        counts = ops.convert(counts, dtypes.int64)
    return counts, edges


def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Count the pairs of x and y in each bin; return (counts, edges of x, edges of y).

    The counts (bins of x, bins of y) are float64. ``bins`` is a number, a vector of
    edges, or a pair with one of these for each of x and y. The other parameters are
    those of ``histogramdd``.
    """
    pair = isinstance(bins, (list, tuple)) and len(bins) == 2
    columns, _, _ = ops.promoted("histogram2d", [ravel(x), ravel(y)])
    points = stack(columns, -1)
    counts, edges = histogramdd(
        points, list(bins) if pair else [bins, bins], range, density, weights
    )
    return counts, edges[0], edges[1]


def histogramdd(
    sample: ArrayLike,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: ArrayLike | None = None,
) -> tuple[Array, list[Array]]:
    """Count the rows of ``sample`` (n, d) in each cell of a grid.

    Returns the counts, which have d axes, and a list of the edges, one vector for each
    column. The counts are float64, unless ``weights`` has another dtype. ``bins`` and
    ``range`` are one value for all columns, or a list with one for each, as for
    ``histogram_bin_edges``. ``weights`` (n,) and ``density`` are as for ``histogram``.
    Raises ShapeError unless ``sample`` has two axes.
    """
    if isinstance(sample, (list, tuple)):
        sample = stack(sample, -1)
    type = ops.type_of_operand("histogramdd", sample)
    if type.ndim != 2:
        raise ShapeError(
            f"histogramdd takes points as rows (n, d), not {type}", user_location()
        )
    count = type.shape[1]
    along = list(bins) if isinstance(bins, (list, tuple)) else [bins] * count
    bounds = [None] * count if range is None else list(range)
    columns = unstack(sample, axis=1)
    edges = [
        histogram_bin_edges(*args) for args in zip(columns, along, bounds, strict=True)
    ]
    shape = tuple(edge.shape[0] - 1 for edge in edges)
    # The flat index of each row's cell, by Horner's rule over the columns.
    place: Any = ops.full(0, type.shape[:1], dtypes.int64)
    inside: Any = ops.full(True, type.shape[:1], dtypes.bool_)
    for column, edge, extent in zip(columns, edges, shape, strict=True):
        first, last = getitem(edge, 0), getitem(edge, -1)
        bin_ = searchsorted(edge, column, "right") - 1
        place = place * extent + where(equal(column, last), extent - 1, bin_)
        within = logical_and(greater_equal(column, first), less_equal(column, last))
        inside = logical_and(inside, within)
    # Rows outside of the grid go to the number of cells, which is not counted.
    cells = math.prod(shape)
    if weights is None:
        weights = ops.full(1.0, type.shape[:1], dtypes.float64)
    counts = reshape(_counted(where(inside, place, cells), weights, cells), shape)
    if density:
        counts = divide(counts, sum_(counts))
        for axis, edge in enumerate(edges):
            widths = [1] * count
            widths[axis] = -1
            counts = divide(counts, reshape(diff(edge), tuple(widths)))
    return counts, edges
