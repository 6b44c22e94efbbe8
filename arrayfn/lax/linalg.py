"""Factorizations of batches of matrices (..., m, n), under JAX's names.

``arrayfn.numpy.linalg`` has them under NumPy's names, and describes failures.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import documentation as _documentation
from arrayfn.errors import ShapeError, user_location
from arrayfn.lax.control_flow_loops import scan
from arrayfn.numpy import linalg
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.arithmetic import conj, sign
from arrayfn.numpy.creation import tril, triu, zeros_like
from arrayfn.numpy.indexing import take_along_axis
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.linear_algebra import diagonal, matmul
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    matrix_transpose,
    moveaxis,
)
from arrayfn.primitives import linalg_lu, linalg_qr, linalg_schur, linalg_triangular
from arrayfn.tracing import apply

__all__ = [
    "cholesky",
    "cholesky_update",
    "eig",
    "eigh",
    "hessenberg",
    "householder_product",
    "lu",
    "lu_pivots_to_permutation",
    "ormqr",
    "qr",
    "schur",
    "svd",
    "symmetric_product",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
]


def cholesky(x: ArrayLike, *, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular L with x = L L^H, for Hermitian x (..., n, n).

    L is NaN if x is not positive definite. With ``symmetrize_input``, (x + x^H) / 2 is
    factorized. Otherwise, only the lower triangle of x is read.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    return linalg.cholesky(x, symmetrize_input=symmetrize_input)


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
    """Solve x op(a) = b for x, or op(a) x = b with ``left_side``.

    op transposes with ``transpose_a``, and conjugates with ``conjugate_a``. The
    function reads the lower triangle of ``a`` (..., n, n) if ``lower``, else the upper
    one. With ``unit_diagonal`` it does not read the diagonal, which counts as ones. b
    is (..., m, n), or (..., n, m) with ``left_side``, and x has the shape of b. If b
    has one axis less than ``a``, it has vectors (..., n). Leading axes are broadcast.
    Raises ShapeError if the extents do not fit.

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
    """Return the LU factors of x (..., m, n), the pivots, and the row permutation.

    x[permutation] = L U. The first result holds U in its upper triangle, and L, whose
    diagonal is 1, below. pivots (..., min(m, n)) and permutation (..., m) are int32. In
    step i of the elimination, rows i and pivots[i] were swapped.

    >>> factors, pivots, permutation = lu(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> factors
    array([[4.  , 4.  ],
           [0.25, 1.  ]])
    """
    x = m.matrix("lu", x)
    # Like LAPACK, the primitive takes and gives column-major matrices: the transposes.
    by_columns, pivots, permutation = apply(linalg_lu.lu, matrix_transpose(x))
    return matrix_transpose(by_columns), pivots, permutation


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """Return the permutation (..., permutation_size) of rows that ``pivots`` describe.

    pivots (..., k) are those of ``lu``: row i was swapped with row pivots[i], for i
    from 0 to k - 1. The result is int32.

    >>> lu_pivots_to_permutation(np.array([2, 2], np.int32), 3)
    array([2, 0, 1], dtype=int32)
    """
    return apply(linalg_lu.pivots_to_permutation, pivots, rows=permutation_size)


@also_takes("use_magma")
def qr(
    x: ArrayLike, *, pivoting: bool = False, full_matrices: bool = True
) -> tuple[Array, ...]:
    """Return Q (..., m, k) and R (..., k, n) with x = Q R, for x (..., m, n).

    k is m with ``full_matrices``, else min(m, n). With ``pivoting``, the result also
    has the order (..., n) of columns, and x[..., order] = Q R. In this order, the
    diagonal of R does not increase in magnitude. Derivatives keep this order fixed.

    >>> qr(np.array([[0.0, 2.0], [1.0, 0.0]]), pivoting=True)[2]
    array([1, 0], dtype=int32)
    """
    mode = "complete" if full_matrices else "reduced"
    if not pivoting:
        q, r = linalg.qr(x, mode=mode)
        return q, r
    x = m.matrix("qr", x)
    # Primitives take and return column-major matrices: the transposes.
    order = apply(linalg_qr.column_order, matrix_transpose(x))
    q, r = linalg.qr(take_along_axis(x, order[..., None, :], -1), mode=mode)
    return q, r, order


@also_takes("implementation")
def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
) -> tuple[Array, Array]:
    """Return the eigenvectors and the ascending eigenvalues of Hermitian x (..., n, n).

    The eigenvectors are columns (..., n, n), and the eigenvalues are (..., n) and real.
    With ``symmetrize_input``, (x + x^H) / 2 is used. Otherwise, only the triangle that
    ``lower`` chooses is read. With ``subset_by_index=(first, end)``, only eigenvalues
    ``first`` to ``end`` (exclusive) and their vectors are returned. The eigenvalues
    ascend even if ``sort_eigenvalues`` is False.
    """
    uplo = "L" if lower else "U"
    w, v = linalg.eigh(x, uplo, symmetrize_input=symmetrize_input)
    chosen = slice(*(subset_by_index or (None,)))  # slice(None) selects all
    return v[..., chosen], w[..., chosen]


@also_takes("implementation", "use_magma")
def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
) -> list[Array]:
    """Return the eigenvalues of x (..., n, n), and its left and right eigenvectors.

    The list has the eigenvalues w (..., n), then the left and the right eigenvectors
    (columns of (..., n, n)), as far as they are asked for. All are complex. A left
    eigenvector v has v^H x = w v^H, and norm 1. The left eigenvectors come from the
    inverse of the matrix of right eigenvectors.
    """
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        return [linalg.eigvals(x)]
    w, right = linalg.eig(x)
    left = m.adjoint(linalg.inv(right))
    left = left / linalg.vector_norm(left, axis=-2, keepdims=True).astype(left.dtype)
    chosen = (left, compute_left_eigenvectors), (right, compute_right_eigenvectors)
    return [w, *(v for v, wanted in chosen if wanted)]


@also_takes("algorithm")
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Return U, the singular values s, and V^H, with x = U diag(s) V^H.

    x is (..., m, n), and s (..., min(m, n)) is real and descends. With
    ``full_matrices``, U and V are square. With ``compute_uv=False``, the result is only
    s. With ``subset_by_index=(first, end)``, only singular values ``first`` to ``end``
    (exclusive) and their vectors are returned.
    """
    result = linalg.svd(x, full_matrices, compute_uv, subset_by_index=subset_by_index)
    return tuple(result) if compute_uv else result


# Unitary reductions. They have no derivatives.


def hessenberg(a: ArrayLike) -> tuple[Array, Array]:
    """Return the Hessenberg form H of ``a`` (..., n, n), and taus (..., n - 1).

    ``a`` = Q H Q^H. The first result, h, holds H, and below H's subdiagonal the
    Householder vectors. Q is block diagonal, with the blocks 1 and
    ``householder_product(h[..., 1:, :-1], taus)``. Raises ShapeError unless ``a`` is
    square.
    """
    # The primitive takes and returns column-major matrices: the transposes.
    reduced, taus = apply(
        linalg_schur.hessenberg, matrix_transpose(m.square("hessenberg", a))
    )
    return matrix_transpose(reduced), taus


def tridiagonal(
    a: ArrayLike, *, lower: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Reduce Hermitian ``a`` (..., n, n) to tridiagonal form.

    Returns (form, d, e, taus). d (..., n) is the diagonal of the tridiagonal matrix and
    e (..., n - 1) the diagonal next to it. ``lower`` says which triangle of ``a`` is
    read. In ``form`` this triangle holds the Householder vectors, whose scales are taus
    (..., n - 1).
    """
    a = m.square("tridiagonal", a)
    if not lower:  # the lower triangle of the matrix in reverse order
        reduced, *vectors = tridiagonal(a[..., ::-1, ::-1])
        d, e, taus = (vector[..., ::-1] for vector in vectors)
        return reduced[..., ::-1, ::-1], d, e, taus
    # The primitive takes and returns column-major matrices: the transposes.
    reduced, d, e, taus = apply(linalg_schur.tridiagonal, matrix_transpose(a))
    return matrix_transpose(reduced), d, e, taus


def schur(x: ArrayLike, *, compute_schur_vectors: bool = True) -> tuple[Array, ...]:
    """Return the upper triangular T and unitary Z with x (..., n, n) = Z T Z^H.

    A real matrix has a real T, with a 2 x 2 block on its diagonal for each pair of
    conjugate eigenvalues. With ``compute_schur_vectors=False``, the result is (T,).
    Raises ShapeError unless x is square.
    """
    # The primitive takes and returns column-major matrices: the transposes.
    t, z = apply(linalg_schur.schur, matrix_transpose(m.square("schur", x)))
    if not compute_schur_vectors:
        return (matrix_transpose(t),)
    return matrix_transpose(t), matrix_transpose(z)


# Products and updates.


def symmetric_product(
    a_matrix: ArrayLike,
    c_matrix: ArrayLike,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    symmetrize_output: bool = False,
) -> Array:
    """Return alpha a a^T + beta c, for ``a`` (..., n, k) and c (..., n, n).

    The result is symmetric if c is. With ``symmetrize_output``, its mean with its
    transpose is returned.
    """
    a, c = m.together("symmetric_product", a_matrix, c_matrix)
    value = matmul(a, matrix_transpose(a)) * alpha + c * beta
    return (value + matrix_transpose(value)) * 0.5 if symmetrize_output else value


def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Array:
    """Return the upper triangular U with U^T U = R^T R + w w^T.

    R (n, n) is upper triangular and w is (n,), and both are real. U is the Cholesky
    factor after a rank-1 update.

    >>> cholesky_update(np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([0.0, 2.0]))[0]
    array([1., 1.])
    """
    r, w = m.together("cholesky_update", r_matrix, w_vector)
    m.check_square("cholesky_update", r.shape)
    # [R; w]^T [R; w] = R^T R + w w^T, so U is the R factor of the QR decomposition of
    # [R; w]. Rows of that factor may have any sign; make the diagonal positive.
    triangle = linalg.qr(concatenate([r, w[None]]), mode="r")
    return triangle * sign(diagonal(triangle))[:, None]


def householder_product(a: ArrayLike, taus: ArrayLike) -> Array:
    """Return the first n columns of H_1 H_2 ... H_k, where H_i = 1 - taus[i] v_i v_i^H.

    v_i is column i of ``a`` (..., m, n) below the diagonal, with 1 on the diagonal and
    0 above. taus are (..., k), and the result is (..., m, n). The product is 1 - V T
    V^H, where T is the solution of a triangular system. See Puglisi, Modification of
    the Householder method based on the compact WY representation, 1992.
    """
    a, taus = m.together("householder_product", a, taus)
    v, t = _compact(a, taus)
    # The first n columns of V T V^H need only the first n columns of V^H.
    vh = m.adjoint(v)[..., :, : a.shape[-1]]
    return m.identities(a) - matmul(v, matmul(t, vh))


def _compact(a: Array, taus: Array) -> tuple[Array, Array]:
    """Return V (..., m, k) and T (..., k, k) with H_1 H_2 ... H_k = 1 - V T V^H.

    ``a`` and ``taus`` (..., k) describe the reflections H_i as in
    ``householder_product``. T solves (1 + diag(taus) triu(V^H V, 1)) T = diag(taus), so
    it is upper triangular.
    """
    k = taus.shape[-1]
    v = tril(a[..., :, :k], -1)
    v = v + m.identities(v)
    scales = taus[..., :, None]
    inner = scales * triu(matmul(m.adjoint(v), v), 1)
    unit = m.identities(inner)
    t = triangular_solve(
        unit + inner, scales * unit, left_side=True, unit_diagonal=True
    )
    return v, t


def ormqr(
    a: ArrayLike,
    taus: ArrayLike,
    c: ArrayLike,
    *,
    left: bool = True,
    transpose: bool = False,
) -> Array:
    """Return Q c, or c Q with ``left=False``, without forming Q.

    Q (..., m, m) is the product of the reflections that ``a`` (..., m, n) and ``taus``
    (..., k) describe, as in ``householder_product``. With ``transpose``, Q^H is used
    instead.
    """
    a, taus, c = m.together("ormqr", a, taus, c)
    v, t = _compact(a, taus)
    t = m.adjoint(t) if transpose else t
    if left:
        return c - matmul(v, matmul(t, matmul(m.adjoint(v), c)))
    return c - matmul(matmul(matmul(c, v), t), m.adjoint(v))


def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike
) -> Array:
    """Solve tridiagonal systems with diagonals dl, d, du for right-hand sides b.

    dl, d and du (the lower, main and upper diagonal) are (..., n), and b and the result
    are (..., n, k). The first element of dl and the last of du are not read.
    Elimination does not pivot (Thomas's algorithm), so matrices should be diagonally
    dominant or positive definite. Raises ShapeError if the shapes do not fit.

    >>> one = np.ones(3)
    >>> tridiagonal_solve(one, 4 * one, one, np.array([[5.0], [6.0], [5.0]])).ravel()
    array([1., 1., 1.])
    """
    dl, d, du, b = m.together("tridiagonal_solve", dl, d, du, b)
    if not dl.shape == d.shape == du.shape == b.shape[:-1]:
        raise ShapeError(
            "tridiagonal_solve takes three diagonals (..., n) and (..., n, k), but was "
            f"given shapes {dl.shape}, {d.shape}, {du.shape} and {b.shape}",
            user_location(),
        )
    # Scan over rows: move the axis of n to the front.
    low, middle, high = (moveaxis(x, -1, 0)[..., None] for x in (dl, d, du))
    sides = moveaxis(b, -2, 0)
    # There is no row before the first one, and none after the last one.
    no_ratio, no_value = zeros_like(middle[0]), zeros_like(sides[0])

    def forward(carry: Any, row: Any) -> Any:
        """Eliminate the lower diagonal in one row.

        After it, the row says x[i] + ratio * x[i + 1] = value. The carry is (ratio,
        value) of the row before.
        """
        ratio, value = carry
        low, middle, high, side = row
        pivot = middle - low * ratio
        carry = high / pivot, (side - low * value) / pivot
        return carry, carry

    _, (ratios, values) = scan(
        forward, (no_ratio, no_value), (low, middle, high, sides)
    )

    def back(x: Any, row: Any) -> Any:
        """Return x[i] = value - ratio * x[i + 1]; the carry is x[i + 1]."""
        ratio, value = row
        x = value - ratio * x
        return x, x

    _, x = scan(back, no_value, (ratios, values), reverse=True)
    return moveaxis(x, 0, -2)


_documentation.attach(__name__)
