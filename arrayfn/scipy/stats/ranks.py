"""Statistics of samples: the mode, ranks, and the standard error of the mean."""

from __future__ import annotations

import math
from typing import NamedTuple

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import quiet
from arrayfn.primitives import views
from arrayfn.tracing import apply


class ModeResult(NamedTuple):
    """The result of ``mode``: the most frequent values, and their counts."""

    mode: Array
    count: Array  # type: ignore[assignment]  # SciPy's name, which tuples have, too


def _along_last(name: str, a: ArrayLike, axis: int | None) -> Array:
    """Move ``axis`` of ``a`` to the end, or flatten ``a`` for None.

    Errors call the function ``name``.
    """
    array = anp.asarray(a)
    if axis is None:
        return anp.ravel(array)
    return anp.moveaxis(array, ops.normalize_axis(name, axis, array.ndim), -1)


def _runs(values: Array) -> tuple[Array, Array, Array]:
    """Find the runs of equal numbers in values that are sorted along the last axis.

    Returns three int64 arrays of the values' shape: each position, and the first and
    last position of the run that contains it. [5, 5, 7] gives [0, 1, 2], [0, 0, 2] and
    [1, 1, 2].
    """
    n = values.shape[-1]
    place = apply(
        views.iota, shape=values.shape, axis=values.ndim - 1, dtype=dtypes.int64
    )
    changes = values[..., 1:] != values[..., :-1]
    edge = anp.ones((*values.shape[:-1], 1), dtype=bool)
    starts = anp.concatenate([edge, changes], -1)
    ends = anp.concatenate([changes, edge], -1)
    axis = values.ndim - 1
    first = lax.cummax(anp.where(starts, place, 0), axis=axis)
    last = lax.cummin(anp.where(ends, place, n - 1), axis=axis, reverse=True)
    return place, first, last


def _omits_nan(name: str, nan_policy: str, *, possible: bool = True) -> bool:
    """Return whether ``nan_policy`` is "omit": NaN are then ignored.

    Raises ArgumentError, about function ``name``, for policies other than "propagate"
    and "omit", and for "omit" unless it is ``possible``.
    """
    policies = ("propagate", "omit") if possible else ("propagate",)
    if nan_policy not in policies:
        raise ArgumentError(
            f"{name}: nan_policy is {' or '.join(map(repr, policies))}, not "
            f"{nan_policy!r}; remove NaN first (compiled code cannot raise)",
            user_location(),
        )
    return nan_policy == "omit"


def mode(
    a: ArrayLike,
    axis: int | None = 0,
    nan_policy: str = "propagate",
    keepdims: bool = False,
) -> ModeResult:
    """Return the most frequent value along ``axis`` (None: of all), and its count.

    Of several most frequent values, it is the smallest. A ``nan_policy`` other than
    "propagate" raises ArgumentError.

    >>> import numpy as np
    >>> mode(np.array([3, 1, 3, 2, 1]))
    ModeResult(mode=array(1), count=array(2))
    """
    _omits_nan("mode", nan_policy, possible=False)
    values = anp.sort(_along_last("mode", a, axis), axis=-1)
    place, first, _ = _runs(values)
    length = place - first + 1
    # ``length`` counts up within a run, so it is largest at the longest run's end.
    best = anp.argmax(length, axis=-1, keepdims=True)
    value = anp.take_along_axis(values, best, axis=-1)
    count = anp.max(length, axis=-1, keepdims=True)
    if keepdims:
        ndim = anp.asarray(a).ndim
        if axis is None:
            shape = (1,) * ndim
            return ModeResult(anp.reshape(value, shape), anp.reshape(count, shape))
        return ModeResult(anp.moveaxis(value, -1, axis), anp.moveaxis(count, -1, axis))
    return ModeResult(value[..., 0], count[..., 0])


def rankdata(
    a: ArrayLike,
    method: str = "average",
    *,
    axis: int | None = None,
    nan_policy: str = "propagate",
) -> Array:
    """Return the rank, from 1, of each number along ``axis`` (None: of all, flattened).

    ``method`` is the rank of equal numbers. "average", "min" and "max" give the mean,
    smallest and largest of their ranks. "dense" gives the rank among distinct numbers.
    "ordinal" gives different ranks in their order. With "average", a NaN makes all
    ranks NaN. Other methods count NaN as the largest number. Another method, or a
    ``nan_policy`` other than "propagate", raises ArgumentError.

    >>> import numpy as np
    >>> rankdata(np.array([10, 30, 20, 20]))
    array([1. , 4. , 2.5, 2.5])
    """
    _omits_nan("rankdata", nan_policy, possible=False)
    values = _along_last("rankdata", a, axis)
    order = anp.argsort(values, axis=-1, stable=True)
    place, first, last = _runs(anp.take_along_axis(values, order, axis=-1))
    if method == "average":
        ranks = 0.5 * (first + last) + 1.0
    elif method == "min":
        ranks = first + 1
    elif method == "max":
        ranks = last + 1
    elif method == "ordinal":
        ranks = place + 1
    elif method == "dense":
        ranks = anp.cumsum(anp.astype(first == place, dtypes.int64), -1)
    else:
        raise ArgumentError(
            f"rankdata: method must be average, min, max, dense or ordinal, not "
            f"{method!r}",
            user_location(),
        )
    inverse_order = anp.argsort(order, axis=-1)
    result = anp.take_along_axis(ranks, inverse_order, axis=-1)
    if method == "average" and values.dtype in dtypes.FLOATS:
        unknown = anp.any(anp.isnan(values), axis=-1, keepdims=True)
        result = anp.where(unknown, math.nan, result)
    return result if axis is None else anp.moveaxis(result, -1, axis)


@quiet
def sem(
    a: ArrayLike,
    axis: int | None = 0,
    ddof: int = 1,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> Array:
    """Return the standard error of the mean along ``axis`` (None: of all elements).

    It is the standard deviation with ``ddof`` over the root of the number of elements.
    A NaN gives NaN, but ``nan_policy="omit"`` ignores NaN. Another policy raises
    ArgumentError.

    >>> import numpy as np
    >>> sem(np.array([1.0, 2.0, 3.0]))
    array(0.57735027)
    """
    array = anp.asarray(a)
    if _omits_nan("sem", nan_policy):
        count = anp.sum(~anp.isnan(array), axis, keepdims=keepdims)
        spread = anp.nanstd(array, axis=axis, ddof=ddof, keepdims=keepdims)
        return anp.divide(spread, anp.sqrt(count))
    count = array.size if axis is None else array.shape[axis]
    spread = anp.std(array, axis=axis, ddof=ddof, keepdims=keepdims)
    return anp.divide(spread, math.sqrt(count))


__all__ = ["ModeResult", "mode", "rankdata", "sem"]
