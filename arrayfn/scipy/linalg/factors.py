"""Factorizations and systems under SciPy's names, on matrices (..., m, n).

``arrayfn.numpy.linalg`` describes failures. Arguments that only save memory or checks
(``overwrite_a``, ``check_finite``) are accepted and have no effect.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.lax import linalg as lax_linalg
from arrayfn.numpy import linalg
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.arithmetic import conj
from arrayfn.numpy.creation import arange, tril, triu
from arrayfn.numpy.indexing import take_along_axis
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.linalg.solutions import with_sides
from arrayfn.numpy.linear_algebra import diag, matmul
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    matrix_transpose,
)
from arrayfn.transforms import jvp

# Positive definite systems.


def cholesky(
    a: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
) -> Array:
    """Return the Cholesky factor U with a = U^H U, or with ``lower`` L with a = L L^H.

    ``a`` (..., n, n) must be Hermitian. Its lower triangle is read with ``lower``,
    otherwise the upper one.

    >>> cholesky(np.array([[4.0, 2.0], [7.0, 5.0]]))
    array([[2., 1.],
           [0., 2.]])
    """
    a = m.from_triangle(m.square("cholesky", a), lower)
    return linalg.cholesky(a, upper=not lower, symmetrize_input=False)


def cho_factor(
    a: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
) -> tuple[Array, bool]:
    """Return the pair of the factor ``cholesky(a, lower)`` and ``lower``.

    The other triangle of the factor has zeros.
    """
    return cholesky(a, lower), lower


def cho_solve(
    c_and_lower: tuple[ArrayLike, bool],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve a x = b with the result of ``cho_factor(a)``, for b (n,) or (..., n, k).

    >>> a = np.array([[4.0, 2.0], [2.0, 5.0]])
    >>> cho_solve(cho_factor(a), np.array([6.0, 7.0]))
    array([1., 1.])
    """
    factor, lower = c_and_lower
    factor, b = m.together("cho_solve", factor, b)
    m.check_square("cho_solve", factor.shape)
    # The parameter ``trans`` of solve_triangular: 0 solves with c, and 2 with c^H. That
    # comes second if c is L, and first if c is U.
    first_op, second_op = (0, 2) if lower else (2, 0)

    def by_factor(c: Array, b: Array) -> Array:
        """Solve with the triangular factor c and with its adjoint."""
        return solve_triangular(
            c, solve_triangular(c, b, first_op, lower), second_op, lower
        )

    return with_sides("cho_solve", factor, b, by_factor)


# General systems.


@also_takes("debug")
def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """Solve a x = b, for ``a`` (..., n, n) and b (n,) or (..., n, k).

    ``assume_a="pos"`` uses the Cholesky factor of a positive definite ``a``. "gen",
    "sym" and "her" use LU factors. All but "gen" read only one triangle of ``a``. With
    ``lower``, this is the lower triangle.

    >>> a = np.array([[2.0, 1.0], [9.0, 3.0]])
    >>> solve(a, np.array([3.0, 5.0]), assume_a="sym")
    array([0.8, 1.4])
    """
    if assume_a in ("pos", "positive definite"):
        return cho_solve(cho_factor(a, lower), b)
    symmetric, hermitian = ("sym", "symmetric"), ("her", "hermitian")
    if assume_a in (*symmetric, *hermitian):
        conjugate = assume_a in hermitian
        whole = m.from_triangle(m.square("solve", a), lower, conjugate)
        return linalg.solve(whole, b)
    if assume_a not in ("gen", "general"):
        raise ArgumentError(
            f"solve assumes 'gen', 'sym', 'her' or 'pos' of a, not {assume_a!r}",
            user_location(),
        )
    return linalg.solve(a, b)


@also_takes("debug")
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve op(a) x = b, for one triangle of ``a`` (..., n, n).

    ``trans`` chooses op. 0 or "N" is the identity, 1 or "T" the transpose, and 2 or "C"
    the conjugate transpose.

    >>> solve_triangular(np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([4.0, 8.0]))
    array([1., 2.])
    """
    a, b = m.together("solve_triangular", a, b)
    m.check_square("solve_triangular", a.shape)
    op = _operation(trans)  # 0: a itself, 1: its transpose, 2: its adjoint

    def substitute(a: Array, b: Array) -> Array:
        """Solve op(a) x = b for matrices with equal leading axes."""
        return lax_linalg.triangular_solve(
            a,
            b,
            left_side=True,
            lower=lower,
            transpose_a=op > 0,
            conjugate_a=op > 1,
            unit_diagonal=unit_diagonal,
        )

    return with_sides("solve_triangular", a, b, substitute)


def _operation(trans: int | str) -> int:
    """Return LAPACK's number of ``trans``.

    It is 0 for none, 1 for the transpose, and 2 for the conjugate transpose.
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ArgumentError(
            f"trans must be 0, 1, 2, 'N', 'T' or 'C', not {trans!r}", user_location()
        )
    return "NTC".index(trans) if isinstance(trans, str) else trans


def lu_factor(
    a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, Array]:
    """Return the LU factors of ``a`` in one matrix, and the pivots of the row swaps.

    L, without its unit diagonal, is below the diagonal of the matrix. Row i is swapped
    with row pivots[i], for ascending i.
    """
    factors, pivots, _ = lax_linalg.lu(a)
    return factors, pivots


def lu_solve(
    lu_and_piv: tuple[ArrayLike, ArrayLike],
    b: ArrayLike,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve op(a) x = b with the result of ``lu_factor(a)``.

    ``trans`` is as in ``solve_triangular``.

    >>> a = np.array([[0.0, 2.0], [3.0, 1.0]])
    >>> lu_solve(lu_factor(a), np.array([2.0, 4.0]))
    array([1., 1.])
    """
    factors, pivots = lu_and_piv
    factors, b = m.together("lu_solve", factors, b)
    m.check_square("lu_solve", factors.shape)
    order = lax_linalg.lu_pivots_to_permutation(pivots, factors.shape[-1])
    op = _operation(trans)  # 0: a itself, 1: its transpose, 2: its adjoint

    def by_factors(lu: Array, b: Array) -> Array:
        """Solve op(P L U) x = b, for L and U in one matrix ``lu``."""
        batch = b.shape[:-2]
        places = broadcast_to(order, (*batch, order.shape[-1]))[..., None]
        lower: dict[str, Any] = {"lower": True, "unit_diagonal": True}
        if op == 0:
            # Permute b, then solve with L and U.
            y = solve_triangular(lu, take_along_axis(b, places, -2), **lower)
            return solve_triangular(lu, y)
        # The factors of the transpose come in reverse order, and P is inverted last.
        y = solve_triangular(lu, solve_triangular(lu, b, op), op, **lower)
        return take_along_axis(y, _inverse(places), -2)

    return with_sides("lu_solve", factors, b, by_factors)


def _inverse(places: Array) -> Array:
    """Return the inverse (..., n, 1), int32, of each permutation ``places``.

    ``is_at[..., i, j]`` says whether places[j] = i, and then the inverse of i is j.
    """
    n = places.shape[-2]
    is_at = matrix_transpose(places) == arange(n, dtype=places.dtype)[:, None]
    columns = arange(n, dtype=np.int32)
    return (is_at * columns).sum(axis=-1, keepdims=True).astype(np.int32)


def lu(
    a: ArrayLike,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
) -> tuple[Array, ...]:
    """Return P, L and U with a = P L U; with ``permute_l``, return P L and U.

    >>> p, l, u = lu(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> p @ l @ u
    array([[1., 2.],
           [4., 4.]])
    """
    a = m.matrix("lu", a)
    factors, _, order = lax_linalg.lu(a)
    rows, columns = a.shape[-2:]
    k = min(columns, rows)
    lower = factors[..., :, :k]
    lower = tril(lower, -1) + m.identities(lower)
    upper = triu(factors[..., :k, :])
    places = arange(rows, dtype=order.dtype)[:, None]
    # a[order] = L U: row j of L U is row order[j] of a, so P[order[j], j] = 1.
    p = (places == order[..., None, :]).astype(a.dtype)
    return (matmul(p, lower), upper) if permute_l else (p, lower, upper)


# Orthogonal factors.


def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> Any:
    """Return Q and R with a = Q R.

    Mode "economic" gives min(m, n) columns of Q, and mode "r" gives only R. With
    ``pivoting``, the result also has the order (..., n) of columns, and a[..., order] =
    Q R. In this order, the diagonal of R does not increase in magnitude.
    """
    if mode not in ("full", "economic", "r"):
        raise ArgumentError(
            f"qr has the modes 'full', 'economic' and 'r', not {mode!r}",
            user_location(),
        )
    parts = lax_linalg.qr(a, pivoting=pivoting, full_matrices=mode != "economic")
    return parts[1:] if mode == "r" else parts


def qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """Factor a = Q R, and return c Q and R; in mode "left", return Q c and R.

    Q has min(m, n) columns, and is conjugated with ``conjugate``. With ``pivoting``,
    the result also has the order of columns; see ``qr``.
    """
    if mode not in ("left", "right"):
        raise ArgumentError(
            f"qr_multiply has the modes 'left' and 'right', not {mode!r}",
            user_location(),
        )
    a, c = m.together("qr_multiply", a, c)
    q, *others = lax_linalg.qr(a, pivoting=pivoting, full_matrices=False)
    q = conj(q) if conjugate else q
    return (matmul(c, q) if mode == "right" else matmul(q, c)), *others


@also_takes("lapack_driver")
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
) -> Any:
    """Return U, the singular values s, and V^H, with a = U diag(s) V^H.

    With ``compute_uv=False``, return only s. Without ``full_matrices``, U and V have
    min(m, n) columns.
    """
    return lax_linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)


@also_takes("method", "eps", "max_iterations")
def polar(a: ArrayLike, side: str = "right") -> tuple[Array, Array]:
    """Return U with orthonormal columns (or rows), and Hermitian P, with a = U P.

    With ``side="left"``, a = P U. Both come from the singular value decomposition W s
    V^H: U = W V^H, and P = V s V^H (or W s W^H for "left").
    """
    if side not in ("right", "left"):
        raise ArgumentError(
            f"side must be 'right' or 'left', not {side!r}", user_location()
        )
    w, s, vh = linalg.svd(a, full_matrices=False)
    unitary = matmul(w, vh)
    s = s[..., None, :].astype(w.dtype)
    if side == "right":
        return unitary, matmul(m.adjoint(vh) * s, vh)
    return unitary, matmul(w * s, m.adjoint(w))


_EIGENVALUES = ("overwrite_a", "overwrite_b", "check_finite", "driver", "turbo")


@also_takes(*_EIGENVALUES)
def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    *,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Return the ascending eigenvalues and the eigenvectors of Hermitian ``a``.

    With b, the eigenvalues w and eigenvectors v solve a v = w b v. b must be positive
    definite, and its Cholesky factor reduces the problem to one without b. The lower
    triangles are read with ``lower``, otherwise the upper ones. ``subset_by_index`` has
    the first and the last index (inclusive) of the eigenvalues to return. With
    ``eigvals_only``, return no eigenvectors.
    """
    result = _eigh(a, b, lower, eigvals_only)
    if subset_by_index is None:
        return result
    first, last = subset_by_index
    chosen = builtins.slice(first, last + 1)
    if eigvals_only:
        return result[..., chosen]
    w, v = result
    return w[..., chosen], v[..., chosen]


def _eigh(a: ArrayLike, b: ArrayLike | None, lower: bool, eigvals_only: bool) -> Any:
    """Return eigenvalues, and eigenvectors unless ``eigvals_only``, of a v = w b v.

    With b = L L^H, the problem becomes L^-1 a L^-H u = w u for u = L^H v.
    """
    a = m.from_triangle(m.square("eigh", a), lower)
    if b is None:
        if eigvals_only:
            return linalg.eigvalsh(a, symmetrize_input=False)
        w, v = linalg.eigh(a, symmetrize_input=False)
        return w, v
    b = m.from_triangle(m.square("eigh", b), lower)
    factor = linalg.cholesky(b, symmetrize_input=False)
    half = solve_triangular(factor, a, lower=True)
    inner = m.adjoint(solve_triangular(factor, m.adjoint(half), lower=True))
    if eigvals_only:
        return linalg.eigvalsh(inner)
    w, v = linalg.eigh(inner)
    return w, solve_triangular(factor, v, trans=2, lower=True)  # with L^H


@also_takes(*_EIGENVALUES)
def eigvalsh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    *,
    subset_by_index: tuple[int, int] | None = None,
) -> Array:
    """Return the ascending eigenvalues of Hermitian ``a``, of a v = w b v with b.

    The arguments are those of ``eigh``.
    """
    return eigh(a, b, lower, eigvals_only=True, subset_by_index=subset_by_index)


@also_takes("check_finite", "tol", "lapack_driver")
def eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[int, int] | None = None,
) -> Any:
    """Return the ascending eigenvalues and the eigenvectors of a tridiagonal matrix.

    The matrix is real. d (n,) is its diagonal, and e (n - 1,) is both its subdiagonal
    and its superdiagonal. With ``select="i"``, ``select_range`` has the first and the
    last index (inclusive) of the eigenvalues to return. With ``eigvals_only``, return
    no eigenvectors. Raises ShapeError for other shapes, and ArgumentError for another
    ``select``.

    >>> d, e = np.array([2.0, 2.0]), np.array([1.0])
    >>> eigh_tridiagonal(d, e, eigvals_only=True)
    array([1., 3.])
    """
    d, e = m.together("eigh_tridiagonal", d, e)
    if len(d.shape) != 1 or e.shape != (d.shape[0] - 1,):
        raise ShapeError(
            f"eigh_tridiagonal takes (n,) and (n - 1,), but was given {d.shape} and "
            f"{e.shape}",
            user_location(),
        )
    if select not in ("a", "i") or (select == "i") != (select_range is not None):
        raise ArgumentError(
            "eigh_tridiagonal: select must be 'a' (all), or 'i' with "
            "select_range=(first, "
            f"last), not {select!r}; values cannot choose, they would decide the shape",
            user_location(),
        )
    a = diag(d) + diag(e, -1)  # ``eigh`` reads the lower triangle
    return eigh(a, eigvals_only=eigvals_only, subset_by_index=select_range)


# Unitary reductions. They have no derivatives.


@also_takes("lwork", "overwrite_a", "check_finite")
def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """Return the Schur form T and unitary Z with a = Z T Z^H, for a (..., n, n).

    T is triangular for ``output="complex"``. For "real", T has a block of two rows for
    each pair of conjugate eigenvalues. Another ``output`` raises ArgumentError.
    """
    if output not in ("real", "complex"):
        raise ArgumentError(
            f"output must be 'real' or 'complex', not {output!r}", user_location()
        )
    a = m.square("schur", a)
    if output == "complex":
        a = a.astype(dtypes.complex_of(a.dtype))
    t, z = lax_linalg.schur(a)
    return t, z


def hessenberg(
    a: ArrayLike,
    calc_q: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
) -> Any:
    """Return the Hessenberg form H; with ``calc_q`` also unitary Q, a = Q H Q^H.

    LAPACK's gehrd leaves the Householder vectors below the subdiagonal. Their product
    acts on all rows but the first, so Q has the first row and column of the identity.
    """
    a = m.square("hessenberg", a)
    n = a.shape[-1]
    reduced, taus = lax_linalg.hessenberg(a)
    h = triu(reduced, -1)
    if not calc_q:
        return h
    unit = m.identities(a)
    if n < 2:
        return h, unit
    rest = lax_linalg.householder_product(reduced[..., 1:, :-1], taus)
    rest = concatenate([unit[..., 1:, :1], rest], axis=-1)
    return h, concatenate([unit[..., :1, :], rest], axis=-2)


# The exponential.


def expm_frechet(
    A: ArrayLike,
    E: ArrayLike,
    method: str | None = None,
    compute_expm: bool = True,
    check_finite: bool = True,
) -> Any:
    """Return the exponential of A and its derivative in the direction E.

    With ``compute_expm=False``, return only the derivative. ``method`` and
    ``check_finite`` have no effect.
    """
    a, e = m.together("expm_frechet", A, E)
    value, derivative = jvp(linalg.expm, (a,), (e,))
    return (value, derivative) if compute_expm else derivative
