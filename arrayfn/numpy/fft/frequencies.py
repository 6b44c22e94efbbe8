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
    """The frequencies of the elements of a transform, in cycles per unit of ``d``.

    ``d`` is the distance between samples. The result is float64 by default.

    >>> fftfreq(5, d=0.1)
    array([ 0.,  2.,  4., -4., -2.])
    """
    return _frequencies("fftfreq", np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: Any = None
) -> Array:
    """Return the frequencies of the elements of ``rfft``.

    >>> rfftfreq(5, d=0.1)
    array([0., 2., 4.])
    """
    return _frequencies("rfftfreq", np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(
    name: str, function: Any, n: int, d: float, dtype: DTypeLike, device: Any
) -> Array:
    """NumPy's ``function(n, d)`` in ``dtype``, on ``device``.

    Raises ArgumentError, about ``name``, for arguments it does not take.
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
    """Move the element of frequency 0 from the front to the middle.

    >>> fftshift(np.arange(5))
    array([3, 4, 0, 1, 2])
    """
    shape = ops.type_of_operand("fftshift", x).shape
    places = ops.normalize_axes("fftshift", axes, len(shape))
    return roll(x, tuple(shape[axis] // 2 for axis in places), places)


def ifftshift(x: ArrayLike, axes: Axis = None) -> Array:
    """Return the inverse of ``fftshift``."""
    shape = ops.type_of_operand("ifftshift", x).shape
    places = ops.normalize_axes("ifftshift", axes, len(shape))
    return roll(x, tuple(-(shape[axis] // 2) for axis in places), places)
