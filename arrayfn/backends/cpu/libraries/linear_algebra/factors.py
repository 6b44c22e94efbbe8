"""LU, Cholesky and QR factors by LAPACK, and the order of columns for pivoted QR."""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas, blas
from arrayfn.backends.cpu.libraries.foreign import Array, Constant, Real, fortran, i32
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    NAN,
    UPPER,
    addresses,
    all_finite,
    copy,
    fill,
    leading,
    parts_of,
)
from arrayfn.backends.cpu.libraries.linear_algebra.providers import (
    by_reference,
    with_large,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import max_i64, min_i64
from arrayfn.primitives import linalg_lu, linalg_qr, linalg_triangular


def cholesky(
    potrf: int, parts: Constant, a: Array[Real], n: int, begin: int, end: int
) -> None:
    """Replace row-major n x n matrices by their lower Cholesky factors.

    A matrix that is not positive definite becomes NaN. LAPACK reads the row-major lower
    triangle as the column-major upper triangle of the transpose, and writes the factor
    in the same way. ``potrf`` is LAPACK's function. An element is ``parts`` numbers, 2
    if complex. Items ``begin`` to ``end`` are computed.
    """
    step = n * n * parts
    for item in range(begin, end):
        matrix = a + item * step
        failed = fortran(potrf, UPPER, n, matrix, n)
        # Some versions of LAPACK do not stop at a NaN, which spreads to the last
        # element of the diagonal.
        if failed != 0 or not all_finite(matrix + (step - parts), parts):
            fill(matrix, step, NAN)
        else:
            for row in range(n - 1):  # LAPACK leaves the other triangle as it was
                above = matrix + (row * n + row + 1) * parts
                fill(above, (n - row - 1) * parts, 0.0)


def lu(
    getrf: int,
    integer_size: Constant,
    parts: Constant,
    a: Array[Real],
    pivots: Array[i32],
    permutation: Array[i32],
    integers: Array[i32],
    rows: int,
    columns: int,
    begin: int,
    end: int,
) -> None:
    """Replace column-major matrices by their LU factors, singular ones too.

    Matrices are ``rows`` x ``columns``. ``pivots`` gets the row exchanges, numbered
    from 0, and ``permutation`` the order of rows that they give. ``integers`` is
    scratch for LAPACK's pivots, which are numbered from 1. ``getrf`` is LAPACK's
    function, and each of its integers has ``integer_size`` elements i32, of which the
    first is the lowest. An element of a matrix is ``parts`` numbers, 2 if complex.
    Items ``begin`` to ``end`` are computed.
    """
    count = min_i64(rows, columns)
    for item in range(begin, end):
        own = pivots + item * count
        if count > 0:
            matrix = a + item * rows * columns * parts
            fortran(getrf, rows, columns, matrix, rows, integers)
        for row in range(count):
            own[row] = integers[integer_size * row] - 1
        permute(permutation + item * rows, rows, own, count)


def pivots_to_permutation(
    pivots: Array[i32],
    permutation: Array[i32],
    rows: int,
    count: int,
    begin: int,
    end: int,
) -> None:
    """Write the permutation of ``rows`` rows that each item's pivots give.

    An item has ``count`` pivots. Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        permute(permutation + item * rows, rows, pivots + item * count, count)


def permute(permutation: Array[i32], rows: int, pivots: Array[i32], count: int) -> None:
    """Write the order of ``rows`` rows after ``count`` exchanges to ``permutation``.

    Exchange k swaps row k with row ``pivots[k]``; a pivot outside of the rows is
    ignored.
    """
    for row in range(rows):
        permutation[row] = row
    for row in range(count):
        other = pivots[row]
        if other >= 0 and other < rows:
            moved = permutation[row]
            permutation[row] = permutation[other]
            permutation[other] = moved


def qr(
    gelqf: int,
    orglq: int,
    parts: Constant,
    x: Array[Real],
    q: Array[Real],
    r: Array[Real],
    a: Array[Real],
    tau: Array[Real],
    work: Array[Real],
    rows: int,
    columns: int,
    inner: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Write the QR factors ``q`` and ``r`` of row-major matrices ``x``.

    Matrices are ``rows`` x ``columns``; Q has ``inner`` columns, R ``inner`` rows.
    LAPACK reads a row-major A as A^T, so its LQ factorization gives R and Q: ``A^T = L
    Q'`` is ``A = Q'^T L^T``. gelqf leaves R in the row-major upper triangle, orglq
    makes Q.

    ``gelqf`` and ``orglq`` are LAPACK's functions. An element is ``parts`` numbers, 2
    if complex. ``a``, ``tau`` and ``work``, of ``lwork`` elements, are scratch for one
    item. Items ``begin`` to ``end`` are computed.
    """
    count = min_i64(rows, columns)
    for item in range(begin, end):
        own_q = q + item * rows * inner * parts
        own_r = r + item * inner * columns * parts
        copy(a, x + item * rows * columns * parts, rows * columns * parts)
        fortran(gelqf, columns, rows, a, max_i64(columns, 1), tau, work, lwork)
        # R is the upper triangle of ``a``, with zeros below the diagonal.
        for row in range(inner):
            below = min_i64(row, columns)
            target = own_r + row * columns * parts
            fill(target, below * parts, 0.0)
            upper = a + (row * columns + below) * parts
            copy(target + below * parts, upper, (columns - below) * parts)
        # The first ``count`` elements of each row have the reflectors, for orglq.
        for row in range(rows):
            copy(own_q + row * inner * parts, a + row * columns * parts, count * parts)
        leading = max_i64(inner, 1)
        fortran(orglq, inner, rows, count, own_q, leading, tau, work, lwork)


def column_order(
    geqp3: int,
    integer_size: Constant,
    parts: Constant,
    x: Array[Real],
    order: Array[i32],
    a: Array[Real],
    tau: Array[Real],
    work: Array[Real],
    real_work: Array[Real],
    integers: Array[i32],
    rows: int,
    columns: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Write the order in which QR with column pivoting takes the columns of matrices.

    ``x`` holds column-major ``rows`` x ``columns`` matrices; ``order`` gets their
    columns' numbers. ``geqp3`` is LAPACK's function, and each of its integers has
    ``integer_size`` elements i32. An element is ``parts`` numbers, 2 if complex. ``a``,
    ``tau``, ``work``, of ``lwork`` elements, ``real_work`` and ``integers`` are scratch
    for one item. Items ``begin`` to ``end`` are computed.
    """
    step = rows * columns * parts
    leading = max_i64(rows, 1)
    for item in range(begin, end):
        own = order + item * columns
        copy(a, x + item * step, step)
        for k in range(integer_size * columns):
            integers[k] = 0  # LAPACK may take any column first
        if rows > 0:
            if parts == 2:
                fortran(
                    geqp3, rows, columns, a, leading, integers, tau, work, lwork,
                    real_work,
                )  # fmt: skip
            else:
                fortran(geqp3, rows, columns, a, leading, integers, tau, work, lwork)
        for column in range(columns):
            # LAPACK numbers columns from 1. 0 is left if there are no rows.
            taken = integers[integer_size * column] - 1
            own[column] = taken if taken >= 0 else column


def _integer_size(library: Blas | None = None) -> int:
    """Return how many elements i32 an integer of the library's LAPACK has."""
    return (library or blas()).integer_bytes // 4


def getrf_arguments(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """Return the first arguments of ``lu`` for ``dtype``: up to ``parts``."""
    (getrf,) = addresses(dtype, "getrf", library=library)
    return getrf, _integer_size(library), parts_of(dtype)


def gelqf_arguments(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """Return the first arguments of ``qr`` for ``dtype``: up to ``parts``."""
    names = "gelqf", "orglq/unglq"  # of real and of complex dtypes
    return *addresses(dtype, *names, library=library), parts_of(dtype)


def geqp3_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``column_order`` for ``dtype``: up to ``parts``."""
    (geqp3,) = addresses(dtype, "geqp3")
    return geqp3, _integer_size(), parts_of(dtype)


unjitted_cholesky = by_reference(linalg_triangular.cholesky, "a", ("n", "n"), "a")
unjitted_lu = by_reference(
    linalg_lu.lu, "a", ("columns", "rows"), "a", "pivots", "permutation"
)
unjitted_qr = by_reference(
    linalg_qr.qr,
    "x",
    ("rows", "columns"),
    "q",
    "r",
    params=lambda arguments: {
        "full": arguments["inner"] > min(arguments["rows"], arguments["columns"])
    },
)

PROVIDERS: Final = {
    **with_large("potrf", cholesky, leading("potrf"), unjitted_cholesky),
    **with_large("getrf", lu, getrf_arguments, unjitted_lu),
    **with_large("gelqf", qr, gelqf_arguments, unjitted_qr),
    "pivots_to_permutation": Provider(
        pivots_to_permutation,
        lambda dtype: (),
        by_reference(
            linalg_lu.pivots_to_permutation,
            "pivots",
            ("count",),
            "permutation",
            params=lambda arguments: {"rows": int(arguments["rows"])},
        ),
    ),
    "geqp3": Provider(
        column_order,
        geqp3_arguments,
        by_reference(linalg_qr.column_order, "x", ("columns", "rows"), "order"),
        uses_blas=True,
    ),
}
