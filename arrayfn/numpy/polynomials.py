"""Polynomials as vectors of coefficients, the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import add, divide, multiply, subtract
from arrayfn.numpy.convolution import convolve
from arrayfn.numpy.creation import arange, asarray
from arrayfn.numpy.data_dependent import trim_zeros
from arrayfn.numpy.manipulation import (
    atleast_1d,
    concatenate,
    expand_dims,
    slice_along,
    stack,
)
from arrayfn.primitives import slicing
from arrayfn.tracing import apply


def _coefficients(name: str, p: Any) -> Array:
    """Return p as a vector; ShapeError, about ``name``, if it has more axes."""
    value = atleast_1d(asarray(p) if isinstance(p, (list, tuple)) else p)
    if value.ndim != 1:
        raise ShapeError(
            f"{name} takes coefficients as a vector, not {value.shape}",
            user_location(),
        )
    return value


def _polynomials(name: str, *polynomials: Any) -> list[Array]:
    """Return ``polynomials`` as vectors of their common dtype.

    Errors call the function ``name``.
    """
    arrays = [asarray(p) if isinstance(p, (list, tuple)) else p for p in polynomials]
    promoted, _, _ = ops.promoted(name, arrays)
    return [_coefficients(name, p) for p in promoted]


def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = 16) -> Array:
    """Evaluate the polynomial p at x, elementwise, by Horner's rule.

    The coefficients lie along the first axis of p, the highest power first. The other
    axes of p broadcast with x, and the result has the dtype to which both promote.
    ``unroll`` has no effect: it is the length of another library's loops.

    >>> import numpy as np
    >>> polyval(np.array([1.0, 0.0, -1.0]), 3.0)
    array(8.)
    """
    p = asarray(p) if isinstance(p, (list, tuple)) else p
    (p, x), types, dtype = ops.promoted("polyval", (p, x))
    p = atleast_1d(p)
    value: Array = ops.full(0, types[1].shape, dtype)
    for k in range(p.shape[0]):
        value = add(multiply(value, x), p[k])
    return value


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return the sum of polynomials ``a1`` and ``a2``, in their promoted dtype.

    The result is as long as the longer one.
    """
    return add(*_aligned("polyadd", a1, a2))


def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return the difference of polynomials ``a1`` and ``a2``, in their promoted dtype.

    The result is as long as the longer one.
    """
    return subtract(*_aligned("polysub", a1, a2))


def _aligned(name: str, p: Any, q: Any) -> list[Array]:
    """Return ``p`` and ``q`` as vectors, the shorter padded with leading zeros.

    Errors call the function ``name``.
    """
    parts = _polynomials(name, p, q)
    parts, types, dtype = ops.promoted(name, parts)
    extent = max(t.shape[0] for t in types)
    zero = ops.scalar(0, dtype)
    return [
        apply(slicing.pad, c, zero, config=((extent - t.shape[0], 0, 0),))
        for c, t in zip(parts, types, strict=True)
    ]


def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """Return the product of polynomials ``a1`` and ``a2``, in their promoted dtype.

    Leading zeros are kept, because their number would decide the shape.
    ``trim_leading_zeros`` removes them, which needs known coefficients.
    """
    first, second = _polynomials("polymul", a1, a2)
    return convolve(
        _trimmed(first, trim_leading_zeros), _trimmed(second, trim_leading_zeros)
    )


def _trimmed(p: Array, trim_leading_zeros: bool) -> Array:
    """Return p without leading zeros, if ``trim_leading_zeros``.

    At least one coefficient remains.
    """
    if not trim_leading_zeros:
        return p
    trimmed = trim_zeros(p, "f")
    return trimmed if trimmed.shape[0] else slice_along(p, 0, 1, axis=0)


def polydiv(
    u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False
) -> tuple[Array, Array]:
    """Divide polynomial u by v, and return the quotient and the remainder.

    u = quotient * v + remainder. Integers give floats. The remainder keeps its leading
    zeros, and has as many coefficients as u. ``trim_leading_zeros`` removes them, which
    needs known coefficients.
    """
    parts = _polynomials("polydiv", u, v)
    wide = ops.inexact_dtype("polydiv", ops.common_dtype("polydiv", parts))
    (u, v), _, dtype = ops.promoted("polydiv", parts, wide)
    m, n = u.shape[0], v.shape[0]
    if m < n:
        return ops.full(0, (1,), dtype), ops.same(u)
    # Long division: each step removes the highest power of the rest.
    quotient: list[Array] = []
    rest = u
    for k in range(m - n + 1):
        factor = divide(rest[k], v[0])
        quotient.append(factor)
        product = multiply(factor, v)
        config = ((k, m - n - k, 0),)  # zeros before and after, up to m coefficients
        rest = subtract(
            rest, apply(slicing.pad, product, ops.scalar(0, dtype), config=config)
        )
    return stack(quotient), _trimmed(rest, trim_leading_zeros)


def polyder(p: ArrayLike, m: int = 1) -> Array:
    """Return the m-th derivative of polynomial p, a shorter vector in its dtype.

    Raises ArgumentError for negative m.
    """
    value = _coefficients("polyder", p)
    if m < 0:
        raise ArgumentError("polyder takes m >= 0", user_location())
    for _ in range(m):
        extent = value.shape[0]
        if extent <= 1:
            return slice_along(value, 0, 0, axis=0)
        powers = arange(extent - 1, 0, -1)
        value = multiply(slice_along(value, 0, extent - 1, axis=0), powers)
    return value if m else ops.same(value)


def polyint(p: ArrayLike, m: int = 1, k: Any = None) -> Array:
    """Return the m-th antiderivative of polynomial p, whose vector is longer by m.

    k has the m constants of integration, or one for all; they are 0 by default.
    Integers give floats. Raises ArgumentError for negative m or other numbers of
    constants.
    """
    value = _coefficients("polyint", p)
    if m < 0:
        raise ArgumentError("polyint takes m >= 0", user_location())
    constants = atleast_1d(np.zeros(max(m, 1)) if k is None else asarray(k))
    if constants.shape[0] == 1 and m > 1:
        constants = concatenate([constants] * m)
    if constants.shape[0] < m:
        raise ArgumentError(
            f"polyint takes {m} constants, or one for all", user_location()
        )
    for step in range(m):
        powers = arange(value.shape[0], 0, -1)
        raised = divide(value, powers)
        value = concatenate([raised, expand_dims(constants[step], 0)])
    return value if m else ops.same(value)


def poly(seq_of_zeros: ArrayLike) -> Array:
    """Return the polynomial with these roots and the leading coefficient 1.

    The vector of n roots gives n + 1 coefficients, and integers give floats. Raises
    ShapeError for a matrix; give ``linalg.eigvals`` of the matrix instead.
    """
    zeros = _coefficients("poly", seq_of_zeros)
    dtype = ops.inexact_dtype("poly", zeros.dtype)
    zeros = ops.convert(zeros, dtype)
    value = ops.full(1, (1,), dtype)
    for k in range(zeros.shape[0]):
        # (value) * (x - root)
        lower = multiply(value, zeros[k])
        zero = ops.full(0, (1,), dtype)
        value = subtract(concatenate([value, zero]), concatenate([zero, lower]))
    return value
