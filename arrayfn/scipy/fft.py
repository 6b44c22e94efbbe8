"""Discrete cosine and sine transforms of types I to IV, with SciPy's names.

A cosine transform is computed as a Fourier transform of two or four times as many
elements (Makhoul, A fast cosine transform in one and two dimensions, 1980). Type I is
the Fourier transform of the even extension. A sine transform is computed as the cosine
transform of the array, reversed or with alternating signs. Type I is the Fourier
transform of the odd extension.

The module is a backend for SciPy. After
``scipy.fft.register_backend(arrayfn.scipy.fft)``, ``scipy.fft.dct`` and its relatives
take traced arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import documentation as _documentation
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.fft.transforms import extents_and_axes
from arrayfn.tracing import ImmutableArray

# {type of a transform: type of its inverse}
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
    """Return the discrete cosine transform of x along ``axis``.

    The axis is first truncated or padded to n elements. ``type`` is 1 to 4. ``norm``
    scales the transform. "backward" or None gives 2 sum x cos, and "ortho" makes the
    transform orthogonal. With "forward", this transform has the factor that the inverse
    has otherwise. ``orthogonalize`` scales the first element (and the last, for type 1)
    as an orthogonal transform does. It is true by default for "ortho". ``overwrite_x``
    and ``workers`` have no effect. The dtype is float32 for float32 and 16-bit numbers,
    else float64, and the real and imaginary parts of complex x are transformed
    separately.

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
    """Return the inverse transform of ``dct`` with the same arguments."""
    return _transform("idct", x, type, n, axis, norm, orthogonalize, inverse=True)


def dctn(
    x: ArrayLike,
    type: int = 2,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """Return the discrete cosine transform of x along several axes.

    ``s`` has the lengths to which the axes are cut or padded. ``axes=None`` means all
    axes, or the last ``len(s)`` axes. Other arguments are those of ``dct``. Raises
    ShapeError if ``s`` and ``axes`` have different lengths.
    """
    return _over("dctn", x, type, s, axes, norm, orthogonalize, inverse=False)


def idctn(
    x: ArrayLike,
    type: int = 2,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """Return the inverse transform of ``dctn`` with the same arguments."""
    return _over("idctn", x, type, s, axes, norm, orthogonalize, inverse=True)


def dst(
    x: ArrayLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """Return the discrete sine transform of x along ``axis``.

    The axis is first truncated or padded to n elements. ``type`` is 1 to 4. ``norm``
    scales the transform. "backward" or None gives 2 sum x sin, and "ortho" makes the
    transform orthogonal. With "forward", this transform has the factor that the inverse
    has otherwise. ``orthogonalize`` scales the last element of types 2 and 3 as an
    orthogonal transform does. It is true by default for "ortho". ``overwrite_x`` and
    ``workers`` have no effect. The dtypes are those of ``dct``.

    >>> import numpy as np
    >>> np.round(dst(np.array([1.0, 2.0, 4.0])), 6)
    array([ 9.      , -5.196152,  6.      ])
    """
    return _transform("dst", x, type, n, axis, norm, orthogonalize, inverse=False)


def idst(
    x: ArrayLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """Return the inverse transform of ``dst`` with the same arguments."""
    return _transform("idst", x, type, n, axis, norm, orthogonalize, inverse=True)


def dstn(
    x: ArrayLike,
    type: int = 2,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """Return the discrete sine transform of x along several axes.

    ``s`` has the lengths to which the axes are cut or padded. ``axes=None`` means all
    axes, or the last ``len(s)`` axes. Other arguments are those of ``dst``. Raises
    ShapeError if ``s`` and ``axes`` have different lengths.
    """
    return _over("dstn", x, type, s, axes, norm, orthogonalize, inverse=False)


def idstn(
    x: ArrayLike,
    type: int = 2,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    orthogonalize: bool | None = None,
) -> Array:
    """Return the inverse transform of ``dstn`` with the same arguments."""
    return _over("idstn", x, type, s, axes, norm, orthogonalize, inverse=True)


def _over(
    name: str,
    x: ArrayLike,
    type: int,
    s: int | Sequence[int] | None,
    axes: int | Sequence[int] | None,
    norm: str | None,
    orthogonalize: bool | None,
    inverse: bool,
) -> Array:
    """Apply the transform ``name``, such as "idstn", along each of several axes.

    ``s`` has the length to which each axis is cut or padded. ``axes=None`` means all
    axes, or the last ``len(s)`` axes. Raises ShapeError if ``s`` and ``axes`` have
    different lengths.
    """
    lengths = [s] if isinstance(s, int | np.integer) else s
    axes = [int(axes)] if isinstance(axes, int | np.integer) else axes
    extents, axes = extents_and_axes(name, x, lengths, axes)
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
    """Apply the transform ``name`` along one axis; "dst" in the name means sines.

    ``inverse`` says whether the transform is an inverse. ``n`` is the length to which
    the axis is cut or padded. The real and imaginary parts of complex numbers are
    transformed separately, because the transforms are linear and real. Errors call the
    function ``name``.
    """
    operand = ops.type_of_operand(name, x)
    if operand.dtype in dtypes.COMPLEX:
        parts = [
            _transform(name, part(x), type, n, axis, norm, orthogonalize, inverse)
            for part in (anp.real, anp.imag)
        ]
        return lax.complex(*parts)
    if type not in _INVERSE:
        raise ArgumentError(f"{name} has types 1 to 4, not {type}", user_location())
    if norm not in (None, "backward", "ortho", "forward"):
        raise ArgumentError(
            f"{name}: norm must be 'backward', 'ortho' or 'forward', not {norm!r}",
            user_location(),
        )
    position = ops.normalize_axis(name, axis, operand.ndim)
    converted = ops.convert(x, _wide(operand.dtype))
    along = _fitted(anp.moveaxis(converted, position, -1), n)
    length = along.shape[-1]
    of_sines = "dst" in name
    # A cosine transform of type 1 takes two elements or more, and others one.
    if length < 1 + (type == 1 and not of_sines):
        raise ShapeError(
            f"{name} of type {type} takes more than {length} elements", user_location()
        )
    kind = _INVERSE[type] if inverse else type  # the inverse of type 2 is type 3
    if orthogonalize is None:
        orthogonalize = norm == "ortho"
    result = _scaled(along, kind, norm, orthogonalize, inverse, of_sines)
    return anp.moveaxis(result, -1, position)


def _wide(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype to compute in: float32 for 16 or 32 bits, else float64."""
    single = dtype == dtypes.float32 or dtype in dtypes.HALF_PRECISION
    return dtypes.float32 if single else dtypes.float64


def _fitted(x: Array, n: int | None) -> Array:
    """Return ``x`` with its last axis cut to n elements, or padded with zeros to n."""
    extent = x.shape[-1]
    if n is None or n == extent:
        return x
    if n < extent:
        return x[..., :n]
    widths = [(0, 0)] * (x.ndim - 1)
    return anp.pad(x, [*widths, (0, n - extent)])


def _scaled(
    x: Array,
    kind: int,
    norm: str | None,
    orthogonalize: bool,
    inverse: bool,
    of_sines: bool,
) -> Array:
    """Transform the rows of ``x`` by type ``kind``, and normalise the result.

    The transform and its unscaled inverse multiply to the period: 2 n for n elements,
    but 2 (n - 1) for cosines and 2 (n + 1) for sines of type I. "backward" divides the
    inverse by the period, "forward" divides the transform, and "ortho" divides both by
    its square root. ``orthogonalize`` also multiplies elements at the ends by sqrt(2)
    before the transform, or divides them after it, which makes its matrix orthogonal.
    """
    length = x.shape[-1]
    period_change = (1 if of_sines else -1) if kind == 1 else 0
    period = 2.0 * (length + period_change)
    # Exactly one of the two conditions holds if this direction has to divide.
    factor = 1.0 / period if (norm == "forward") != inverse else 1.0
    if norm == "ortho":
        factor = 1.0 / math.sqrt(period)
    root = math.sqrt(2.0)
    before, after = np.ones(length), np.full(length, factor)
    end = -1 if of_sines else 0
    if orthogonalize and kind == 1 and not of_sines:
        before[[0, -1]] *= root
        after[[0, -1]] /= root
    elif orthogonalize and kind == 2:
        after[end] /= root
    elif orthogonalize and kind == 3:
        before[end] *= root
    if orthogonalize:
        x = x * before.astype(x.dtype)
    value = (_sines if of_sines else _cosines)(x, kind)
    return value if np.all(after == 1.0) else value * after.astype(x.dtype)


def _sines(x: Array, kind: int) -> Array:
    """Return the sine transform of type ``kind``, 1 to 4, along the last axis.

    It is not normalised: element k of type II is 2 sum of x[j] sin(pi (j + 1/2) (k + 1)
    / n). Types II to IV are cosine transforms of the row with alternating signs or in
    reverse order. Type I is the Fourier transform of the odd extension 0, x, 0, -x
    reversed. In type III, the last element of x has the factor 1 instead of 2.
    """
    length = x.shape[-1]
    if kind == 1:
        zero = anp.zeros((*x.shape[:-1], 1), x.dtype)
        extended = anp.concatenate([zero, x, zero, -anp.flip(x, -1)], -1)
        return -anp.imag(anp.fft.rfft(extended))[..., 1 : length + 1]
    signs = np.where(np.arange(length) % 2, -1, 1).astype(x.dtype)
    if kind == 3:
        return _cosines(anp.flip(x, -1), kind) * signs
    return anp.flip(_cosines(x * signs, kind), -1)


def _cosines(x: Array, kind: int) -> Array:
    """Return the cosine transform of type ``kind``, 1 to 4, along the last axis.

    It is not normalised: element k of type II is 2 sum of x[j] cos(pi (j + 1/2) k / n).
    Type I is the Fourier transform of the even extension. The others pad x to 2 n
    elements for the Fourier transform, and ``twiddles`` shift the frequencies or
    positions by a half. In types I and III, the first element (and the last, for type
    I) has the factor 1 instead of 2.
    """
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
        # x[0] + 2 sum of x[j] cos(pi j (k + 1/2) / n)
        twiddles = np.exp(-0.5j * np.pi * k / length)
        twiddles[1:] *= 2.0
        spread = anp.fft.fft(x * twiddles.astype(complex_), 2 * length)
        return anp.real(spread[..., :length])
    # Type IV: 2 sum of x[j] cos(pi (j + 1/2) (k + 1/2) / n)
    before = np.exp(-0.5j * np.pi * k / length).astype(complex_)
    after = (2.0 * np.exp(-0.25j * np.pi * (2 * k + 1) / length)).astype(complex_)
    return anp.real(anp.fft.fft(x * before, 2 * length)[..., :length] * after)


__ua_domain__ = "numpy.scipy.fft"


def __ua_function__(method: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: N807
    """Compute SciPy's transform ``method`` of a traced array or an array on a device.

    SciPy's backend protocol (uarray) calls this function in place of its own. The
    result is NotImplemented for other arrays and for functions that are not in
    ``__all__``. SciPy then finds a Fourier transform in the array's own namespace.
    """
    own = globals().get(method.__name__) if method.__name__ in __all__ else None
    x = args[0] if args else kwargs.get("x")
    if own is None or not isinstance(x, ImmutableArray):
        return NotImplemented
    return own(*args, **kwargs)


__all__ = ["dct", "dctn", "dst", "dstn", "idct", "idctn", "idst", "idstn"]

_documentation.attach(__name__)
