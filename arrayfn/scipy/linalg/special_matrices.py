"""SciPy's special matrices.

Functions of arrays are traced; matrices that depend only on a number are constants.
Sources: Higham, The Test Matrix Toolbox for MATLAB (1995); SciPy's documentation.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import absolute, divide, negative, subtract
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import zeros
from arrayfn.numpy.indexing import take
from arrayfn.numpy.padding import pad
from arrayfn.scipy.linalg.forms import vectors

__all__ = [
    "convolution_matrix",
    "fiedler",
    "fiedler_companion",
    "invhilbert",
    "invpascal",
]


def fiedler(a: ArrayLike) -> Array:
    """Return the matrix of the distances |a_i - a_j|, for a (..., n)."""
    a = vectors("fiedler", a, 0)
    return absolute(subtract(a[..., :, None], a[..., None, :]))


def fiedler_companion(a: ArrayLike) -> Array:
    """Return the pentadiagonal matrix whose eigenvalues are the roots of polynomial a.

    a (..., n) has the highest power first; the matrix has n - 1 rows (Fiedler, A note
    on companion matrices, 2003). With c = a / a[0], its diagonals hold -c[1] once on
    the main one, and -c[2:], ones and zeros alternating on the others. For a constant
    polynomial, the matrix has no elements.
    """
    a = vectors("fiedler_companion", a)
    if a.shape[-1] == 1:
        return zeros((*a.shape[:-1], 0, 0), a.dtype)
    a = divide(a, a[..., :1])
    count = a.shape[-1] - 1
    even = np.arange(count) % 2 == 0
    rest = negative(a[..., 2:])
    first = np.arange(count - 1) == 0
    beside = where(even[: count - 1], rest, 0)
    below = where(first, 1, where(even[: count - 1], 0, rest))
    far = np.asarray(even[: max(count - 2, 0)], a.dtype)
    result = _on_diagonal(negative(a[..., 1:2]), 0, count)
    # Number of the diagonal, positive above the main one: its values.
    for number, values in {1: beside, 2: far, -1: below, -2: 1 - far}.items():
        if values.shape[-1]:
            result = result + _on_diagonal(values, number, count)
    return result


def _on_diagonal(values: Array, place: int, count: int) -> Array:
    """Return matrices (..., count, count) with the vectors ``values`` on one diagonal.

    ``place`` is its number, positive above the main diagonal. Zeros follow ``values``
    that are shorter than the diagonal. All other elements are 0.
    """
    missing = count - values.shape[-1]
    pads = [(0, 0)] * (len(values.shape) - 1) + [(0, missing)]
    along = pad(values, pads)
    # Above the main diagonal, value k is in row k; on and below it, in column k.
    spread = along[..., :, None] if place > 0 else along[..., None, :]
    return where(np.eye(count, k=place, dtype=bool), spread, 0)


def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """Return the matrix whose product with v (n,) is ``convolve(a, v, mode)``.

    a is (..., m), and the matrix is (..., rows, n). Element [i, j] is a[first + i - j],
    or 0 outside of a, where ``first`` is the place in the full convolution at which
    ``mode`` begins.
    """
    if not ops.type_of_operand("convolution_matrix", a).ndim:
        raise ShapeError(
            "convolution_matrix takes a vector, not a single number", user_location()
        )
    a = vectors("convolution_matrix", a)
    if n < 1:
        raise ShapeError(f"convolution_matrix takes n >= 1, not {n}", user_location())
    count = a.shape[-1]
    rows = {
        "full": (0, count + n - 1),
        "same": ((min(count, n) - 1) // 2, max(count, n)),
        "valid": (min(count, n) - 1, max(count, n) - min(count, n) + 1),
    }
    if mode not in rows:
        raise ArgumentError(
            f"mode must be 'full', 'same' or 'valid', not {mode!r}", user_location()
        )
    first, length = rows[mode]
    places = np.arange(first, first + length)[:, None] - np.arange(n)
    # Mask positions outside a; negative ones would count from the end.
    beyond = (places < 0) | (places >= count)
    chosen = np.where(beyond, count, places)
    return take(a, chosen, axis=-1, mode="fill", fill_value=0)


def invhilbert(n: int, exact: bool = False) -> Array:
    """Return the inverse (n, n) of the Hilbert matrix.

    Its elements are integers. The result is float64. With ``exact``, it is int64, and
    overflow raises ArgumentError.
    """
    rows = [[_inverse_of_hilbert(n, i, j) for j in range(n)] for i in range(n)]
    return _whole("invhilbert", rows, exact)


def _inverse_of_hilbert(n: int, i: int, j: int) -> int:
    """Return element (i, j) of the inverse of the Hilbert matrix of n rows.

    The formula is (-1)^(i+j) (i+j+1) C(n+i, n-j-1) C(n+j, n-i-1) C(i+j, i)^2.
    """
    sign = -1 if (i + j) % 2 else 1
    ways = math.comb(n + i, n - j - 1) * math.comb(n + j, n - i - 1)
    return sign * (i + j + 1) * ways * math.comb(i + j, i) ** 2


def _whole(name: str, rows: list[list[int]], exact: bool) -> Array:
    """Convert ``rows`` of integers to a matrix: int64 if ``exact``, else float64.

    Raises ArgumentError, about function ``name``, for integers beyond int64.
    """
    if not exact:
        return np.array(rows, np.float64).reshape(len(rows), len(rows))
    try:
        return np.array(rows, np.int64).reshape(len(rows), len(rows))
    except OverflowError:
        raise ArgumentError(
            f"{name}({len(rows)}) has elements beyond int64; use exact=False",
            user_location(),
        ) from None


def invpascal(n: int, kind: str = "symmetric", exact: bool = True) -> Array:
    """Return the inverse of ``pascal(n, kind)``: int64 if ``exact``, else float64.

    The inverse of the lower matrix has (-1)^(i-j) comb(i, j) at [i, j]. The inverse of
    the symmetric one is the product of the upper and the lower inverse.
    """
    if kind not in ("symmetric", "lower", "upper"):
        raise ArgumentError(
            f"invpascal: kind must be 'symmetric', 'lower' or 'upper', not {kind!r}",
            user_location(),
        )
    lower = [
        [(-1) ** (i - j) * math.comb(i, j) if j <= i else 0 for j in range(n)]
        for i in range(n)
    ]
    upper = [list(column) for column in zip(*lower, strict=True)]
    if kind == "symmetric":
        rows = [[sum(map(operator.mul, a, b)) for b in upper] for a in upper]
    else:
        rows = lower if kind == "lower" else upper
    return _whole("invpascal", rows, exact)
