"""LU factors with partial pivoting, and linear systems solved by them.

The primitive ``lu`` takes the transpose of the matrix that it factors, and returns the
transpose of the factors: in memory both are column-major, as LAPACK has them.
Derivatives: de Hoog, Anderssen and Lukas, Differentiation of matrix functionals using
triangular factorization (2011), section 3; of a solution, Giles, An extended collection
of matrix derivative results (2008), section 2.2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import conversion, discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import (
    ZERO_TANGENT,
    Array,
    Atoms,
    Batched,
    Composition,
    Dims,
    Primitive,
    Sample,
    Tangents,
    Tolerance,
)
from arrayfn.primitives.linalg_triangular import mapped_solve, solve_triangular
from arrayfn.primitives.rules import (
    jvp_alone,
    transposed_first,
)

# lu


def _lu_types(x: ArrayType) -> tuple[ArrayType, ...]:
    """Type rule: (factors, pivots, order) of matrices A, whose transposes ``x`` has.

    The factors L and U are in one matrix, transposed like ``x``. ``pivots[k]`` is the
    row that row k was swapped with. Row k of P A is row ``order[k]`` of A.
    """
    columns, rows = m.check_matrix("lu", x)
    batch = x.shape[:-2]
    return (
        x.with_shape(x.shape),
        ArrayType((*batch, min(rows, columns)), dtypes.int32),
        ArrayType((*batch, rows), dtypes.int32),
    )


def _lu_reference(x: Array) -> tuple[Array, Array, Array]:
    """Compute LAPACK's getrf of each matrix; ``x`` has the transposes."""
    columns, rows = x.shape[-2:]
    k = min(rows, columns)
    count = math.prod(x.shape[:-2])
    lu = np.empty((count, rows, columns), x.dtype)
    pivots = np.zeros((count, k), np.int32)
    permutation = np.empty((count, rows), np.int32)
    permutation[...] = np.arange(rows)
    getrf = m.lapack("getrf", x.dtype)
    for number, matrix in enumerate(m.each(x) if k else ()):
        lu[number], pivots[number], _ = getrf(matrix.T)
        swap_rows(permutation[number], pivots[number])
    batch = x.shape[:-2]
    return (
        np.ascontiguousarray(lu.swapaxes(-1, -2)).reshape(x.shape),
        pivots.reshape((*batch, k)),
        permutation.reshape((*batch, rows)),
    )


def _lu_jvp(
    x: Atom, by_columns: Atom, pivots: Atom, permutation: Atom, t: Atom
) -> list[Atom | None]:
    """The jvp rule: dL = L tril(X, -1) and dU = triu(X) U, where X = L^-1 P dA U^-1.

    ``by_columns`` are the transposed factors and ``t`` is the transposed dA. The result
    is the transpose of dL + dU, as both factors are in one matrix. The integer outputs
    have no tangents.
    """
    lu = m.transpose_matrices(by_columns)
    rows, columns = lu.type.shape[-2:]
    k = min(rows, columns)
    # Make the factors square, with ones on the rest of the diagonal.
    left = m.padded(m.lower_part(m.columns(lu, 0, k), -1), rows, rows)
    left = e.add(left, m.identity(left.type))
    right = m.padded(m.upper_part(m.rows(lu, 0, k)), columns, columns)
    if columns > k:
        row, column = m.positions(right.type.shape)
        last = discrete.ge(row, m.integer(k))
        right = e.add(
            right,
            conversion.as_dtype(
                discrete.bitwise_and(discrete.eq(row, column), last), right.type.dtype
            ),
        )
    change = m.take_rows(m.transpose_matrices(t), permutation)  # P dA
    change = solve_triangular(left, change, unit=True)
    change = solve_triangular(right, change, left=False, lower=False)
    lower = m.multiply(left, m.lower_part(change, -1))
    upper = m.multiply(m.upper_part(change), right)
    return [m.transpose_matrices(e.add(lower, upper)), None, None]


def _lu_samples() -> Iterable[Sample]:
    """Yield square, tall, wide and singular matrices, for the table tests."""
    for position, dtype in enumerate(m.DTYPES):
        yield Sample((m.random_matrices(dtype, (3, 3), 241 + position),), {})
    yield Sample((m.random_matrices(dtypes.float64, (2, 2, 4), 246),), {})
    yield Sample((m.random_matrices(dtypes.float64, (4, 2), 247),), {})
    yield Sample(
        (m.random_matrices(dtypes.float32, (2, 9, 9), 248),), {}, differentiate=()
    )
    yield Sample((np.zeros((2, 3)),), {}, differentiate=())


lu = m.matrix_primitive(
    "lu",
    types=_lu_types,
    reference=_lu_reference,
    jvp=jvp_alone(_lu_jvp),
    samples=_lu_samples,
    tolerance=Tolerance(float32=2e-5, float64=1e-13),
    in_place=True,
    doc="The factors L (without its unit diagonal) and U of matrices with permuted "
    "rows, in one matrix; the pivots, with which rows are swapped; and the "
    "permutation. Operand and factors are column-major: the transposed matrices.",
)


# pivots_to_permutation


def _permutation_types(pivots: ArrayType, *, rows: int) -> ArrayType:
    """Type rule: a permutation of ``rows`` rows for each vector of int32 pivots."""
    if pivots.dtype != dtypes.int32 or pivots.ndim < 1 or pivots.shape[-1] > rows:
        raise ShapeError(
            f"pivots_to_permutation is of at most {rows} pivots of int32; got {pivots}"
        )
    return pivots.with_shape((*pivots.shape[:-1], rows))


def _permutation_reference(pivots: Array, *, rows: int) -> Array:
    """Apply the swaps of ``pivots`` to the numbers 0, ..., ``rows`` - 1."""
    order = np.empty((*pivots.shape[:-1], rows), np.int32)
    order[...] = np.arange(rows)
    for member in np.ndindex(*pivots.shape[:-1]):
        swap_rows(order[member], pivots[member])
    return order


def swap_rows(order: Array, pivots: Array) -> None:
    """Swap element k of ``order`` with element ``pivots[k]``, for ascending k."""
    for row, pivot in enumerate(pivots):
        order[[row, pivot]] = order[[pivot, row]]


def _permutation_samples() -> Iterable[Sample]:
    """Yield pivots of a batch and of one matrix, for the table tests."""
    # In bounds also for shifted pivots.
    yield Sample((np.array([[2, 1, 2], [0, 2, 2]], np.int32),), {"rows": 4})
    yield Sample((np.array([1, 1], np.int32),), {"rows": 2})


pivots_to_permutation = m.matrix_primitive(
    "pivots_to_permutation",
    types=_permutation_types,
    reference=_permutation_reference,
    jvp=ZERO_TANGENT,
    samples=_permutation_samples,
    doc="The permutation of rows that swaps each row with its pivot, in order.",
)


# solve


def factors(a: Atom) -> tuple[Atom, Atom]:
    """Emit the LU factors of matrices, column-major, and the permutations of rows."""
    by_columns, _, permutation = lu(m.transpose_matrices(a))
    return by_columns, permutation


def solve_by_factors(
    by_columns: Atom,
    permutation: Atom,
    b: Atom,
    *,
    transpose: bool = False,
    conjugate: bool = False,
) -> Atom:
    """Solve ``op(a) x = b`` by the LU factors of ``a``, which are not copied.

    ``by_columns`` and ``permutation`` are the results of ``factors``. ``op`` transposes
    or conjugates, or both. With P a = L U: ``x = U^-1 L^-1 P b``, or for the transposed
    system ``x = P^T L^-T U^-T b``. The solver sees ``by_columns`` as (L U)^T, whose
    upper triangle is L^T and whose lower triangle is U^T, so ``transpose`` and
    ``lower`` are the opposite of what the formula says.
    """
    options = {"transpose": not transpose, "conjugate": conjugate}
    if not transpose:
        lower = m.take_rows(b, permutation)
        lower = solve_triangular(by_columns, lower, lower=False, unit=True, **options)
        return solve_triangular(by_columns, lower, **options)
    upper = solve_triangular(by_columns, b, **options)
    upper = solve_triangular(by_columns, upper, lower=False, unit=True, **options)
    return m.take_rows(upper, m.inverse_permutation(permutation))


def _solve_types(
    b: ArrayType, a: ArrayType, *, transpose: bool, conjugate: bool
) -> ArrayType:
    """Type rule: the type of ``b``, whose batch, rows and dtype must fit ``a``.

    The systems are ``op(a) x = b``; the params say whether ``op`` transposes and
    conjugates.
    """
    n = m.check_square("solve", a)
    m.check_matrix("solve", b)
    if b.shape[:-2] != a.shape[:-2] or b.shape[-2] != n or a.dtype != b.dtype:
        raise ShapeError(
            f"solve with {a} needs a right-hand side of its dtype, its batch and {n} "
            f"rows; got {b}"
        )
    return b.with_shape(b.shape)


def _solve_reference(b: Array, a: Array, *, transpose: bool, conjugate: bool) -> Array:
    """Solve each system by ``np.linalg.solve``; NaN where a matrix is singular."""
    a = a.swapaxes(-1, -2) if transpose else a
    a = a.conj() if conjugate else a
    result = np.empty(b.shape, b.dtype)
    for x, matrix, sides in zip(m.each(result), m.each(a), m.each(b), strict=True):
        try:
            x[...] = np.linalg.solve(matrix, sides)
        except np.linalg.LinAlgError:
            x[...] = np.nan
    return result


def _solve_expand(b: Atom, a: Atom, *, transpose: bool, conjugate: bool) -> Atom:
    """Emit the LU factors of ``a`` and the two triangular solves."""
    factored, permutation = factors(a)
    return solve_by_factors(
        factored, permutation, b, transpose=transpose, conjugate=conjugate
    )


def _solve_jvp(
    primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
) -> Tangents:
    """The jvp rule: dX = op(A)^-1 (dB - op(dA) X)."""
    (_, a), (x,), (db, da) = primals, outputs, tangents
    if da is not None:
        da = m.transpose_matrices(da) if params["transpose"] else da
        da = m.conjugate(da) if params["conjugate"] else da
        product = m.multiply(da, x)
        db = e.neg(product) if db is None else e.sub(db, product)
    assert db is not None
    return [solve(db, a, **params)]


def _solve_batch(axis_size: int, inputs: Atoms, dims: Dims, **params: Any) -> Batched:
    """Batching rule: see ``mapped_solve``; right-hand sides are columns."""
    solve_sides = functools.partial(solve, **params)
    return mapped_solve(solve_sides, axis_size, inputs, dims, free=1)


def _solve_samples() -> Iterable[Sample]:
    """Yield systems of each dtype, some transposed or conjugated, for table tests."""
    for position, dtype in enumerate((*m.DTYPES, dtypes.complex128)):
        batch = (2,) if position == 1 else ()
        a = m.random_matrices(dtype, (*batch, 3, 3), 250 + position)
        b = m.random_matrices(dtype, (*batch, 3, 2), 255 + position)
        params = {"transpose": position % 2 == 0, "conjugate": position in (2, 3)}
        yield Sample((b, a), params)


solve = Primitive(
    name="solve",
    family="linear algebra",
    types=_solve_types,
    reference=_solve_reference,
    kernel=Composition(_solve_expand),
    jvp=_solve_jvp,
    transpose=transposed_first(
        lambda ct, type, a, transpose, conjugate: solve(
            ct, a, transpose=not transpose, conjugate=conjugate
        ),
        of="solve",
    ),
    batch=_solve_batch,
    samples=_solve_samples,
    tolerance=Tolerance(float32=1e-4, float64=1e-12),
    doc="x with op(a) x = b by LU factors; op may transpose and conjugate.",
)
