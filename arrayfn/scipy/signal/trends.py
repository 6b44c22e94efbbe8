"""Removal of trends from signals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes


@also_takes("overwrite_data")
def detrend(
    data: ArrayLike, axis: int = -1, type: str = "linear", bp: Sequence[int] | int = 0
) -> Array:
    """Subtract the mean ("constant") or least-squares line ("linear") from ``data``.

    The fit is along ``axis``. The indices ``bp`` cut the axis into parts, and "linear"
    subtracts a line from each part. "constant" ignores them. An unknown type, or an
    index outside of the axis, raises ArgumentError.

    >>> import numpy as np
    >>> detrend(np.array([1.0, 3.0, 5.0, 7.0])).round(12)
    array([0., 0., 0., 0.])
    """
    if type not in ("linear", "constant", "l", "c"):
        raise ArgumentError(
            f"detrend has the types 'linear' and 'constant', not {type!r}",
            user_location(),
        )
    dtype = ops.inexact_dtype("detrend", ops.type_of_operand("detrend", data).dtype)
    x = ops.convert(data, dtype)
    if type.startswith("c"):
        return anp.subtract(x, anp.mean(x, axis=axis, keepdims=True))
    position = ops.normalize_axis("detrend", axis, len(x.shape))
    x = anp.moveaxis(x, position, -1)
    extent = x.shape[-1]
    points = sorted({0, extent, *np.atleast_1d(bp).tolist()})
    if points[0] < 0 or points[-1] > extent:
        raise ArgumentError(
            f"detrend: breakpoints {bp} are not within {extent} elements",
            user_location(),
        )
    parts = [
        _without_line(x[..., first:last]) for first, last in itertools.pairwise(points)
    ]
    return anp.moveaxis(anp.concatenate(parts, -1), -1, position)


def _without_line(x: Array) -> Array:
    """Subtract the least-squares line along the last axis.

    The line is the mean plus (x . t) t, for the times t, centred and of norm 1.
    """
    count = x.shape[-1]
    centred = np.arange(count) - (count - 1) / 2
    scale = float(np.sum(centred**2)) or 1.0  # for one element the line is its mean
    real = np.zeros(0, x.dtype).real.dtype
    time = (centred / np.sqrt(scale)).astype(real)
    slope = anp.sum(anp.multiply(x, time), axis=-1, keepdims=True)
    mean = anp.mean(x, axis=-1, keepdims=True)
    return anp.subtract(anp.subtract(x, mean), anp.multiply(slope, time))
