"""Systems of equations, inverses and determinants of matrices (..., n, n).

A singular matrix has an infinite or NaN solution, because compiled code cannot raise.
NumPy raises ``LinAlgError``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.numpy.arithmetic import absolute, conj, multiply, negative, real
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import arange, eye, ones, ones_like, zeros_like
from arrayfn.numpy.cumulative import cumprod
from arrayfn.numpy.data_dependent import known
from arrayfn.numpy.indexing import take_along_axis
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.linalg.decompositions import svd, svdvals
from arrayfn.numpy.linear_algebra import diagonal, matmul, trace
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    matrix_transpose,
    moveaxis,
    reshape,
    stack,
)
from arrayfn.numpy.reductions import any, max, prod, sum
from arrayfn.numpy.sorting import argsort
from arrayfn.numpy.transcendental import log
from arrayfn.primitives import linalg_lu
from arrayfn.primitives import linalg_triangular as triangular
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.tracing import apply
from arrayfn.tracing import trace as traced
from arrayfn.transforms.custom import custom_jvp


class SlogdetResult(NamedTuple):
    """The result of ``slogdet``: the sign, and the logarithm of the absolute value."""

    sign: Array
    logabsdet: Array


# Systems.


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """Solve a x = b by LU factors, for ``a`` (..., n, n) and b (n,) or (..., n, k).

    The leading axes broadcast. x has the shape of b with these axes. Integers give
    float64. Raises ShapeError if the shapes do not fit.

    >>> import numpy as np
    >>> solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 5.0]))
    array([0.8, 1.4])
    """
    a, b = m.together("solve", a, b)
    m.check_square("solve", a.shape)
    return with_sides(
        "solve",
        a,
        b,
        lambda a, b: apply(linalg_lu.solve, b, a, transpose=False, conjugate=False),
    )


def with_sides(name: str, a: Array, b: Array, solve: Any) -> Array:
    """Call ``solve(a, b)`` with equal leading axes of a and b.

    A vector ``b`` becomes a column, and the result a vector again. Raises ShapeError,
    about the function ``name``, if b has other rows than a has columns.
    """
    is_vector = len(b.shape) == 1
    if is_vector:
        b = expand_dims(b, 1)
    if len(b.shape) < 2 or b.shape[-2] != a.shape[-1]:
        raise ShapeError(
            f"{name} with a matrix of shape {a.shape} needs {a.shape[-1]} rows on the "
            f"right-hand side, but its shape is {b.shape}",
            user_location(),
        )
    batch = ops.broadcast_shape(name, (a.shape[:-2], b.shape[:-2]))
    a = broadcast_to(a, (*batch, *a.shape[-2:]))
    b = broadcast_to(b, (*batch, *b.shape[-2:]))
    x = solve(a, b)
    return x[..., 0] if is_vector else x


def inv(a: ArrayLike) -> Array:
    """Return the inverse of ``a`` (..., n, n), in its dtype; integers give float64.

    Raises ShapeError unless ``a`` is square.

    >>> import numpy as np
    >>> inv(np.array([[0.0, 2.0], [1.0, 0.0]]))
    array([[0. , 1. ],
           [0.5, 0. ]])
    """
    a = m.square("inv", a)
    return _inv(a) if a.shape[-1] else a


@custom_jvp
def _inv(x: Array) -> Array:
    """Return the inverse of regular matrices by LU factors.

    The primitive reads row-major x as its transpose, so P x^T = L U, and x^-1 = P^T
    L^-T U^-T. U^T is solved first, because U^-T is triangular: its zeros are not
    multiplied.
    """
    factors, _, permutation = apply(linalg_lu.lu, x)
    parts = {"left": True, "transpose": False, "conjugate": False}
    solve = triangular.triangular_solve
    y = apply(solve, m.identities(x), factors, lower=True, unit=False, **parts)
    y = apply(solve, y, factors, lower=False, unit=True, **parts)
    return take_along_axis(y, argsort(permutation)[..., None], -2)


@_inv.defjvp
def _inv_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return the inverse y and its tangent -y dx y."""
    y = _inv(*primals)
    (dx,) = tangents
    return y, negative(matmul(matmul(y, dx), y))


def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Solve tensordot(a, x, x.ndim) = b for x.

    ``a`` has the axes of b, then those of x, and is square if each of the two groups is
    merged. Before that, the ``axes`` of ``a`` are moved to its end. Raises ShapeError
    for other shapes.
    """
    a, b = m.together("tensorsolve", a, b)
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(-len(axes), 0)))
    shape = a.shape[len(b.shape) :]
    if math.prod(shape) != math.prod(b.shape) or a.shape[: len(b.shape)] != b.shape:
        raise ShapeError(
            f"tensorsolve needs an operand that is square as a matrix of shape "
            f"{b.shape} by the rest, but its shape is {a.shape}",
            user_location(),
        )
    count = math.prod(shape)
    return reshape(solve(reshape(a, (count, count)), reshape(b, (count,))), shape)


def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """Return the inverse of ``a`` for ``tensordot`` over the first ``ind`` axes.

    ``a`` has shape (*first, *rest), where both groups have equally many elements, and
    the result has shape (*rest, *first). Raises ShapeError for other shapes.
    """
    a = m.inexact("tensorinv", a)
    first, rest = a.shape[:ind], a.shape[ind:]
    if ind < 1 or math.prod(first) != math.prod(rest):
        raise ShapeError(
            f"tensorinv: the first {ind} axes of shape {a.shape} and the others must "
            "have as many elements, and ind be positive",
            user_location(),
        )
    count = math.prod(first)
    return reshape(inv(reshape(a, (count, count))), (*rest, *first))


# Determinants.


def _factors(x: Array) -> tuple[Array, Array, Array]:
    """Return the LU factors of ``x``, the permutation of rows, and its sign.

    L and U are in one matrix, as in ``lax.linalg.lu``. The sign is 1 or -1, in x's
    dtype.
    """
    by_columns, pivots, permutation = apply(linalg_lu.lu, matrix_transpose(x))
    # Each real swap of rows changes the sign.
    swapped = pivots != arange(x.shape[-1], dtype=np.int32)
    odd = sum(swapped, axis=-1, dtype=np.int32) & np.int32(1)
    sign = (1 - 2 * odd).astype(x.dtype)
    return matrix_transpose(by_columns), permutation, sign


def det(a: ArrayLike) -> Array:
    """Return the determinant (...) of ``a`` (..., n, n), in its dtype.

    Integers give float64. The derivative is the matrix of cofactors, also for singular
    ``a``. For n > 3 the second derivative is not defined if the rank is below n - 1.
    Raises ShapeError unless ``a`` is square.

    >>> import numpy as np
    >>> float(np.round(det(np.array([[1.0, 2.0], [3.0, 4.0]])), 12))
    -2.0
    """
    a = m.square("det", a)
    if a.shape[-1] == 0:
        return ones(a.shape[:-2], a.dtype)
    return _det(a)


@custom_jvp
def _det(x: Array) -> Array:
    """Return the determinant: the product of the pivots and the permutation's sign."""
    lu, _, sign = _factors(x)
    return multiply(sign, prod(diagonal(lu, axis1=-2, axis2=-1), axis=-1))


@_det.defjvp
def _det_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return the value and its tangent, the sum of the cofactors times t."""
    (x,), (t,) = primals, tangents
    cofactors = matrix_transpose(_adjugate(x))
    return _det(x), sum(cofactors * t, axis=(-2, -1))


def _adjugate(x: Array) -> Array:
    """Return the adjugate: det(x) inv(x) for regular x, and 0 for a rank below n - 1.

    Up to 3 rows it is computed by its polynomials, otherwise by LU factors, or by
    singular values if some matrix has a pivot of 0 before the last one.
    """
    n = x.shape[-1]
    if n == 1:
        return ones_like(x)
    if n == 2:
        (a, b), (c, d) = ([x[..., i, j] for j in range(2)] for i in range(2))
        return stack([stack([d, -b], -1), stack([-c, a], -1)], -2)
    if n == 3:
        # Row i of the cofactors is the cross product of the two rows after row i.
        rows = [x[..., i, :] for i in range(3)]
        cofactors = [_cross(rows[(i + 1) % 3], rows[(i + 2) % 3]) for i in range(3)]
        return stack(cofactors, -1)
    lu, permutation, sign = _factors(x)
    # Element k is the product of pivots 0 to k, times the permutation's sign.
    products = cumprod(diagonal(lu, axis1=-2, axis2=-1), axis=-1) * sign[..., None]

    def by_factors(*operands: Array) -> list[Array]:
        """Compute the adjugate from the LU factors."""
        return [_adjugate_of_factors(*operands[1:])]

    def by_singular_values(*operands: Array) -> list[Array]:
        """Compute the adjugate from the singular value decomposition."""
        return [_adjugate_of_singular_values(operands[0])]

    operands = (x, lu, permutation, products)
    types = [ArrayType(a.shape, a.dtype) for a in operands]
    branches = tuple(
        traced(branch, types, name=branch.__name__).program
        for branch in (by_factors, by_singular_values)
    )
    # The second branch, if a pivot before the last one is 0.
    deficient = any(products[..., -2] == 0).astype(np.int32)
    return apply(cond, deficient, *operands, branches=branches)


def _cross(a: Array, b: Array) -> Array:
    """Return the cross products of vectors (..., 3)."""

    def product(i: int, j: int) -> Array:
        """Return a_i b_j - a_j b_i."""
        return a[..., i] * b[..., j] - a[..., j] * b[..., i]

    return stack([product(1, 2), product(2, 0), product(0, 1)], -1)


def _adjugate_of_factors(lu: Array, permutation: Array, products: Array) -> Array:
    """Return the adjugate by LU factors whose pivots, except the last, are not 0.

    The adjugate is det(x) inv(x), computed without dividing by the last pivot, which
    may be 0. ``lu`` and ``permutation`` are those of ``_factors``. ``products`` are the
    running products of the pivots, with the sign of the permutation, so that the last
    one is the determinant.
    """
    # det(x) / (last pivot) is the product of the other pivots, products[-2]. So replace
    # the last pivot by 1 / products[-2], and multiply only the other rows of the
    # right-hand side by det(x).
    n = lu.shape[-1]
    corner = arange(n) == n - 1
    last = corner[:, None] & corner
    lu = where(last, (1.0 / products[..., -2])[..., None, None], lu)
    y = broadcast_to(eye(n, dtype=lu.dtype), lu.shape)
    y = take_along_axis(y, permutation[..., None], -2)
    y = _substitute(lu, y, lower=True, unit=True)
    value = products[..., -1][..., None, None]
    y = concatenate([y[..., :-1, :] * value, y[..., -1:, :]], -2)
    return _substitute(lu, y, lower=False, unit=False)


def _adjugate_of_singular_values(x: Array) -> Array:
    """Return the adjugate of ``x`` by its singular value decomposition u diag(s) vh.

    It is the product of the adjugates of vh, diag(s) and u. Those of unitary matrices
    are their adjoints times their determinants. ``_det.function`` is ``_det``
    without its derivative rule, which would compute another adjugate.
    """
    u, s, vh = svd(x)
    n = s.shape[-1]
    # Row i has all singular values but number i. Its product is the adjugate's element.
    others = where(eye(n, dtype=bool), 1.0, s[..., None, :])
    factor = (
        prod(others, axis=-1).astype(x.dtype)
        * (_det.function(u) * _det.function(vh))[..., None]
    )
    return matmul(
        conj(matrix_transpose(vh)), factor[..., None] * conj(matrix_transpose(u))
    )


def _substitute(a: Array, b: Array, *, lower: bool, unit: bool) -> Array:
    """Solve a y = b for y with a triangle of ``a``; ``unit`` means a unit diagonal."""
    params = {"left": True, "transpose": False, "conjugate": False}
    return apply(triangular.triangular_solve, b, a, lower=lower, unit=unit, **params)


@also_takes("method")
def slogdet(a: ArrayLike) -> SlogdetResult:
    """Return the sign and the logarithm of the absolute determinant of ``a``.

    ``a`` is (..., n, n), and both results are (...). The determinant is
    ``sign * exp(logabsdet)``. For complex matrices the sign has absolute value 1. For
    singular matrices the sign is 0 and the logarithm is -inf. Their derivative needs
    the inverse, so it is infinite or NaN. Integers give float64. Raises ShapeError
    unless ``a`` is square.

    >>> import numpy as np
    >>> slogdet(np.diag([2.0, -0.5])).sign
    array(-1.)
    """
    a = m.square("slogdet", a)
    return SlogdetResult(*_slogdet(a))


@custom_jvp
def _slogdet(x: Array) -> tuple[Array, Array]:
    """Return the sign (or phase) of the determinant, and the logarithm of its size."""
    lu, _, sign = _factors(x)
    pivots = diagonal(lu, axis1=-2, axis2=-1)
    sizes = absolute(pivots)
    # The sign (or phase) of each pivot, which is 0 for a pivot of 0.
    directions = pivots / where(sizes == 0, 1, sizes).astype(x.dtype)
    return multiply(sign, prod(directions, axis=-1)), sum(log(sizes), axis=-1)


@_slogdet.defjvp
def _slogdet_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the values and their tangents, by ``rate``, the trace of inv(x) t.

    The logarithm changes by the real part of ``rate``. The sign of a complex
    determinant turns by the imaginary part.
    """
    (x,), (t,) = primals, tangents
    sign, logabsdet = _slogdet(x)
    rate = trace(solve(x, t), offset=0, axis1=-2, axis2=-1)
    if x.dtype in dtypes.COMPLEX:
        turning = rate - real(rate).astype(x.dtype)
        return (sign, logabsdet), (turning * sign, real(rate))
    return (sign, logabsdet), (zeros_like(sign), rate)


# Pseudo-inverses and rank.


def pinv(
    a: ArrayLike,
    rcond: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rtol: ArrayLike | None = None,
) -> Array:
    """Return the Moore-Penrose inverse (..., n, m) of ``a`` (..., m, n).

    Singular values up to ``rtol`` (or ``rcond``) times the largest one count as 0. The
    default of ``rtol`` is 10 max(m, n) machine epsilons. ``hermitian`` has no effect.
    Integers give float64. Raises ShapeError for fewer than two axes, ArgumentError if
    both ``rcond`` and ``rtol`` are given.
    """
    if rcond is not None and rtol is not None:
        raise ArgumentError("pinv takes rcond or rtol, not both", user_location())
    a = m.matrix("pinv", a)
    if rcond is None:
        rcond = rtol if rtol is not None else 10 * _relative_spacing(a)
    return _pinv(a, m.as_array(rcond, dtypes.real_of(a.dtype)))


def _relative_spacing(x: Array) -> float:
    """Return NumPy's default tolerance: machine epsilon times the longer extent."""
    spacing = float(np.finfo(dtypes.real_of(x.dtype)).eps)
    _, extent = sorted(x.shape[-2:])
    return spacing * extent


@custom_jvp
def _pinv(x: Array, rcond: Array) -> Array:
    """Return the pseudo-inverse V diag(1 / s) U^H of x.

    1 / s is 0 for singular values s up to ``rcond`` (...) times the largest.
    """
    if 0 in x.shape[-2:]:
        return m.adjoint(x)
    u, s, vh = svd(x, full_matrices=False)
    inverse = _inverse_singular_values(s, rcond)[..., None]
    return matmul(m.adjoint(vh), inverse.astype(x.dtype) * m.adjoint(u))


@_pinv.defjvp
def _pinv_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the pseudo-inverse and its tangent.

    The formula is Golub and Pereyra, The differentiation of pseudo-inverses (1973),
    equation 4.12. It holds for constant rank, also if singular values are equal.
    """
    (x, _), (t, _) = primals, tangents
    p = _pinv(*primals)
    ph, th = m.adjoint(p), m.adjoint(t)
    first = matmul(matmul(p, t), p)
    left = matmul(matmul(p, ph), th - matmul(matmul(th, x), p))
    right = matmul(th - matmul(p, matmul(x, th)), matmul(ph, p))
    return p, left + right - first


def _inverse_singular_values(s: Array, rcond: Array) -> Array:
    """Return 1 / s, but 0 for s up to ``rcond`` times the largest."""
    threshold = rcond[..., None] * s[..., :1]
    counts = s > threshold
    return where(counts, 1.0 / where(counts, s, 1.0), 0.0)


@also_takes(M="A")  # M is another name of A
def matrix_rank(
    A: ArrayLike,
    tol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rtol: ArrayLike | None = None,
) -> Array:
    """Return the number (...) of singular values of A (..., m, n) greater than ``tol``.

    The result is int64. By default, ``tol`` is ``rtol`` times the largest singular
    value, and ``rtol`` is max(m, n) machine epsilons. For an array with fewer than two
    axes, the rank is 1 if any element is not 0, and otherwise 0. ``hermitian`` has no
    effect. Raises ArgumentError if both ``tol`` and ``rtol`` are given.
    """
    if tol is not None and rtol is not None:
        raise ArgumentError("matrix_rank takes tol or rtol, not both", user_location())
    a = m.inexact("matrix_rank", A)
    if len(a.shape) < 2:
        return ops.convert(any(a), dtypes.int64)
    s = svdvals(a)
    if s.shape[-1] == 0:
        return sum(s, axis=-1).astype(np.int64)
    if tol is None:
        rtol = _relative_spacing(a) if rtol is None else rtol
        tol = max(s, axis=-1) * m.as_array(rtol, s.dtype)
    threshold = m.as_array(tol, s.dtype)
    return sum(s > threshold[..., None], axis=-1, dtype=np.int64)


def lstsq(
    a: ArrayLike,
    b: ArrayLike,
    rcond: float | None = None,
    *,
    numpy_resid: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """Find the x (..., n, k) of smallest norm that minimises |a x - b|.

    Returns x, the squared residuals (..., k), the rank (...) and the singular values of
    ``a``. ``a`` is (..., m, n), and b is (m,) or (..., m, k). The leading axes
    broadcast. Singular values up to ``rcond`` times the largest one count as 0. The
    default of ``rcond`` is max(m, n) machine epsilons. With ``numpy_resid``, the
    residuals are as in NumPy: they have shape (0,) if the rank is less than n or m is
    at most n. This needs the value of the rank. Integers give float64. Raises
    ShapeError if the shapes do not fit.

    >>> import numpy as np
    >>> a, b = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([1.0, 2.0, 3.0])
    >>> np.abs(np.round(lstsq(a, b)[0], 12))
    array([0., 1.])
    """
    a, b = m.together("lstsq", a, b)
    m.check_matrix("lstsq", a.shape)
    is_vector = len(b.shape) == 1
    sides = b[:, None] if is_vector else b
    if len(sides.shape) < 2 or sides.shape[-2] != a.shape[-2]:
        raise ShapeError(
            f"lstsq with a matrix of shape {a.shape} needs {a.shape[-2]} rows on the "
            f"right-hand side, but its shape is {b.shape}",
            user_location(),
        )
    if rcond is None:
        rcond = _relative_spacing(a)
    u, s, vh = svd(a, full_matrices=False)
    ratio = m.as_array(rcond, s.dtype)
    inverse = _inverse_singular_values(s, ratio)
    rank = sum(inverse > 0, axis=-1, dtype=np.int64)
    parts = inverse[..., None].astype(a.dtype) * matmul(m.adjoint(u), sides)
    x = matmul(m.adjoint(vh), parts)
    rest = matmul(a, x) - sides
    distances = sum(real(rest * conj(rest)), axis=-2)
    if numpy_resid:
        known_rank = known("lstsq", rank, "Leave out numpy_resid")
        rows, columns = a.shape[-2:]
        if rows <= columns or (known_rank < columns).any():
            distances = ops.full(0, (0,), distances.dtype)
    return (x[..., 0] if is_vector else x), distances, rank, s
