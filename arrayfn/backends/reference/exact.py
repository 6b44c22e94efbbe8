"""Sums of float64 whose error is less than one unit in the last place.

Short sums are ``math.fsum``, which rounds once. Long ones add pairs of doubles by a
tree: what every addition loses is found exactly and added up beside the sum (Knuth's
TwoSum; Ogita, Rump and Oishi, Accurate sum and dot product, 2005). Their relative error
is about 2**-104 times the condition number, so they round correctly for all sums that a
float64 can tell from zero. Where a sum is not finite, it is NumPy's.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from arrayfn.dtypes import DType
from arrayfn.ir.layout import other_axes
from arrayfn.lowering.scalars.arithmetic import two_sum
from arrayfn.lowering.scalars.numpy_arithmetic import two_product
from arrayfn.primitives.contraction import free_axes, product_shape

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]
AxesPair = tuple[Axes, Axes]

_SHORT: Final = 1 << 12  # elements that math.fsum adds
_BLOCK: Final = 1 << 20  # products of a contraction that are held at a time


def reduce_sum(x: Array, *, axes: Axes) -> Array:
    """Return the sum of ``x`` over ``axes``; for float64 the error is below one ULP.

    Real and imaginary parts are summed separately. Other dtypes are summed by NumPy.
    """
    if np.iscomplexobj(x):
        return reduce_sum(x.real, axes=axes) + 1j * reduce_sum(x.imag, axes=axes)
    if x.dtype != np.float64 or not x.size:
        return np.sum(x, axis=axes, dtype=x.dtype)
    kept = other_axes(x.ndim, axes)
    shape = tuple(x.shape[axis] for axis in kept)
    rows = x.transpose(*kept, *axes).reshape(math.prod(shape), -1)
    no_errors = np.zeros_like(rows)  # of ``rows``, which are exact
    return np.asarray(_sum_rows(rows, no_errors)).reshape(shape)


def cumsum(x: Array, *, axis: int, reverse: bool) -> Array:
    """Return the cumulative sums of ``x`` along ``axis``, from its end if ``reverse``.

    For float64 each sum is a pair of doubles: ``high`` is the rounded sum and ``low``
    its error. Step k adds to each pair the one ``2**k`` places before it (Hillis and
    Steele's scan). Sums that are not finite are NumPy's.
    """
    if np.iscomplexobj(x):
        real, imaginary = (
            cumsum(v, axis=axis, reverse=reverse) for v in (x.real, x.imag)
        )
        return real + 1j * imaginary
    moved = np.moveaxis(np.flip(x, axis) if reverse else x, axis, -1)
    with np.errstate(all="ignore"):
        plain = np.cumsum(moved, axis=-1, dtype=x.dtype)
        if x.dtype == np.float64:
            high, low = moved.copy(), np.zeros_like(moved)
            step = 1
            while step < high.shape[-1]:
                total, lost = two_sum(high[..., step:], high[..., :-step])
                low[..., step:] = low[..., step:] + low[..., :-step] + lost
                high[..., step:] = total
                step *= 2
            exact = high + low
            plain = np.where(np.isfinite(exact), exact, plain)
    result = np.moveaxis(plain, -1, axis)
    return np.array(np.flip(result, axis) if reverse else result)


def dot_general(
    x: Array,
    y: Array,
    *,
    contract: AxesPair,
    batch: AxesPair,
    precision: str | None = None,
    preferred_element_type: DType | None = None,
) -> Array:
    """Return the contraction of ``x`` and ``y``, the primitive ``dot_general``.

    ``contract`` and ``batch`` have a tuple of axes of ``x`` and one of ``y``. For
    float64, products are pairs of doubles without rounding errors, and each sum is
    rounded once. ``precision`` is ignored.
    """
    dtype = preferred_element_type or x.dtype
    left = _as_matrices(x.astype(dtype), batch[0], contract[0])
    right = _as_matrices(y.astype(dtype), batch[1], contract[1])
    shape = product_shape(x.shape, y.shape, contract, batch)
    return np.asarray(_product(left, right), dtype).reshape(shape)


def _as_matrices(x: Array, batch: Axes, contract: Axes) -> Array:
    """Reshape ``x`` to three axes: all batch axes, all free ones, all contracted."""
    free = free_axes(x.ndim, contract, batch)
    members = math.prod(x.shape[axis] for axis in batch)
    rows = math.prod(x.shape[axis] for axis in free)
    depth = math.prod(x.shape[axis] for axis in contract)
    return x.transpose(*batch, *free, *contract).reshape(members, rows, depth)


def _product(left: Array, right: Array) -> Array:
    """Multiply each matrix of ``left`` by the transpose of that of ``right``.

    Both have the axes [batch, row, depth]; the result has [batch, row of left, row of
    right]. Sums over the depth of float64 are exact until they are rounded.
    """
    if np.iscomplexobj(left):
        # Real products of twice the depth, so that each part is rounded once:
        # real = [re, im] . [re, -im] and imaginary = [re, im] . [im, re].
        a = np.concatenate((left.real, left.imag), -1)
        for_real = np.concatenate((right.real, np.negative(right.imag)), -1)
        for_imaginary = np.concatenate((right.imag, right.real), -1)
        return _product(a, for_real) + 1j * _product(a, for_imaginary)
    if left.dtype != np.float64 or not left.size or not right.size:
        return np.matmul(left, right.swapaxes(-1, -2))
    members, rows, depth = left.shape
    columns = right.shape[1]
    result = np.zeros((members, rows, columns))
    block = max(1, _BLOCK // max(1, columns * depth))
    for member in range(members):
        for first in range(0, rows, block):
            part = left[member, first : first + block, None, :]
            high, low = _two_product(part, right[member, None])
            total = _sum_rows(high.reshape(-1, depth), low.reshape(-1, depth))
            result[member, first : first + block] = total.reshape(-1, columns)
    return result


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded product ``a * b`` and its exact rounding error.

    The error is 0 where the product is not finite.
    """
    with np.errstate(all="ignore"):
        product, lost = two_product(a, b)
        return product, np.where(np.isfinite(lost), lost, 0.0)


def _sum_rows(high: Array, low: Array) -> Array:
    """Return the sums of ``high + low`` along the last axis of two matrices.

    ``low`` has the rounding errors of ``high``. Small matrices are summed by
    ``math.fsum``, rounded once. In others, the first half of the columns is added to
    the second until one column is left, and the errors of these additions are added to
    ``low``. Sums that are not finite are NumPy's.
    """
    with np.errstate(all="ignore"):
        plain = np.sum(high, axis=-1)
        count = high.shape[-1]
        if high.size <= _SHORT:
            rows = zip(high.tolist(), low.tolist(), plain.tolist(), strict=True)
            return np.array([_fsum([*a, *b], numpy_sum) for a, b, numpy_sum in rows])
        while count > 1:
            half = count // 2
            total, lost = two_sum(high[:, :half], high[:, half : 2 * half])
            rest = low[:, :half] + low[:, half : 2 * half] + lost
            if count % 2:  # the last column has no partner
                total = np.concatenate((total, high[:, -1:]), axis=1)
                rest = np.concatenate((rest, low[:, -1:]), axis=1)
            high, low = total, rest
            count = high.shape[-1]
        exact = high[:, 0] + low[:, 0]
        return np.where(np.isfinite(exact), exact, plain)


def _fsum(terms: list[float], plain: float) -> float:
    """Return the exact sum of ``terms``, rounded once.

    If ``plain``, NumPy's sum, is not finite, or the exact sum overflows, the result is
    ``plain``.
    """
    if not math.isfinite(plain):
        return plain
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        return plain
