"""fftfreq, rfftfreq, fftshift and ifftshift."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.numpy.rearrangement import roll
from arrayfn.tracing import constant


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: Any = None
) -> Array:
    """Return the frequencies of the elements of a transform of n samples.

    They are in cycles per unit of ``d``, the distance between samples. The result (n,)
    is float64 by default. ``device`` is as for ``numpy.full``. Raises ArgumentError if
    n is less than 1, d is no number or ``dtype`` is not real floating-point.

    >>> fftfreq(5, d=0.1)
    array([ 0.,  2.,  4., -4., -2.])
    """
    return _frequencies("fftfreq", np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: Any = None
) -> Array:
    """Return the frequencies of the n // 2 + 1 elements of ``rfft`` of n samples.

    The parameters, dtypes and errors are those of ``fftfreq``.

    >>> rfftfreq(5, d=0.1)
    array([0., 2., 4.])
    """
    return _frequencies("rfftfreq", np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(
    name: str, function: Any, n: int, d: float, dtype: DTypeLike, device: Any
) -> Array:
    """Return NumPy's ``function(n, d)`` in ``dtype``, on ``device``.

    Raises ArgumentError, about the function ``name``, if n is less than 1, d is no
    number or ``dtype`` is not real floating-point.
    """
    count = ops.whole(n)
    if count < 1:
        raise ArgumentError(
            f"{name} needs at least 1 element, not {count}", user_location()
        )
    if np.ndim(d) or isinstance(d, (str, list, tuple)):
        raise ArgumentError(
            f"{name}: d, the distance of samples, is a number, not {d!r}",
            user_location(),
        )
    wanted = dtypes.float64 if dtype is None else dtypes.canonical(dtype)
    if wanted not in dtypes.FLOATS:
        raise ArgumentError(
            f"{name} must be real floating-point numbers, not {wanted}", user_location()
        )
    value = constant(np.asarray(function(count, d)).astype(wanted))
    return ops.placed(name, value, device)


def fftshift(x: ArrayLike, axes: Axis = None) -> Array:
    """Move the element of frequency 0 from the front to the middle of each axis.

    ``axes`` is an axis, several, or None for all. Shape and dtype stay.

    >>> fftshift(np.arange(5))
    array([3, 4, 0, 1, 2])
    """
    shape = ops.type_of_operand("fftshift", x).shape
    places = ops.normalize_axes("fftshift", axes, len(shape))
    return roll(x, tuple(shape[axis] // 2 for axis in places), places)


def ifftshift(x: ArrayLike, axes: Axis = None) -> Array:
    """Move the element of frequency 0 from the middle to the front of each axis.

    This is the inverse of ``fftshift``.
    """
    shape = ops.type_of_operand("ifftshift", x).shape
    places = ops.normalize_axes("ifftshift", axes, len(shape))
    return roll(x, tuple(-(shape[axis] // 2) for axis in places), places)
