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
from arrayfn.primitives.contraction import free_axes

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]
AxesPair = tuple[Axes, Axes]

_SHORT: Final = 1 << 12  # elements that math.fsum adds
_BLOCK: Final = 1 << 20  # products of a contraction that are held at a time
_SPLIT: Final = 134217729.0  # 2**27 + 1: Dekker's constant for float64


def reduce_sum(x: Array, *, axes: Axes) -> Array:
    """The sum of ``x`` over ``axes``; for float64 the error is less than one ULP."""
    if np.iscomplexobj(x):
        return reduce_sum(x.real, axes=axes) + 1j * reduce_sum(x.imag, axes=axes)
    if x.dtype != np.float64 or not x.size:
        return np.sum(x, axis=axes, dtype=x.dtype)
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    shape = tuple(x.shape[axis] for axis in kept)
    rows = x.transpose(*kept, *axes).reshape(math.prod(shape), -1)
    return np.asarray(_sum_rows(rows, np.zeros_like(rows))).reshape(shape)


def cumsum(x: Array, *, axis: int, reverse: bool) -> Array:
    """The sums of the elements of ``x`` up to each along ``axis``.

    They begin at the end if ``reverse``.
    """
    if np.iscomplexobj(x):
        parts = (cumsum(v, axis=axis, reverse=reverse) for v in (x.real, x.imag))
        real, imaginary = parts
        return real + 1j * imaginary
    moved = np.moveaxis(np.flip(x, axis) if reverse else x, axis, -1)
    with np.errstate(all="ignore"):
        plain = np.cumsum(moved, axis=-1, dtype=x.dtype)
        if x.dtype == np.float64:
            high, low = moved.copy(), np.zeros_like(moved)
            step = 1
            while step < high.shape[-1]:
                total, lost = _two_sum(high[..., step:], high[..., :-step])
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
    """The contraction of ``x`` and ``y``: products are exact pairs of doubles."""
    dtype = preferred_element_type or x.dtype
    left = _as_matrices(x.astype(dtype), batch[0], contract[0])
    right = _as_matrices(y.astype(dtype), batch[1], contract[1])
    shape = [x.shape[axis] for axis in batch[0]]
    shape += [x.shape[axis] for axis in free_axes(x.ndim, contract[0], batch[0])]
    shape += [y.shape[axis] for axis in free_axes(y.ndim, contract[1], batch[1])]
    return np.asarray(_product(left, right), dtype).reshape(shape)


def _as_matrices(x: Array, batch: Axes, contract: Axes) -> Array:
    """Reshape ``x`` to the axes (batch, free, contracted)."""
    free = free_axes(x.ndim, contract, batch)
    members = math.prod(x.shape[axis] for axis in batch)
    rows = math.prod(x.shape[axis] for axis in free)
    depth = math.prod(x.shape[axis] for axis in contract)
    return x.transpose(*batch, *free, *contract).reshape(members, rows, depth)


def _product(left: Array, right: Array) -> Array:
    """Multiply ``left`` by the transpose of ``right``: [member, row, depth] each."""
    if np.iscomplexobj(left):
        a, b = (left.real, left.imag), (right.real, right.imag)
        joined = [np.concatenate(parts, -1) for parts in (a, (b[1], b[0]))]
        real = _product(
            np.concatenate(a, -1), np.concatenate((b[0], np.negative(b[1])), -1)
        )
        return real + 1j * _product(*joined)
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


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum ``a + b``, and its rounding error, exactly."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product ``a * b``, and its rounding error, exactly.

    The error is 0 where the product is not finite.
    """
    with np.errstate(all="ignore"):
        product = a * b
        (a1, a2), (b1, b2) = _halves(a), _halves(b)
        lost = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
        return product, np.where(np.isfinite(lost), lost, 0.0)


def _halves(x: Array) -> tuple[Array, Array]:
    """Split ``x`` into a sum of two numbers of 26 bits."""
    scaled = _SPLIT * x
    high = scaled - (scaled - x)
    return high, x - high


def _sum_rows(high: Array, low: Array) -> Array:
    """Sum ``high + low`` along the last axis of matrices, rounded once."""
    with np.errstate(all="ignore"):
        plain = np.sum(high, axis=-1)
        count = high.shape[-1]
        if high.size <= _SHORT:
            return np.array(
                [
                    _fsum([*a, *b], one)
                    for a, b, one in zip(
                        high.tolist(), low.tolist(), plain.tolist(), strict=True
                    )
                ]
            )
        while count > 1:
            half = count // 2
            total, lost = _two_sum(high[:, :half], high[:, half : 2 * half])
            rest = low[:, :half] + low[:, half : 2 * half] + lost
            if count % 2:
                total = np.concatenate((total, high[:, -1:]), axis=1)
                rest = np.concatenate((rest, low[:, -1:]), axis=1)
            high, low = total, rest
            count = high.shape[-1]
        exact = high[:, 0] + low[:, 0]
        return np.where(np.isfinite(exact), exact, plain)


def _fsum(terms: list[float], plain: float) -> float:
    """The exact sum of ``terms``, rounded once; ``plain`` if that is not finite."""
    if not math.isfinite(plain):
        return plain
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        return plain
