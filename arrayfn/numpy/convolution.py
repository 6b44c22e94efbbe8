"""Convolution and correlation of vectors."""

from __future__ import annotations

from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import conj
from arrayfn.numpy.manipulation import slice_along
from arrayfn.numpy.rearrangement import flip
from arrayfn.primitives import slicing
from arrayfn.primitives.contraction import precision_params
from arrayfn.primitives.convolution import conv_general
from arrayfn.tracing import apply

# The roles of axes (group, outer, inner, spatial) of a vector, whose axis is spatial.
_VECTOR: Any = ((), (), (), (0,))


def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "full",
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Convolve two vectors: element k is the sum of ``a[i] v[k - i]`` over i.

    ``mode`` is "full", "same" or "valid"; ArgumentError for others. "same" gives the
    central part, which is as long as the longer vector. "valid" gives only the sums of
    full overlaps. The result has the dtype to which the vectors promote. The sums are
    computed in ``preferred_element_type``, if it is given. ``precision`` is as for
    ``matmul``. Raises ShapeError if an operand is no vector or is empty.

    >>> import numpy as np
    >>> convolve(np.array([1.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    array([1., 3., 3., 2.])
    """
    a, v = _vectors("convolve", a, v, preferred_element_type)
    if a.shape[0] < v.shape[0]:
        a, v = v, a  # convolution is commutative; windows are of the longer vector
    return _slid(a, flip(v), mode, precision)


def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "valid",
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Correlate two vectors: element k is the sum of ``a[i + k] conj(v[i])`` over i.

    The parameters, dtypes and errors are those of ``convolve``.
    """
    a, v = _vectors("correlate", a, v, preferred_element_type)
    v = conj(v)
    if a.shape[0] >= v.shape[0]:
        return _slid(a, v, mode, precision)
    # The windows move over the longer vector, which gives the sums in reverse order.
    return flip(_slid(v, a, mode, precision))


def _vectors(
    name: str, x: ArrayLike, y: ArrayLike, preferred: DTypeLike
) -> list[Array]:
    """Return two vectors in one dtype, ``preferred`` if that is given.

    Raises ShapeError, about the function ``name``, for other arrays and empty vectors.
    """
    wanted = None if preferred is None else dtypes.canonical(preferred)
    (x, y), types, _ = ops.promoted(name, (x, y), wanted)
    if any(t.ndim != 1 or not t.size for t in types):
        raise ShapeError(
            f"{name} takes two vectors, neither of them empty, not {types[0]} and "
            f"{types[1]}",
            user_location(),
        )
    return [ops.as_array(x), ops.as_array(y)]


def _slid(x: Array, y: Array, mode: str, precision: str | None) -> Array:
    """Return the sums of products of y with each window of x, which is not shorter.

    ``mode`` is "full", "same" or "valid", as for ``convolve``; ArgumentError for
    others.
    """
    extent, window = x.shape[0], y.shape[0]
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(
            f"mode must be 'full', 'same' or 'valid', not {mode!r}", user_location()
        )
    if mode != "valid":
        config = ((window - 1, window - 1, 0),)
        x = apply(slicing.pad, x, ops.scalar(0, x.dtype), config=config)
    value = apply(
        conv_general,
        x,
        y,
        lhs=_VECTOR,
        rhs=_VECTOR,
        out=_VECTOR,
        strides=(1,),
        dilations=(1,),
        **precision_params("convolve", precision),
    )
    if mode == "same":
        first = (window - 1) // 2
        return slice_along(value, first, first + extent, 0)
    return value
