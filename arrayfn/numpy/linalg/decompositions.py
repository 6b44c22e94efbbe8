"""Factorizations of batches of matrices (..., m, n).

If a factorization fails (a matrix that is not positive definite, an iteration that does
not converge, NaN in the operand), the results for that matrix are NaN, because compiled
code cannot raise. NumPy raises ``LinAlgError``.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.creation import zeros
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.manipulation import matrix_transpose
from arrayfn.primitives import (
    linalg_qr,
    linalg_spectral,
    linalg_svd,
    linalg_triangular,
)
from arrayfn.tracing import apply


class QRResult(NamedTuple):
    """The result of ``qr``: Q (..., m, k) and R (..., k, n)."""

    Q: Array
    R: Array


class EighResult(NamedTuple):
    """The result of ``eigh``: eigenvalues (..., n), and eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """The result of ``eig``: complex eigenvalues (..., n), eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class SVDResult(NamedTuple):
    """The result of ``svd``: U, the singular values S, and V^H."""

    U: Array
    S: Array
    Vh: Array


def cholesky(
    a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True
) -> Array:
    """Return the lower triangular L with ``a`` = L L^H.

    With ``upper``, the result is U with ``a`` = U^H U. ``a`` (..., n, n) must be
    Hermitian and positive definite; otherwise the factor is NaN. ``symmetrize_input``
    uses (a + a^H) / 2, which makes the gradient Hermitian. Without
    ``symmetrize_input``, only the lower triangle is read. Raises ShapeError unless
    ``a`` is square, DTypeError for half precision.

    >>> import numpy as np
    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    a = m.square("cholesky", a)
    if symmetrize_input:
        a = m.hermitian_part(a)
    factor = apply(linalg_triangular.cholesky, a)
    return m.adjoint(factor) if upper else factor


def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Factor ``a`` (..., m, n) into Q (..., m, k) and R (..., k, n).

    a = Q R. Q has orthonormal columns, and R is upper triangular. k is min(m, n), or m
    in mode "complete". Mode "r" gives only R. The complete factors of a tall matrix
    have no derivative. Raises ArgumentError for another mode.

    >>> import numpy as np
    >>> q, r = qr(np.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> np.allclose(q @ r, [[3.0, 1.0], [4.0, 2.0]])
    True
    """
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(
            f"qr has the modes 'reduced', 'complete' and 'r', not {mode!r}",
            user_location(),
        )
    a = m.matrix("qr", a)
    q, r = apply(linalg_qr.qr, a, full=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


def eigh(
    a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True
) -> EighResult:
    """Return the eigenvalues and eigenvectors of Hermitian ``a`` (..., n, n).

    a = V diag(w) V^H. The eigenvalues w (..., n) are real and ascend, and the
    eigenvectors are the columns of V (..., n, n). ``symmetrize_input`` uses (a + a^H) /
    2. Without ``symmetrize_input``, only the triangle ``UPLO`` ("L", the default, or
    "U") is read. The derivatives of eigenvectors are not finite if eigenvalues are
    equal. Raises ShapeError unless ``a`` is square, ArgumentError for another ``UPLO``.

    >>> import numpy as np
    >>> eigh(np.array([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    array([1., 2.])
    """
    a = _hermitian("eigh", a, UPLO, symmetrize_input)
    # The rows of the first result are conjugated eigenvectors: it is V^H.
    rows, values = apply(linalg_spectral.eigh, a)
    return EighResult(values, m.adjoint(rows))


def eigvalsh(
    a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True
) -> Array:
    """Return the ascending eigenvalues (..., n) of Hermitian ``a``; see ``eigh``."""
    a = _hermitian("eigvalsh", a, UPLO, symmetrize_input)
    return apply(linalg_spectral.eigvalsh, a)


def _hermitian(name: str, x: ArrayLike, uplo: str | None, symmetrize: bool) -> Array:
    """Return square ``x`` prepared for a solver that reads the lower triangle.

    With ``symmetrize``, this is (x + x^H) / 2. Otherwise, the triangle ``uplo`` ("L",
    "U" or None for "L") of x becomes the lower one. Raises ArgumentError, about the
    function ``name``, for another ``uplo``.
    """
    if uplo not in (None, "L", "U"):
        raise ArgumentError(f"{name} takes UPLO 'L' or 'U', not {uplo!r}")
    x = m.square(name, x)
    if symmetrize:
        return m.hermitian_part(x)
    return m.adjoint(x) if uplo == "U" else x


def eig(a: ArrayLike) -> EigResult:
    """Return the complex eigenvalues and eigenvectors of ``a`` (..., n, n).

    a V = V diag(w). The eigenvalues are w (..., n), and the eigenvectors are the
    columns of V (..., n, n). Each vector has norm 1, and its largest element is real.
    The derivatives of the vectors are not finite if eigenvalues are equal. Raises
    ShapeError unless ``a`` is square.

    >>> import numpy as np
    >>> eig(np.array([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    array([0.+1.j, 0.-1.j])
    """
    a = m.square("eig", a)
    if a.shape[-1] == 0:
        dtype = dtypes.complex_of(a.dtype)
        return EigResult(zeros(a.shape[:-1], dtype), zeros(a.shape, dtype))
    # The primitive takes and returns column-major matrices: the transposes.
    rows, values = apply(linalg_spectral.eig, matrix_transpose(a))
    return EigResult(values, matrix_transpose(rows))


def eigvals(a: ArrayLike) -> Array:
    """Return the complex eigenvalues (..., n) of ``a`` (..., n, n)."""
    a = m.square("eigvals", a)
    if a.shape[-1] == 0:
        return zeros(a.shape[:-1], dtypes.complex_of(a.dtype))
    return apply(linalg_spectral.eigvals, matrix_transpose(a))


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = ...,
    compute_uv: Literal[True] = ...,
    hermitian: bool = ...,
    subset_by_index: tuple[int, int] | None = ...,
) -> SVDResult: ...


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool,
    compute_uv: bool,
    hermitian: bool = ...,
    subset_by_index: tuple[int, int] | None = ...,
) -> Any: ...


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Return the singular value decomposition of ``a`` (..., m, n): U, s and V^H.

    a = U diag(s) V^H. U is (..., m, m), V^H is (..., n, n), and s (..., k) descends,
    with k = min(m, n). With ``full_matrices=False``, U is (..., m, k) and V^H is (...,
    k, n). With ``compute_uv=False``, only s is returned. ``hermitian`` has no effect.
    The derivatives of the vectors are not finite if singular values are equal. If a
    matrix is not square, its square factors have no derivatives. With
    ``subset_by_index=(first, end)`` and thin factors, only singular values ``first`` to
    ``end`` (exclusive) and their vectors are returned.

    NumPy's LAPACK is used outside ``jit``, SciPy's LAPACK inside, and cuSOLVER on a
    GPU. The sign of a pair of vectors may differ between them. The product U diag(s)
    V^H is the same.

    >>> import numpy as np
    >>> svd(np.array([[0.0, 2.0], [1.0, 0.0]])).S
    array([2., 1.])
    """
    a = m.matrix("svd", a)
    if subset_by_index is not None:
        return _singular_values_between(a, full_matrices, compute_uv, subset_by_index)
    if not compute_uv:
        return svdvals(a)
    if 0 in a.shape[-2:] and full_matrices:
        rows, columns = a.shape[-2:]
        batch = a.shape[:-2]
        u, vh = (m.identities(zeros((*batch, n, n), a.dtype)) for n in (rows, columns))
        return SVDResult(u, zeros((*batch, 0), dtypes.real_of(a.dtype)), vh)
    # The primitive takes and returns column-major matrices: the transposes.
    u, s, vh = apply(linalg_svd.svd, matrix_transpose(a), full=full_matrices)
    return SVDResult(matrix_transpose(u), s, matrix_transpose(vh))


def _singular_values_between(
    a: Array, full_matrices: bool, compute_uv: bool, between: tuple[int, int]
) -> Any:
    """Return some singular values of ``a``, and their vectors if ``compute_uv``.

    ``between`` is (first, end): the largest singular value has number 0, and ``end`` is
    exclusive. Raises ArgumentError for ``full_matrices``, unless all values are asked
    for.
    """
    chosen = slice(*between)
    if not compute_uv:
        return svdvals(a)[..., chosen]
    if full_matrices and between != (0, min(a.shape[-2:])):
        raise ArgumentError(
            "svd: subset_by_index takes full_matrices=False, because square factors "
            "belong to all singular values",
            user_location(),
        )
    u, s, vh = svd(a, full_matrices)
    return SVDResult(u[..., chosen], s[..., chosen], vh[..., chosen, :])


def svdvals(a: ArrayLike) -> Array:
    """Return the descending singular values (..., min(m, n)) of ``a`` (..., m, n)."""
    return apply(linalg_svd.svdvals, m.matrix("svdvals", a))
