"""Change the size of images: ``resize`` and ``scale_and_translate``.

Each spatial axis is multiplied by a matrix of weights. The weights can be
differentiated with respect to the scale and the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import documentation as _documentation
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike


class ResizeMethod(Enum):
    """The methods that compute values between the elements of an image."""

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """Return the method of this name, such as "bilinear".

        Raises ArgumentError if there is no such method.
        """
        if s not in _METHODS:
            raise ArgumentError(
                f"there is no method {s!r} of resizing; there are "
                + ", ".join(map(repr, _METHODS)),
                user_location(),
            )
        return _METHODS[s]


_METHODS: Final = {
    "nearest": ResizeMethod.NEAREST,
    **dict.fromkeys(
        ("linear", "bilinear", "trilinear", "triangle"), ResizeMethod.LINEAR
    ),
    "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5,
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), ResizeMethod.CUBIC),
    **dict.fromkeys(("cubic-pytorch", "bicubic-pytorch"), ResizeMethod.CUBIC_PYTORCH),
    "area": ResizeMethod.AREA,
}


def _triangle(x: Array) -> Array:
    """Return the kernel of linear interpolation at the distance ``x``."""
    return anp.maximum(0.0, 1.0 - x)


def _cubic(x: Array, a: float = -0.5) -> Array:
    """Return the cubic kernel with the parameter ``a`` at the distance ``x``.

    Keys, Cubic convolution interpolation for digital image processing, 1981.
    """
    near = (((a + 2.0) * x - (a + 3.0)) * x) * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return anp.where(x >= 2.0, 0.0, anp.where(x >= 1.0, far, near))


def _sharper_cubic(x: Array) -> Array:
    """Return the cubic kernel of PyTorch and OpenCV at the distance ``x``."""
    return _cubic(x, -0.75)


def _lanczos(radius: float) -> Callable[[Array], Array]:
    """Return the kernel sinc(x) sinc(x / radius) up to the radius (Duchon, 1979)."""

    def kernel(x: Array) -> Array:
        """Return the kernel at the distance ``x``."""
        window = anp.sinc(x) * anp.sinc(x / radius)
        return anp.where(x > radius, 0.0, window)

    return kernel


_KERNELS: Final[dict[ResizeMethod, Callable[[Array], Array]]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC: _cubic,
    ResizeMethod.CUBIC_PYTORCH: _sharper_cubic,
}


def resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: str | None = None,
) -> Array:
    """Stretch ``image`` to ``shape``; an axis whose extent stays is not changed.

    ``method`` is "nearest", "linear" (triangles), "cubic" (Keys' kernel), "lanczos3",
    "lanczos5", "area" (the mean over a pixel's area) or "cubic-pytorch". Without
    ``antialias``, "cubic-pytorch" has a sharper kernel, and repeats the edges. Pixel
    centres are at half-integers. With ``antialias`` a pixel of a smaller image is the
    mean of the pixels that it covers. ``precision`` is as for ``matmul``. Integers are
    converted to floating-point numbers, except for "nearest".

    Raises ShapeError if ``shape`` has another number of axes than ``image``.

    >>> resize(np.array([1.0, 3.0]), (4,), "linear")
    array([1. , 1.5, 2.5, 3. ])
    """
    type = ops.type_of_operand("resize", image)
    wanted = ops.as_shape("resize", tuple(shape))
    if len(wanted) != type.ndim:
        raise ShapeError(
            f"resize: {type} and the shape {wanted} must have the same number of axes",
            user_location(),
        )
    chosen = _method(method)
    changed = [k for k in range(type.ndim) if wanted[k] != type.shape[k]]
    if chosen is ResizeMethod.NEAREST:
        value = anp.asarray(image)
        for k in changed:
            centres = (np.arange(wanted[k]) + 0.5) * type.shape[k] / wanted[k]
            value = anp.take(value, np.floor(centres).astype(np.int32), k)
        return value
    scale = np.array([wanted[k] / max(type.shape[k], 1) for k in changed])
    moved = np.zeros(len(changed))
    return scale_and_translate(
        image, wanted, changed, scale, moved, chosen, antialias, precision
    )


def scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: str | None = None,
) -> Array:
    """Scale ``image``, then move it, along ``spatial_dims``, on a grid of ``shape``.

    The element at x of the image moves to ``x * scale + translation``. ``scale`` and
    ``translation`` are vectors with an element for each of ``spatial_dims``, and have
    derivatives. Outside of the image the result is 0. Other arguments are those of
    ``resize``, but ``method`` cannot be "nearest".

    >>> scale_and_translate(
    ...     np.array([1.0, 3.0]), (3,), (0,), np.ones(1), np.ones(1), "linear"
    ... )
    array([0., 1., 3.])
    """
    chosen = _method(method)
    if chosen is ResizeMethod.NEAREST:
        raise ArgumentError(
            "scale_and_translate has no method 'nearest', which has no derivative; use "
            "resize, or take",
            user_location(),
        )
    value = ops.as_array(ops.as_floating("scale_and_translate", image))
    extents = ops.as_shape("scale_and_translate", tuple(shape))
    wide = dtypes.real_of(dtypes.compute_dtype(value.dtype))
    for number, axis in enumerate(spatial_dims):
        place = ops.normalize_axis("scale_and_translate", axis, len(value.shape))
        weights = _weights(
            value.shape[place],
            extents[place],
            anp.asarray(scale)[number].astype(wide),
            anp.asarray(translation)[number].astype(wide),
            chosen,
            antialias,
        ).astype(value.dtype)
        mixed = anp.tensordot(value, weights, ((place,), (0,)), precision=precision)
        value = anp.moveaxis(mixed, -1, place)
    return value


def _method(method: str | ResizeMethod) -> ResizeMethod:
    """Return ``method``, or the ResizeMethod of that name."""
    if isinstance(method, ResizeMethod):
        return method
    return ResizeMethod.from_string(method)


def _weights(
    extent: int,
    wanted: int,
    scale: Array,
    translation: Array,
    method: ResizeMethod,
    antialias: bool,
) -> Array:
    """Return the matrix (extent, wanted) of weights along one axis.

    Element k of the result is the sum of the image's elements times column k. Element x
    of the image, of ``extent`` elements, moves to ``x * scale + translation`` in the
    result, of ``wanted`` elements. With ``antialias`` the kernel is widened where the
    image shrinks. Columns are divided by their sums, and are 0 outside of the image.
    """
    inverse = 1.0 / scale
    dtype = scale.dtype
    # The place in the image of each element of the result.
    centres = (anp.arange(wanted, dtype=dtype) + 0.5 - translation) * inverse - 0.5
    pixels = anp.arange(extent, dtype=dtype)[:, None]
    width: Any = anp.maximum(inverse, 1.0) if antialias else 1.0
    repeats_edges = method is ResizeMethod.CUBIC_PYTORCH and not antialias
    if method is ResizeMethod.CUBIC_PYTORCH and antialias:
        method = ResizeMethod.CUBIC
    if method is ResizeMethod.AREA:
        # The overlap of a result's element with one of the image.
        begin = centres + 0.5 - 0.5 * inverse
        end = anp.minimum(begin + inverse, pixels + 1.0)
        weights = anp.maximum(end - anp.maximum(begin, pixels), 0.0)
    else:
        weights = _KERNELS[method](anp.abs(centres - pixels) / width)
    if repeats_edges:
        # The first and the last element also stand for two beyond each.
        outside = np.arange(1.0, 3.0).astype(dtype)[:, None]
        before = _sharper_cubic(anp.abs(centres + outside)).sum(0)
        after = _sharper_cubic(anp.abs(centres - (extent - 1) - outside)).sum(0)
        weights = weights + anp.where(pixels == 0, before, 0.0)
        weights = weights + anp.where(pixels == extent - 1, after, 0.0)
    total = anp.sum(weights, 0, keepdims=True)
    known = anp.abs(total) > 1000.0 * float(anp.finfo(dtype).eps)
    weights = anp.where(known, weights / anp.where(known, total, 1.0), 0.0)
    if repeats_edges:
        return weights
    inside = (centres >= -0.5) & (centres <= extent - 0.5)
    return anp.where(inside, weights, 0.0)


__all__ = ["ResizeMethod", "resize", "scale_and_translate"]

_documentation.attach(__name__)
