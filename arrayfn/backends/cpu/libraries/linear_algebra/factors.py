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
    """Factor row-major n x n matrices in place; NaN if not positive definite.

    The lower triangle of a row-major matrix is, column-major, an upper one of its
    transpose, and so is the factor. ``potrf`` is LAPACK's function. Items ``begin`` to
    ``end`` are computed.
    """
    step = n * n * parts
    for item in range(begin, end):
        matrix = a + item * step
        failed = fortran(potrf, UPPER, n, matrix, n)
        # Some versions go on from a pivot of NaN, which spreads to the last.
        if failed != 0 or not all_finite(matrix + (step - parts), parts):
            fill(matrix, step, NAN)
        else:
            for row in range(n - 1):
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
    """Factor column-major matrices in place, singular ones too.

    ``getrf`` is LAPACK's function. ``integer_size`` are the i32 elements of LAPACK's
    integers, low one first. An element is ``parts`` numbers, 2 if complex. Matrices are
    ``rows`` x ``columns``. Items ``begin`` to ``end`` are computed.
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
    """Write the permutations of ``rows`` rows that ``count`` pivots mean.

    Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        permute(permutation + item * rows, rows, pivots + item * count, count)


def permute(permutation: Array[i32], rows: int, pivots: Array[i32], count: int) -> None:
    """Apply ``count`` row exchanges: row k is swapped with row ``pivots[k]``."""
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
    """Factor row-major ``rows`` x ``columns`` matrices; Q has ``inner`` columns.

    ``A^T = L Q`` is ``A = Q^T L^T``: the upper triangle of what gelqf leaves is R, and
    orglq leaves Q, both row-major. An element is ``parts`` numbers, 2 if complex.
    ``work`` has ``lwork`` elements. Items ``begin`` to ``end`` are computed.
    """
    count = min_i64(rows, columns)
    for item in range(begin, end):
        own_q = q + item * rows * inner * parts
        own_r = r + item * inner * columns * parts
        copy(a, x + item * rows * columns * parts, rows * columns * parts)
        fortran(gelqf, columns, rows, a, max_i64(columns, 1), tau, work, lwork)
        for row in range(inner):
            below = min_i64(row, columns)
            target = own_r + row * columns * parts
            fill(target, below * parts, 0.0)
            kept = a + (row * columns + below) * parts
            copy(target + below * parts, kept, (columns - below) * parts)
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
    """Write the orders in which pivoted QR takes columns.

    ``x`` holds column-major ``rows`` x ``columns`` matrices; ``geqp3`` is LAPACK's
    function. An element is ``parts`` numbers, 2 if complex. ``work`` has ``lwork``
    elements. Items ``begin`` to ``end`` are computed.
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
            found = integers[integer_size * column] - 1
            own[column] = found if found >= 0 else column


def _integer_size(library: Blas | None = None) -> int:
    return (library or blas()).integer_bytes // 4


def getrf_arguments(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The first arguments of ``lu`` for ``dtype``."""
    (getrf,) = addresses(dtype, "getrf", library=library)
    return getrf, _integer_size(library), parts_of(dtype)


def gelqf_arguments(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The first arguments of ``qr`` for ``dtype``."""
    names = "gelqf", "orglq/unglq"
    return *addresses(dtype, *names, library=library), parts_of(dtype)


def geqp3_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``column_order`` for ``dtype``."""
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
