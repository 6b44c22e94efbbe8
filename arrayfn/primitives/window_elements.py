"""window_take reads one element of each window; window_put adds it back.

Positions are row-major indices inside a window; see ``windowed`` for the geometry. Each
primitive is the transpose of the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape
from arrayfn.primitives import (
    conversion,
    discrete,
    emitters,
    families,
    indexing,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    Array,
    Composition,
    Primitive,
    Sample,
    Tolerance,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import jvp_of_first, transposed_first
from arrayfn.primitives.windowed import (
    BORDERED,
    GEOMETRIES,
    SlidingWindows,
    batched_windows,
    count_along,
    positions_of,
)
from arrayfn.primitives.windows import Windows
from arrayfn.records import frozen

_MAX_PHASES: Final = 16
"""The most phases, and terms of an element's sum, that ``put_in_phases`` emits."""


def _check(name: str, x: ArrayType, positions: ArrayType, windows: Shape) -> None:
    """Raise an error unless ``positions`` are int32, one for each window.

    ``name`` is the primitive's name, for the message; ``x`` must have a dtype of
    numbers. ``windows`` is the shape of the array of windows.
    """
    if x.dtype not in dtypes.NUMBERS:
        raise DTypeError(f"{name} is not defined for {x}")
    if positions.dtype != dtypes.int32 or positions.shape != windows:
        raise ShapeError(
            f"{name} takes positions of int32 for windows {windows}, not {positions}"
        )


def _gather_indices(positions: Atom, geometry: SlidingWindows) -> tuple[Atom, Windows]:
    """Return index vectors and geometry of a gather of one element of each window.

    ``positions`` has the element's row-major index inside each window. It is split into
    an index along each window axis, from the last axis to the first. The element's
    coordinate is ``window * stride + index * dilation``.
    """
    shape = positions.type.shape
    coordinates: list[Atom] = []
    remaining = positions
    for k in reversed(range(len(geometry.axes))):
        size, within = geometry.sizes[k], remaining
        if k:
            quotient = e.floor_divide(remaining, size)
            within = e.sub(remaining, e.mul(quotient, size))
            remaining = quotient
        begin = count_along(shape, geometry.axes[k], geometry.strides[k])
        coordinates.insert(0, e.add(begin, e.mul(within, geometry.dilations[k])))
    kept = tuple(axis for axis in range(len(shape)) if axis not in geometry.axes)
    windows = Windows(
        window_axes=(),
        collapsed_axes=geometry.axes,
        indexed_axes=geometry.axes,
        batch=(kept, kept),
    )
    return positions_of(coordinates), windows


# window_take


def _take_types(x: ArrayType, positions: ArrayType, **params: Any) -> ArrayType:
    """Type rule: one element for each window."""
    geometry = SlidingWindows(**params)
    geometry.check("window_take", x)
    _check("window_take", x, positions, geometry.shape(x.shape))
    return x.with_shape(positions.shape)


def _take_reference(x: Array, positions: Array, **params: Any) -> Array:
    """Take the element of each window at its position, by ``np.take_along_axis``."""
    geometry = SlidingWindows(**params)
    count = math.prod(geometry.sizes)
    border = [(low, high) for low, high, _ in geometry.config(x.ndim)]
    windows = geometry.inside().of(np.pad(x, border))
    flat = windows.reshape(*positions.shape, count)
    return np.take_along_axis(flat, positions[..., None], -1)[..., 0]


def _take_expand(x: Atom, positions: Atom, **params: Any) -> Atom:
    """Emit window_take as a gather, of the operand with zeros for its padding."""
    if not positions.type.size:
        return views.zeros(x.type.with_shape(positions.type.shape))
    geometry = SlidingWindows(**params)
    if not geometry.axes:
        return x  # each window is an element
    if geometry.padding:
        zero = conversion.literal(0, x.type.dtype)
        x = slicing.pad(x, zero, config=geometry.config(x.type.ndim))
    coordinates, windows = _gather_indices(positions, geometry)
    sizes = (1,) * x.type.ndim
    options = {"sizes": sizes, "mode": "promise_in_bounds", "fill_value": None}
    return indexing.gather(x, coordinates, **windows.params(), **options)


def _positions(shape: Shape, geometry: SlidingWindows, seed: int) -> Array:
    """Return random positions inside windows, for an array of windows of ``shape``."""
    count = math.prod(geometry.sizes)
    return np.random.default_rng(seed).integers(0, count, shape).astype(np.int32)


def _take_samples() -> Iterable[Sample]:
    """Yield windows in three dtypes, and with a border, for the table tests."""
    for k, dtype in enumerate((dtypes.float32, dtypes.float64, dtypes.bfloat16)):
        shape, geometry = GEOMETRIES[k % 2]
        x = families.random_array(dtype, shape, 71 + k)
        positions = _positions(geometry.shape(shape), geometry, 74 + k)
        yield Sample((x, positions), geometry.params())
    x = families.random_array(dtypes.float32, (5, 4), 77)
    positions = _positions(BORDERED.shape(x.shape), BORDERED, 78)
    yield Sample((x, positions), BORDERED.params())


window_take = Primitive(
    name="window_take",
    family="windowed",
    types=_take_types,
    reference=_take_reference,
    kernel=Composition(_take_expand),
    jvp=jvp_of_first(Emitter("window_take")),
    transpose=transposed_first(
        lambda ct, type, positions, **params: window_put(
            ct,
            positions,
            **params,
            extents=tuple(type.shape[axis] for axis in params["axes"]),
        )
    ),
    batch=batched_windows("window_take"),
    samples=_take_samples,
    doc="The element of each window at its position.",
)


# window_put


def _put_types(
    values: ArrayType, positions: ArrayType, *, extents: Shape, **params: Any
) -> ArrayType:
    """Type rule: the operand of ``window_take``, with ``extents`` along window axes."""
    geometry = SlidingWindows(**params)
    extent_of = dict(zip(geometry.axes, extents, strict=True))
    result = values.with_shape(extent_of.get(k, n) for k, n in enumerate(values.shape))
    geometry.check("window_put", result)
    _check("window_put", values, positions, geometry.shape(result.shape))
    if values.shape != positions.shape:
        raise ShapeError(f"window_put: {values} does not lie at positions {positions}")
    return result


def _put_reference(
    values: Array, positions: Array, *, extents: Shape, **params: Any
) -> Array:
    """Add the values to zeros, one position inside the windows after the other.

    The elements at one position are a strided slice of the result. Each value that has
    this position is added there.
    """
    geometry = SlidingWindows(**params)
    shape = list(values.shape)
    for axis, n in zip(geometry.axes, extents, strict=True):
        shape[axis] = n
    shape = list(geometry.padded_shape(tuple(shape)))
    compute_dtype = dtypes.compute_dtype(values.dtype)
    result = np.zeros(shape, compute_dtype)
    coordinates = itertools.product(*(range(n) for n in geometry.sizes))
    for number, position_in_window in enumerate(coordinates if positions.size else ()):
        index = [slice(None)] * result.ndim
        for k, axis in enumerate(geometry.axes):
            begin, stride = (
                position_in_window[k] * geometry.dilations[k],
                geometry.strides[k],
            )
            last = begin + (values.shape[axis] - 1) * stride + 1
            index[axis] = slice(begin, last, stride)
        result[tuple(index)] += np.where(positions == number, values, 0).astype(
            compute_dtype
        )
    inside = zip(geometry.config(result.ndim), result.shape, strict=True)
    kept = tuple(slice(low, n - high) for (low, high, _), n in inside)
    return np.ascontiguousarray(result[kept]).astype(values.dtype)


def _put_expand(
    values: Atom, positions: Atom, *, extents: Shape, **params: Any
) -> Atom:
    """Emit window_put as a scatter_add into zeros, and remove the padding."""
    type = _put_types(values.type, positions.type, extents=extents, **params)
    geometry = SlidingWindows(**params)
    whole = geometry.padded_shape(type.shape)
    zeros = views.zeros(type.with_shape(whole))
    if not positions.type.size:
        return views.zeros(type)
    if not geometry.axes:
        return values  # each window is an element
    coordinates, windows = _gather_indices(positions, geometry)
    options = {"mode": "drop", "unique_indices": False}
    scattered = emitters.scatter_add(
        zeros, coordinates, values, **windows.params(), **options
    )
    return geometry.unpadded(scattered, type.shape)


def put_in_phases(
    values: Atom, positions: Atom, *, extents: Shape, **params: Any
) -> Atom | None:
    """Emit ``window_put`` as sums for each element of the result, without a scatter.

    ``values`` and ``positions`` have one element for each window: a value, and the
    position inside the window to which it is added. ``extents`` are the operand's along
    the windows' axes, and ``params`` the windows' geometry.

    The result's elements with the same offset modulo the strides form a *phase*. An
    element sums the values of the few windows that contain it, if the window's position
    is this element. For all elements of a phase, these windows have the same distances.
    For windows of 3 with stride 2, element 2 i of phase 0 is in windows i and i - 1,
    and element 2 i + 1 of phase 1 is in window i.

    Returns None, and emits nothing, for windows with dilation or padding, and if there
    were more than 16 phases or terms of a sum.
    """
    geometry = SlidingWindows(**params)
    sizes, strides, axes = geometry.sizes, geometry.strides, geometry.axes
    max_distance = [
        (size - 1) // stride for size, stride in zip(sizes, strides, strict=True)
    ]
    if (
        max(geometry.dilations, default=1) > 1
        or geometry.padding
        or math.prod(strides) > _MAX_PHASES
        or math.prod(n + 1 for n in max_distance) > _MAX_PHASES
        or not positions.type.size
    ):
        return None
    type = _put_types(values.type, positions.type, extents=extents, **params)
    counts = [-(-n // stride) for n, stride in zip(extents, strides, strict=True)]
    # Pad by windows that have no position, so that all elements have as many windows.
    config = [(0, 0, 0)] * type.ndim
    for axis, before, count in zip(axes, max_distance, counts, strict=True):
        config[axis] = (before, count - positions.type.shape[axis], 0)
    no_position = conversion.literal(-1, dtypes.int32)
    padded_positions = slicing.pad(positions, no_position, config=tuple(config))
    no_value = conversion.literal(0, type.dtype)
    padded_values = slicing.pad(values, no_value, config=tuple(config))
    phases = _Phases(
        padded_values, padded_positions, geometry, tuple(max_distance), tuple(counts)
    )
    result = _interleaved(phases.sums, axes, strides)
    if result.type.shape == type.shape:
        return result
    return slicing.block(result, (0,) * type.ndim, type.shape)


@frozen
class _Phases:
    """The padded values and positions of ``put_in_phases``, by phases of elements.

    An element of a phase is in the window that begins last before it, and in up to
    ``max_distance`` windows before that one, along each window axis. A phase has
    ``counts`` elements along these axes.
    """

    values: Atom
    positions: Atom
    geometry: SlidingWindows
    max_distance: tuple[int, ...]
    counts: tuple[int, ...]

    def shifted_by_windows(self, x: Atom, distance: Sequence[int]) -> Atom:
        """Slice ``x`` to have, for each element of a phase, the value of one window.

        It is the window that begins ``distance`` windows, along each window axis,
        before the window that begins last before the element.
        """
        start, limit = [0] * x.type.ndim, list(x.type.shape)
        for axis, padding, count, n in zip(
            self.geometry.axes, self.max_distance, self.counts, distance, strict=True
        ):
            start[axis] = padding - n
            limit[axis] = start[axis] + count
        return slicing.block(x, start, limit)

    def sums(self, offsets: Sequence[int]) -> Atom:
        """Emit the sums for the phase of elements at ``offsets`` modulo the strides.

        Element i of the phase may be in window i - n for each ``distance`` n up to
        ``max_distance``. It gets that window's value if the window's position is this
        element.
        """
        sizes, strides = self.geometry.sizes, self.geometry.strides
        compute_dtype = dtypes.compute_dtype(self.values.type.dtype)
        zero = conversion.literal(0, compute_dtype)
        total: Atom | None = None
        for distance in itertools.product(*(range(n + 1) for n in self.max_distance)):
            position_in_window = [
                offset + n * stride
                for offset, n, stride in zip(offsets, distance, strides, strict=True)
            ]
            if any(
                position >= size
                for position, size in zip(position_in_window, sizes, strict=True)
            ):
                continue  # the window ends before the element
            number = int(np.ravel_multi_index(position_in_window, sizes))
            is_hit = discrete.eq(
                self.shifted_by_windows(self.positions, distance),
                conversion.literal(number, dtypes.int32),
            )
            value = conversion.convert(
                self.shifted_by_windows(self.values, distance), compute_dtype
            )
            term = e.select(is_hit, value, zero)
            total = term if total is None else e.add(total, term)
        if total is None:  # strides exceed sizes: these elements are in no window
            nearest = self.shifted_by_windows(self.positions, [0] * len(sizes))
            total = views.zeros(ArrayType(nearest.type.shape, compute_dtype))
        return conversion.convert(total, self.values.type.dtype)


def _interleaved(
    phase: Callable[[Sequence[int]], Atom], axes: Sequence[int], strides: Sequence[int]
) -> Atom:
    """Interleave phases along ``axes`` into one array.

    ``phase(offsets)`` returns the elements ``offset + i * stride`` along each of
    ``axes``, for one offset below each stride. All phases have the same shape.
    """
    parts = [phase(offsets) for offsets in itertools.product(*map(range, strides))]
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].type.shape
    stacked_parts = [views.reshape(part, shape=(1, *shape)) for part in parts]
    stacked = slicing.concatenate(*stacked_parts, axis=0)
    stacked = views.reshape(stacked, shape=(*strides, *shape))
    # Put the axis of offsets behind the axis of the elements i, and merge both.
    order: list[int] = []
    merged = list(shape)
    for axis in range(len(shape)):
        order.append(len(axes) + axis)
        if axis in axes:
            k = list(axes).index(axis)
            order.append(k)
            merged[axis] *= strides[k]
    interleaved = views.transpose(stacked, permutation=tuple(order))
    return views.reshape(interleaved, shape=tuple(merged))


def _put_samples() -> Iterable[Sample]:
    """Yield windows in three dtypes, and with a border, for the table tests."""
    for k, dtype in enumerate((dtypes.float32, dtypes.float64, dtypes.bfloat16)):
        shape, geometry = GEOMETRIES[k % 2]
        windows = geometry.shape(shape)
        x = families.random_array(dtype, windows, 81 + k)
        positions = _positions(windows, geometry, 84 + k)
        extents = tuple(shape[axis] for axis in geometry.axes)
        yield Sample((x, positions), {**geometry.params(), "extents": extents})
    windows = BORDERED.shape((5, 4))
    x = families.random_array(dtypes.float32, windows, 87)
    positions = _positions(windows, BORDERED, 88)
    yield Sample((x, positions), {**BORDERED.params(), "extents": (5, 4)})


window_put = Primitive(
    name="window_put",
    family="windowed",
    types=_put_types,
    reference=_put_reference,
    kernel=Composition(_put_expand),
    jvp=jvp_of_first(Emitter("window_put")),
    transpose=transposed_first(
        lambda ct, type, positions, extents, **params: window_take(
            ct, positions, **params
        )
    ),
    batch=batched_windows("window_put"),
    samples=_put_samples,
    tolerance=Tolerance(float32=4e-6, float64=1e-14),
    doc="Adds each window's value to zeros, at its position.",
)
