"""Discrete Fourier transforms, with NumPy's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, plural, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import conj
from arrayfn.numpy.manipulation import moveaxis, slice_along
from arrayfn.primitives import slicing
from arrayfn.primitives.fourier import NORMS
from arrayfn.primitives.fourier import fft as _fft
from arrayfn.tracing import apply

# The normalization of the inverse transform.
_OPPOSITE: Final = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _norm(name: str, norm: str | None) -> str:
    """Return the normalization ``norm``, and "backward" for None.

    Raises ArgumentError, about the function ``name``, for unknown ones.
    """
    if norm is None:
        return "backward"
    if norm not in NORMS:
        raise ArgumentError(
            f"{name}: norm must be 'backward', 'ortho' or 'forward', not {norm!r}",
            user_location(),
        )
    return norm


def _dtype(name: str, given: DType, complex: bool) -> DType:
    """Return the dtype to which an operand of dtype ``given`` is converted.

    ``complex`` says whether the transform takes complex operands. float32, complex64
    and half precision give single precision, others double. Raises DTypeError, about
    the function ``name``, for complex operands of real transforms.
    """
    if given in dtypes.COMPLEX and not complex:
        raise DTypeError(
            f"{name} takes real arrays, not {dtypes.short_name(given)}: take the real "
            "part, or the complex transform",
            user_location(),
        )
    single = given in (dtypes.float32, dtypes.complex64, *dtypes.HALF_PRECISION)
    if complex:
        return dtypes.complex64 if single else dtypes.complex128
    return dtypes.float32 if single else dtypes.float64


def _along(
    kind: str, name: str, x: ArrayLike, n: int | None, axis: int, norm: str | None
) -> Array:
    """Transform x along one axis, which is first truncated or padded with zeros.

    ``kind`` is "fft", "ifft", "rfft" or "irfft". ``n`` is the length of the transform:
    of the axis, or of the result's axis for "irfft". ``norm`` is as for ``fft``. Errors
    call the function ``name``.
    """
    type = ops.type_of_operand(name, x)
    place = ops.normalize_axis(name, axis, type.ndim)
    extent = type.shape[place]
    # "irfft" takes n // 2 + 1 elements and gives n; by default n is even.
    back = kind == "irfft"
    if n is None:
        n = 2 * (extent - 1) if back else extent
    length = ops.whole(n)
    if length < 1:
        raise ShapeError(
            f"{name} has at least 1 element along its axis, not {length} (of {type})",
            user_location(),
        )
    x = ops.convert(x, _dtype(name, type.dtype, kind != "rfft"))
    x = _fitted(x, place, length // 2 + 1 if back else length)
    last = moveaxis(x, place, -1)
    result = apply(_fft, last, kind=kind, length=length, norm=_norm(name, norm))
    return moveaxis(result, -1, place)


def _fitted(x: Array, axis: int, wanted: int) -> Array:
    """Truncate ``x`` to ``wanted`` elements along ``axis``, or pad it with zeros."""
    extent = x.shape[axis]
    if wanted < extent:
        return slice_along(x, 0, wanted, axis)
    if wanted == extent:
        return x
    config = tuple(
        (0, wanted - extent if k == axis else 0, 0) for k in range(len(x.shape))
    )
    return apply(slicing.pad, x, ops.scalar(0, x.dtype), config=config)


def fft(
    a: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the discrete Fourier transform along ``axis``, which is complex.

    The axis is truncated or padded with zeros to ``n`` elements. ``norm`` says which
    transform divides by n: "backward" (the inverse), "forward" (this transform) or
    "ortho" (each divides by the square root of n). float32, complex64 and half
    precision give complex64, others complex128. Raises ShapeError if n is less than 1,
    ArgumentError for another ``norm`` or if ``out`` is given.

    >>> import numpy as np
    >>> fft(np.array([1.0, 0.0, 0.0, 0.0]))
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    ops.refuse_out("fft", out)
    return _along("fft", "fft", a, n, axis, norm)


def ifft(
    a: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the inverse of ``fft`` along ``axis``, which is complex.

    The parameters, dtypes and errors are those of ``fft``.
    """
    ops.refuse_out("ifft", out)
    return _along("ifft", "ifft", a, n, axis, norm)


def rfft(
    a: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the first n // 2 + 1 elements of the transform of real elements.

    The others are their complex conjugates. The parameters, dtypes and errors are those
    of ``fft``. Raises DTypeError for complex operands.

    >>> import numpy as np
    >>> rfft(np.array([1.0, 2.0, 3.0])).shape
    (2,)
    """
    ops.refuse_out("rfft", out)
    return _along("rfft", "rfft", a, n, axis, norm)


def irfft(
    a: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the inverse of ``rfft``: n real elements along ``axis``.

    The default of ``n`` is 2 (m - 1) for m elements, which is even. The other
    parameters and errors are those of ``fft``.

    >>> import numpy as np
    >>> irfft(rfft(np.array([1.0, 2.0, 3.0])), n=3)
    array([1., 2., 3.])
    """
    ops.refuse_out("irfft", out)
    return _along("irfft", "irfft", a, n, axis, norm)


def hfft(
    a: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the real transform of a Hermitian vector of n elements along ``axis``.

    ``a`` has the first n // 2 + 1 elements; the others are their complex conjugates.
    The parameters and errors are those of ``irfft``.
    """
    ops.refuse_out("hfft", out)
    # hfft(a) is irfft(conj(a)) with the opposite normalization.
    opposite = _OPPOSITE[_norm("hfft", norm)]
    return _along("irfft", "hfft", conj(a), n, axis, opposite)


def ihfft(
    a: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the inverse of ``hfft``: the first n // 2 + 1 elements, of real ``a``.

    The parameters, dtypes and errors are those of ``rfft``.
    """
    ops.refuse_out("ihfft", out)
    opposite = _OPPOSITE[_norm("ihfft", norm)]
    return conj(_along("rfft", "ihfft", a, n, axis, opposite))


# Several axes.


def extents_and_axes(
    name: str,
    x: ArrayLike,
    s: Sequence[int | None] | None,
    axes: Sequence[int] | None,
) -> tuple[list[int | None], list[int]]:
    """Return the extents and the axes of a transform of several axes.

    An extent of None is that of x, and axes are counted from the front. ``s`` and
    ``axes`` are as for ``fftn``. Raises ArgumentError or ShapeError, about the function
    ``name``, if they do not fit ``x``.
    """
    ndim = ops.type_of_operand(name, x).ndim
    for what, given in (("axes", axes), ("s", s)):
        if given is not None and not np.iterable(given):
            raise ArgumentError(
                f"{name}: {what} must be a sequence of integers, not {given!r}; write "
                f"{what}=({given!r},)",
                user_location(),
            )
    if axes is None:
        count = ndim if s is None else len(s)
        if count > ndim:
            raise ShapeError(
                f"{name}: {plural(count, 'extent')} for an array with "
                f"{plural(ndim, 'axis')}",
                user_location(),
            )
        axes = range(ndim - count, ndim)
    places = [ops.normalize_axis(name, axis, ndim) for axis in axes]
    extents = [None] * len(places) if s is None else list(s)
    if len(extents) != len(places):
        raise ShapeError(
            f"{name}: {plural(len(extents), 'extent')} for "
            f"{plural(len(places), 'axis')}",
            user_location(),
        )
    # As in NumPy, -1 means the whole axis.
    return [None if n == -1 else n for n in extents], places


def _over(
    kind: str,
    name: str,
    x: ArrayLike,
    s: Sequence[int | None] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> Array:
    """Apply the complex transform ``kind`` along several axes, the last first.

    ``kind`` is "fft" or "ifft". Errors call the function ``name``.
    """
    extents, places = extents_and_axes(name, x, s, axes)
    type = ops.type_of_operand(name, x)
    x = ops.convert(x, _dtype(name, type.dtype, complex=True))
    for n, axis in reversed(list(zip(extents, places, strict=True))):
        x = _along(kind, name, x, n, axis, norm)
    return ops.as_array(x)


def fftn(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Apply ``fft`` along several axes.

    ``axes=None`` means all axes, or the last ``len(s)`` axes. The axes are truncated or
    padded to the extents ``s``; an extent of None or -1 stays. ``norm`` and dtypes are
    as for ``fft``. Raises ArgumentError or ShapeError if ``s`` and ``axes`` do not fit.
    """
    ops.refuse_out("fftn", out)
    return _over("fft", "fftn", a, s, axes, norm)


def ifftn(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the inverse of ``fftn``, which has the same parameters and errors."""
    ops.refuse_out("ifftn", out)
    return _over("ifft", "ifftn", a, s, axes, norm)


def rfftn(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Apply ``rfft`` along the last of ``axes``, then ``fft`` along the other axes.

    The last of ``axes`` has n // 2 + 1 elements in the result. Here n is the extent of
    that axis, or the last number of ``s``. float32 gives complex64. float64 and
    integers give complex128.

    >>> import numpy as np
    >>> rfftn(np.ones((4, 4))).shape
    (4, 3)
    """
    ops.refuse_out("rfftn", out)
    extents, places = extents_and_axes("rfftn", a, s, axes)
    if not places:
        raise ShapeError("rfftn transforms at least one axis", user_location())
    first = _along("rfft", "rfftn", a, extents[-1], places[-1], norm)
    return _over("fft", "rfftn", first, extents[:-1], places[:-1], norm)


def irfftn(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Return the inverse of ``rfftn``, which is real.

    By default the last extent is even, 2 (m - 1) for m elements. The parameters and
    errors are those of ``fftn``.
    """
    ops.refuse_out("irfftn", out)
    extents, places = extents_and_axes("irfftn", a, s, axes)
    if not places:
        raise ShapeError("irfftn transforms at least one axis", user_location())
    first = _over("ifft", "irfftn", a, extents[:-1], places[:-1], norm)
    return _along("irfft", "irfftn", first, extents[-1], places[-1], norm)


def fft2(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Apply ``fftn`` along two axes, by default the last two."""
    ops.refuse_out("fft2", out)
    return fftn(a, s, axes, norm)


def ifft2(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Apply ``ifftn`` along two axes, by default the last two."""
    ops.refuse_out("ifft2", out)
    return ifftn(a, s, axes, norm)


def rfft2(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Apply ``rfftn`` along two axes, by default the last two."""
    ops.refuse_out("rfft2", out)
    return rfftn(a, s, axes, norm)


def irfft2(
    a: ArrayLike,
    s: Sequence[int | None] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward",
    out: None = None,
) -> Array:
    """Apply ``irfftn`` along two axes, by default the last two."""
    ops.refuse_out("irfft2", out)
    return irfftn(a, s, axes, norm)
