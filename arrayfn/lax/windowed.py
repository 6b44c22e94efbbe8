"""Reductions of windows under JAX's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.lax import binary
from arrayfn.lax._operands import typed
from arrayfn.lax._padding import Padding, pairs, per_axis
from arrayfn.lax.reductions import reduce
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
# For functions with fast reductions: the primitive that reduces axes, and the one that
# reduces windows without making an array of them, if there is one.
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
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Reduce each window of ``operand`` (a pytree) by ``computation``.

    ``computation`` combines two such pytrees elementwise. It must be associative and
    commutative. ``lax.add``, ``max`` and ``min`` of a single array are fastest, and
    most other functions make an array of all windows. The other arguments have an entry
    for each axis: extents and strides of windows, padding, and the dilation of the
    operand (``base_dilation``) and of windows. Padding and gaps hold ``init_value``,
    which also enters each result once. The results have the operands' rank and dtypes.

    Raises ArgumentError if ``init_value`` has another structure, and ShapeError if the
    operands' shapes differ or an argument has not one entry for each axis.

    >>> import numpy as np
    >>> from arrayfn import lax
    >>> reduce_window(np.arange(6.0), -np.inf, lax.max, (3,), (2,), "SAME")
    array([2., 4., 5.])
    """
    name = "reduce_window"
    leaves, structure = tree.flatten(operand)
    inits = tree.leaves(init_value)
    if not leaves or tree.structure(init_value) != structure:
        raise ArgumentError(
            f"{name} takes an initial value for each operand, but was given the "
            f"structures {structure} and {tree.structure(init_value)}",
            user_location(),
        )
    each = [typed(name, x, init) for x, init in zip(leaves, inits, strict=True)]
    shapes = {ops.type_of_operand(name, x).shape for x, _ in each}
    if len(shapes) > 1:
        raise ShapeError(
            f"{name} takes operands of one shape, not {sorted(shapes)}", user_location()
        )
    ndim = len(shapes.pop())
    geometry = SlidingWindows(
        axes=tuple(range(ndim)),
        sizes=per_axis(name, "a window's extent", window_dimensions, ndim),
        strides=per_axis(name, "a stride", window_strides, ndim),
        dilations=per_axis(name, "a dilation", window_dilation, ndim),
    )
    gaps = per_axis(name, "a dilation", base_dilation, ndim)
    padded = [_padded(name, x, init, geometry, padding, gaps) for x, init in each]
    # Windows of one element at each position change nothing along their axis.
    used = [k for k in range(ndim) if geometry.sizes[k] > 1 or geometry.strides[k] > 1]
    params = {key: tuple(v[k] for k in used) for key, v in geometry.params().items()}
    if len(each) > 1 or computation not in _WINDOWED:
        windows = [_windows(x, params) for x in padded]
        starts = tree.unflatten(structure, [init for _, init in each])
        values = tree.unflatten(structure, windows)
        return reduce(values, starts, computation, range(ndim, windows[0].ndim))
    reduction, windowed = _WINDOWED[computation]
    if windowed is not None:
        result = apply(windowed, padded[0], **params)
    else:
        windows = _windows(padded[0], params)
        result = apply(reduction, windows, axes=tuple(range(ndim, windows.ndim)))
    assert isinstance(reduction.kernel, Reduction)
    # The primitives begin with their identity. Combine with another initial value.
    identity = reduction.kernel.identity(result.dtype)
    ((_, init),) = each
    result = result if _is(init, identity) else computation(result, init)
    return tree.unflatten(structure, [result])


def _padded(
    name: str,
    operand: Array,
    init: Array,
    geometry: SlidingWindows,
    padding: Padding,
    gaps: tuple[int, ...],
) -> Array:
    """Return ``operand`` with the padding around it and the gaps in it set to ``init``.

    ``padding`` is that of ``reduce_window``, for windows of ``geometry`` over the
    dilated operand. ``gaps`` are the dilations of the operand. Errors call the function
    ``name``.
    """
    extents = tuple(
        max(0, (n - 1) * gap + 1) for n, gap in zip(operand.shape, gaps, strict=True)
    )
    # The extents of dilated windows.
    parts = zip(geometry.sizes, geometry.dilations, strict=True)
    wide = tuple((size - 1) * step + 1 for size, step in parts)
    widths = pairs(name, padding, extents, wide, geometry.strides)
    config = [(*width, gap - 1) for width, gap in zip(widths, gaps, strict=True)]
    if all(entry == (0, 0, 0) for entry in config):
        return operand
    return pad(operand, init, config)


def _windows(x: Array, params: dict[str, Any]) -> Array:
    """Return all windows of x: first axes that count windows, then axes inside them.

    ``params`` are the parameters of the primitive ``sliding_windows``. The result has
    one axis for each axis of x, and one for each axis of ``params["axes"]``.
    """
    order = tuple(range(x.ndim + len(params["axes"])))
    return apply(sliding_windows, x, **params, order=order)


def _is(init: Array, identity: PythonScalar) -> bool:
    """Return whether ``init`` is a known scalar, and equals ``identity``.

    The value of a traced array is not known.
    """
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
    """Apply the pooling ``primitive`` to windows over the spatial axes of ``x``.

    ``x`` has axes (batch..., spatial..., features), and so has the result.
    ``window_shape`` has an extent for each spatial axis, and ``strides`` and
    ``padding`` are as in ``reduce_window``. Padding is filled with the identity of the
    reduction. Raises ArgumentError if ``x`` has too few axes.
    """
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
    dilations = (1,) * len(spatial)
    windows = SlidingWindows(spatial, sizes, jumps, dilations)
    return apply(primitive, x, **windows.params())


def _filler(primitive: Primitive, dtype: DType) -> Array:
    """Return the identity of the reduction ``primitive`` as a scalar array."""
    value = window_reductions.identity_of(primitive, dtype)
    return np.asarray(value).astype(dtype)


def window_size(window_shape: Sequence[int]) -> int:
    """Return the number of elements of a window."""
    return math.prod(int(n) for n in window_shape)


__all__ = ["reduce_window"]
