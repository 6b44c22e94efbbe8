"""Checks of index bounds, and normalisation of negative indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn.errors import IndexingError, user_location
from arrayfn.numpy._operands import Array
from arrayfn.numpy.comparison import less, where
from arrayfn.primitives import bounds
from arrayfn.tracing import ArrayOnDevice, ImmutableArray, Tracer, apply
from arrayfn.tracing.frames import checks_indices


def known_value(x: Array | ImmutableArray) -> Any:
    """Return the value of x if it is known while tracing, else None.

    The value of a device array counts as unknown, because it may not be computed yet.
    """
    value = x.value if isinstance(x, Tracer) else x
    return None if isinstance(value, ArrayOnDevice) else value


def within(index: Any, extent: int, axis: int) -> Any:
    """Check the bounds of ``index``, positions along an axis, and return it.

    Raises IndexingError if it is known to be out of bounds; positions from -extent to
    extent - 1 are valid. If it is not known, and the function is compiled with checks,
    an ``in_bounds`` equation checks it while the program runs. ``axis`` is for the
    error.
    """
    value = known_value(index)
    if value is None:
        return in_bounds(index, extent, axis) if checks_indices() else index
    if not value.size:
        return index
    for position in (int(value.min()), int(value.max())):
        if not -extent <= position < extent:
            raise out_of_bounds(position, extent, axis)
    return index


def in_bounds(index: Any, extent: int, axis: int, length: int = 0) -> Any:
    """Emit an ``in_bounds`` equation, which checks ``index`` while the program runs.

    ``axis`` and ``extent`` are the number and the length of the indexed axis.
    ``length`` is the number of elements that a dynamic slice reads from ``index`` on,
    or 0 for other indexing. See ``primitives.bounds``.
    """
    return apply(bounds.in_bounds, index, extent=extent, axis=axis, length=length)


def out_of_bounds(position: int, extent: int, axis: int) -> IndexingError:
    """Return the error for a known ``position`` out of bounds."""
    return index_error(
        f"index {position} is out of bounds for axis {axis} with size {extent}"
    )


def index_error(message: str) -> IndexingError:
    """Return an IndexingError whose message begins with the user's line."""
    return IndexingError(message, user_location())


def from_the_front(index: Array, extent: int) -> Array:
    """Replace negative positions of ``index``, which count from the end of an axis.

    The axis has ``extent`` elements: -1 becomes extent - 1.
    """
    value = known_value(index)
    if value is not None and not (value < 0).any():
        return index
    if not isinstance(index, ImmutableArray):
        return np.where(index < 0, index + extent, index).astype(index.dtype)
    return where(less(index, 0), index + extent, index)
