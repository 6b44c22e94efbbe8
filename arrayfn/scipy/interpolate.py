"""Interpolation of values on a grid."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike


class RegularGridInterpolator:
    """Interpolation of values on a rectangular grid.

    ``points`` and ``values`` may be traced. The interpolator then belongs to the traced
    function, and can be differentiated with respect to points and values.

    Args:
        points: the ascending coordinates (n,) of the grid along each axis.
        values: the values (n0, n1, ..., ...). Further axes hold several values for each
            point.
        method: "linear" between the corners of a cell, or "nearest".
        bounds_error: must be False, because compiled code cannot raise.
        fill_value: the value outside the grid; None extrapolates the outermost cell.

    Raises:
        ArgumentError: unknown method, or ``bounds_error=True``.
        ShapeError: the points do not fit the values, or an axis has fewer than 2.

    >>> import numpy as np
    >>> f = RegularGridInterpolator((np.array([0.0, 1.0]),), np.array([3.0, 5.0]))
    >>> f(np.array([[0.25], [2.0]]))
    array([3.5, nan])
    """

    def __init__(
        self,
        points: Sequence[ArrayLike],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: float | None = float("nan"),
    ) -> None:
        """Check and keep the grid and the values; integers become float64."""
        if method not in ("linear", "nearest"):
            raise ArgumentError(
                f"RegularGridInterpolator has the methods 'linear' and 'nearest', not "
                f"{method!r}",
                user_location(),
            )
        if bounds_error:
            raise ArgumentError(
                "RegularGridInterpolator raises no error for points outside; give it a "
                "fill_value",
                user_location(),
            )
        numbers = anp.asarray(values)
        inexact = numbers.dtype in dtypes.INEXACT
        self.values = numbers if inexact else anp.astype(numbers, dtypes.float64)
        self.grid = tuple(anp.asarray(axis) for axis in points)
        self.method = method
        self.fill_value = fill_value
        extents = tuple(axis.shape for axis in self.grid)
        wanted = tuple((n,) for n in self.values.shape[: len(extents)])
        if extents != wanted or any(shape[0] < 2 for shape in extents):
            raise ShapeError(
                f"RegularGridInterpolator: points of shapes {extents} do not fit "
                f"values of shape {self.values.shape}; each axis has 2 points or more",
                user_location(),
            )

    def __call__(self, xi: ArrayLike, method: str | None = None) -> Array:
        """Return the values at points ``xi`` (..., axes), or at a tuple of coordinates.

        The result has the shape (...) of the points, then the further axes of the
        values. A vector ``xi`` has one point for each run of ``axes`` coordinates, so
        for a grid of one axis each element is a point.
        """
        if isinstance(xi, tuple):
            xi = anp.stack(anp.broadcast_arrays(*map(anp.asarray, xi)), -1)
        at = anp.asarray(xi)
        count = len(self.grid)
        if at.ndim == 1 and at.shape[0] % count == 0:
            at = anp.reshape(at, (-1, count))
        if not at.ndim or at.shape[-1] != count:
            raise ShapeError(
                f"points of a grid of {count} axes have {count} coordinates, the last "
                f"axis, not {at.shape}",
                user_location(),
            )
        lower: list[Array] = []
        shares: list[Array] = []
        inside: Any = True
        for number, axis in enumerate(self.grid):
            x = at[..., number]
            cell = anp.clip(
                anp.searchsorted(axis, x, "right") - 1, 0, axis.shape[0] - 2
            )
            low = anp.take(axis, cell, mode="clip")
            width = anp.take(axis, cell + 1, mode="clip") - low
            lower.append(cell)
            # The position within the cell: 0 at its lower end, 1 at its upper end.
            shares.append((x - low) / width)
            inside = (x >= axis[0]) & (x <= axis[-1]) & inside
        if (method or self.method) == "nearest":
            places = [c + (s > 0.5) for c, s in zip(lower, shares, strict=True)]
            value = self._at(places)
        else:
            value = self._linear(lower, shares)
        if self.fill_value is None:
            return value
        filler = ops.as_array(ops.convert(self.fill_value, value.dtype))
        return anp.where(self._spread(inside), value, filler)

    def _linear(self, lower: list[Array], shares: list[Array]) -> Array:
        """Interpolate multilinearly: sum the weighted values at a cell's corners.

        ``lower`` has the index of the cell along each axis, and ``shares`` the position
        within it, from 0 to 1. A corner is a tuple of 0 (lower side) or 1 for each
        axis, and its weight is the product of share or 1 - share.
        """
        total: Any = 0.0
        for corner in itertools.product((0, 1), repeat=len(lower)):
            weight: Any = 1.0
            for side, share in zip(corner, shares, strict=True):
                weight = weight * (share if side else 1.0 - share)
            places = [c + side for c, side in zip(lower, corner, strict=True)]
            total = total + self._at(places) * self._spread(weight)
        return total

    def _at(self, places: list[Array]) -> Array:
        """Return the values at one index array per axis of the grid."""
        return anp.at(self.values)[tuple(places)].get(mode="clip")

    def _spread(self, x: Any) -> Any:
        """Append an axis of extent 1 to x for each further axis of the values."""
        more = self.values.ndim - len(self.grid)
        return anp.reshape(x, (*x.shape, *(1,) * more)) if more else x


__all__ = ["RegularGridInterpolator"]
