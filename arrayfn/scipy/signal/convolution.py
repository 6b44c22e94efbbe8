"""Convolution and correlation of signals: directly, or through Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, fft, lax
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.primitives.convolution import conv_general
from arrayfn.primitives.convolution_forms import Roles
from arrayfn.tracing import apply

DIRECT: Final = 64
"""Up to this number of elements of the smaller operand, "auto" is "direct"."""
MODES: Final = ("full", "same", "valid")


@also_takes("precision")
def convolve(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto"
) -> Array:
    """Convolve two arrays with the same number of axes.

    ``mode`` is "full", "same" or "valid". "same" gives the central part, with the shape
    of ``in1``. "valid" gives only full overlaps. ``method`` is "direct", "fft", or
    "auto", which uses transforms for long floating-point operands.

    >>> import numpy as np
    >>> convolve(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.5]))
    array([0. , 1. , 2.5, 4. , 1.5])
    """
    x, y = _operands("convolve", in1, in2, mode)
    if mode == "valid":
        x, y = _larger_first("convolve", x, y)
    if method not in ("auto", "direct", "fft"):
        raise ArgumentError(
            f"convolve has the methods 'auto', 'direct' and 'fft', not {method!r}",
            user_location(),
        )
    if method == "auto":
        short = min(math.prod(x.shape), math.prod(y.shape)) <= DIRECT
        method = "direct" if short or x.dtype not in dtypes.INEXACT else "fft"
    if method == "fft":
        result = fftconvolve(x, y, mode)
        if x.dtype in dtypes.INEXACT:
            return result
        # Round before the conversion, which wraps integers, but not floats, around.
        return ops.convert(ops.convert(anp.rint(result), dtypes.int64), x.dtype)
    # A convolution is a correlation (``_valid``) with the reversed kernel.
    pads = _pads(y.shape, mode)
    if any(pad != (0, 0) for pad in pads):
        x = lax.pad(x, 0, [(low, high, 0) for low, high in pads])
    return _valid(x, lax.rev(y, range(len(y.shape))))


@also_takes("precision")
def correlate(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto"
) -> Array:
    """Correlate two arrays: ``convolve`` with the reversed conjugate of ``in2``.

    ``mode`` and ``method`` are those of ``convolve``.

    >>> import numpy as np
    >>> correlate(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.5]))
    array([0.5, 2. , 3.5, 3. , 0. ])
    """
    ndim = ops.type_of_operand("correlate", in2).ndim
    reverse = lax.rev(in2, range(ndim))
    return convolve(in1, anp.conj(reverse), mode, method)


@also_takes("precision")
def convolve2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
) -> Array:
    """Convolve two matrices.

    ``boundary`` says how ``in1`` is extended: by ``fillvalue`` ("fill"), periodically
    ("wrap"), or by its mirror image ("symm").
    """
    x, y = _operands("convolve2d", in1, in2, mode)
    if len(x.shape) != 2:
        raise ShapeError(
            f"convolve2d takes matrices, not arrays of shapes {x.shape} and {y.shape}",
            user_location(),
        )
    if mode == "valid":
        x, y = _larger_first("convolve2d", x, y)
    pads = _pads(y.shape, mode)
    modes = {"wrap": "wrap", "symm": "symmetric"}
    if boundary == "fill":
        x = lax.pad(x, fillvalue, [(low, high, 0) for low, high in pads])
    elif boundary in modes:
        x = anp.pad(x, pads, modes[boundary])
    else:
        raise ArgumentError(
            "convolve2d has the boundaries 'fill', 'wrap' and 'symm', not "
            f"{boundary!r}",
            user_location(),
        )
    return _valid(x, lax.rev(y, (0, 1)))


@also_takes("precision")
def correlate2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
) -> Array:
    """Correlate two matrices: ``convolve2d`` with the reversed conjugate of ``in2``.

    The arguments are those of ``convolve2d``. In mode "valid", if ``in1`` is the
    smaller matrix, ``in1`` is conjugated instead of ``in2``, and the result is
    reversed. SciPy's ``correlate2d`` does the same, but its ``correlate`` does not.
    """
    if mode == "valid":
        x, y = _operands("correlate2d", in1, in2, mode)
        larger, _ = _larger_first("correlate2d", x, y)
        if larger is not x:
            return convolve2d(y, lax.rev(anp.conj(x), (0, 1)), mode)[::-1, ::-1]
    reverse = lax.rev(in2, range(ops.type_of_operand("correlate2d", in2).ndim))
    if mode == "same":
        # An even extent has two centres; use the first.
        x, y = _operands("correlate2d", in1, in2, mode)
        full = convolve2d(x, anp.conj(reverse), "full", boundary, fillvalue)
        starts = [n // 2 for n in y.shape]
        limits = [s + n for s, n in zip(starts, x.shape, strict=True)]
        return lax.slice(full, starts, limits)
    return convolve2d(in1, anp.conj(reverse), mode, boundary, fillvalue)


def fftconvolve(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    axes: Sequence[int] | int | None = None,
) -> Array:
    """Convolve along ``axes`` (None: all) by Fourier transforms.

    The other axes broadcast. Integers are converted to floating-point numbers. ``mode``
    is that of ``convolve``. The transforms have a length of factors 2, 3 and 5 that is
    at least that of the full convolution, so the product of transforms does not wrap
    around.

    >>> import numpy as np
    >>> fftconvolve(np.array([1.0, 2.0]), np.array([3.0, 4.0])).round(12)
    array([ 3., 10.,  8.])
    """
    x, y = _operands("fftconvolve", in1, in2, mode, axes)
    dtype = ops.inexact_dtype("fftconvolve", x.dtype)
    x, y = ops.convert(x, dtype), ops.convert(y, dtype)
    ndim = len(x.shape)
    axes_or_all = (
        axes if axes is None or isinstance(axes, (int, np.integer)) else tuple(axes)
    )
    along = ops.normalize_axes("fftconvolve", axes_or_all, ndim)
    if mode == "valid":
        x, y = _larger_first("fftconvolve", x, y, along)
    if not along or 0 in (*x.shape, *y.shape):
        return anp.multiply(x, y)
    full = tuple(x.shape[axis] + y.shape[axis] - 1 for axis in along)
    lengths = [fast_length(n) for n in full]
    if x.dtype in dtypes.COMPLEX:
        product = anp.multiply(fft.fftn(x, lengths, along), fft.fftn(y, lengths, along))
        result = fft.ifftn(product, lengths, along)
    else:
        product = anp.multiply(
            fft.rfftn(x, lengths, along), fft.rfftn(y, lengths, along)
        )
        result = fft.irfftn(product, lengths, along)
    result = ops.convert(result, x.dtype)
    # Cut the centre of the full convolution, of the size that ``mode`` wants.
    starts, limits = [0] * ndim, list(result.shape)
    for axis, n in zip(along, full, strict=True):
        wanted = n
        if mode == "same":
            wanted = x.shape[axis]
        elif mode == "valid":
            wanted = x.shape[axis] - y.shape[axis] + 1
        starts[axis] = (n - wanted) // 2
        limits[axis] = starts[axis] + wanted
    return lax.slice(result, starts, limits)


def fast_length(n: int) -> int:
    """Return the smallest number >= ``n`` whose prime factors are all 2, 3 or 5.

    >>> [fast_length(n) for n in (1, 7, 11, 1021)]
    [1, 8, 12, 1024]
    """
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


def _operands(
    name: str,
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str,
    axes: Sequence[int] | int | None = None,
) -> tuple[Array, Array]:
    """Convert both operands to one dtype, and check them.

    Errors, which call the function ``name``, are ArgumentError for an unknown ``mode``,
    and ShapeError for different numbers of axes. With ``axes=None``, arrays without
    elements are ShapeErrors too.
    """
    if mode not in MODES:
        raise ArgumentError(
            f"{name} has the modes 'full', 'same' and 'valid', not {mode!r}",
            user_location(),
        )
    (x, y), types, _ = ops.promoted(name, (in1, in2))
    if types[0].ndim != types[1].ndim or not types[0].ndim:
        raise ShapeError(
            f"{name} takes arrays with the same number of axes, and at least one, but "
            f"was given {types[0]} and {types[1]}",
            user_location(),
        )
    if axes is None and 0 in (*types[0].shape, *types[1].shape):
        raise ShapeError(
            f"{name} takes arrays that have elements, not {types[0]} and {types[1]}",
            user_location(),
        )
    return ops.as_array(x), ops.as_array(y)


def _larger_first(
    name: str, x: Array, y: Array, axes: Sequence[int] | None = None
) -> tuple[Array, Array]:
    """Return ``x`` and ``y`` in the order that puts the larger one first.

    The larger one is at least as long along each of ``axes`` (None: all). Raises
    ShapeError, about the function ``name``, if neither is.
    """
    along = range(len(x.shape)) if axes is None else axes
    if all(x.shape[k] >= y.shape[k] for k in along):
        return x, y
    if all(y.shape[k] >= x.shape[k] for k in along):
        return y, x
    raise ShapeError(
        f"{name} in mode 'valid' takes one array that is as long as the other along "
        f"every axis, not shapes {x.shape} and {y.shape}",
        user_location(),
    )


def _pads(kernel: Shape, mode: str) -> list[tuple[int, int]]:
    """Return the padding (before, after) of each axis for a kernel, by ``mode``.

    ``kernel`` is the kernel's shape. With this padding, the positions where the kernel
    fits are those of "full", "same" or "valid".
    """
    if mode == "full":
        return [(n - 1, n - 1) for n in kernel]
    if mode == "same":
        return [(n - 1 - (n - 1) // 2, (n - 1) // 2) for n in kernel]
    return [(0, 0)] * len(kernel)


def _valid(x: Array, kernel: Array) -> Array:
    """Correlate ``x`` with ``kernel`` at all positions where the kernel fits.

    ``roles`` has the axes (group, batch, contracted, spatial): all axes are spatial.
    """
    axes = tuple(range(len(x.shape)))
    roles: Roles = ((), (), (), axes)
    ones = (1,) * len(axes)
    return apply(
        conv_general,
        x,
        kernel,
        lhs=roles,
        rhs=roles,
        out=roles,
        strides=ones,
        dilations=ones,
    )
