"""Singular values and vectors.

Derivatives: Townsend, Differentiating the singular value decomposition (2016); of
complex matrices, Wan and Zhang, Automatic differentiation for complex valued SVD
(2019). If singular values are equal, the derivatives of their vectors are not finite.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DifferentiationError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import conversion
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import (
    Array,
    Atoms,
    JvpWithOutputs,
    Sample,
    Tangents,
    Tolerance,
    WithTangents,
)
from arrayfn.primitives.rules import (
    jvp_alone,
)


def _types(x: ArrayType, *, full: bool) -> tuple[ArrayType, ...]:
    """Type rule: (U, singular values, V^H) of each matrix.

    ``x``, U and V^H are stored as transposes. With ``full`` U and V^H are square.
    """
    columns, rows = m.check_matrix("svd", x)
    k = min(rows, columns)
    batch = x.shape[:-2]
    if full and k == 0:
        raise ShapeError(f"svd of empty matrices has no square factors; got {x}")
    return (
        x.with_shape((*batch, rows if full else k, rows)),
        ArrayType((*batch, k), dtypes.real_of(x.dtype)),
        x.with_shape((*batch, columns, columns if full else k)),
    )


def _reference(x: Array, *, full: bool) -> tuple[Array, Array, Array]:
    """Compute ``np.linalg.svd`` of each matrix; ``x``, U and V^H are transposed.

    The results are NaN where NumPy fails, or where a number is not finite.
    """
    columns, rows = x.shape[-2:]
    k = min(rows, columns)
    batch = x.shape[:-2]
    count = int(np.prod(batch))
    u = np.full((count, rows, rows if full else k), np.nan, x.dtype)
    s = np.full((count, k), np.nan, dtypes.real_of(x.dtype))
    vh = np.full((count, columns if full else k, columns), np.nan, x.dtype)
    for number, matrix in enumerate(m.each(x)):
        # LAPACK may not end where a number is not finite.
        if not np.isfinite(matrix).all():
            continue
        try:
            factors = np.linalg.svd(matrix.T, full_matrices=full)
        except np.linalg.LinAlgError:
            continue
        u[number], s[number], vh[number] = factors
    parts = (u.swapaxes(-1, -2), s, vh.swapaxes(-1, -2))
    u, s, vh = (np.array(part, order="C") for part in parts)
    return (
        u.reshape((*batch, *u.shape[1:])),
        s.reshape((*batch, k)),
        vh.reshape((*batch, *vh.shape[1:])),
    )


def _jvp(
    x: Atom, u_by_columns: Atom, s: Atom, vh_by_columns: Atom, t: Atom, *, full: bool
) -> list[Atom | None]:
    """The jvp rule of A = U S V^H, with X = U^H dA V and F_ij = 1 / (s_j^2 - s_i^2).

    ``ds = real(diag(X))``, ``dU = U (F * (X S + S X^H)) + (I - U U^H) dA V S^-1`` and
    ``dV = V (F * (S X + X^H S)) + (I - V V^H) dA^H U S^-1``. F is 0 on the diagonal.
    The last terms are 0 for square matrices. For complex matrices, dU also has U times
    the imaginary diagonal of X S^-1.

    ``x``, ``u_by_columns``, ``vh_by_columns`` and ``t`` are the transposes of A, U, V^H
    and dA. Raises DifferentiationError for ``full`` factors of matrices that are not
    square.
    """
    u, vh, t = map(m.transpose_matrices, (u_by_columns, vh_by_columns, t))
    columns, rows = x.type.shape[-2:]
    if full and rows != columns:
        raise DifferentiationError(
            f"the square singular vectors of {x.type} have no derivative, as "
            "those beyond the rank are arbitrary; use full_matrices=False"
        )
    k = min(rows, columns)
    dtype = u.type.dtype
    uh, v = m.adjoint(u), m.adjoint(vh)
    inner = m.multiply(m.multiply(uh, t), v)
    by_column, by_row = m.as_row(s, k), m.as_column(s, k)
    unit = m.identity(by_column.type)
    # s_j^2 - s_i^2. With 1 added on the diagonal, ``factor`` is 1 / 1 - 1 = 0 there.
    gaps = e.mul(e.add(by_column, by_row), e.sub(by_column, by_row))
    factor = conversion.as_dtype(e.sub(e.reciprocal(e.add(gaps, unit)), unit), dtype)
    by_column, by_row = (
        conversion.as_dtype(by_column, dtype),
        conversion.as_dtype(by_row, dtype),
    )
    by_columns, by_rows = e.mul(inner, by_column), e.mul(by_row, inner)
    du = e.mul(factor, e.add(by_columns, m.adjoint(by_columns)))
    if dtype in dtypes.COMPLEX:
        # V keeps its phase; the phase of the diagonal goes to U.
        phase = m.diagonal_part(m.scale(e.sub(inner, m.adjoint(inner)), 0.5))
        du = e.add(du, e.div(phase, e.nonzero(by_column)))
    dv = e.mul(factor, e.add(by_rows, m.adjoint(by_rows)))
    du, dv = m.multiply(u, du), m.multiply(v, dv)
    if rows > k:
        du = e.add(du, _outside(u, uh, m.multiply(t, v), s))
    if columns > k:
        dv = e.add(dv, _outside(v, vh, m.multiply(m.adjoint(t), u), s))
    # The third output is the transpose of V^H: the conjugate of V.
    return [m.transpose_matrices(du), m.real_part(m.diagonal(inner)), m.conjugate(dv)]


def _outside(u: Atom, uh: Atom, change: Atom, s: Atom) -> Atom:
    """Emit ``(I - u uh) change``, with column k divided by ``s[k]``.

    ``uh`` is the adjoint of ``u``, and ``s`` are the singular values.
    """
    outside = e.sub(change, m.multiply(u, m.multiply(uh, change)))
    return e.div(
        outside, conversion.as_dtype(m.as_row(s, u.type.shape[-2]), u.type.dtype)
    )


def _samples() -> Iterable[Sample]:
    """Yield square, tall and wide matrices, reduced and full, for the table tests."""
    kinds = (dtypes.float32, (3, 3)), (dtypes.float64, (4, 2)), (dtypes.float64, (2, 3))
    for position, (dtype, shape) in enumerate(kinds):
        x = m.random_matrices(dtype, shape, 291 + position)
        yield Sample((x,), {"full": False})
    yield Sample((m.random_matrices(dtypes.float64, (2, 2), 296),), {"full": True})
    # Square factors of other matrices have no derivative (see ``_jvp``). Here only one
    # column is beyond the rank, so they are unique up to its sign.
    for dtype, shape, seed in (
        (dtypes.float32, (2, 4, 3), 297),
        (dtypes.float64, (3, 4), 298),
    ):
        x = m.random_matrices(dtype, shape, seed)
        yield Sample((x,), {"full": True}, differentiate=())


svd = m.matrix_primitive(
    "svd",
    types=_types,
    reference=_reference,
    jvp=jvp_alone(_jvp),
    samples=_samples,
    tolerance=Tolerance(float32=5e-5, float64=1e-13),
    doc="The singular vectors U and V^H, square if full, and between them the singular "
    "values in descending order. Operand and vectors are column-major: they are the "
    "transposed matrices.",
)


def _values_types(x: ArrayType) -> ArrayType:
    """Type rule: the singular values of each matrix, in descending order."""
    rows, columns = m.check_matrix("svdvals", x)
    return ArrayType((*x.shape[:-2], min(rows, columns)), dtypes.real_of(x.dtype))


def _values_jvp(primals: Atoms, tangents: Tangents) -> WithTangents:
    """The jvp rule: the singular values by ``svd``, and ds = real(diag(U^H dA V))."""
    (x,), (t,) = primals, tangents
    u_by_columns, s, vh_by_columns = svd(m.transpose_matrices(x), full=False)
    assert t is not None
    inner = m.multiply(m.conjugate(u_by_columns), t)
    inner = m.multiply(inner, m.conjugate(vh_by_columns))
    return [s], [m.real_part(m.diagonal(inner))]


def _values_samples() -> Iterable[Sample]:
    """Yield matrices of each dtype, and a batch, for the table tests."""
    for position, dtype in enumerate(m.DTYPES):
        shape = (3, 2) if position % 2 else (2, 3)
        yield Sample((m.random_matrices(dtype, shape, 301 + position),), {})
    yield Sample((m.random_matrices(dtypes.float32, (2, 3, 3), 306),), {})


svdvals = m.matrix_primitive(
    "svdvals",
    types=_values_types,
    reference=lambda x: _reference(x.swapaxes(-1, -2), full=False)[1],
    jvp=JvpWithOutputs(_values_jvp),
    samples=_values_samples,
    tolerance=Tolerance(float32=5e-5, float64=1e-13),
    doc="The singular values in descending order.",
)
