"""Reductions of sliding windows: sums, extrema, and the positions of extrema.

Windows are not copied: their elements are slices of the operand, which are combined in
one kernel. Long windows are combined from shorter ones. See ``windowed`` for the
geometry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import DTypeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import (
    conversion,
    discrete,
    families,
    reductions,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Composition,
    JvpRule,
    Primitive,
    Reduction,
    Sample,
    Tolerance,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import jvp_alone, transposed_first
from arrayfn.primitives.window_elements import window_take
from arrayfn.primitives.windowed import (
    BORDERED,
    GEOMETRIES,
    SlidingWindows,
    batched_windows,
    sliding_windows,
    spread_config,
)

UNROLLED: Final = 32
"""The most elements of a window that is reduced slice by slice, in one kernel."""


def _reduce_expansion(
    combine: Callable[..., Any], reduction: Primitive
) -> Callable[..., Atom]:
    """Make the function that emits a window reduction as combinations of slices.

    ``combine`` is the primitive of two operands that ``reduction`` applies along axes.
    """

    def expand(x: Atom, **params: Any) -> Atom:
        """Emit short windows as one combination, and long ones axis by axis.

        Long windows that lie side by side are reduced as blocks of a reshape.
        """
        geometry = SlidingWindows(**params)
        shape = geometry.shape(x.type.shape)
        if 0 in shape:
            return views.zeros(x.type.with_shape(shape))
        x, geometry = _padded(x, geometry, reduction)
        if math.prod(geometry.sizes) <= UNROLLED:
            return _folded(combine, geometry.taps(x))
        if geometry.strides == geometry.sizes and set(geometry.dilations) == {1}:
            return _blocks(reduction, x, geometry)
        # One axis after the other: each replaces the axis by its windows' results.
        # The params: axes, sizes, strides and dilations (``_padded`` left no padding).
        parts = zip(*geometry.params().values(), strict=True)
        for axis, size, stride, dilation in parts:
            x = _along_axis(combine, x, axis, size, stride, dilation)
        return x

    return expand


def _padded(
    x: Atom, geometry: SlidingWindows, reduction: Primitive
) -> tuple[Atom, SlidingWindows]:
    """Pad ``x`` with the identity of ``reduction``, if windows have padding.

    Returns the padded array, and the geometry of its windows, without padding.
    """
    if not geometry.padding:
        return x, geometry
    fill = conversion.literal(_identity(reduction, x.type.dtype), x.type.dtype)
    padded = slicing.pad(x, fill, config=geometry.config(x.type.ndim))
    return padded, geometry.inside()


def _with_border(x: Array, geometry: SlidingWindows, reduction: Primitive) -> Array:
    """Pad the NumPy array ``x`` with the identity of ``reduction``, as ``_padded``."""
    if not geometry.padding:
        return x
    border = [(low, high) for low, high, _ in geometry.config(x.ndim)]
    fill = _identity(reduction, dtypes.canonical(x.dtype))
    return np.pad(x, border, constant_values=np.asarray(fill).astype(x.dtype))


def _identity(reduction: Primitive, dtype: DType) -> PythonScalar:
    """Return the identity of ``reduction`` for ``dtype``."""
    assert isinstance(reduction.kernel, Reduction)
    return reduction.kernel.identity(dtype)


def _folded(combine: Callable[..., Any], taps: Sequence[Atom]) -> Atom:
    """Combine the slices ``taps`` into one, from first to last, by ``combine``."""
    total = taps[0]
    for tap in taps[1:]:
        total = combine(total, tap)
    return total


def _blocks(reduction: Primitive, x: Atom, geometry: SlidingWindows) -> Atom:
    """Emit the reduction of windows that lie side by side, as blocks of a reshape.

    Each window axis of n elements becomes two axes: n // size windows, and the size,
    which is reduced. Elements after the last window are cut off.
    """
    limit = list(x.type.shape)
    shape: list[int] = []
    inner: list[int] = []
    sizes = dict(zip(geometry.axes, geometry.sizes, strict=True))
    for axis, n in enumerate(x.type.shape):
        if axis in sizes:
            limit[axis] = n // sizes[axis] * sizes[axis]
            shape.append(n // sizes[axis])
            inner.append(len(shape))
            shape.append(sizes[axis])
        else:
            shape.append(n)
    if tuple(limit) != x.type.shape:
        x = slicing.block(x, (0,) * x.type.ndim, limit)
    return reduction(views.reshape(x, shape=tuple(shape)), axes=tuple(inner))


def _along_axis(
    combine: Callable[..., Any], x: Atom, axis: int, size: int, stride: int, step: int
) -> Atom:
    """Emit windows along one axis by combining windows of 1, 2, 4 ... elements.

    ``combine`` is the function of two operands. Windows have ``size`` elements at a
    distance of ``step``, and begin ``stride`` elements apart. A window of 13 = 1 + 4 +
    8 elements combines windows of 1, 4 and 8 elements, which follow each other. Short
    windows combine single elements.
    """
    if size <= UNROLLED // 2:
        windows = SlidingWindows(
            (axis,), sizes=(size,), strides=(stride,), dilations=(step,)
        )
        return _folded(combine, windows.taps(x))
    count = x.type.shape[axis] - (size - 1) * step
    total: Atom | None = None
    # powers[i] is the window of ``power`` elements that begins at element i.
    powers, power, covered = x, 1, 0
    while True:
        if size & power:
            begin = covered * step
            part = slicing.slice_along(powers, axis, begin, begin + count)
            total = part if total is None else combine(total, part)
            covered += power
        if covered == size:
            break
        extent = powers.type.shape[axis] - power * step
        powers = combine(
            slicing.slice_along(powers, axis, 0, extent),
            slicing.slice_along(powers, axis, power * step, power * step + extent),
        )
        power *= 2
    assert total is not None
    # ``total`` has a window at each element: take each ``stride``-th one.
    single = SlidingWindows((axis,), sizes=(1,), strides=(stride,), dilations=(1,))
    return single.tap(total, (0,))


def _window_reduction(
    name: str,
    reduction: Primitive,
    combine: Callable[..., Any],
    *,
    accepts: frozenset[DType],
    jvp: Any,
    transpose: Any = NOT_LINEAR,
    doc: str,
) -> Primitive:
    """Make a window reduction Primitive: ``reduction`` of each window.

    Args:
        name: the primitive's name.
        reduction: the primitive that reduces along axes.
        combine: the primitive of two operands that ``reduction`` applies.
        accepts: the dtypes that the primitive takes.
        jvp: the jvp rule, or a marker.
        transpose: the transpose rule, or a marker.
        doc: what the primitive computes.
    """

    def types(x: ArrayType, **params: Any) -> ArrayType:
        """Type rule: one element for each window."""
        if x.dtype not in accepts:
            raise DTypeError(f"{name} is not defined for {x}")
        geometry = SlidingWindows(**params)
        geometry.check(name, x)
        return x.with_shape(geometry.shape(x.shape))

    def reference(x: Array, **params: Any) -> Array:
        """Reduce a view of all windows along the axes inside windows."""
        geometry = SlidingWindows(**params)
        windows = geometry.inside().of(_with_border(x, geometry, reduction))
        axes = tuple(range(x.ndim, windows.ndim))
        return reduction.reference(windows, axes=axes)

    def samples() -> Iterable[Sample]:
        """Yield windows in each dtype, and long, adjacent and bordered ones."""
        for position, dtype in enumerate(d for d in dtypes.SHORT_NAMES if d in accepts):
            shape, geometry = GEOMETRIES[position % 2]
            x = families.random_array(dtype, shape, 65 + position)
            yield Sample((x,), geometry.params())
        x = families.random_array(dtypes.float32, (60, 2), 64)
        for geometry in (
            SlidingWindows((0,), sizes=(37,), strides=(2,), dilations=(1,)),
            SlidingWindows((0,), sizes=(40,), strides=(40,), dilations=(1,)),
            BORDERED,
        ):
            yield Sample((x,), geometry.params())

    return Primitive(
        name=name,
        family="windowed",
        types=types,
        reference=reference,
        kernel=Composition(_reduce_expansion(combine, reduction)),
        jvp=jvp,
        transpose=transpose,
        batch=batched_windows(name),
        samples=samples,
        tolerance=Tolerance(float32=4e-6, float64=1e-14),
        doc=doc,
    )


def _sum_transpose(ct: Atom, type: ArrayType, **params: Any) -> Atom:
    """The transpose rule: ``ct_x[j]`` is the sum of ``ct`` of all windows that have j.

    This is a window sum, too: of ``ct`` spread by the strides, with zeros around.
    """
    if not ct.type.size:
        return views.zeros(type)
    geometry = SlidingWindows(**params)
    counts, padded_shape = geometry.count(type.shape), geometry.padded_shape(type.shape)
    config = spread_config(type.ndim, geometry, padded_shape, counts)
    spread = slicing.pad(ct, conversion.literal(0, ct.type.dtype), config=config)
    ones = (1,) * len(counts)
    by_element = SlidingWindows(geometry.axes, geometry.sizes, ones, geometry.dilations)
    sums = reduce_window_sum(spread, **by_element.params())
    return geometry.unpadded(sums, type.shape)


def _extremum_jvp(position: Emitter) -> JvpRule:
    """Make the jvp rule of window extrema: ``dy`` is ``dx`` at the extremum's position.

    ``position`` emits the position of the first extremum in each window.
    """

    def rule(x: Atom, y: Atom, t: Atom, **params: Any) -> list[Atom | None]:
        """Take the tangent at the position of each window's extremum."""
        if not y.type.size:
            return [None]
        return [window_take(t, position(x, **params), **params)]

    return jvp_alone(rule)


reduce_window_sum = _window_reduction(
    "reduce_window_sum",
    reductions.reduce_sum,
    e.add,
    accepts=dtypes.NUMBERS,
    jvp=LINEAR,
    transpose=transposed_first(_sum_transpose),
    doc="The sum of each window.",
)
reduce_window_max = _window_reduction(
    "reduce_window_max",
    reductions.reduce_max,
    e.maximum,
    accepts=dtypes.REALS,
    jvp=_extremum_jvp(Emitter("window_argmax")),
    doc="The maximum of each window, NaN if it has one; the first of equal elements "
    "gets the derivative.",
)
reduce_window_min = _window_reduction(
    "reduce_window_min",
    reductions.reduce_min,
    e.minimum,
    accepts=dtypes.REALS,
    jvp=_extremum_jvp(Emitter("window_argmin")),
    doc="The minimum of each window, NaN if it has one; the first of equal elements "
    "gets the derivative.",
)


# Positions of extrema.


def _first_position(taps: Sequence[Atom], is_better: Callable[..., Any]) -> Atom:
    """Emit, for each element, the number of the first of ``taps`` with the extremum.

    ``taps`` are arrays of one shape. NaN counts as the extremum. ``is_better(x, y)``
    says whether x takes the place of y: x > y for a maximum.
    """
    best = taps[0]
    position = views.zeros(ArrayType(best.type.shape, dtypes.int32))
    for number, tap in enumerate(taps[1:], 1):
        better = is_better(tap, best)
        if tap.type.dtype in dtypes.FLOATS:
            later_nan = discrete.bitwise_and(
                discrete.isnan(tap), discrete.bitwise_not(discrete.isnan(best))
            )
            better = discrete.bitwise_or(better, later_nan)
        best = e.select(better, tap, best)
        tap_number = conversion.literal(number, dtypes.int32)
        position = e.select(better, tap_number, position)
    return position


def _window_arg_reduction(
    name: str,
    reference: Callable[..., Array],
    is_better: Callable[..., Any],
    arg_reduction: Primitive,
    extremum: Primitive,
) -> Primitive:
    """Make the Primitive of the position of an extremum in each window.

    ``reference`` is np.argmax or np.argmin, and ``arg_reduction`` the primitive of this
    name. ``is_better(x, y)`` says whether x takes the place of y. ``extremum`` is the
    reduction to the extremum, whose identity fills the padding.
    """

    def types(x: ArrayType, **params: Any) -> ArrayType:
        """Type rule: an int32 position for each window."""
        if x.dtype not in dtypes.REALS:
            raise DTypeError(f"{name} is not defined for {x}")
        geometry = SlidingWindows(**params)
        geometry.check(name, x)
        return ArrayType(geometry.shape(x.shape), dtypes.int32)

    def positions(x: Array, **params: Any) -> Array:
        """Apply ``reference`` to a view that has each window's elements last."""
        geometry = SlidingWindows(**params)
        widened = x.astype(dtypes.compute_dtype(x.dtype))
        windows = geometry.inside().of(_with_border(widened, geometry, extremum))
        flat = windows.reshape(*geometry.shape(x.shape), math.prod(geometry.sizes))
        return np.asarray(reference(flat, axis=-1)).astype(dtypes.int32)

    def expand(x: Atom, **params: Any) -> Atom:
        """Emit comparisons of slices for short windows.

        Long windows are copied side by side, for ``arg_reduction``.
        """
        geometry = SlidingWindows(**params)
        shape = geometry.shape(x.type.shape)
        count = math.prod(geometry.sizes)
        if 0 in shape:
            return views.zeros(ArrayType(shape, dtypes.int32))
        x, geometry = _padded(x, geometry, extremum)
        if count > UNROLLED:
            order = tuple(range(len(shape) + len(geometry.axes)))
            windows = sliding_windows(x, **geometry.params(), order=order)
            flat = views.reshape(windows, shape=(*shape, count))
            return arg_reduction(flat, axis=len(shape), dtype=dtypes.int32)
        return _first_position(geometry.taps(x), is_better)

    def samples() -> Iterable[Sample]:
        """Yield windows in each real dtype, and long and bordered ones."""
        for position, dtype in enumerate(
            d for d in dtypes.SHORT_NAMES if d in dtypes.REALS
        ):
            shape, geometry = GEOMETRIES[position % 2]
            x = families.random_array(dtype, shape, 66 + position, -2.0, 2.0)
            yield Sample((x,), geometry.params())
        x = families.random_array(dtypes.int32, (45, 2), 67)
        long = SlidingWindows((0,), sizes=(37,), strides=(2,), dilations=(1,))
        yield Sample((x,), long.params())
        yield Sample((x,), BORDERED.params())

    return Primitive(
        name=name,
        family="windowed",
        types=types,
        reference=positions,
        kernel=Composition(expand),
        jvp=ZERO_TANGENT,
        transpose=NOT_LINEAR,
        batch=batched_windows(name),
        samples=samples,
        doc="The row-major position of the first extremum in each window, or of its "
        "first NaN.",
    )


window_argmax = _window_arg_reduction(
    "window_argmax",
    np.argmax,
    discrete.gt,
    reductions.argmax,
    reductions.reduce_max,
)
window_argmin = _window_arg_reduction(
    "window_argmin",
    np.argmin,
    discrete.lt,
    reductions.argmin,
    reductions.reduce_min,
)


def identity_of(primitive: Primitive, dtype: DType) -> PythonScalar:
    """Return the padding value that does not change the window reduction."""
    reduction = {
        "reduce_window_sum": reductions.reduce_sum,
        "reduce_window_max": reductions.reduce_max,
        "window_argmax": reductions.reduce_max,
        "reduce_window_min": reductions.reduce_min,
        "window_argmin": reductions.reduce_min,
    }[primitive.name]
    return _identity(reduction, dtype)
