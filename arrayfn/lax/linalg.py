"""Factorizations under JAX's names: of matrices (..., m, n), batches of them.

``arrayfn.numpy.linalg`` has them under NumPy's, and says what failures look like.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import linalg
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import conj
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.manipulation import broadcast_to, matrix_transpose
from arrayfn.primitives import linalg_lu, linalg_triangular
from arrayfn.tracing import apply

__all__ = [
    "cholesky",
    "eig",
    "eigh",
    "lu",
    "lu_pivots_to_permutation",
    "qr",
    "svd",
    "triangular_solve",
]


def cholesky(a: ArrayLike, *, symmetrize_input: bool = True) -> Array:
    """The lower triangular L with a = L L^H; NaN if a is not positive definite.

    ``symmetrize_input`` takes (a + a^H) / 2 for a; else the lower triangle is read.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    return linalg.cholesky(a, symmetrize_input=symmetrize_input)


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """x with x op(a) = b, or op(a) x = b if ``left_side``.

    op transposes and conjugates. Of a (..., n, n) one triangle is read, without the
    diagonal if that is to be one of ones. b (..., m, n), or (..., n, m) if
    ``left_side``, or a vector (..., n) if a has as many axes less one.

    >>> a = np.array([[2.0, 0.0], [1.0, 4.0]])
    >>> triangular_solve(a, np.array([[2.0], [9.0]]), left_side=True, lower=True)
    array([[1.],
           [2.]])
    """
    a, b = m.together("triangular_solve", a, b)
    m.check_square("triangular_solve", a.shape)
    is_vector = len(b.shape) == len(a.shape) - 1
    if is_vector:
        b = b[..., :, None] if left_side else b[..., None, :]
    side = -2 if left_side else -1
    if len(b.shape) < 2 or a.shape[-1] != b.shape[side]:
        raise ShapeError(
            f"triangular_solve with a matrix of shape {a.shape} needs {a.shape[-1]} "
            f"{'rows' if left_side else 'columns'} on the right-hand side, but its "
            f"shape is {b.shape}",
            user_location(),
        )
    if conjugate_a and not transpose_a:
        a, conjugate_a = conj(a), False
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = apply(
        linalg_triangular.triangular_solve,
        broadcast_to(b, (*batch, *b.shape[-2:])),
        broadcast_to(a, (*batch, *a.shape[-2:])),
        left=left_side,
        lower=lower,
        transpose=transpose_a,
        conjugate=conjugate_a and a.dtype.kind == "c",
        unit=unit_diagonal,
    )
    if not is_vector:
        return x
    return x[..., :, 0] if left_side else x[..., 0, :]


def lu(x: ArrayLike) -> tuple[Array, Array, Array]:
    """LU factors in one matrix, pivots and permutation: x[permutation] = L U.

    The pivots (..., k) say with which row each was swapped, in order.

    >>> factors, pivots, permutation = lu(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> factors
    array([[4.  , 4.  ],
           [0.25, 1.  ]])
    """
    x = m.matrix("lu", x)
    by_columns, pivots, permutation = apply(linalg_lu.lu, matrix_transpose(x))
    return matrix_transpose(by_columns), pivots, permutation


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """The permutation (..., permutation_size) that swapping with pivots (..., k) makes.

    >>> lu_pivots_to_permutation(np.array([2, 2], np.int32), 3)
    array([2, 0, 1], dtype=int32)
    """
    return apply(linalg_lu.pivots_to_permutation, pivots, rows=permutation_size)


def qr(
    x: ArrayLike, *, pivoting: bool = False, full_matrices: bool = True
) -> tuple[Array, Array]:
    """Q and R with x = Q R; Q is square if ``full_matrices``."""
    if pivoting:
        raise ArgumentError(
            "qr does not pivot; use pivoting=False, or svd for the rank of a matrix",
            user_location(),
        )
    q, r = linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return q, r


def eigh(
    x: ArrayLike, *, lower: bool = True, symmetrize_input: bool = True
) -> tuple[Array, Array]:
    """Eigenvectors, as columns, and ascending eigenvalues of Hermitian x (..., n, n).

    ``symmetrize_input`` takes (x + x^H) / 2 for x; else one triangle is read.
    """
    uplo = "L" if lower else "U"
    w, v = linalg.eigh(x, uplo, symmetrize_input=symmetrize_input)
    return v, w


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
) -> list[Array]:
    """Eigenvalues of x (..., n, n), then left and right eigenvectors as columns.

    Left ones, v^H x = w v^H, come from the inverse of the right ones.
    """
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        return [linalg.eigvals(x)]
    w, right = linalg.eig(x)
    left = m.adjoint(linalg.inv(right))
    left = left / linalg.vector_norm(left, axis=-2, keepdims=True).astype(left.dtype)
    chosen = (left, compute_left_eigenvectors), (right, compute_right_eigenvectors)
    return [w, *(v for v, wanted in chosen if wanted)]


def svd(x: ArrayLike, *, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """U, singular values and V^H with x = U diag(s) V^H; s alone if not compute_uv."""
    if not compute_uv:
        return linalg.svdvals(x)
    u, s, vh = linalg.svd(x, full_matrices)
    return u, s, vh
