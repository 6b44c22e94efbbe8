"""Eigenvalues of Hermitian matrices by LAPACK's syevd and heevd, and tridiagonal forms.

Results of matrices that are not finite, or that do not converge, are NaN; a single
number is its own eigenvalue. The lower triangle is mirrored, so that the matrix is the
same by rows and by columns, and signs of eigenvectors are NumPy's. LAPACK's vectors are
the columns of a column-major matrix. Read row-major and conjugated these are V^H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from arrayfn.backends.cpu.libraries.foreign import Array, Constant, Real, fortran
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    IDENTITY,
    LEFT,
    LOWER,
    NAN,
    NONE,
    VECTORS,
    all_finite,
    copy,
    fill,
    leading,
    mirror_lower,
    multiply,
    scale_of,
)
from arrayfn.backends.cpu.libraries.linear_algebra.providers import (
    by_reference,
    with_large,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import min_i64
from arrayfn.primitives import linalg_schur, linalg_spectral


def decompose(
    syevd: int,
    vectors: int,
    parts: int,
    matrix: Array[Any],
    values: Array[Any],
    work: Array[Any],
    real_work: Array[Any],
    integer_work: Array[int],
    n: int,
    lwork: int,
    lrwork: int,
    liwork: int,
) -> int:
    """Compute eigenvalues, and perhaps eigenvectors, of one Hermitian n x n matrix.

    Returns 0 if the computation converged; if not, the eigenvalues are NaN. ``matrix``
    is overwritten, by the eigenvectors if ``vectors``, LAPACK's letter, says so.
    ``values`` gets the eigenvalues. ``syevd`` is LAPACK's function (heevd for complex
    matrices). An element is ``parts`` numbers, 2 if complex. ``lwork``, ``lrwork`` and
    ``liwork`` are the sizes of the workspaces.
    """
    failed = 1
    if n == 1 or all_finite(matrix, n * n * parts):
        if parts == 2:
            failed = fortran(
                syevd, vectors, LOWER, n, matrix, n, values, work, lwork, real_work,
                lrwork, integer_work, liwork,
            )  # fmt: skip
        else:
            failed = fortran(
                syevd, vectors, LOWER, n, matrix, n, values, work, lwork, integer_work,
                liwork,
            )  # fmt: skip
    if failed != 0:
        fill(values, n, NAN)
    return failed


def eigh(
    syevd: int,
    parts: Constant,
    a: Array[Real],
    w: Array[Real],
    work: Array[Real],
    real_work: Array[Real],
    integer_work: Array[int],
    n: int,
    lwork: int,
    lrwork: int,
    liwork: int,
    begin: int,
    end: int,
) -> None:
    """Replace n x n matrices by their eigenvectors, and write the eigenvalues ``w``.

    The lower triangles of ``a`` are read. Complex eigenvectors are conjugated, so that
    the row-major result is V^H. ``syevd`` is LAPACK's function (heevd for complex
    matrices). An element is ``parts`` numbers, 2 if complex. ``lwork``, ``lrwork`` and
    ``liwork`` are the sizes of the workspaces. Items ``begin`` to ``end`` are computed.
    """
    step = n * n * parts
    for item in range(begin, end):
        matrix, values = a + item * step, w + item * n
        mirror_lower(matrix, n, parts)
        failed = decompose(
            syevd, VECTORS, parts, matrix, values, work, real_work, integer_work, n,
            lwork, lrwork, liwork,
        )  # fmt: skip
        if failed != 0:
            fill(matrix, step, NAN)
        elif parts == 2:
            for k in range(n * n):  # conjugate
                matrix[2 * k + 1] = -matrix[2 * k + 1]


def tridiagonal_eigh(
    sytrd: int,
    stedc: int,
    parts: Constant,
    a: Array[Real],
    w: Array[Real],
    reflectors: Array[Real],
    taus: Array[Real],
    e: Array[Real],
    work: Array[Real],
    real_work: Array[Real],
    integer_work: Array[int],
    n: int,
    lwork: int,
    lrwork: int,
    liwork: int,
    begin: int,
    end: int,
) -> None:
    """Replace a Hermitian n x n matrix by the eigenvectors of its tridiagonal form.

    This is the first part of what syevd does. ``reflect_vectors`` then multiplies the
    vectors by the reflections, in ``reflectors`` and ``taus``, that gave the form: the
    products are the eigenvectors of the matrix. ``w`` gets the eigenvalues; ``e`` is
    scratch for the off-diagonal. ``sytrd`` and ``stedc`` are LAPACK's functions. An
    element is ``parts`` numbers, 2 if complex. ``lwork``, ``lrwork`` and ``liwork`` are
    the sizes of the workspaces. Nothing is done unless ``begin`` < ``end``. If the
    matrix is not finite, or stedc fails, the results are NaN.
    """
    size = n * n * parts
    if begin < end:
        mirror_lower(a, n, parts)
        failed = 1
        if all_finite(a, size):
            failed = 0
            scale = scale_of(a, size)
            for k in range(size):
                reflectors[k] = float(a[k]) * scale
            fortran(sytrd, LOWER, n, reflectors, n, w, e, taus, work, lwork)
            if parts == 2:
                failed = fortran(
                    stedc, IDENTITY, n, w, e, a, n, work, lwork, real_work, lrwork,
                    integer_work, liwork,
                )  # fmt: skip
            else:
                failed = fortran(
                    stedc, IDENTITY, n, w, e, a, n, work, lwork, integer_work,
                    liwork,
                )  # fmt: skip
            multiply(w, n, 1.0 / scale)
        if failed != 0:
            fill(a, size, NAN)
            fill(w, n, NAN)
            fill(reflectors, size, 0.0)
            fill(taus, (n - 1) * parts, 0.0)


def reflect_vectors(
    ormtr: int,
    parts: Constant,
    reflectors: Array[Real],
    taus: Array[Real],
    a: Array[Real],
    work: Array[Real],
    n: int,
    columns: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Multiply eigenvectors of a tridiagonal form by its reflections, in place.

    This is the second part of what syevd does, after ``tridiagonal_eigh``. A work item
    is ``columns`` of the vectors ``a``, which have n elements; items ``begin`` to
    ``end`` are computed. Complex results are conjugated, so that the row-major result
    is V^H. ``ormtr`` is LAPACK's function. An element is ``parts`` numbers, 2 if
    complex. ``work`` has ``lwork`` elements.
    """
    for item in range(begin, end):
        first = item * columns
        count = min_i64(n - first, columns)
        vectors = a + first * n * parts
        fortran(
            ormtr, LEFT, LOWER, NONE, n, count, reflectors, n, taus, vectors, n, work,
            lwork,
        )  # fmt: skip
        if parts == 2:
            for k in range(n * count):  # conjugate
                vectors[2 * k + 1] = -vectors[2 * k + 1]


def eigvalsh(
    syevd: int,
    parts: Constant,
    a: Array[Real],
    w: Array[Real],
    copied: Array[Real],
    work: Array[Real],
    real_work: Array[Real],
    integer_work: Array[int],
    n: int,
    lwork: int,
    lrwork: int,
    liwork: int,
    begin: int,
    end: int,
) -> None:
    """Write the eigenvalues ``w`` of the Hermitian n x n matrices ``a``.

    ``copied`` is scratch for a copy of a matrix, which LAPACK overwrites. The other
    parameters are those of ``eigh``. Items ``begin`` to ``end`` are computed.
    """
    step = n * n * parts
    for item in range(begin, end):
        values = w + item * n
        copy(copied, a + item * step, step)
        mirror_lower(copied, n, parts)
        decompose(
            syevd, NONE, parts, copied, values, work, real_work, integer_work, n, lwork,
            lrwork, liwork,
        )  # fmt: skip


def tridiagonal(
    sytrd: int,
    parts: Constant,
    a: Array[Real],
    d: Array[Real],
    e: Array[Real],
    taus: Array[Real],
    work: Array[Real],
    n: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Reduce column-major Hermitian n x n matrices to tridiagonal form, in place.

    ``d`` gets the diagonals, ``e`` the off-diagonals, and ``taus`` the factors of the
    reflections, whose vectors replace the matrices ``a``. ``sytrd`` is LAPACK's
    function. An element is ``parts`` numbers, 2 if complex. ``work`` has ``lwork``
    elements. Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        fortran(
            sytrd, LOWER, n, a + item * n * n * parts, n, d + item * n,
            e + item * (n - 1), taus + item * (n - 1) * parts, work, lwork,
        )  # fmt: skip


def unjitted_reflections(arguments: Mapping[str, Any], items: int) -> None:
    """Do nothing: un-jitted, ``tridiagonal_eigh`` computes the final eigenvectors."""


unjitted_eigh = by_reference(linalg_spectral.eigh, "a", ("n", "n"), "a", "w")
unjitted_eigvalsh = by_reference(linalg_spectral.eigvalsh, "a", ("n", "n"), "w")

PROVIDERS: Final = {
    **with_large("syevd", eigh, leading("syevd/heevd"), unjitted_eigh),
    **with_large("syevd_values", eigvalsh, leading("syevd/heevd"), unjitted_eigvalsh),
    "stedc": Provider(
        tridiagonal_eigh, leading("sytrd/hetrd", "stedc"), unjitted_eigh, uses_blas=True
    ),
    "ormtr": Provider(
        reflect_vectors, leading("ormtr/unmtr"), unjitted_reflections, uses_blas=True
    ),
    "sytrd": Provider(
        tridiagonal,
        leading("sytrd/hetrd"),
        by_reference(linalg_schur.tridiagonal, "a", ("n", "n"), "a", "d", "e", "taus"),
        uses_blas=True,
    ),
}
