"""Indexing: ``x[...]`` as views where it can be, and as gathers where it must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType
from arrayfn.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import views
from arrayfn.tracing import Tracer, apply


@dataclass(frozen=True, slots=True)
class BasicIndex:
    """Slices and axes: what a basic index does, as views in this order.

    ``start``, ``limit``, ``strides`` slice each axis; then ``reverse`` axes are
    reversed; then the result is reshaped to ``shape``, which drops the axes that
    integers index and adds new ones.
    """

    start: tuple[int, ...]
    limit: tuple[int, ...]
    strides: tuple[int, ...]
    reverse: tuple[int, ...]
    shape: Shape

    def apply(self, x: ArrayLike, type: ArrayType) -> Array:
        """x indexed."""
        full = self.start == (0,) * type.ndim and self.limit == type.shape
        if not full or set(self.strides) - {1}:
            x = apply(
                views.slice_,
                x,
                start=self.start,
                limit=self.limit,
                strides=self.strides,
            )
        if self.reverse:
            x = apply(views.rev, x, axes=self.reverse)
        if x.shape != self.shape:
            x = apply(views.reshape, x, shape=self.shape)
        return x


def getitem(x: ArrayLike, index: Any, /) -> Array:
    """``x[index]``: integers, slices, ..., None. IndexError out of bounds."""
    type = ops.type_of_operand("indexing", x)
    entries = expanded(index, type.ndim)
    return ops.same(basic_index(entries, type).apply(x, type))


def expanded(index: Any, ndim: int) -> list[Any]:
    """The entries of ``index``, with full slices for "..." and for what is left out."""
    entries = list(index) if isinstance(index, tuple) else [index]
    consumed = sum(_axes_consumed(entry) for entry in entries)
    dots = [k for k, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if consumed > ndim:
        raise IndexError(
            f"too many indices: the array has {ndim} axes, but {consumed} were indexed"
        )
    place = dots[0] if dots else len(entries)
    rest = entries[place + 1 :] if dots else []
    return [*entries[:place], *[slice(None)] * (ndim - consumed), *rest]


def _axes_consumed(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return getattr(entry, "ndim", 0) if _is_mask(entry) else 1


def _is_mask(entry: Any) -> bool:
    if isinstance(entry, (bool, np.bool_)):
        return True
    return isinstance(entry, (Tracer, np.ndarray)) and entry.dtype == dtypes.bool_


def basic_index(entries: list[Any], type: ArrayType) -> BasicIndex:
    """What integers, slices and None do to an array of ``type``."""
    start: list[int] = []
    limit: list[int] = []
    strides: list[int] = []
    reverse: list[int] = []
    shape: list[int] = []
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        axis = len(start)
        extent = type.shape[axis]
        if isinstance(entry, slice):
            low, high, step, is_reversed = forward_slice(entry, extent)
            shape.append(-(-(high - low) // step))
            if is_reversed:
                reverse.append(axis)
        else:
            low = _position(entry, extent, axis)
            high, step = low + 1, 1
        start.append(low)
        limit.append(high)
        strides.append(step)
    return BasicIndex(
        tuple(start), tuple(limit), tuple(strides), tuple(reverse), tuple(shape)
    )


def forward_slice(entry: slice, extent: int) -> tuple[int, int, int, bool]:
    """(start, limit, positive step) of the elements of a slice; whether reversed."""
    low, high, step = entry.indices(extent)
    count = max(0, -(-(high - low) // step) if step > 0 else -((high - low) // -step))
    if count == 0:
        return 0, 0, 1, False
    if step > 0:
        return low, low + (count - 1) * step + 1, step, False
    last = low + (count - 1) * step
    return last, low + 1, -step, True


def _position(entry: Any, extent: int, axis: int) -> int:
    if not hasattr(entry, "__index__"):
        raise ArgumentError(
            f"an array is not indexed by {type(entry).__name__}; indices are "
            "integers, slices, ..., None, and arrays of integers or bools",
            user_location(),
        )
    position = entry.__index__()
    if not -extent <= position < extent:
        raise IndexError(
            f"index {position} is out of bounds for axis {axis} with size {extent}"
        )
    return position % extent
