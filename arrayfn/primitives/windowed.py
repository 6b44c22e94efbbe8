"""Sliding windows: their geometry, and the array of all windows.

Along each of ``axes``, window i begins at element ``i * stride`` and has ``size``
elements at a distance of ``dilation``. All windows lie inside the operand: users pad
first (``slicing.pad``), so that a border is an equation too. A compiler may instead let
windows begin and end ``padding`` elements outside, where elements have the value that
does not change their reduction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape, other_axes
from arrayfn.primitives import conversion, emitters, families, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    Array,
    BatchRule,
    Primitive,
    Sample,
    Template,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along, shifted, transposed_first
from arrayfn.primitives.windows import Windows
from arrayfn.records import frozen

Axes = tuple[int, ...]


@frozen(slots=True)
class SlidingWindows:
    """The geometry of sliding windows, with one entry for each of ``axes``.

    Attributes:
        axes: the operand's axes along which windows slide, ascending.
        sizes: the number of elements of a window.
        strides: the distance between beginnings of windows, in elements.
        dilations: the distance between elements of a window.
        padding: the elements (before, after) that windows may reach outside; () if none
            do.
    """

    axes: Axes
    sizes: Shape
    strides: Axes
    dilations: Axes
    padding: tuple[tuple[int, int], ...] = ()

    def params(self) -> dict[str, Any]:
        """Return the fields as params of an equation, without an empty ``padding``."""
        params: dict[str, Any] = {
            "axes": self.axes,
            "sizes": self.sizes,
            "strides": self.strides,
            "dilations": self.dilations,
        }
        return {**params, "padding": self.padding} if self.padding else params

    def shifted(self) -> SlidingWindows:
        """Return the geometry for an operand with a new axis 0."""
        return replace(self, axes=shifted(self.axes))

    def inside(self) -> SlidingWindows:
        """Return the same windows for an operand that includes the padding."""
        return replace(self, padding=())

    def config(self, ndim: int) -> slicing.PadConfig:
        """Return the param ``config`` of the ``pad`` that adds the padding.

        It has (before, after, 0) for each of the operand's ``ndim`` axes.
        """
        pads = dict(zip(self.axes, self.padding, strict=False))
        return tuple((*pads.get(axis, (0, 0)), 0) for axis in range(ndim))

    def padded_shape(self, shape: Shape) -> Shape:
        """Return the shape of an operand of ``shape`` after it is padded."""
        return tuple(
            n + low + high
            for n, (low, high, _) in zip(shape, self.config(len(shape)), strict=True)
        )

    def unpadded(self, x: Atom, shape: Shape) -> Atom:
        """Remove the padding from ``x``: an array of ``shape``."""
        if not self.padding:
            return x
        start = [low for low, _, _ in self.config(len(shape))]
        limit = [low + n for low, n in zip(start, shape, strict=True)]
        return slicing.block(x, start, limit)

    def check(self, name: str, x: ArrayType) -> None:
        """Raise ShapeError unless this geometry fits an operand ``x``.

        ``name`` is the primitive's name, for the message.
        """
        counts = {len(part) for part in self.params().values()}
        if (
            len(counts) != 1
            or list(self.axes) != sorted(set(self.axes))
            or any(not 0 <= axis < x.ndim for axis in self.axes)
        ):
            raise ShapeError(
                f"{name}: axes {self.axes} of {x} take ascending axes, and a size, a "
                f"stride and a dilation for each, but were given {self.sizes}, "
                f"{self.strides}, {self.dilations}"
            )
        if min((*self.sizes, *self.strides, *self.dilations), default=1) < 1:
            raise ShapeError(
                f"{name}: sizes {self.sizes}, strides {self.strides} and dilations "
                f"{self.dilations} must be 1 or more"
            )

    def count(self, shape: Shape) -> Shape:
        """Return the number of windows along each of ``axes`` of an operand."""
        shape = self.padded_shape(shape)
        parts = zip(self.axes, self.sizes, self.strides, self.dilations, strict=True)
        return tuple(
            max(0, (shape[axis] - (size - 1) * dilation - 1) // stride + 1)
            for axis, size, stride, dilation in parts
        )

    def shape(self, shape: Shape) -> Shape:
        """Return an operand's ``shape`` with the number of windows along ``axes``."""
        counts = dict(zip(self.axes, self.count(shape), strict=True))
        return tuple(counts.get(axis, n) for axis, n in enumerate(shape))

    def tap(self, x: Atom, position: Sequence[int]) -> Atom:
        """Emit the element at ``position`` of each window, as a slice of ``x``.

        ``position`` has an index inside the window for each of ``axes``. ``padding``
        must be (): ``x`` includes it (see ``inside``).
        """
        start, limit, strides = [0] * x.type.ndim, list(x.type.shape), [1] * x.type.ndim
        counts = self.count(x.type.shape)
        for k, axis in enumerate(self.axes):
            start[axis] = position[k] * self.dilations[k]
            strides[axis] = self.strides[k]
            limit[axis] = start[axis] + (counts[k] - 1) * strides[axis] + 1
        if not any(start) and limit == list(x.type.shape) and set(strides) <= {1}:
            return x
        return slicing.slice_(
            x, start=tuple(start), limit=tuple(limit), strides=tuple(strides)
        )

    def taps(self, x: Atom) -> list[Atom]:
        """Emit the slice ``tap(x, position)`` of each position, in row-major order.

        As for ``tap``, ``padding`` must be ().
        """
        positions = itertools.product(*(range(size) for size in self.sizes))
        return [self.tap(x, position) for position in positions]

    def of(self, x: Array) -> Array:
        """Return a view of all windows of a NumPy array, which must not be written.

        The axes are those of ``x``, with the number of windows along ``axes``, then the
        axes inside windows. ``padding`` must be (): ``x`` includes it (see ``inside``).
        """
        if 0 in self.shape(x.shape):
            return np.zeros((*self.shape(x.shape), *self.sizes), x.dtype)
        strides = list(x.strides)
        inner: list[int] = []
        for k, axis in enumerate(self.axes):
            inner.append(strides[axis] * self.dilations[k])
            strides[axis] *= self.strides[k]
        # as_strided does not support float8, so it gets opaque elements of that size.
        elements = x.view(f"V{x.itemsize}")
        return np.lib.stride_tricks.as_strided(
            elements,
            (*self.shape(x.shape), *self.sizes),
            (*strides, *inner),
            writeable=False,
        ).view(x.dtype)


def batched_windows(name: str) -> BatchRule:
    """Make the batching rule of a window primitive, by its name.

    The mapped axis is in front, so each window axis has a number greater by one.
    """
    primitive = Emitter(name)
    geometry_params = {field.name for field in fields(SlidingWindows)}

    def rule(*operands: Atom, **params: Any) -> Atom:
        """Emit the primitive on ``operands`` that have the mapped axis in front."""
        windows = SlidingWindows(
            **{k: v for k, v in params.items() if k in geometry_params}
        )
        return primitive(*operands, **params | windows.shifted().params())

    return batched_along(rule)


def spread_config(
    ndim: int, geometry: SlidingWindows, shape: Shape, counts: Shape
) -> slicing.PadConfig:
    """Return the ``pad`` config that spreads one value for each window.

    The values are put at the windows' beginnings, ``stride`` elements apart, with zeros
    between and around. Windows of stride 1 over the result then have, at element j, the
    values of the windows that contain j. ``shape`` is the operand's, with ``ndim``
    axes, and ``counts`` are the numbers of windows along the window axes.
    """
    config = [(0, 0, 0)] * ndim
    for k, axis in enumerate(geometry.axes):
        stride = geometry.strides[k]
        before = (geometry.sizes[k] - 1) * geometry.dilations[k]
        after = shape[axis] - (counts[k] - 1) * stride - 1
        config[axis] = (before, after, stride - 1)
    return tuple(config)


GEOMETRIES: Final = (
    ((7, 3), SlidingWindows((0,), (3,), (2,), (1,))),
    ((2, 6, 5), SlidingWindows((1, 2), (2, 2), (1, 2), (2, 1))),
)
BORDERED: Final = SlidingWindows((0, 1), (3, 2), (2, 1), (1, 1), ((1, 2), (0, 1)))


# sliding_windows


def _windows_types(x: ArrayType, *, order: Axes, **params: Any) -> ArrayType:
    """Type rule: the axes of windows, then those inside windows, put into ``order``."""
    geometry = SlidingWindows(**params)
    geometry.check("sliding_windows", x)
    if geometry.padding:  # its elements are not in the memory of x
        raise ShapeError("sliding_windows has no padding: pad the operand first")
    shape = (*geometry.shape(x.shape), *geometry.sizes)
    if sorted(order) != list(range(len(shape))):
        raise ShapeError(
            f"sliding_windows: {order} does not order the {len(shape)} axes of windows"
        )
    return x.with_shape(shape[axis] for axis in order)


def _windows_reference(x: Array, *, order: Axes, **params: Any) -> Array:
    """Compute all windows by NumPy's strides, with the axes in ``order``."""
    return SlidingWindows(**params).of(x).transpose(order)


def overlap_add(
    windows: Atom, x: ArrayType, geometry: SlidingWindows, order: Axes
) -> Atom:
    """Sum, for each element of an array of type ``x``, its values in all windows.

    This is the transpose of ``sliding_windows``, emitted as a scatter_add. ``windows``
    has the shape of that primitive's result, whose axes are in ``order``.
    """
    ndim = x.ndim
    counts = geometry.count(x.shape)
    kept = other_axes(ndim, geometry.axes)
    # Order the axes: those without windows, numbers of windows, axes inside windows.
    axis_order = [*kept, *geometry.axes, *range(ndim, ndim + len(counts))]
    permutation = tuple(order.index(axis) for axis in axis_order)
    windows = views.transpose(windows, permutation=permutation)
    if math.prod(geometry.sizes) == 1:
        return _among_zeros(windows, x, geometry)
    outer = (*counts, *geometry.sizes)
    components = [
        e.add(
            count_along(outer, k, geometry.strides[k]),
            count_along(outer, k + len(counts), geometry.dilations[k]),
        )
        for k in range(len(counts))
    ]
    windows_geometry = Windows(
        window_axes=tuple(range(len(kept))),
        collapsed_axes=geometry.axes,
        indexed_axes=geometry.axes,
    )
    zeros = views.zeros(x)
    options = {"mode": "drop", "unique_indices": False}
    return emitters.scatter_add(
        zeros, positions_of(components), windows, **windows_geometry.params(), **options
    )


def _among_zeros(windows: Atom, x: ArrayType, geometry: SlidingWindows) -> Atom:
    """Put windows of one element each into an array of zeros of type ``x``, by a pad.

    ``windows`` has the axes without windows first, then the numbers of windows, then
    axes of extent 1.
    """
    ndim = x.ndim
    kept = other_axes(ndim, geometry.axes)
    order = [*kept, *geometry.axes]
    windows = views.reshape(windows, shape=windows.type.shape[:ndim])
    windows = views.with_axes_at(windows, order)
    config = [(0, 0, 0)] * ndim
    for axis, stride in zip(geometry.axes, geometry.strides, strict=True):
        count = windows.type.shape[axis]
        # The zeros before, after and between the elements.
        config[axis] = (0, x.shape[axis] - (count - 1) * stride - 1, stride - 1)
    zero = conversion.literal(0, x.dtype)
    return slicing.pad(windows, zero, config=tuple(config))


def count_along(shape: Shape, axis: int, step: int) -> Atom:
    """Emit an int32 array with 0, ``step``, ``2 * step`` ... along ``axis``."""
    return e.mul(views.iota(shape=shape, axis=axis, dtype=dtypes.int32), step)


def positions_of(components: Sequence[Atom]) -> Atom:
    """Stack arrays of index components along a new last axis, as index vectors."""
    shape = (*components[0].type.shape, 1)
    axes = tuple(range(len(shape) - 1))
    parts = [views.broadcast_in_dim(p, shape=shape, axes=axes) for p in components]
    return parts[0] if len(parts) == 1 else slicing.concatenate(*parts, axis=len(axes))


def _windows_samples() -> Iterable[Sample]:
    """Yield windows of each dtype in three orders of axes, for the table tests."""
    for position, dtype in enumerate(dtypes.SHORT_NAMES):
        shape, geometry = GEOMETRIES[position % 2]
        ndim = len(shape) + len(geometry.axes)
        orders = (tuple(range(ndim)), (*range(1, ndim), 0), tuple(range(ndim))[::-1])
        x = families.random_array(dtype, shape, 61 + position)
        order = orders[position % 3]
        yield Sample((x,), {**geometry.params(), "order": order})


sliding_windows = Primitive(
    name="sliding_windows",
    family="windowed",
    types=_windows_types,
    reference=_windows_reference,
    kernel=Template("sliding_windows"),
    jvp=LINEAR,
    transpose=transposed_first(
        lambda ct, type, order, **params: overlap_add(
            ct, type, SlidingWindows(**params), order
        )
    ),
    batch=batched_along(
        lambda x, order, **params: sliding_windows(
            x, **SlidingWindows(**params).shifted().params(), order=(0, *shifted(order))
        )
    ),
    samples=_windows_samples,
    doc="All sliding windows. The axes are the operand's, with the number of windows, "
    "then one axis per window axis; output axis i is number order[i] of these.",
)
