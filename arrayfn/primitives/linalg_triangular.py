"""Triangular matrices: Cholesky factors, and systems solved by substitution.

Derivatives: Murray, Differentiation of the Cholesky decomposition (2016), forward form;
Giles, An extended collection of matrix derivative results (2008), section 2.3.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    Dims,
    Library,
    Primitive,
    Sample,
    Tangents,
    Tolerance,
)
from arrayfn.primitives.emitters import move_axis
from arrayfn.primitives.rules import (
    all_mapped,
    jvp_alone,
    transposed_first,
)

# cholesky


def _cholesky_types(x: ArrayType) -> ArrayType:
    """Type rule: the lower factor of each square matrix."""
    m.check_square("cholesky", x)
    return x.with_shape(x.shape)


def _cholesky_reference(x: Array) -> Array:
    """Compute ``np.linalg.cholesky``; NaN if a matrix is not positive definite."""
    result = np.empty_like(x, order="C")
    for factor, matrix in zip(m.each(result), m.each(x), strict=True):
        try:
            factor[...] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            factor[...] = np.nan
        # Some versions of LAPACK do not fail at a pivot that is NaN. The NaN spreads to
        # the last element.
        if not np.isfinite(factor[-1:, -1:]).all():
            factor[...] = np.nan
    return result


def _cholesky_jvp(x: Atom, factor: Atom, t: Atom) -> Atom:
    """The jvp rule: dL = L P(L^-1 dA L^-H).

    P takes the lower triangle, and half of the diagonal.
    """
    tangent = m.hermitian(t)  # only its lower triangle is read
    half_solved = solve_triangular(factor, tangent)
    # Y L^-H is the adjoint of L^-1 Y^H.
    solved = m.adjoint(solve_triangular(factor, m.adjoint(half_solved)))
    halved = e.sub(m.lower_part(solved), m.scale(m.diagonal_part(solved), 0.5))
    return m.multiply(factor, halved)


def _positive_samples() -> Iterable[Sample]:
    """Yield positive definite matrices, and one that is not, for the table tests."""
    # Positive definite, also with the elements shifted by one and two positions.
    small = np.array([[1.0, 1.25], [1.0, 4.0]])
    for dtype in m.DTYPES:
        yield Sample((small.astype(dtype),), {})
    hermitian = np.array([[4.0, 0.0], [1 + 0.5j, 3.0]])  # the lower triangle is read
    whole = m.random_matrices(dtypes.float32, (2, 5, 5), 201)
    products = whole @ whole.swapaxes(-1, -2) + np.eye(5, dtype="f")
    for x in (hermitian, products, -np.eye(3)):
        yield Sample((x,), {}, differentiate=())


cholesky = m.matrix_primitive(
    "cholesky",
    types=_cholesky_types,
    reference=_cholesky_reference,
    jvp=jvp_alone(_cholesky_jvp),
    samples=_positive_samples,
    tolerance=Tolerance(float32=2e-5, float64=1e-13),
    in_place=True,
    doc="The lower triangular factor of Hermitian matrices, whose lower triangle is "
    "read; NaN for a matrix that is not positive definite, or not finite.",
)


# triangular_solve


def solve_triangular(
    a: Atom,
    b: Atom,
    *,
    left: bool = True,
    lower: bool = True,
    transpose: bool = False,
    conjugate: bool = False,
    unit: bool = False,
) -> Atom:
    """Solve ``op(a) x = b``, or ``x op(a) = b`` if not ``left``.

    ``op`` transposes or conjugates, or both. Only the ``lower`` or upper triangle of
    ``a`` is read; with ``unit``, its diagonal is taken for ones.
    """
    # BLAS conjugates only transposed matrices.
    if conjugate and not transpose:
        a, conjugate = m.conjugate(a), False
    if a.type.dtype not in dtypes.COMPLEX:
        conjugate = False
    return triangular_solve(
        b,
        a,
        left=left,
        lower=lower,
        transpose=transpose,
        conjugate=conjugate,
        unit=unit,
    )


def _solve_types(
    b: ArrayType,
    a: ArrayType,
    *,
    left: bool,
    lower: bool,
    transpose: bool,
    conjugate: bool,
    unit: bool,
) -> ArrayType:
    """Type rule: the type of ``b``, whose batch, extent and dtype fit the matrix ``a``.

    The matrix A of the system is the ``lower`` or upper triangle of ``a``, with ones on
    the diagonal if ``unit``, transposed and conjugated if the params say so. The system
    is ``A x = b`` if ``left``, else ``x A = b``.
    """
    n = m.check_square("triangular_solve", a)
    m.check_matrix("triangular_solve", b)
    shapes_agree = b.shape[-2 if left else -1] == n and b.shape[:-2] == a.shape[:-2]
    if not shapes_agree or b.dtype != a.dtype:
        side = "rows" if left else "columns"
        raise ShapeError(
            f"triangular_solve with {a} needs a right-hand side of its dtype, its "
            f"batch and {n} {side}; got {b}"
        )
    return b.with_shape(b.shape)


def _solve_reference(
    b: Array,
    a: Array,
    *,
    left: bool,
    lower: bool,
    transpose: bool,
    conjugate: bool,
    unit: bool,
) -> Array:
    """Solve by forward or back substitution, for the whole batch at once.

    The params are those of ``_solve_types``.
    """
    if transpose:
        a, lower = a.swapaxes(-1, -2), not lower
    if conjugate:
        a = a.conj()
    if not left:  # x A = b is A^T x^T = b^T
        a, b, lower = a.swapaxes(-1, -2), b.swapaxes(-1, -2), not lower
    x = np.array(b)
    n = a.shape[-1]
    with np.errstate(all="ignore"):
        for row in range(n) if lower else reversed(range(n)):
            solved = slice(0, row) if lower else slice(row + 1, n)
            product = a[..., row : row + 1, solved] @ x[..., solved, :]
            x[..., row, :] -= product[..., 0, :]
            if not unit:
                x[..., row, :] /= a[..., row, row, None]
    return np.ascontiguousarray(x if left else x.swapaxes(-1, -2))


def _triangle(x: Atom, lower: bool, unit: bool) -> Atom:
    """Emit the triangle of ``x`` that a solve reads, and zeros elsewhere.

    With ``unit`` the diagonal is zero too.
    """
    return m.lower_part(x, -int(unit)) if lower else m.upper_part(x, int(unit))


def _solve_jvp(
    primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
) -> Tangents:
    """The jvp rule: dX = op(A)^-1 (dB - op(dA) X), or (dB - X op(dA)) op(A)^-1."""
    (_, a), (x,), (db, da) = primals, outputs, tangents
    if da is not None:
        change = _triangle(da, params["lower"], params["unit"])
        if params["transpose"]:
            change = m.transpose_matrices(change)
        if params["conjugate"]:
            change = m.conjugate(change)
        product = m.multiply(change, x) if params["left"] else m.multiply(x, change)
        db = e.neg(product) if db is None else e.sub(db, product)
    assert db is not None
    return [triangular_solve(db, a, **params)]


def _solve_transpose(
    ct: Atom, type: ArrayType, a: Atom, *, transpose: bool, **params: Any
) -> Atom:
    """Transpose rule: ``ct_b = op(a)^-T ct``."""
    return solve_triangular(a, ct, transpose=not transpose, **params)


def _solve_batch(axis_size: int, inputs: Atoms, dims: Dims, **params: Any) -> Batched:
    """Batching rule: see ``mapped_solve``."""
    free = 1 if params["left"] else 0
    solve = functools.partial(triangular_solve, **params)
    return mapped_solve(solve, axis_size, inputs, dims, free)


def mapped_solve(
    solve: Callable[[Atom, Atom], Atom],
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    free: int,
) -> Batched:
    """Batch ``solve(b, a)``: a batch of systems, or more sides for one matrix.

    If only ``b`` is mapped, and has no other batch axes, one solve has all members'
    right-hand sides side by side: the mapped axis is merged with the axis of right-hand
    sides. This is axis ``free`` of a member's ``b``: 1 if they are columns, 0 if rows.
    """
    b, a = inputs
    # The merged form is for one matrix: b has its two axes and the mapped one.
    if dims[1] is not None or b.type.ndim > 3:
        return [solve(*all_mapped(axis_size, inputs, dims))], [0]
    assert dims[0] is not None
    side_by_side = move_axis(b, dims[0], free)
    shape = side_by_side.type.shape
    merged = (*shape[:free], shape[free] * shape[free + 1], *shape[free + 2 :])
    value = solve(views.reshape(side_by_side, shape=merged), a)
    return [move_axis(views.reshape(value, shape=shape), free, 0)], [0]


def _solve_samples() -> Iterable[Sample]:
    """Yield systems of all sides, triangles and dtypes, for the table tests."""
    every = itertools.product((True, False), repeat=3)
    for count, (left, lower, transpose) in enumerate(every):
        dtype = m.DTYPES[count % 4]
        batch = (2,) if count % 3 == 0 else ()
        a = m.random_matrices(dtype, (*batch, 3, 3), 210 + count)
        # No element is near 0, since each may be on the diagonal.
        a = (a + np.sign(a.real)).astype(dtype)
        shape = (*batch, 3, 2) if left else (*batch, 2, 3)
        b = m.random_matrices(dtype, shape, 230 + count)
        params = {
            "left": left,
            "lower": lower,
            "transpose": transpose,
            "conjugate": transpose and dtype in dtypes.COMPLEX,
            "unit": count in (2, 5),
        }
        yield Sample((b, a), params)


triangular_solve = Primitive(
    name="triangular_solve",
    family="linear algebra",
    types=_solve_types,
    reference=_solve_reference,
    kernel=Library("triangular_solve", in_place=True),
    jvp=_solve_jvp,
    transpose=transposed_first(_solve_transpose, of="triangular_solve"),
    batch=_solve_batch,
    samples=_solve_samples,
    tolerance=Tolerance(float32=2e-5, float64=1e-13),
    doc="x with op(a) x = b, or x op(a) = b. op may transpose and conjugate; one "
    "triangle of a is read.",
)
