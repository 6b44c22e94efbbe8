"""The windows of gather and scatter: geometry, checks, positions.

An array of *windows* (gather's result, scatter's updates) has *batch* axes, one for
each axis of ``indices`` except the last, and *window* axes, one for each axis of the
operand that is neither collapsed nor batched. The last axis of ``indices`` has the
beginning of the window along each of ``indexed_axes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import RowMajor, Shape, other_axes
from arrayfn.primitives.base import Array
from arrayfn.primitives.rules import shifted
from arrayfn.records import frozen

Axes = tuple[int, ...]


@frozen(slots=True)
class Windows:
    """The params that gather and scatter share.

    Batching a gather or scatter gives another one (see the methods ``mapped_*``).

    Attributes:
        window_axes: the axes of the array of windows that lie inside windows. JAX's
            offset_dims and update_window_dims.
        collapsed_axes: the operand's axes that windows do not have; their size in a
            window is 1. JAX's collapsed_slice_dims and inserted_window_dims.
        indexed_axes: the operand's axis for each component of an index vector. JAX's
            start_index_map and scatter_dims_to_operand_dims.
        batch: the operand's batch axes, and the axes of the indices that they are
            paired with.
    """

    window_axes: Axes
    collapsed_axes: Axes
    indexed_axes: Axes
    batch: tuple[Axes, Axes] = ((), ())

    def params(self) -> dict[str, Any]:
        """Return the fields as params of an equation."""
        return {
            "window_axes": self.window_axes,
            "collapsed_axes": self.collapsed_axes,
            "indexed_axes": self.indexed_axes,
            "batch": self.batch,
        }

    def kept(self, ndim: int) -> Axes:
        """Return the axes of an operand of ``ndim`` axes that windows have too."""
        removed = (*self.collapsed_axes, *self.batch[0])
        return other_axes(ndim, removed)

    def shape(self, indices: Shape, sizes: Shape) -> Shape:
        """Return the shape of the array of windows.

        ``indices`` is the shape of the array of indices; ``sizes`` are the extents of
        one window along the operand's axes.
        """
        inner = [sizes[axis] for axis in self.kept(len(sizes))]
        outer = iter(indices[:-1])
        extent_of = dict(zip(self.window_axes, inner, strict=True))
        ndim = len(indices) - 1 + len(inner)
        return tuple(
            extent_of[axis] if axis in extent_of else next(outer)
            for axis in range(ndim)
        )

    def sizes(self, ndim: int, windows: Shape) -> Shape:
        """Return the extents of one window along the operand's ``ndim`` axes.

        ``windows`` is the shape of the array of windows. Axes that windows do not have
        get extent 1.
        """
        window_axis_of = dict(zip(self.kept(ndim), self.window_axes, strict=True))
        return tuple(
            windows[window_axis_of[axis]] if axis in window_axis_of else 1
            for axis in range(ndim)
        )

    def mapped_together(self) -> Windows:
        """Return the params if operand, indices and windows have a mapped axis 0.

        The mapped axis is a batch axis of operand and indices.
        """
        return Windows(
            window_axes=shifted(self.window_axes),
            collapsed_axes=shifted(self.collapsed_axes),
            indexed_axes=shifted(self.indexed_axes),
            batch=((0, *shifted(self.batch[0])), (0, *shifted(self.batch[1]))),
        )

    def mapped_operand(self) -> Windows:
        """Return the params if operand and windows have a mapped axis 0.

        The mapped axis is a window axis: each window spans all members.
        """
        return Windows(
            window_axes=(0, *shifted(self.window_axes)),
            collapsed_axes=shifted(self.collapsed_axes),
            indexed_axes=shifted(self.indexed_axes),
            batch=(shifted(self.batch[0]), self.batch[1]),
        )

    def mapped_indices(self) -> Windows:
        """Return the params if indices and windows have a mapped axis 0."""
        return replace(
            self,
            window_axes=shifted(self.window_axes),
            batch=(self.batch[0], shifted(self.batch[1])),
        )

    def check(
        self,
        name: str,
        operand: ArrayType,
        indices: ArrayType,
        sizes: Shape,
        *,
        may_miss: bool,
    ) -> None:
        """Raise ShapeError or DTypeError unless the params fit the operands.

        ``name`` is the primitive's name. ``sizes`` are the extents of one window along
        the operand's axes, which must not exceed the operand's.

        An exception are empty indexed axes, where every position is out of bounds: a
        size of 1 is accepted there if windows ``may_miss`` the operand, or if there are
        no windows.
        """
        self._check_indices(name, operand, indices)
        kept = self.kept(operand.ndim)
        ndim = indices.ndim - 1 + len(kept)
        if len(self.window_axes) != len(kept) or any(
            not 0 <= axis < ndim for axis in self.window_axes
        ):
            raise ShapeError(
                f"{name}: {operand} keeps {len(kept)} axes, which window axes "
                f"{self.window_axes} do not place among {ndim}"
            )
        if list(self.window_axes) != sorted(set(self.window_axes)):
            raise ShapeError(f"{name}: window axes {self.window_axes} do not ascend")
        may_miss = may_miss or 0 in indices.shape[:-1]
        empty = [k for k in self.indexed_axes if may_miss and not operand.shape[k]]
        # A batch axis must have size 1 in a window, even where the batch is empty.
        if len(sizes) != operand.ndim or any(
            (
                not 0 <= size <= (extent if axis not in empty else 1)
                and axis not in self.batch[0]
            )
            or (axis not in kept and size != 1)
            for axis, (size, extent) in enumerate(
                zip(sizes, operand.shape, strict=False)
            )
        ):
            raise ShapeError(f"{name}: windows of {sizes} do not fit {operand}")

    def _check_indices(self, name: str, operand: ArrayType, indices: ArrayType) -> None:
        """Raise an error unless ``indices`` and the params' axes fit the operand."""
        if indices.dtype not in dtypes.INTEGERS:
            raise DTypeError(f"{name} takes integer indices, but was given {indices}")
        if indices.ndim == 0 or indices.shape[-1] != len(self.indexed_axes):
            raise ShapeError(
                f"{name}: the last axis of indices ({indices}) holds a position for "
                f"each of the {len(self.indexed_axes)} indexed axes"
            )
        _check_axes(name, "collapsed", self.collapsed_axes, operand.ndim)
        _check_axes(name, "batch", self.batch[0], operand.ndim)
        _check_axes(name, "indices' batch", self.batch[1], indices.ndim - 1)
        if len(set(self.indexed_axes)) != len(self.indexed_axes) or any(
            not 0 <= axis < operand.ndim or axis in self.batch[0]
            for axis in self.indexed_axes
        ):
            raise ShapeError(
                f"{name}: indexed axes {self.indexed_axes} are not axes of {operand} "
                "that are not batched"
            )
        if [operand.shape[a] for a in self.batch[0]] != [
            indices.shape[a] for a in self.batch[1]
        ]:
            raise ShapeError(
                f"{name}: batch axes {self.batch} of {operand} and {indices} differ"
            )

    def positions(
        self, operand: Shape, indices: Array, sizes: Shape, clip: bool
    ) -> tuple[Array, Array]:
        """Return (position of each element of the windows, whether it is in bounds).

        Both have the shape of the array of windows. Positions are flat row-major
        indices of the operand, which has the shape ``operand``. ``sizes`` are the
        extents of a window along the operand's axes. With ``clip``, windows are moved
        inside; otherwise the positions of a window that is out of bounds are
        meaningless.
        """
        ndim = len(self.shape(indices.shape, sizes))
        outer = other_axes(ndim, self.window_axes)
        strides = RowMajor().strides(operand)
        # A position is a sum of offset * stride along the operand's axes. Each term is
        # broadcast along the axes of the array of windows that it does not depend on.
        position = np.zeros((1,) * ndim, np.int64)
        inside = np.ones((1,) * ndim, np.bool_)
        for component, axis in enumerate(self.indexed_axes):
            begin = _as_int64(indices[..., component])
            last = operand[axis] - sizes[axis]
            if clip:
                begin = np.clip(begin, 0, last)
            starts = _along_axes(begin, outer, ndim)
            inside = inside & (starts >= 0) & (starts <= last)
            position = position + starts * strides[axis]
        for axis, index_axis in zip(*self.batch, strict=True):
            offsets = np.arange(operand[axis]) * strides[axis]
            position = position + _along_axes(offsets, [outer[index_axis]], ndim)
        for axis, window_axis in zip(
            self.kept(len(operand)), self.window_axes, strict=True
        ):
            offsets = np.arange(sizes[axis]) * strides[axis]
            position = position + _along_axes(offsets, [window_axis], ndim)
        shape = self.shape(indices.shape, sizes)
        return np.broadcast_to(position, shape), np.broadcast_to(inside, shape)


def check_mode(name: str, mode: str, modes: Sequence[str]) -> None:
    """Raise ArgumentError unless ``mode`` is one of ``modes``.

    ``name`` is the primitive's name, for the message.
    """
    if mode not in modes:
        raise ArgumentError(
            f"{name}: mode must be one of {', '.join(modes)}, not {mode!r}"
        )


def _check_axes(name: str, word: str, axes: Axes, ndim: int) -> None:
    """Raise ShapeError unless ``axes`` are different numbers from 0 to ``ndim`` - 1.

    ``name`` is the primitive's name, and ``word`` the kind of axes, for the message.
    """
    if len(set(axes)) != len(axes) or any(not 0 <= axis < ndim for axis in axes):
        raise ShapeError(f"{name}: {word} axes {axes} are not among {ndim} axes")


def _along_axes(values: Array, axes: Sequence[int], ndim: int) -> Array:
    """Reshape ``values`` to ``ndim`` axes: its axis k becomes axis ``axes[k]``.

    The other axes have extent 1.
    """
    shape = [1] * ndim
    for axis, extent in zip(axes, values.shape, strict=True):
        shape[axis] = extent
    return values.reshape(shape)


def _as_int64(indices: Array) -> Array:
    """Convert ``indices`` to int64; too large uint64 become the largest int64."""
    if indices.dtype == dtypes.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return indices.astype(np.int64)
