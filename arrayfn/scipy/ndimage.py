"""Interpolation of arrays, under ``scipy.ndimage``'s names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike

MODES: Final = (
    "constant",
    "grid-constant",
    "nearest",
    "wrap",
    "grid-wrap",
    "mirror",
    "reflect",
    "grid-mirror",
)


def map_coordinates(
    input: ArrayLike,
    coordinates: Sequence[ArrayLike] | ArrayLike,
    order: int,
    mode: str = "constant",
    cval: float = 0.0,
) -> Array:
    """Interpolate ``input`` at ``coordinates``, which has one array for each axis.

    ``order`` is 0 (the nearest element) or 1 (linear). ``mode`` says how positions
    outside of the array are handled:

    * "constant" gives ``cval``, and "grid-constant" interpolates between the array and
      ``cval``;
    * "nearest" gives the nearest element;
    * "grid-wrap" repeats the array. "wrap" also repeats it, but the last element of a
      copy coincides with the first element of the next copy;
    * "mirror" mirrors the array about the last elements, and "reflect" or "grid-mirror"
      about the edges.

    The modes are SciPy's. JAX's "constant" is "grid-constant" here, and JAX's "wrap" is
    "grid-wrap". The result has the dtype of the input and the shape of the coordinates.
    It can be differentiated with respect to both.

    >>> import numpy as np
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> map_coordinates(x, [np.array([0.5, 1.0]), np.array([0.5, 2.0])], order=1)
    array([2., 5.])
    """
    x = anp.asarray(input)
    places = [anp.asarray(c) for c in coordinates]
    if len(places) != len(x.shape):
        raise ArgumentError(
            f"map_coordinates takes coordinates for each of {len(x.shape)} axes, not "
            f"{len(places)}",
            user_location(),
        )
    if order not in (0, 1):
        raise ArgumentError(
            f"map_coordinates interpolates by order 0 or 1, not {order}; for splines, "
            "use scipy.ndimage outside of traced functions",
            user_location(),
        )
    if mode not in MODES:
        raise ArgumentError(
            f"map_coordinates has the modes {', '.join(MODES)}, not {mode!r}",
            user_location(),
        )
    # For each axis, its neighbours: index, whether the index is inside, and weight.
    per_axis = [
        _neighbours(place, extent, order, mode)
        for place, extent in zip(places, x.shape, strict=True)
    ]
    total = None
    for corner in itertools.product(*per_axis):
        value = x[tuple(index for index, _, _ in corner)]
        inside = None
        for _, valid, _ in corner:
            if valid is not None:
                inside = valid if inside is None else anp.logical_and(inside, valid)
        if inside is not None:
            value = anp.where(inside, value, ops.scalar(cval, x.dtype).value)
        for _, _, weight in corner:
            if weight is not None:
                value = anp.multiply(value, weight)
        total = value if total is None else anp.add(total, value)
    assert total is not None
    if x.dtype in dtypes.INTEGERS and total.dtype not in dtypes.INTEGERS:
        # Round to the nearest integer, and 0.5 away from zero, as SciPy does.
        total = anp.trunc(anp.add(total, anp.copysign(0.5, total)))
    return ops.as_array(ops.convert(total, x.dtype))


# An element's index, whether it is inside (None: always), and its weight (None: 1).
Neighbour = tuple[Array, Array | None, Array | None]


def _neighbours(place: Array, extent: int, order: int, mode: str) -> list[Neighbour]:
    """Return the elements around ``place`` along an axis, and their weights.

    Each is (index, whether it is inside or None for always, weight or None for 1).
    ``place`` has fractional positions on an axis of ``extent``. ``order`` 0 gives the
    nearest element, and 1 gives the two elements on both sides. ``mode`` is SciPy's for
    places outside.
    """
    last = extent - 1
    if mode == "constant":
        inside = anp.logical_and(place >= 0, place <= last)
        around = _neighbours(anp.clip(place, 0, last), extent, order, "nearest")
        return [(index, inside, weight) for index, _, weight in around]
    if mode == "wrap":
        # The period is extent - 1: the last element coincides with the next first.
        place = _wrapped(place, last)
    if order == 0:
        nearest = ops.convert(anp.floor(anp.add(place, 0.5)), dtypes.int64)
        return [(*_inside(nearest, extent, mode), None)]  # _inside: (index, inside)
    below = anp.floor(place)
    share = anp.subtract(place, below)
    index = ops.convert(below, dtypes.int64)
    return [
        (*_inside(index, extent, mode), anp.subtract(1, share)),
        (*_inside(anp.add(index, 1), extent, mode), share),
    ]


def _wrapped(place: Array, period: int) -> Array:
    """Add a multiple of the period to each ``place`` that is not in [0, period].

    A place below 0 goes to (0, period], and one above the period to [0, period). A
    period of 0 gives 0.
    """
    if not period:
        return anp.multiply(place, 0)
    up = anp.floor(anp.divide(anp.negative(place), period)) + 1
    down = anp.floor(anp.divide(place, period))
    raised = anp.add(place, anp.multiply(up, period))
    lowered = anp.subtract(place, anp.multiply(down, period))
    return anp.where(place < 0, raised, anp.where(place > period, lowered, place))


def _inside(index: Array, extent: int, mode: str) -> tuple[Array, Array | None]:
    """Move ``index`` into an axis of ``extent`` by the rule of ``mode``.

    Also returns whether the index was inside before, or None if ``mode`` does not need
    that. Only "grid-constant" does.
    """
    if mode == "grid-constant":
        valid = anp.logical_and(anp.greater_equal(index, 0), anp.less(index, extent))
        return anp.clip(index, 0, extent - 1), valid
    if mode in ("nearest", "wrap"):
        return anp.clip(index, 0, extent - 1), None
    if mode == "grid-wrap":
        return anp.mod(index, extent), None
    if mode == "mirror":
        # For 4 elements: 0 1 2 3 2 1, then again.
        period = max(1, 2 * (extent - 1))
        folded = anp.mod(index, period)
        return anp.minimum(folded, anp.subtract(period, folded)), None
    # For 3 elements: 0 1 2 2 1 0, then again ("reflect" and "grid-mirror").
    period = 2 * extent
    folded = anp.mod(index, period)
    return anp.minimum(folded, anp.subtract(period - 1, folded)), None


__all__ = ["map_coordinates"]
