"""trapezoid, gradient, interp and unwrap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import (
    absolute,
    add,
    clip,
    divide,
    floor_divide,
    imag,
    multiply,
    real,
    remainder,
    subtract,
)
from arrayfn.numpy.comparison import (
    equal,
    greater,
    less,
    logical_and,
    where,
)
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.index_bounds import known_value
from arrayfn.numpy.indexing import take
from arrayfn.numpy.manipulation import concatenate, reshape, slice_along
from arrayfn.numpy.rearrangement import diff
from arrayfn.numpy.reductions import sum as sum_
from arrayfn.numpy.searching import searchsorted
from arrayfn.numpy.sorting import argsort
from arrayfn.primitives import complex_numbers
from arrayfn.tracing import apply


def _inexact(name: str, x: ArrayLike) -> ArrayLike:
    """Convert x to a floating-point array."""
    dtype = ops.inexact_dtype(name, ops.type_of_operand(name, x).dtype)
    return ops.as_array(ops.convert(x, dtype))


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """Return the area under y along ``axis`` by the trapezoidal rule.

    x has the points, as a vector or in y's shape. Without x, the distance of the points
    is ``dx``. The result lacks ``axis``, and integers give floats.

    >>> import numpy as np
    >>> trapezoid(np.array([1.0, 2.0, 3.0]))
    array(4.)
    """
    y = _inexact("trapezoid", y)
    place = ops.normalize_axis("trapezoid", axis, y.ndim)
    extent = y.shape[place]
    later = slice_along(y, min(1, extent), extent, place)
    earlier = slice_along(y, 0, max(extent - 1, 0), place)
    widths: Any = dx
    if x is not None:
        if ops.type_of_operand("trapezoid", x).ndim == 1:
            along = [1] * y.ndim
            along[place] = -1
            widths = reshape(diff(x), tuple(along))
        else:
            widths = diff(x, axis=axis)
    return sum_(multiply(widths, multiply(0.5, add(later, earlier))), place)


def gradient(
    f: ArrayLike,
    *spacings: ArrayLike,
    axis: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> Any:
    """Return the slope of f along each ``axis``, by central differences.

    ``axis`` is an axis, several, or None for all. The spacing is 1 by default.
    ``spacings`` may have one number for all axes, or for each axis a number or a vector
    of points. At the ends, differences are one-sided. ``edge_order`` is their order, 1
    or 2. The result has the shape of f, and integers give floats. It is an array for
    one axis, otherwise a tuple. Raises ArgumentError for other spacings, ShapeError if
    an axis is too short.
    """
    f = _inexact("gradient", f)
    axes = (axis,) if isinstance(axis, (int, np.integer)) else axis
    places = ops.normalize_axes(
        "gradient", None if axes is None else tuple(axes), f.ndim
    )
    if axes is not None:  # in the order in which the caller names them
        places = tuple(ops.normalize_axis("gradient", a, f.ndim) for a in axes)
    steps: Sequence[Any] = spacings or (1.0,)
    if len(steps) == 1:
        steps = [steps[0]] * len(places)
    if len(steps) != len(places):
        raise ArgumentError(
            f"gradient takes no spacing, one, or one for each of the {len(places)} "
            f"axes, not {len(steps)}",
            user_location(),
        )
    if edge_order not in (1, 2):
        raise ArgumentError(
            f"gradient has edge_order 1 and 2, not {edge_order}", user_location()
        )
    slopes = [
        _slope(f, ops.as_array(step), place, edge_order)
        for step, place in zip(steps, places, strict=True)
    ]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slope(f: Array, step: Any, axis: int, edge_order: int) -> Array:
    """Return the derivative of f along ``axis``, by differences of order 2.

    At the ends, differences are one-sided and of ``edge_order``. ``step`` is the
    distance of points, or a vector of their positions. Raises ShapeError if f has too
    few elements.
    """
    extent = f.shape[axis]
    if extent < edge_order + 1:
        raise ShapeError(
            f"gradient takes at least {edge_order + 1} elements along axis {axis} of "
            f"{f.shape}",
            user_location(),
        )

    def part(begin: int, end: int) -> Array:
        """Return elements ``begin`` to ``end`` (exclusive) of f along ``axis``."""
        return slice_along(f, begin, end, axis)

    def along(x: Array) -> Array:
        """Return the vector x as an array that broadcasts with f along ``axis``."""
        shape = [1] * f.ndim
        shape[axis] = -1
        return reshape(x, tuple(shape))

    if ops.type_of_operand("gradient", step).ndim == 0:
        gaps: Any = None
        inner = divide(subtract(part(2, extent), part(0, extent - 2)), 2.0 * step)
        gap0, gap1, gap_last, gap_before = [step] * 4
    else:
        gaps = diff(step)
        before, after = gaps[:-1], gaps[1:]
        # The weights of the three neighbours in the slope of the parabola through them.
        low = along(divide(-after, before * (before + after)))
        middle = along(divide(after - before, before * after))
        high = along(divide(before, after * (before + after)))
        inner = (
            multiply(low, part(0, extent - 2))
            + multiply(middle, part(1, extent - 1))
            + multiply(high, part(2, extent))
        )
        # The first two gaps, and the last two. There may be only one gap.
        gap0, gap1 = gaps[0], gaps[min(1, extent - 2)]
        gap_last, gap_before = gaps[-1], gaps[-min(2, extent - 1)]
    if edge_order == 1:
        first = divide(subtract(part(1, 2), part(0, 1)), gap0)
        last = divide(
            subtract(part(extent - 1, extent), part(extent - 2, extent - 1)), gap_last
        )
    else:
        first = _one_sided([part(k, k + 1) for k in range(3)], gap0, gap1)
        # In reverse order the parabola has the opposite slope.
        backwards = [part(extent - 1 - k, extent - k) for k in range(3)]
        last = -_one_sided(backwards, gap_last, gap_before)
    return concatenate([first, inner, last], axis)


def _one_sided(points: Sequence[Array], near: Any, far: Any) -> Array:
    """Return the slope, at the first of three points, of the parabola through them.

    ``points`` are the values at positions 0, ``near`` and ``near + far``.
    """
    total = near + far
    first = multiply(-(2.0 * near + far) / (near * total), points[0])
    second = multiply(total / (near * far), points[1])
    return first + second - multiply(near / (far * total), points[2])


def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | Literal["extrapolate"] | None = None,
    right: ArrayLike | Literal["extrapolate"] | None = None,
    period: ArrayLike | None = None,
) -> Array:
    """Evaluate at x the piecewise linear function through the points (xp, fp).

    xp and fp are vectors of one length, and xp must ascend. The result has the shape of
    x. Outside of the points, the values are ``left`` and ``right``, which are by
    default the outermost fp. "extrapolate" continues the outermost line. With a
    ``period`` (of either sign), the points repeat, and xp need not ascend. The result
    has the operands' promoted dtype; integers give floats. ``fp`` may be complex.
    Raises ShapeError for other xp or fp, and ArgumentError if the period is 0.

    >>> import numpy as np
    >>> interp(np.array([1.5]), np.array([1.0, 2.0]), np.array([10.0, 20.0]))
    array([15.])
    """
    if ops.type_of_operand("interp", fp).dtype in dtypes.COMPLEX:

        def along(part: Callable[[Any], Array]) -> Array:
            """Interpolate one part of the complex numbers, ``real`` or ``imag``."""
            # The values outside of the points may be None or "extrapolate".
            low, high = (
                e if e is None or isinstance(e, str) else part(e) for e in (left, right)
            )
            return interp(x, xp, part(fp), low, high, period)

        return apply(complex_numbers.make_complex, along(real), along(imag))
    (x, xp, fp), _, _ = ops.promoted("interp", (x, xp, fp))
    x, xp, fp = (_inexact("interp", v) for v in (x, xp, fp))
    if xp.ndim != 1 or fp.shape != xp.shape or not xp.size:
        raise ShapeError(
            f"interp takes two vectors of points, not {xp.shape} and {fp.shape}",
            user_location(),
        )
    if period is not None:
        size = abs(period)
        if known_value(ops.as_array(size)) == 0:
            raise ArgumentError("interp takes a period that is not 0", user_location())
        x, xp = remainder(x, size), remainder(xp, size)
        order = argsort(xp)
        xp, fp = take(xp, order, mode="clip"), take(fp, order, mode="clip")
        # Repeat the outermost points beyond the other end.
        xp = concatenate([xp[-1:] - size, xp, xp[:1] + size])
        fp = concatenate([fp[-1:], fp, fp[:1]])
        left = right = None
    extent = xp.shape[0]
    if extent == 1:
        value = add(multiply(x, 0.0), fp[0])  # fp[0] in the shape of x; NaN for NaN
    else:
        place = clip(searchsorted(xp, x, "right"), 1, extent - 1)
        x0, f0 = take(xp, place - 1, mode="clip"), take(fp, place - 1, mode="clip")
        x1, f1 = take(xp, place, mode="clip"), take(fp, place, mode="clip")
        width = subtract(x1, x0)
        repeated = equal(width, 0)  # two points at the same place
        slope = divide(subtract(f1, f0), where(repeated, 1, width))
        value = where(repeated, f0, add(f0, multiply(subtract(x, x0), slope)))
    if not isinstance(left, str):
        value = where(less(x, xp[0]), fp[0] if left is None else left, value)
    if not isinstance(right, str):
        value = where(greater(x, xp[-1]), fp[-1] if right is None else right, value)
    return value


def unwrap(
    p: ArrayLike,
    discont: float | None = None,
    axis: int = -1,
    period: float = 2 * math.pi,
) -> Array:
    """Add multiples of ``period`` to angles along ``axis`` to remove jumps.

    A jump is a difference of neighbours of more than ``discont``, and of more than half
    a period. The result has the shape of p. Integers stay integers if the period is an
    integer, and otherwise become floats.
    """
    type = ops.type_of_operand("unwrap", p)
    place = ops.normalize_axis("unwrap", axis, type.ndim)
    whole = type.dtype in dtypes.INTEGERS and isinstance(period, int)
    if not whole:
        dtype = ops.floating_dtype(ops.common_dtype("unwrap", (p, period)))
        p = ops.as_array(ops.convert(p, dtype))
    half: Any = floor_divide(period, 2) if whole else period / 2
    steps = diff(p, axis=place)
    # Steps modulo the period, in [-half, half); a step of exactly half stays positive.
    wrapped = subtract(remainder(add(steps, half), period), half)
    if not (whole and period % 2):  # an odd integer period has no step of exactly half
        at_end = logical_and(equal(wrapped, -half), greater(steps, 0))
        wrapped = where(at_end, half, wrapped)
    limit = half if discont is None or discont < half else discont
    change = where(less(absolute(steps), limit), 0, subtract(wrapped, steps))
    extent = type.shape[place]
    rest = slice_along(p, min(1, extent), extent, place)
    first = slice_along(p, 0, min(1, extent), place)
    corrections = ops.convert(cumsum(change, place), p.dtype)
    return concatenate([first, add(rest, corrections)], place)
