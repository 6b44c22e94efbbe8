"""QR factors by Householder reflections, and column pivoting.

Derivatives: Walter and Lehmann, Algorithmic differentiation of linear algebra functions
(2010), section 3; of wide matrices, Roberts and Roberts, QR and LQ decomposition matrix
backpropagation algorithms for square, wide, and deep matrices (2020), section 2.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import complex_numbers, slicing
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import (
    ZERO_TANGENT,
    Array,
    Sample,
    Tolerance,
)
from arrayfn.primitives.linalg_triangular import solve_triangular
from arrayfn.primitives.rules import (
    jvp_alone,
)


def _types(x: ArrayType, *, full: bool) -> tuple[ArrayType, ...]:
    """Type rule: Q and R; with ``full``, a square Q."""
    rows, columns = m.check_matrix("qr", x)
    inner = rows if full else min(rows, columns)
    batch = x.shape[:-2]
    return (
        x.with_shape((*batch, rows, inner)),
        x.with_shape((*batch, inner, columns)),
    )


def _reference(x: Array, *, full: bool) -> tuple[Array, Array]:
    """Compute ``np.linalg.qr``; for empty matrices, Q is an identity and R is zeros."""
    if 0 in x.shape:
        rows, columns = x.shape[-2:]
        inner = rows if full else min(rows, columns)
        q = np.zeros((*x.shape[:-2], rows, inner), x.dtype)
        q[..., np.arange(inner), np.arange(inner)] = 1
        return q, np.zeros((*x.shape[:-2], inner, columns), x.dtype)
    q, r = np.linalg.qr(x, mode="complete" if full else "reduced")
    return np.ascontiguousarray(q), np.ascontiguousarray(r)


def _jvp(x: Atom, q: Atom, r: Atom, t: Atom, *, full: bool) -> list[Atom | None]:
    """The jvp rule of A = Q R.

    The tangents of Q and of the square part of R follow from the first columns of A.
    For other columns B of wide matrices, R has the columns Q^H B, whose tangents are
    dQ^H B + Q^H dB. Raises DifferentiationError for square Q of tall matrices.
    """
    rows, columns = x.type.shape[-2:]
    if full and rows > columns:
        raise DifferentiationError(
            f"the complete QR factors of {x.type} have no derivative, as the last "
            f"{rows - columns} columns of Q are arbitrary; use mode='reduced'"
        )
    k = min(rows, columns)
    dq, dr = _square_jvp(q, m.columns(r, 0, k), m.columns(t, 0, k))
    if columns > k:
        # The other columns of R are Q^H A.
        other_columns, change = m.columns(x, k, columns), m.columns(t, k, columns)
        other_change = e.add(
            m.multiply(m.adjoint(dq), other_columns), m.multiply(m.adjoint(q), change)
        )
        dr = slicing.concatenate(dr, other_change, axis=dr.type.ndim - 1)
    return [dq, dr]


def _square_jvp(q: Atom, r: Atom, t: Atom) -> tuple[Atom, Atom]:
    """Return dQ and dR for a square R, where ``t`` is dA, the tangent of A = Q R.

    With X = Q^H dA R^-1 and the skew-Hermitian S that has the lower triangle of X:
    dQ = Q (S - X) + dA R^-1 and dR = (X - S) R.
    """
    change = solve_triangular(r, t, left=False, lower=False)  # dA R^-1
    inner = m.multiply(m.adjoint(q), change)  # X
    lower = m.lower_part(inner, -1)
    skew = e.sub(lower, m.adjoint(lower))
    if inner.type.dtype in dtypes.COMPLEX:
        # S also gets the imaginary diagonal of X, so the diagonal of R stays real.
        diagonal = m.diagonal_part(inner)
        imaginary = complex_numbers.make_complex(
            m.constant(0, m.real_part(diagonal)), complex_numbers.imag(diagonal)
        )
        skew = e.add(skew, imaginary)
    dq = e.add(m.multiply(q, e.sub(skew, inner)), change)
    return dq, m.multiply(e.sub(inner, skew), r)


def _samples() -> Iterable[Sample]:
    """Yield tall and wide matrices, reduced and full factors, for the table tests."""
    for position, dtype in enumerate(m.DTYPES):
        tall = m.random_matrices(dtype, (4, 3), 261 + position)
        yield Sample((tall,), {"full": False})
    wide = m.random_matrices(dtypes.float64, (2, 4), 266)
    yield Sample((wide,), {"full": False})
    yield Sample((wide[:, :2].copy(),), {"full": True})
    yield Sample(
        (m.random_matrices(dtypes.float32, (2, 5, 2), 267),),
        {"full": True},
        differentiate=(),
    )
    yield Sample((wide.astype(dtypes.complex128),), {"full": True}, differentiate=())


qr = m.matrix_primitive(
    "qr",
    types=_types,
    reference=_reference,
    jvp=jvp_alone(_jvp),
    samples=_samples,
    tolerance=Tolerance(float32=2e-5, float64=1e-13),
    doc="Matrices Q with orthonormal columns and upper triangular R whose product is "
    "the operand; Q is square if full.",
)

# column_order


def _order_types(x: ArrayType) -> ArrayType:
    """Type rule: an order of the columns of each matrix; ``x`` has the transposes."""
    columns, _ = m.check_matrix("column_order", x)
    return ArrayType((*x.shape[:-2], columns), dtypes.int32)


def _order_reference(x: Array) -> Array:
    """Compute the order of columns that LAPACK's geqp3 chooses, numbered from 0."""
    columns = x.shape[-2]
    order = np.empty((*x.shape[:-2], columns), np.int32)
    order[...] = np.arange(columns)
    if 0 in x.shape:
        return order
    geqp3 = m.lapack("geqp3", x.dtype)
    for member in np.ndindex(*x.shape[:-2]):
        order[member] = geqp3(x[member].T)[1] - 1
    return order


def _order_samples() -> Iterable[Sample]:
    """Yield matrices of each dtype, and a batch, for the table tests."""
    for position, dtype in enumerate(m.DTYPES):
        shape = (2, 3, 4) if position == 1 else (4, 3)
        yield Sample((m.random_matrices(dtype, shape, 271 + position),), {})


column_order = m.matrix_primitive(
    "column_order",
    types=_order_types,
    reference=_order_reference,
    jvp=ZERO_TANGENT,
    samples=_order_samples,
    doc="The column order of QR with column pivoting: in each step the column with the "
    "largest remaining norm. The operand is column-major.",
)
