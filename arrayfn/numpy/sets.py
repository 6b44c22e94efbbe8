"""Distinct elements of arrays, and arrays as sets of their elements.

The number of distinct elements decides a shape, so the value of the operand must be
known while tracing. With ``size`` the result's shape is known beforehand, so the
functions work under ``jit``, too: surplus elements are dropped, and missing ones are
``fill_value``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.comparison import (
    equal,
    isnan,
    less,
    logical_and,
    logical_not,
    logical_xor,
    not_equal,
    where,
)
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.data_dependent import known, true_positions
from arrayfn.numpy.indexing import take
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    moveaxis,
    ravel,
    reshape,
    slice_along,
    unstack,
)
from arrayfn.numpy.reductions import any as any_
from arrayfn.numpy.searching import searchsorted
from arrayfn.numpy.sorting import argsort, lexsort, sort
from arrayfn.numpy.updates import scatter_windows
from arrayfn.primitives import indexing
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.windows import Windows
from arrayfn.tracing import Tracer


class UniqueAll(NamedTuple):
    """The result of ``unique_all``: values in order, first positions, inverse, counts.

    x[indices] is values, and values[inverse_indices] is x.
    """

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The result of ``unique_counts``: distinct values in order, and their counts."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The result of ``unique_inverse``: distinct values, and inverse indices.

    values[inverse_indices] is x.
    """

    values: Array
    inverse_indices: Array


def _by_numpy(name: str, function: Callable[..., Any], *x: ArrayLike) -> Any:
    """Call NumPy's ``function`` on operands, whose values must be known.

    The first leaf of the result has elements of the operands. Its derivatives go to the
    first element of the operands that has the same value. bfloat16 is computed in
    float32, because NumPy does not sort its NaN last. Raises AbstractValueError, about
    the function ``name``, if a value is not known.
    """
    remedy = f"Give it the size of the result, {name}(..., size=n)"
    values: list[Any] = [np.asarray(known(name, a, remedy)) for a in x]
    if all(value.dtype != dtypes.bfloat16 for value in values):
        result = function(*values)
    else:
        dtype = ops.common_dtype(name, x)
        wide = dtypes.compute_dtype(dtype)
        values = [value.astype(wide) for value in values]

        def narrow(part: Any) -> Any:
            """Convert values back to bfloat16; counts and positions stay."""
            return part.astype(dtype) if part.dtype == wide else part

        result = tree.map(narrow, function(*values))
    leaves, structure = tree.flatten(result)
    placed = [ops.beside(leaf, *x) for leaf in leaves]
    if isinstance(placed[0], Tracer) and placed[0].dtype in dtypes.DIFFERENTIABLE:
        # Take the values from the traced operands, so that they have derivatives.
        elements = np.concatenate([value.ravel() for value in values])
        order = np.argsort(elements, kind="stable")
        wanted = leaves[0].astype(elements.dtype)
        places = order[np.searchsorted(elements, wanted, sorter=order)]
        placed[0] = take(concatenate(_vectors(name, *x)), places)
    return tree.unflatten(structure, placed)


def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return the distinct elements of ``ar`` in order, or its distinct slices.

    ``axis=None`` flattens ``ar``. With an ``axis``, slices along it are compared.
    Options add the first positions, the inverse indices and the counts to the result,
    which then is a tuple. With ``size``, the result has exactly that many elements.
    Missing ones are ``fill_value``, by default the smallest element, with count 0. With
    ``equal_nan``, all NaN count as equal. The elements are sorted even if ``sorted`` is
    False.

    >>> import numpy as np
    >>> unique(np.array([3, 1, 3]), size=3, fill_value=0, return_counts=True)
    (array([1, 3, 0]), array([1, 2, 0]))
    """
    wanted = (return_index, return_inverse, return_counts)
    if size is None:
        of_numpy: Any = np.unique

        def owned(value: Any) -> Any:
            """Call np.unique, and return row-major copies of its results."""
            results = of_numpy(value, *wanted, axis=axis, equal_nan=equal_nan)
            return tree.map(partial(np.array, order="C"), results)

        if axis is not None and isinstance(ar, Tracer):
            return _unique_slices(ar, axis, equal_nan, wanted)
        return _by_numpy("unique", owned, ar)
    values, *others = _unique(ar, axis, equal_nan, ops.whole(size), fill_value)
    chosen = [part for part, want in zip(others, wanted, strict=True) if want]
    return (values, *chosen) if chosen else values


def _unique_slices(
    x: Tracer, axis: int, equal_nan: bool, wanted: tuple[bool, bool, bool]
) -> Any:
    """Compute ``unique`` along ``axis`` of a traced array whose value is known.

    The slices are taken from x by their first positions, so that they have derivatives.
    ``wanted`` says which of positions, inverse and counts the result has.
    """

    def of_numpy(value: Any) -> Any:
        """Return the positions, the inverse and the counts."""
        return np.unique(
            value,
            return_index=True,
            return_inverse=True,
            return_counts=True,
            axis=axis,
            equal_nan=equal_nan,
        )[1:]

    results = _by_numpy("unique", of_numpy, x)
    values = take(x, results[0], axis)
    others = [part for part, want in zip(results, wanted, strict=True) if want]
    return (values, *others) if others else values


def _unique(
    x: ArrayLike, axis: int | None, equal_nan: bool, size: int, fill_value: Any
) -> UniqueAll:
    """Return the first ``size`` distinct elements of x, or slices along ``axis``.

    If there are fewer, the others are ``fill_value``, by default the smallest. The
    result also has their first positions, the inverse indices of all elements, and the
    counts. x may be traced. The elements are sorted; then each that differs from the
    one before is distinct.
    """
    shape = ops.type_of_operand("unique", x).shape
    if axis is None:
        rows: Array = ravel(x)
        order = argsort(rows)
    else:
        rows = moveaxis(x, axis, 0)
        width = math.prod(rows.shape[1:])
        columns = unstack(reshape(rows, (rows.shape[0], width)), axis=1)
        # The last key of lexsort is the most important. Here that is column 0.
        order = lexsort(columns[::-1]) if width else np.arange(rows.shape[0])
    count = rows.shape[0]
    if not count:
        return _unique_of_nothing(shape, rows, axis, size, fill_value)
    ordered = take(rows, order, 0)
    first = _is_first(ordered, equal_nan)
    rank = cumsum(first) - 1  # the number of the distinct element that each row is
    # The positions of the distinct elements in the sorted rows; count if missing.
    places = true_positions(first, size, count)
    inside = less(places, count)
    indices = take(order, places, 0, mode="clip")
    indices = where(inside, indices, order[0])
    filler = (
        rows[order[0]] if fill_value is None else ops.convert(fill_value, rows.dtype)
    )
    picked = take(ordered, places, 0, mode="clip")
    along = reshape(inside, (size,) + (1,) * (rows.ndim - 1))
    values = where(along, picked, filler)
    inverse = _scattered(indexing.scatter, count, order, rank)  # [order[k]] = rank[k]
    ones = ops.full(1, (count,), dtypes.int64)
    counts = _scattered(indexing.scatter_add, size, rank, ones)
    if axis is None:
        return UniqueAll(values, indices, reshape(inverse, shape), counts)
    return UniqueAll(moveaxis(values, 0, axis), indices, inverse, counts)


def _unique_of_nothing(
    shape: tuple[int, ...], rows: Array, axis: int | None, size: int, fill_value: Any
) -> UniqueAll:
    """Return the results of ``_unique`` for an empty array: fill values with count 0.

    ``rows`` is the array of ``shape`` with ``axis`` first. ``size`` and ``fill_value``
    (0 by default) are those of ``_unique``.
    """
    filler = ops.convert(0 if fill_value is None else fill_value, rows.dtype)
    values = broadcast_to(filler, (size, *rows.shape[1:]))
    zeros = ops.full(0, (size,), dtypes.int64)
    inverse = ops.full(0, shape if axis is None else (0,), dtypes.int64)
    if axis is not None:
        values = moveaxis(values, 0, axis)
    return UniqueAll(values, zeros, inverse, zeros)


def _scattered(scatter: Primitive, size: int, places: Array, updates: Array) -> Array:
    """Return ``size`` int64 zeros, with ``updates`` written or added at ``places``.

    ``scatter`` is the primitive. Places out of bounds are dropped.
    """
    return scatter_windows(
        scatter,
        ops.full(0, (size,), dtypes.int64),
        reshape(places, (places.shape[0], 1)),
        updates,
        Windows(window_axes=(), collapsed_axes=(0,), indexed_axes=(0,)),
        unique_indices=scatter is indexing.scatter,  # indices of an argsort
    )


def _is_first(ordered: Array, equal_nan: bool = True) -> Array:
    """Return whether each row of ``ordered`` differs from the row before it, as bools.

    ``ordered`` has equal rows next to each other. With ``equal_nan`` NaNs are equal.
    """
    count = ordered.shape[0]
    if not count:
        return ops.full(True, (0,), dtypes.bool_)
    later = slice_along(ordered, 1, count, axis=0)
    earlier = slice_along(ordered, 0, count - 1, axis=0)
    differ: Any = not_equal(later, earlier)
    if equal_nan and ordered.dtype in dtypes.INEXACT:
        differ = logical_and(differ, ~logical_and(isnan(later), isnan(earlier)))
    if ordered.ndim > 1:
        differ = any_(reshape(differ, (count - 1, math.prod(ordered.shape[1:]))), 1)
    return concatenate([ops.full(True, (1,), dtypes.bool_), differ])


def unique_all(
    x: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueAll:
    """Return the distinct values of x in order, and the other fields of ``UniqueAll``.

    Positions and counts are int64. Each NaN is distinct. ``size`` and ``fill_value``
    are as for ``unique``.
    """
    if size is None:
        return UniqueAll(*_by_numpy("unique_all", np.unique_all, x))
    return _unique(
        x, axis=None, equal_nan=False, size=ops.whole(size), fill_value=fill_value
    )


def unique_counts(
    x: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueCounts:
    """Return the distinct values of x in order, and their int64 counts.

    Each NaN is distinct. ``size`` and ``fill_value`` are as for ``unique``.
    """
    if size is None:
        return UniqueCounts(*_by_numpy("unique_counts", np.unique_counts, x))
    results = _unique(
        x, axis=None, equal_nan=False, size=ops.whole(size), fill_value=fill_value
    )
    return UniqueCounts(results.values, results.counts)


def unique_inverse(
    x: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueInverse:
    """Return the distinct values of x in order, and the int64 inverse indices.

    Each NaN is distinct. ``size`` and ``fill_value`` are as for ``unique``.
    """
    if size is None:
        return UniqueInverse(*_by_numpy("unique_inverse", np.unique_inverse, x))
    results = _unique(
        x, axis=None, equal_nan=False, size=ops.whole(size), fill_value=fill_value
    )
    return UniqueInverse(results.values, results.inverse_indices)


def unique_values(
    x: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the distinct values of x in order.

    Each NaN is distinct. ``size`` and ``fill_value`` are as for ``unique``.
    """
    if size is None:
        return _by_numpy("unique_values", lambda v: np.sort(np.unique_values(v)), x)
    return _unique(
        x, axis=None, equal_nan=False, size=ops.whole(size), fill_value=fill_value
    ).values


# Sets.


def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
    method: str = "auto",
) -> Array:
    """Return whether each element is among ``test_elements``, as bools.

    The result has the shape of ``element``. ``invert`` negates the result. The test
    elements are sorted, then searched by bisection. ``kind``, ``method`` and
    ``assume_unique`` have no effect: they choose an algorithm in other libraries.
    """
    if isinstance(test_elements, (list, tuple)):
        test_elements = np.asarray(test_elements)
    (element, test_elements), types, _ = ops.promoted("isin", (element, test_elements))
    if not types[1].size:
        return ops.full(invert, types[0].shape, dtypes.bool_)
    ordered = sort(ravel(ops.as_array(test_elements)))
    places = searchsorted(ordered, element)
    is_member = equal(take(ordered, places, mode="clip"), element)
    return logical_not(is_member) if invert else is_member


def _members(mask: Array, ordered: Array, size: int, fill_value: Any) -> Array:
    """Return the first ``size`` elements of ``ordered`` where ``mask`` is true.

    If there are fewer, the others are ``fill_value``. By default that is the first of
    these elements, or 0 if there are none.
    """
    count = ordered.shape[0]
    if not count:
        filler = ops.convert(0 if fill_value is None else fill_value, ordered.dtype)
        return broadcast_to(filler, (size,))
    places = true_positions(mask, size, count)
    exists, values = less(places, count), take(ordered, places, mode="clip")
    if fill_value is not None or not size:
        filler = ops.convert(0 if fill_value is None else fill_value, ordered.dtype)
    else:
        filler = where(exists[0], values[0], ops.convert(0, ordered.dtype))
    return where(exists, values, filler)


def _vectors(name: str, *x: ArrayLike) -> list[Array]:
    """Return the operands as vectors in their promoted dtype.

    Errors call the function ``name``.
    """
    values, _, _ = ops.promoted(name, x)
    return [ravel(ops.as_array(v)) for v in values]


def union1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the distinct elements of both arrays, in order, as a vector.

    The arrays are flattened and promoted. ``size`` and ``fill_value`` are as for
    ``unique``.
    """
    if size is None:
        return _by_numpy("union1d", np.union1d, ar1, ar2)
    both = concatenate(_vectors("union1d", ar1, ar2))
    return unique(both, size=size, fill_value=fill_value)


def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return the distinct elements that are in both ``ar1`` and ``ar2``, in order.

    The arrays are flattened and promoted. With ``return_indices``, the result also has
    the first positions in ``ar1`` and in ``ar2``. ``size`` and ``fill_value`` are as
    for ``unique``. Missing indices are then the number of elements. ``assume_unique``
    promises that neither array repeats an element.
    """
    if size is None:
        options = {"assume_unique": assume_unique, "return_indices": return_indices}
        return _by_numpy("intersect1d", partial(np.intersect1d, **options), ar1, ar2)
    left, right = _vectors("intersect1d", ar1, ar2)
    order = argsort(left)
    ordered = take(left, order)
    mask = logical_and(_is_first(ordered), isin(ordered, right))
    values = _members(mask, ordered, size, fill_value)
    if not return_indices:
        return values
    # Positions in the sorted left array; its length for missing ones.
    places = true_positions(mask, size, left.shape[0])
    beyond = equal(places, left.shape[0])
    in_left = where(beyond, left.shape[0], take(order, places, mode="clip"))
    other = argsort(right)
    at = searchsorted(take(right, other), values)
    in_right = where(beyond, right.shape[0], take(other, at, mode="clip"))
    return values, in_left, in_right


def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the distinct elements of ``ar1`` that are not in ``ar2``, in order.

    The arrays are flattened and promoted. ``size`` is as for ``unique``. ``fill_value``
    is 0 by default, as in JAX. ``assume_unique`` promises that neither array repeats an
    element.
    """
    if size is None:
        of_numpy = partial(np.setdiff1d, assume_unique=assume_unique)
        return _by_numpy("setdiff1d", of_numpy, ar1, ar2)
    left, right = _vectors("setdiff1d", ar1, ar2)
    ordered = sort(left)
    mask = logical_and(_is_first(ordered), isin(ordered, right, invert=True))
    return _members(mask, ordered, size, 0 if fill_value is None else fill_value)


def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the distinct elements that are in only one of the arrays, in order.

    The arrays are flattened and promoted. ``size`` and ``fill_value`` are as for
    ``unique``. ``assume_unique`` promises that neither array repeats an element.
    """
    if size is None:
        of_numpy = partial(np.setxor1d, assume_unique=assume_unique)
        return _by_numpy("setxor1d", of_numpy, ar1, ar2)
    left, right = _vectors("setxor1d", ar1, ar2)
    ordered = sort(concatenate([left, right]))
    one = logical_xor(isin(ordered, left), isin(ordered, right))
    return _members(logical_and(_is_first(ordered), one), ordered, size, fill_value)
