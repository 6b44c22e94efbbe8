"""Functions of matrices and matrix equations, by the Schur form.

Derivatives, for solutions up to second order: Higham, Functions of Matrices (2008),
sections 3.1 and 6.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError, user_location
from arrayfn.lax import linalg as lax_linalg
from arrayfn.lax.control_flow_loops import scan
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.arithmetic import absolute, maximum, minimum, real, sqrt
from arrayfn.numpy.comparison import isfinite, where
from arrayfn.numpy.creation import eye, triu, zeros_like
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.linear_algebra import diagonal, matmul
from arrayfn.numpy.manipulation import broadcast_to, matrix_transpose
from arrayfn.numpy.reductions import all, any, max, min, sum
from arrayfn.scipy.linalg.factors import schur
from arrayfn.transforms import vmap
from arrayfn.transforms.custom import custom_jvp, stop_gradient


def _batched(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Map ``function``, which takes matrices, over ``count`` leading axes by vmap."""
    for _ in range(count):
        function = vmap(function)
    return function


def _by_columns(
    step: Callable[[Array, Array, Any], Array], like: Array, xs: Any
) -> Any:
    """Compute a matrix column by column: column j is ``step(known, j, xs[j])``.

    ``known`` is the matrix with the columns before j, and zeros in the others. ``xs``
    is a pytree of arrays with one row for each column. The result has the shape and
    dtype of ``like``.
    """
    n = like.shape[-1]

    def next_column(known: Array, row: Any) -> Any:
        """Compute column j from ``row`` = (j, xs[j]), and insert the column."""
        j, x = row
        column = step(known, j, x)
        is_column_j = np.arange(n, dtype=np.int32) == j
        return where(is_column_j, column[:, None], known), None

    start = zeros_like(like)
    matrix, _ = scan(next_column, start, (np.arange(n, dtype=np.int32), xs))
    return matrix


def _back(a: Array, b: Array) -> Array:
    """Solve a x = b by back substitution, for the upper triangle of a."""
    return lax_linalg.triangular_solve(a, b, left_side=True)


# ``method`` and ``tol`` are ignored; A, B and C are other names of a, b and q.
@also_takes("method", "tol", A="a", B="b", C="q")
def solve_sylvester(a: ArrayLike, b: ArrayLike, q: ArrayLike) -> Array:
    """Solve a x + x b = q, for ``a`` (m, m), b (n, n), and x and q (m, n).

    Leading axes broadcast. The solution exists if a and -b have no common eigenvalue
    (Bartels and Stewart, Solution of the matrix equation AX + XB = C, 1972).

    >>> x = solve_sylvester(np.diag([1.0, 2.0]), np.eye(1), np.array([[4.0], [6.0]]))
    >>> np.round(x, 12).ravel()
    array([2., 2.])
    """
    a, b, q = m.together("solve_sylvester", a, b, q)
    m.check_square("solve_sylvester", a.shape)
    m.check_square("solve_sylvester", b.shape)
    if q.shape[-2:] != (a.shape[-1], b.shape[-1]):
        raise ShapeError(
            f"solve_sylvester with matrices of {a.shape} and {b.shape} needs q of "
            f"shape {(a.shape[-1], b.shape[-1])}, not {q.shape}",
            user_location(),
        )
    batch = ops.broadcast_shape("solve_sylvester", [x.shape[:-2] for x in (a, b, q)])
    a, b, q = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, q))
    return _batched(_solved, len(batch))(a, b, q)


def _solved(a: Array, b: Array, q: Array) -> Array:
    """Solve a x + x b = q, by complex Schur forms and two steps of refinement.

    The solution is linear in q. Derivatives treat the Schur forms as constants. Each
    refinement step x += solution(q - a x - x b) makes derivatives of one more order
    correct.
    """
    r, u = schur(stop_gradient(a), "complex")
    s, v = schur(stop_gradient(b), "complex")
    # Column j of s above the diagonal couples column j of the solution to others.
    strictly_upper_s = where(np.tri(s.shape[-1], dtype=bool), 0, s)
    unit = eye(r.shape[-1], dtype=r.dtype)

    def column(known: Array, j: Array, row: Any) -> Array:
        """Return column j of y, from the columns before it.

        It solves (r + s[j, j]) y[:, j] = sides[:, j] - y[:, :j] s[:j, j]. ``row`` has
        column j of the sides, column j of s above the diagonal, and s[j, j].
        """
        side, couplings, value = row
        return _back(r + value * unit, side - matmul(known, couplings))

    def solution(q: Array) -> Array:
        """Solve for the right-hand side q once: x = u y v^H with r y + y s = u^H q v.

        The columns of y are computed one after the other. The result is real for real
        a.
        """
        sides = matmul(matmul(m.adjoint(u), q.astype(u.dtype)), v)
        couplings = matrix_transpose(strictly_upper_s)
        columns = matrix_transpose(sides), couplings, diagonal(s)
        y = _by_columns(column, sides, columns)
        x = matmul(matmul(u, y), m.adjoint(v))
        return x if a.dtype in dtypes.COMPLEX else real(x)

    x = solution(q)
    for _ in range(2):
        x = x + solution(q - matmul(a, x) - matmul(x, b))
    return x


def sqrtm(A: ArrayLike, blocksize: int = 64) -> Array:
    """Return the complex principal square root of A (..., n, n).

    A must have no negative real eigenvalues (Bjorck and Hammarling, A Schur method for
    the square root of a matrix, 1983). The root is NaN for a singular matrix without a
    square root. The derivative is not defined if two eigenvalues are 0. ``blocksize``
    has no effect.

    >>> np.round(sqrtm(np.array([[33.0, 24.0], [48.0, 57.0]])).real, 9)
    array([[5., 2.],
           [4., 7.]])
    """
    a = m.square("sqrtm", A)
    a = a.astype(dtypes.complex_of(a.dtype))
    return _batched(_root, len(a.shape) - 2)(a)


@custom_jvp
def _root(a: Array) -> Array:
    """Return the square root of a matrix from its Schur form; NaN if there is none."""
    t, z = schur(a, "complex")
    places = np.arange(t.shape[-1], dtype=np.int32)

    def column(known: Array, j: Array, row: Any) -> Array:
        """Return column j of R, the root of t, from the columns before it.

        With r = R[j, j], the elements x = R[:j, j] above the diagonal solve
        (R[:j, :j] + r I) x = t[:j, j] (Bjorck and Hammarling, 1983). ``row`` has column
        j of t, and r. ``system`` is that system, with the identity in the other rows.
        """
        side, r = row
        before = places < j
        # For two eigenvalues of 0, the equation of an element is 0 x = y. It is
        # replaced by 1 x = y, which gives x = 0 if there is a root: y is 0 then.
        sums = roots + r
        added = where(before, where(sums == 0, 1, r), 1)
        system = known + added * eye(len(places), dtype=t.dtype)
        return where(places == j, r, _back(system, where(before, side, 0)))

    roots = sqrt(diagonal(t))
    root = _by_columns(column, t, (matrix_transpose(t), roots))
    # Only for two eigenvalues of 0 there may be no root: 0 x = y needs y = 0.
    above = places[:, None] < places
    may_be_missing = any(above & (roots[:, None] + roots == 0))
    # There is none if the square differs from t by much more than rounding errors.
    limit = 1000.0 * len(places) * float(np.finfo(t.dtype).eps) * max(absolute(t))
    is_wrong = max(absolute(matmul(root, root) - t)) > limit
    root = where(may_be_missing & is_wrong, math.nan, root)
    return matmul(matmul(z, root), m.adjoint(z))


@_root.defjvp
def _root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Differentiate x x = a: dx solves x dx + dx x = da."""
    x = _root(*primals)
    (da,) = tangents
    return x, _solved(x, x, da)


def funm(A: ArrayLike, func: Callable[[Array], Array], disp: bool = True) -> Any:
    """Apply ``func`` to a matrix (n, n) with distinct eigenvalues.

    The result is complex. ``func`` maps arrays elementwise. There is no derivative
    (Parlett, A recurrence among the elements of functions of triangular matrices,
    1976). With ``disp=False``, the result is a pair. Its second item is an estimate of
    the relative error, from the smallest distance between eigenvalues.
    """
    t, z = schur(m.square("funm", A), "complex")
    places = np.arange(t.shape[-1], dtype=np.int32)

    def column(known: Array, j: Array, row: Any) -> Array:
        """Return column j of F = func(t), by Parlett's recurrence above the diagonal.

        F commutes with t, so (t[:j, :j] - t[j, j]) F[:j, j] = F[:j, :j] t[:j, j] -
        t[:j, j] F[j, j]. ``row`` has column j of t, t[j, j] and ``func(t[j, j])``.
        ``system`` is that system, with the identity in the other rows.
        """
        side, value, result = row
        before = places < j
        above = where(before, side, 0)
        unit = eye(len(places), dtype=t.dtype)
        both = before[:, None] & before
        system = where(both, t - value * unit, unit)
        # ``known`` has the columns of F before j. ``_back`` is back substitution.
        others = _back(system, matmul(known, above) - above * result)
        return where(places == j, result, others)

    values = diagonal(t)
    triangular = _by_columns(column, t, (matrix_transpose(t), values, func(values)))
    result = matmul(matmul(z, triangular), m.adjoint(z))
    return result if disp else (result, _error_of_function(t, values, result))


def _error_of_function(t: Array, values: Array, result: Array) -> Array:
    """Estimate the relative error of ``result`` = func(a) as SciPy's ``funm`` does.

    The estimate is eps / gap times the 1-norm of t above the diagonal, between eps and
    1. t is the Schur form of a, with eigenvalues ``values``. The gap is their smallest
    distance, or |values[0]| if that is smaller (as in SciPy). The estimate is infinite
    if an element of the result is not finite.
    """
    eps = float(np.finfo(t.dtype).eps)
    later = np.tri(len(values), k=-1, dtype=bool)
    gaps = where(later, absolute(values[:, None] - values), math.inf)
    nearest = minimum(absolute(values[0]), min(gaps))
    nearest = where(nearest == 0, eps, nearest)
    norm_above = max(sum(absolute(triu(t, 1)), axis=0))
    error = minimum(1.0, maximum(eps, eps / nearest * norm_above))
    return where(all(isfinite(result)), error, math.inf)


def rsf2csf(
    T: ArrayLike, Z: ArrayLike, check_finite: bool = True
) -> tuple[Array, Array]:
    """Convert a real Schur form to a complex, triangular one with the same Z T Z^H."""
    t, z = m.together("rsf2csf", T, Z)
    triangle, change = schur(t, "complex")
    # t = change triangle change^H, so z change replaces z.
    return triangle, matmul(z.astype(change.dtype), change)
