"""Reductions of windows under JAX's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lax import binary
from arrayfn.lax._operands import typed
from arrayfn.lax._padding import Padding, pairs, per_axis
from arrayfn.lax.structure import pad
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import reductions, window_reductions
from arrayfn.primitives.base import Primitive, Reduction
from arrayfn.primitives.windowed import SlidingWindows, sliding_windows
from arrayfn.tracing import ImmutableArray, apply

_SUM = reductions.reduce_sum, window_reductions.reduce_window_sum
_MAX = reductions.reduce_max, window_reductions.reduce_window_max
_MIN = reductions.reduce_min, window_reductions.reduce_window_min
_WINDOWED: dict[Any, tuple[Primitive, Primitive | None]] = {
    binary.add: _SUM,
    anp.add: _SUM,
    binary.max: _MAX,
    anp.maximum: _MAX,
    binary.min: _MIN,
    anp.minimum: _MIN,
    binary.mul: (reductions.reduce_prod, None),
    anp.multiply: (reductions.reduce_prod, None),
    binary.bitwise_and: (reductions.reduce_and, None),
    binary.bitwise_or: (reductions.reduce_or, None),
}


def reduce_window(
    operand: ArrayLike,
    init_value: ArrayLike,
    computation: Callable[[Array, Array], Array],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """Each window of ``operand``, reduced by ``computation``.

    ``computation`` is one of ``lax.add``, ``max``, ``min``, ``mul``, ``bitwise_and``
    and ``bitwise_or``, or NumPy's function for the first four. The other arguments have
    an entry for each axis: extents and strides of windows, padding, and the dilation of
    the operand (``base_dilation``) and of windows. Padding and gaps have
    ``init_value``, with which each result is combined too.

    >>> import numpy as np
    >>> from arrayfn import lax
    >>> reduce_window(np.arange(6.0), -np.inf, lax.max, (3,), (2,), "SAME")
    array([2., 4., 5.])
    """
    name = "reduce_window"
    if computation not in _WINDOWED:
        raise ArgumentError(
            f"reduce_window reduces by lax.add, max, min, mul, bitwise_and or "
            f"bitwise_or, not by {computation!r}; for another function, reduce the "
            "windows of lax.conv_general_dilated_patches or stack slices",
            user_location(),
        )
    operand, init = typed(name, operand, init_value)
    ndim = ops.type_of_operand(name, operand).ndim
    geometry = SlidingWindows(
        tuple(range(ndim)),
        per_axis(name, "a window's extent", window_dimensions, ndim),
        per_axis(name, "a stride", window_strides, ndim),
        per_axis(name, "a dilation", window_dilation, ndim),
    )
    gaps = per_axis(name, "a dilation", base_dilation, ndim)
    operand = _padded(name, operand, init, geometry, padding, gaps)
    reduction, windowed = _WINDOWED[computation]
    used = [k for k in range(ndim) if geometry.sizes[k] > 1 or geometry.strides[k] > 1]
    params = {key: tuple(v[k] for k in used) for key, v in geometry.params().items()}
    if windowed is not None:
        result = apply(windowed, operand, **params)
    else:
        result = _of_copies(reduction, operand, params)
    assert isinstance(reduction.kernel, Reduction)
    identity = reduction.kernel.identity(result.dtype)
    return result if _is(init, identity) else computation(result, init)


def _padded(
    name: str,
    operand: Array,
    init: Array,
    geometry: SlidingWindows,
    padding: Padding,
    gaps: tuple[int, ...],
) -> Array:
    """The operand padded and dilated with ``init``.

    ``gaps`` are the dilations of the operand; errors call the function ``name``.
    """
    extents = tuple(
        max(0, (n - 1) * gap + 1) for n, gap in zip(operand.shape, gaps, strict=True)
    )
    parts = zip(geometry.sizes, geometry.dilations, strict=True)
    wide = tuple((size - 1) * step + 1 for size, step in parts)
    widths = pairs(name, padding, extents, wide, geometry.strides)
    config = [(*width, gap - 1) for width, gap in zip(widths, gaps, strict=True)]
    if all(entry == (0, 0, 0) for entry in config):
        return operand
    return pad(operand, init, config)


def _of_copies(reduction: Primitive, x: Array, params: dict[str, Any]) -> Array:
    """A reduction of the windows of ``x`` that has no primitive of its own.

    It is over the array of all windows. ``params`` are those of sliding_windows.
    """
    ndim = len(x.shape)
    order = tuple(range(ndim + len(params["axes"])))
    windows = apply(sliding_windows, x, **params, order=order)
    return apply(reduction, windows, axes=order[ndim:])


def _is(init: Array, identity: PythonScalar) -> bool:
    """Whether ``init`` is known to be the identity."""
    if isinstance(init, ImmutableArray):
        return False
    value = np.asarray(init)
    return value.ndim == 0 and bool(value == np.asarray(identity).astype(value.dtype))


def pooled(
    primitive: Primitive,
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> Array:
    """Windows of ``window_shape`` over all axes but the first and the last."""
    name = primitive.name
    (x,) = typed(name, x)
    type = ops.type_of_operand(name, x)
    spatial = tuple(range(type.ndim - 1 - len(tuple(window_shape)), type.ndim - 1))
    if not spatial or spatial[0] < 0:
        raise ArgumentError(
            f"pooling takes (batch..., spatial..., features) and windows for the "
            f"spatial axes, but was given {type} and {tuple(window_shape)}",
            user_location(),
        )
    sizes = per_axis(name, "a window's extent", window_shape, len(spatial))
    jumps = per_axis(name, "a stride", strides, len(spatial))
    extents = tuple(type.shape[axis] for axis in spatial)
    config = [(0, 0, 0)] * type.ndim
    widths = pairs(name, padding, extents, sizes, jumps)
    for axis, (low, high) in zip(spatial, widths, strict=True):
        config[axis] = (low, high, 0)
    if any(entry != (0, 0, 0) for entry in config):
        x = pad(x, _filler(primitive, type.dtype), config)
    ones = (1,) * len(spatial)
    return apply(primitive, x, **SlidingWindows(spatial, sizes, jumps, ones).params())


def _filler(primitive: Primitive, dtype: DType) -> Array:
    value = window_reductions.identity_of(primitive, dtype)
    return np.asarray(value).astype(dtype)


def window_size(window_shape: Sequence[int]) -> int:
    """The number of elements of a window."""
    return math.prod(int(n) for n in window_shape)


__all__ = ["reduce_window"]
