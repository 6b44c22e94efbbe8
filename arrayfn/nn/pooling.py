"""Pooling: windows of (batch..., spatial..., features) reduced to one element each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import arrayfn.numpy as anp
from arrayfn.lax._padding import Padding
from arrayfn.lax.windowed import pooled, window_size
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import window_reductions as w


def max_pool(
    inputs: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """Return the largest element of each window.

    ``inputs`` has the shape (batch..., spatial..., features). ``window_shape`` and
    ``strides`` (1 if None) have one number for each spatial axis. ``padding`` is
    "VALID", "SAME", or a (low, high) pair for each spatial axis. Padding is never the
    maximum. The first of equal elements gets the derivative. A window with NaN gives
    NaN.

    >>> x = np.arange(16.0).reshape(1, 4, 4, 1)
    >>> max_pool(x, (2, 2), (2, 2))[0, :, :, 0]
    array([[ 5.,  7.],
           [13., 15.]])
    """
    return pooled(w.reduce_window_max, inputs, window_shape, strides, padding)


def min_pool(
    inputs: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """Return the smallest element of each window; arguments are those of ``max_pool``.

    >>> min_pool(np.arange(6.0).reshape(1, 6, 1), (3,), (3,)).ravel()
    array([0., 3.])
    """
    return pooled(w.reduce_window_min, inputs, window_shape, strides, padding)


def avg_pool(
    inputs: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """Return the mean of each window; arguments are those of ``max_pool``.

    Padding adds zeros, which count as elements unless ``count_include_pad`` is False.
    Integers become floating-point.

    >>> avg_pool(np.arange(6.0).reshape(1, 6, 1), (3,), (3,)).ravel()
    array([1., 4.])
    """
    (x,) = ops.floated("avg_pool", inputs)
    total = pooled(w.reduce_window_sum, x, window_shape, strides, padding)
    if count_include_pad:
        return anp.divide(total, window_size(window_shape))
    shape = ops.type_of_operand("avg_pool", x).shape
    spatial = shape[len(shape) - 1 - len(tuple(window_shape)) : -1]
    # The number of elements in each window, without padding, is a sum of ones.
    ones = np.ones((*spatial, 1), total.dtype)
    counts = pooled(w.reduce_window_sum, ones, window_shape, strides, padding)
    return anp.divide(total, counts)


__all__ = ["avg_pool", "max_pool", "min_pool"]
