"""Discrete cosine transforms of types I to IV, with SciPy's names and arguments.

They are computed by Fourier transforms of two or four times as many elements (Makhoul,
A fast cosine transform in one and two dimensions, 1980); type I by that of the even
extension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import documentation as _documentation
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike

# The type of each type's inverse.
_INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}


def dct(
    x: ArrayLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """The discrete cosine transform along ``axis``, truncated or padded to n elements.

    ``type`` is 1 to 4. ``norm`` is "backward" (None: the transform is 2 sum x cos),
    "ortho" (it is orthogonal) or "forward" (it has the factor of the inverse).
    ``orthogonalize`` scales the first element (and the last, for type 1) as an
    orthogonal transform does, by default for "ortho". ``overwrite_x`` and ``workers``
    have no effect.

    >>> import numpy as np
    >>> np.round(dct(np.array([1.0, 2.0, 4.0])), 6)
    array([14.      , -5.196152,  1.      ])
    """
    return _transform("dct", x, type, n, axis, norm, orthogonalize, inverse=False)


def idct(
    x: ArrayLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """The inverse of ``dct`` with the same arguments."""
    return _transform("idct", x, type, n, axis, norm, orthogonalize, inverse=True)


def dctn(
    x: ArrayLike,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """``dct`` along several axes (None: all, or the last ``len(s)`` axes)."""
    return _over("dctn", x, type, s, axes, norm, orthogonalize, inverse=False)


def idctn(
    x: ArrayLike,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """The inverse of ``dctn`` with the same arguments."""
    return _over("idctn", x, type, s, axes, norm, orthogonalize, inverse=True)


def _over(
    name: str,
    x: ArrayLike,
    type: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    orthogonalize: bool | None,
    inverse: bool,
) -> Array:
    ndim = ops.type_of_operand(name, x).ndim
    if axes is None:
        count = ndim if s is None else len(s)
        if count > ndim:
            raise ShapeError(
                f"{name}: {count} extents for an array with {ndim} axes",
                user_location(),
            )
        axes = range(ndim - count, ndim)
    extents = [None] * len(axes) if s is None else list(s)
    if len(extents) != len(axes):
        raise ShapeError(
            f"{name}: {len(extents)} extents for {len(axes)} axes", user_location()
        )
    value: Any = x
    for axis, n in zip(axes, extents, strict=True):
        value = _transform(name, value, type, n, axis, norm, orthogonalize, inverse)
    return anp.asarray(value)


def _transform(
    name: str,
    x: ArrayLike,
    type: int,
    n: int | None,
    axis: int,
    norm: str | None,
    orthogonalize: bool | None,
    inverse: bool,
) -> Array:
    given = ops.type_of_operand(name, x)
    if given.dtype in dtypes.COMPLEX:
        parts = [
            _transform(name, part(x), type, n, axis, norm, orthogonalize, inverse)
            for part in (anp.real, anp.imag)
        ]
        return lax.complex(*parts)
    if type not in _INVERSE:
        raise ArgumentError(f"{name} has types 1 to 4, not {type}", user_location())
    if norm not in (None, "backward", "ortho", "forward"):
        raise ArgumentError(
            f"{name}: norm is 'backward', 'ortho' or 'forward', not {norm!r}",
            user_location(),
        )
    place = ops.normalize_axis(name, axis, given.ndim)
    wide = ops.convert(x, _wide(given.dtype))
    along = _fitted(anp.moveaxis(wide, place, -1), n)
    length = along.shape[-1]
    if length < 1 + (type == 1):
        raise ShapeError(
            f"{name} of type {type} takes more than {length} elements", user_location()
        )
    kind = _INVERSE[type] if inverse else type
    if orthogonalize is None:
        orthogonalize = norm == "ortho"
    result = _scaled(along, kind, norm, orthogonalize, inverse)
    return anp.moveaxis(result, -1, place)


def _wide(dtype: dtypes.DType) -> dtypes.DType:
    single = dtype == dtypes.float32 or dtype in dtypes.HALF_PRECISION
    return dtypes.float32 if single else dtypes.float64


def _fitted(x: Array, n: int | None) -> Array:
    """The first n elements of each row, padded with zeros."""
    extent = x.shape[-1]
    if n is None or n == extent:
        return x
    if n < extent:
        return x[..., :n]
    widths = [(0, 0)] * (x.ndim - 1)
    return anp.pad(x, [*widths, (0, n - extent)])


def _scaled(
    x: Array, kind: int, norm: str | None, orthogonalize: bool, inverse: bool
) -> Array:
    """The normalised transform of ``kind``; ``orthogonalize`` also scales the ends."""
    length = x.shape[-1]
    period = 2.0 * (length - 1 if kind == 1 else length)
    factor = 1.0 / period if (norm == "forward") != inverse else 1.0
    if norm == "ortho":
        factor = 1.0 / math.sqrt(period)
    root = math.sqrt(2.0)
    before, after = np.ones(length), np.full(length, factor)
    if orthogonalize and kind == 1:
        before[[0, -1]] *= root
        after[[0, -1]] /= root
    elif orthogonalize and kind == 2:
        after[0] /= root
    elif orthogonalize and kind == 3:
        before[0] *= root
    if orthogonalize:
        x = x * before.astype(x.dtype)
    value = _cosines(x, kind)
    return value if np.all(after == 1.0) else value * after.astype(x.dtype)


def _cosines(x: Array, kind: int) -> Array:
    """The transform 2 sum x cos; for types I and III the ends count once."""
    length = x.shape[-1]
    single = x.dtype == dtypes.float32
    complex_ = dtypes.complex64 if single else dtypes.complex128
    if kind == 1:
        extended = anp.concatenate([x, x[..., -2:0:-1]], -1)
        return anp.real(anp.fft.rfft(extended))
    k = np.arange(length)
    if kind == 2:
        twiddles = (2.0 * np.exp(-0.5j * np.pi * k / length)).astype(complex_)
        return anp.real(anp.fft.fft(x, 2 * length)[..., :length] * twiddles)
    if kind == 3:
        # x0 + 2 sum of x cos(pi (2 j + 1) k / 2 n)
        twiddles = np.exp(-0.5j * np.pi * k / length)
        twiddles[1:] *= 2.0
        spread = anp.fft.fft(x * twiddles.astype(complex_), 2 * length)
        return anp.real(spread[..., :length])
    before = np.exp(-0.5j * np.pi * k / length).astype(complex_)
    after = (2.0 * np.exp(-0.25j * np.pi * (2 * k + 1) / length)).astype(complex_)
    return anp.real(anp.fft.fft(x * before, 2 * length)[..., :length] * after)


__all__ = ["dct", "dctn", "idct", "idctn"]

_documentation.attach(__name__)
