"""The windows of a convolution, and convolutions with a kernel per window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from arrayfn import dtypes
from arrayfn.errors import ShapeError, user_location
from arrayfn.ir.layout import ascending
from arrayfn.lax._operands import typed
from arrayfn.lax._padding import Padding, pairs, per_axis
from arrayfn.lax.convolution import DimensionNumbers, conv_dimension_numbers
from arrayfn.lax.structure import dot_general, pad, reshape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.manipulation import moveaxis
from arrayfn.primitives.windowed import SlidingWindows, sliding_windows
from arrayfn.tracing import apply


def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: DimensionNumbers = None,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Return the windows of a convolution, each flattened along the feature axis.

    The result has the axes of the output of ``conv_general_dilated``, with C *
    prod(filter_shape) features. The elements of a window are ordered by feature, then
    by the spatial axes. The elements are copied exactly, so ``precision`` has no
    effect. If ``preferred_element_type`` is given, the elements are converted to it.
    The other arguments and the errors are those of ``conv_general_dilated``.

    >>> import numpy as np
    >>> conv_general_dilated_patches(np.arange(4).reshape(1, 1, 4), (3,), (1,), "VALID")
    array([[[0, 1],
            [1, 2],
            [2, 3]]])
    """
    name = "conv_general_dilated_patches"
    (lhs,) = typed(name, lhs)
    x = ops.type_of_operand(name, lhs)
    count = x.ndim - 2
    sizes = per_axis(name, "sizes", filter_shape, count)
    # Of the second shape, the kernel's, only the rank matters here.
    numbers = conv_dimension_numbers(x.shape, (1, 1, *sizes), None)
    if dimension_numbers is not None:
        numbers = conv_dimension_numbers(x.shape, (1,) * x.ndim, dimension_numbers)
    n, c, *spatial = numbers.lhs_spec
    strides = per_axis(name, "strides", window_strides, count)
    steps = per_axis(name, "dilations", rhs_dilation, count)
    gaps = per_axis(name, "dilations", lhs_dilation, count)
    # The extents of the dilated operand, and of dilated windows.
    extents = [
        max(0, (x.shape[a] - 1) * gap + 1) for a, gap in zip(spatial, gaps, strict=True)
    ]
    wide = tuple((s - 1) * step + 1 for s, step in zip(sizes, steps, strict=True))
    config = [(0, 0, 0)] * x.ndim
    widths = pairs(name, padding, tuple(extents), wide, strides)
    for axis, (low, high), gap in zip(spatial, widths, gaps, strict=True):
        config[axis] = (low, high, gap - 1)
    # The primitive takes ascending axes.
    by_axis = sorted(zip(spatial, sizes, strides, steps, strict=True))
    axes, *rest = zip(*by_axis, strict=True) if by_axis else ((), (), (), ())
    geometry = SlidingWindows(axes, *rest)
    m, f, *out_spatial = numbers.out_spec
    # The primitive's axes are those of x, then those inside a window. Each axis of the
    # output comes from one axis of x; the feature axis also from those of the window.
    inner = [x.ndim + axes.index(axis) for axis in spatial]
    sources = {m: [n], f: [c, *inner]}
    sources |= {a: [b] for a, b in zip(out_spatial, spatial, strict=True)}
    order = tuple(axis for k in range(x.ndim) for axis in sources[k])
    padded = pad(lhs, 0, config)
    windows = apply(sliding_windows, padded, **geometry.params(), order=order)
    shape = windows.shape
    features = math.prod(shape[f : f + 1 + count])
    flat = reshape(windows, (*shape[:f], features, *shape[f + 1 + count :]))
    if preferred_element_type is None:
        return flat
    return ops.convert(flat, dtypes.canonical(preferred_element_type))


def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: DimensionNumbers = None,
    precision: str | None = None,
) -> Array:
    """Convolve ``lhs`` with a separate kernel for each spatial element of the result.

    The spatial axes of ``rhs`` are those of the result. The input features of ``rhs``
    are the elements of a window of extents ``filter_shape``, in the order of
    ``conv_general_dilated_patches``. The other arguments are those of
    ``conv_general_dilated``. Raises ShapeError if ``rhs`` has another shape.

    >>> import numpy as np
    >>> kernels = np.array([[[1.0, 1.0, 10.0], [1.0, 2.0, 0.0]]])  # O, I, places
    >>> x = np.arange(4.0).reshape(1, 1, 4)
    >>> conv_general_dilated_local(x, kernels, (1,), "VALID", (2,))
    array([[[ 1.,  5., 20.]]])
    """
    name = "conv_general_dilated_local"
    patches = conv_general_dilated_patches(
        lhs,
        filter_shape,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
    )
    x, y = ops.type_of_operand(name, lhs), ops.type_of_operand(name, rhs)
    numbers = conv_dimension_numbers(x.shape, y.shape, dimension_numbers)
    out, feature, *places = numbers.out_spec
    _, inputs, *own_places = numbers.rhs_spec
    wanted = list(y.shape)
    wanted[inputs] = patches.shape[feature]
    for axis, place in zip(own_places, places, strict=True):
        wanted[axis] = patches.shape[place]
    if y.shape != tuple(wanted):
        raise ShapeError(
            f"{name}: the windows are {patches.shape}, so that kernels for each place "
            f"have shape {tuple(wanted)}, not {y.shape}",
            user_location(),
        )
    # Batch axes in the order of the output, so that only the last two axes must move.
    order = ascending(places)
    batch = [places[k] for k in order], [own_places[k] for k in order]
    roles = (([feature], [inputs]), batch)
    product = dot_general(patches, rhs, roles, precision=precision)
    return moveaxis(product, (-2, -1), (out, feature))


__all__ = ["conv_general_dilated_local", "conv_general_dilated_patches"]
