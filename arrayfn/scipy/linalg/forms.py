"""Structured matrices, under SciPy's names.

For a vector (..., n) they have its leading axes.
"""

from __future__ import annotations

import math

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, plural, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import conj
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import asarray, zeros, zeros_like
from arrayfn.numpy.manipulation import (
    atleast_1d,
    atleast_2d,
    broadcast_to,
    concatenate,
)


def block_diag(*arrs: ArrayLike) -> Array:
    """Return the matrix with ``arrs`` along its diagonal; a vector counts as one row.

    >>> block_diag(np.array([[1, 2]]), 3)
    array([[1, 2, 0],
           [0, 0, 3]])
    """
    known = [x if ops.is_number(x) else asarray(x) for x in arrs] or [zeros((1, 0))]
    converted, _, dtype = ops.promoted("block_diag", known)
    blocks = [atleast_2d(x) for x in converted]
    width = sum(x.shape[1] for x in blocks)
    rows: list[Array] = []
    before = 0
    for x in blocks:
        after = width - before - x.shape[1]
        count = x.shape[0]
        parts = [zeros((count, before), dtype), x, zeros((count, after), dtype)]
        rows.append(concatenate(parts, axis=1))
        before += x.shape[1]
    return concatenate(rows, axis=0)


def vectors(name: str, x: ArrayLike, minimum: int = 1) -> Array:
    """Return ``x`` as vectors (..., n).

    Errors call the function ``name``. Raises ShapeError if n is less than ``minimum``.
    """
    value = atleast_1d(asarray(x))
    if value.shape[-1] < minimum:
        raise ShapeError(
            f"{name} takes at least {plural(minimum, 'element')}, not "
            f"{value.shape[-1]}",
            user_location(),
        )
    return value


def _joined(name: str, *parts: Array) -> Array:
    """Concatenate vectors (..., n) along the last axis; the leading axes broadcast.

    Errors call the function ``name``.
    """
    batch = ops.broadcast_shape(name, [part.shape[:-1] for part in parts])
    spread = [broadcast_to(part, (*batch, part.shape[-1])) for part in parts]
    return concatenate(spread, axis=-1)


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Return the matrix with first column c, first row r, and equal diagonals.

    r is conj(c) by default, and its first element is ignored. c is (..., m), and r is
    (..., n). The leading axes broadcast.

    >>> toeplitz(np.array([1, 2, 3]), np.array([0, 8, 9]))
    array([[1, 8, 9],
           [2, 1, 8],
           [3, 2, 1]])
    """
    column = vectors("toeplitz", c, 0)
    row = conj(column) if r is None else vectors("toeplitz", r, 0)
    # The diagonals from the lowest to the highest: c reversed, then r without r[0].
    # Row i, column j reads element m - 1 - i + j.
    values = _joined("toeplitz", column[..., ::-1], row[..., 1:])
    extents = column.shape[-1], row.shape[-1]
    return values[..., np.arange(extents[0])[::-1, None] + np.arange(extents[1])]


def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Return the matrix with first column c, last row r, and equal antidiagonals.

    r is zero by default. c is (..., m), and r is (..., n). The leading axes broadcast
    (in SciPy from 1.19 on).

    >>> hankel(np.array([1, 2, 3]))
    array([[1, 2, 3],
           [2, 3, 0],
           [3, 0, 0]])
    """
    # A Python number c takes the dtype of r.
    if ops.is_number(c) and r is not None:
        c = asarray(c, dtype=ops.common_dtype("hankel", (c, asarray(r))))
    column = vectors("hankel", c)
    row = zeros_like(column) if r is None else vectors("hankel", r)
    # Row i, column j reads element i + j of c followed by r without r[0].
    values = _joined("hankel", column, row[..., 1:])
    m, n = column.shape[-1], row.shape[-1]
    return values[..., np.arange(m)[:, None] + np.arange(n)]


def circulant(c: ArrayLike) -> Array:
    """Return the matrix whose column k is c (..., n) shifted cyclically by k rows.

    >>> circulant(np.array([1, 2, 3]))
    array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]])
    """
    column = vectors("circulant", c)
    places = np.arange(column.shape[-1])
    return column[..., (places[:, None] - places) % column.shape[-1]]


def companion(a: ArrayLike) -> Array:
    """Return the matrix whose eigenvalues are the roots of the polynomial a (..., n).

    a has the highest power first, and its first element is not 0. The matrix has -a[1:]
    / a[0] in its first row and ones below the diagonal.

    >>> companion(np.array([1.0, -10.0, 31.0, -30.0]))
    array([[ 10., -31.,  30.],
           [  1.,   0.,   0.],
           [  0.,   1.,   0.]])
    """
    coefficients = vectors("companion", a, 2)
    first = -coefficients[..., 1:] / coefficients[..., :1]
    n = first.shape[-1]
    below = np.eye(n - 1, n, dtype=first.dtype)
    below = broadcast_to(below, (*first.shape[:-1], n - 1, n))
    return concatenate([first[..., None, :], below], axis=-2)


def leslie(f: ArrayLike, s: ArrayLike) -> Array:
    """Return the Leslie matrix of fecundities f (n,) and survivals s (n - 1,).

    f is the first row, and s is the subdiagonal. Leading axes broadcast. Raises
    ShapeError for other lengths.
    """
    first, below = vectors("leslie", f), vectors("leslie", s)
    n = first.shape[-1]
    if below.shape[-1] != n - 1:
        raise ShapeError(
            f"leslie takes n coefficients and n - 1, but was given {n} and "
            f"{below.shape[-1]}",
            user_location(),
        )
    batch = ops.broadcast_shape("leslie", (first.shape[:-1], below.shape[:-1]))
    rest = where(np.eye(n - 1, n, dtype=bool), below[..., None], 0)
    row = broadcast_to(first, (*batch, n))[..., None, :]
    return concatenate([row, broadcast_to(rest, (*batch, n - 1, n))], axis=-2)


# Constants that depend only on their order.


def hilbert(n: int) -> Array:
    """Return the Hilbert matrix (n, n), which has 1 / (i + j + 1) at [i, j]."""
    places = np.arange(n)
    return 1.0 / (places[:, None] + places + 1.0)


def hadamard(n: int, dtype: type = int) -> Array:
    """Return Sylvester's matrix of ones and minus ones with orthogonal rows.

    n is a power of 2, and the matrix doubles in size until it has n rows. Other n raise
    ArgumentError.

    >>> hadamard(2)
    array([[ 1,  1],
           [ 1, -1]])
    """
    # n & (n - 1) clears the lowest bit; powers of 2 have one bit.
    if n < 1 or n & (n - 1):
        raise ArgumentError(
            f"hadamard's order must be a power of 2, not {n}", user_location()
        )
    matrix = np.array([[1]], dtype)
    while matrix.shape[0] < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def helmert(n: int, full: bool = False) -> Array:
    """Return Helmert's orthonormal contrasts (n - 1, n), in float64.

    Before scaling, row i (from 1) has i ones and then -i, so it compares element i with
    the mean of those before it. With ``full``, the constant row 1 / sqrt(n) comes
    first.
    """
    if n < 1:
        raise ArgumentError(f"helmert takes n >= 1, not {n}", user_location())
    rows = np.arange(n)[:, None]
    contrasts = np.tril(np.ones((n, n)), -1) - np.diag(np.arange(n))
    length = np.sqrt(rows * (rows + 1.0))
    contrasts = np.where(
        rows == 0, 1.0 / math.sqrt(n), contrasts / np.where(rows == 0, 1, length)
    )
    return contrasts if full else contrasts[1:]


def pascal(n: int, kind: str = "symmetric", exact: bool = True) -> Array:
    """Return the matrix (n, n) of binomial coefficients.

    "lower" has comb(i, j) at [i, j], "upper" is its transpose, and "symmetric" is the
    product of the two. The numbers are uint64. With ``exact=False`` they are float64.

    >>> pascal(3).tolist()
    [[1, 1, 1], [1, 2, 3], [1, 3, 6]]
    """
    coefficients = [[math.comb(i, j) for j in range(n)] for i in range(n)]
    lower = np.array(coefficients, np.uint64 if exact else float).reshape(n, n)
    if kind == "lower":
        return lower
    if kind == "upper":
        return lower.T.copy()
    if kind == "symmetric":
        return lower @ lower.T
    raise ArgumentError(
        f"pascal: kind must be 'lower', 'upper' or 'symmetric', not {kind!r}",
        user_location(),
    )


def dft(n: int, scale: str | None = None, *, dtype: DTypeLike = None) -> Array:
    """Return the matrix (n, n) of the discrete Fourier transform.

    It has exp(-2 pi i j k / n) at [j, k], divided by sqrt(n) if ``scale`` is "sqrtn",
    and by n if it is "n". The dtype is complex128 by default.
    """
    wanted = dtypes.complex128 if dtype is None else dtypes.canonical(dtype)
    if wanted not in dtypes.COMPLEX:
        raise DTypeError(f"dft's dtype must be complex, not {wanted}", user_location())
    if scale not in (None, "sqrtn", "n"):
        raise ArgumentError(
            f"dft's scale must be None, 'sqrtn' or 'n', not {scale!r}", user_location()
        )
    places = np.arange(n)
    # j k modulo n keeps the angle small, and so accurate.
    matrix = np.exp(-2j * np.pi * (places[:, None] * places % n) / n)
    if scale is not None:
        matrix = matrix / (math.sqrt(n) if scale == "sqrtn" else n)
    return matrix.astype(wanted)
