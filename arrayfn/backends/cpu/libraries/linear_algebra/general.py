"""Spectra of any matrices by LAPACK: geev, gesdd, gees, and Hessenberg forms by gehrd.

All matrices are column-major. Results of matrices that are not finite, or that do not
converge, are NaN.
"""

from __future__ import annotations

from typing import Any, Final

from arrayfn.backends.cpu.libraries.foreign import (
    Array,
    Constant,
    Real,
    fortran,
    stack_integers,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    FULL,
    NAN,
    NONE,
    REDUCED,
    VECTORS,
    all_finite,
    copy,
    fill,
    leading,
    multiply,
    scale_of,
)
from arrayfn.backends.cpu.libraries.linear_algebra.providers import (
    by_reference,
    with_large,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import min_i64
from arrayfn.primitives import linalg_schur, linalg_spectral, linalg_svd


def geev(
    function: int,
    vectors: int,
    parts: int,
    a: Array[Any],
    w: Array[Any],
    packed: Array[Any],
    split_values: Array[Any],
    work: Array[Any],
    n: int,
    lwork: int,
) -> int:
    """Compute eigenvalues and right eigenvectors of one n x n matrix ``a``.

    Returns 0 if the computation converged; if not, the eigenvalues are NaN. ``a`` is
    overwritten. The eigenvalues ``w`` are complex, the eigenvectors ``packed`` as
    LAPACK returns them (see ``unpack``). ``split_values``, 2 n real numbers, gets the
    real parts and then the imaginary parts of a real matrix's eigenvalues; for a
    complex matrix it is scratch. A matrix of very large or small numbers is scaled.

    ``function`` is LAPACK's geev; ``vectors`` is its letter that says whether to
    compute eigenvectors. An element is ``parts`` numbers, 2 if complex. ``work`` has
    ``lwork`` elements.
    """
    failed = 1
    if all_finite(a, n * n * parts):
        scale = scale_of(a, n * n * parts)
        if scale != 1.0:
            multiply(a, n * n * parts, scale)
        if parts == 2:
            failed = fortran(
                function, NONE, vectors, n, a, n, w, work, n, packed, n, work, lwork,
                split_values,
            )  # fmt: skip
        else:
            failed = fortran(
                function, NONE, vectors, n, a, n, split_values, split_values + n, work,
                n, packed, n, work, lwork,
            )  # fmt: skip
            for k in range(n):
                w[2 * k] = split_values[k]
                w[2 * k + 1] = split_values[n + k]
        if scale != 1.0:
            multiply(w, 2 * n, 1.0 / scale)
    if failed != 0:
        fill(w, 2 * n, NAN)
    return failed


def eig(
    geev_function: int,
    parts: Constant,
    x: Array[Real],
    w: Array[Real],
    v: Array[Real],
    copied: Array[Real],
    packed: Array[Real],
    split_values: Array[Real],
    work: Array[Real],
    n: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Write eigenvalues ``w`` and right eigenvectors ``v`` of n x n matrices ``x``.

    ``geev_function`` is LAPACK's. An element is ``parts`` numbers, 2 if complex.
    Scratch for one item: ``copied`` for the matrix, which LAPACK overwrites; and
    ``packed``, ``split_values`` and ``work``, which has ``lwork`` elements, as in
    ``geev``. Matrices that did not converge give NaN. Items ``begin`` to ``end`` are
    computed.
    """
    step = n * n * parts
    for item in range(begin, end):
        own = v + item * 2 * n * n
        copy(copied, x + item * step, step)
        failed = geev(
            geev_function, VECTORS, parts, copied, w + item * 2 * n, packed,
            split_values, work, n, lwork,
        )  # fmt: skip
        if failed != 0:
            fill(own, 2 * n * n, NAN)
        elif parts == 2:
            copy(own, packed, 2 * n * n)
        else:
            unpack(own, packed, split_values + n, n)


def unpack(
    vectors: Array[Any], packed: Array[Any], imaginary: Array[Any], n: int
) -> None:
    """Write the complex eigenvectors of a real n x n matrix from LAPACK's real ones.

    ``imaginary`` has the imaginary parts of the eigenvalues. A real eigenvalue has a
    real vector. For a conjugate pair of eigenvalues, LAPACK returns two real vectors p
    and q: the eigenvectors are p + i q and p - i q.
    """
    row = 0  # the number of the eigenvector
    while row < n:
        first = packed + row * n
        target = vectors + 2 * row * n
        if float(imaginary[row]) == 0.0:
            for k in range(n):
                target[2 * k] = first[k]
                target[2 * k + 1] = 0.0
            row += 1
        else:
            for k in range(n):
                target[2 * k] = first[k]
                target[2 * k + 1] = first[n + k]
                # The conjugate, which is the next eigenvector.
                target[2 * (n + k)] = first[k]
                target[2 * (n + k) + 1] = -first[n + k]
            row += 2


def eigvals(
    geev_function: int,
    parts: Constant,
    x: Array[Real],
    w: Array[Real],
    copied: Array[Real],
    split_values: Array[Real],
    work: Array[Real],
    n: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Write the eigenvalues ``w`` of n x n matrices ``x``.

    ``geev_function`` is LAPACK's. An element is ``parts`` numbers, 2 if complex.
    Scratch for one item: ``copied`` for the matrix, which LAPACK overwrites; and
    ``split_values`` and ``work``, which has ``lwork`` elements, as in ``geev``. Items
    ``begin`` to ``end`` are computed.
    """
    step = n * n * parts
    for item in range(begin, end):
        copy(copied, x + item * step, step)
        # ``work`` also stands for the array of eigenvectors, which is not used.
        geev(
            geev_function, NONE, parts, copied, w + item * 2 * n, work, split_values,
            work, n, lwork,
        )  # fmt: skip


def gesdd(
    function: int,
    job: int,
    parts: int,
    a: Array[Any],
    s: Array[Any],
    u: Array[Any],
    vh: Array[Any],
    work: Array[Any],
    real_work: Array[Any],
    integer_work: Array[int],
    rows: int,
    columns: int,
    vh_rows: int,
    lwork: int,
) -> int:
    """Compute the singular values ``s`` and vectors ``u`` and ``vh`` of one matrix.

    Returns 0 if the computation converged; if not, the singular values are NaN. The
    matrix ``a`` is column-major, ``rows`` x ``columns``, and is overwritten. ``vh`` has
    ``vh_rows`` rows. ``function`` is LAPACK's gesdd; ``job`` is its letter that says
    which vectors to compute. An element is ``parts`` numbers, 2 if complex. LAPACK's
    scratch is ``work``, of ``lwork`` elements, ``integer_work``, and for a complex
    matrix ``real_work``.
    """
    failed = 1
    if all_finite(a, rows * columns * parts):
        if parts == 2:
            failed = fortran(
                function, job, rows, columns, a, rows, s, u, rows, vh, vh_rows, work,
                lwork, real_work, integer_work,
            )  # fmt: skip
        else:
            failed = fortran(
                function, job, rows, columns, a, rows, s, u, rows, vh, vh_rows, work,
                lwork, integer_work,
            )  # fmt: skip
    if failed != 0:
        fill(s, min_i64(rows, columns), NAN)
    return failed


def svd(
    gesdd_function: int,
    parts: Constant,
    x: Array[Real],
    s: Array[Real],
    u: Array[Real],
    vh: Array[Real],
    copied: Array[Real],
    work: Array[Real],
    real_work: Array[Real],
    integer_work: Array[int],
    rows: int,
    columns: int,
    u_columns: int,
    vh_rows: int,
    full: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Write singular values ``s`` and vectors ``u`` and ``vh`` of matrices ``x``.

    ``gesdd_function`` is LAPACK's. Matrices are ``rows`` x ``columns``; ``u`` has
    ``u_columns``, ``vh`` has ``vh_rows``, and both are square if ``full``. An element
    is ``parts`` numbers, 2 if complex. Scratch for one item: ``copied`` for the matrix,
    which LAPACK overwrites; and ``work``, of ``lwork`` elements, ``real_work`` and
    ``integer_work``, as in ``gesdd``. Matrices that did not converge give NaN. Items
    ``begin`` to ``end`` are computed.
    """
    step = rows * columns * parts
    step_u, step_vh = rows * u_columns * parts, vh_rows * columns * parts
    job = FULL if full != 0 else REDUCED
    for item in range(begin, end):
        own_u, own_vh = u + item * step_u, vh + item * step_vh
        copy(copied, x + item * step, step)
        failed = gesdd(
            gesdd_function, job, parts, copied, s + item * min_i64(rows, columns),
            own_u, own_vh, work, real_work, integer_work, rows, columns, vh_rows, lwork,
        )  # fmt: skip
        if failed != 0:
            fill(own_u, step_u, NAN)
            fill(own_vh, step_vh, NAN)


def svdvals(
    gesdd_function: int,
    parts: Constant,
    x: Array[Real],
    s: Array[Real],
    copied: Array[Real],
    work: Array[Real],
    real_work: Array[Real],
    integer_work: Array[int],
    rows: int,
    columns: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Write the singular values ``s`` of ``rows`` x ``columns`` matrices ``x``.

    ``gesdd_function`` is LAPACK's. An element is ``parts`` numbers, 2 if complex.
    Scratch for one item: ``copied`` for the matrix, which LAPACK overwrites; and
    ``work``, of ``lwork`` elements, ``real_work`` and ``integer_work``, as in
    ``gesdd``. Items ``begin`` to ``end`` are computed.
    """
    step = rows * columns * parts
    for item in range(begin, end):
        copy(copied, x + item * step, step)
        # ``work`` also stands for the arrays of singular vectors, which are not used.
        gesdd(
            gesdd_function, NONE, parts, copied, s + item * min_i64(rows, columns),
            work, work, work, real_work, integer_work, rows, columns, columns, lwork,
        )  # fmt: skip


def hessenberg(
    gehrd: int,
    parts: Constant,
    a: Array[Real],
    taus: Array[Real],
    work: Array[Real],
    n: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Reduce n x n matrices ``a`` to Hessenberg form in place.

    ``gehrd`` is LAPACK's function. An element is ``parts`` numbers, 2 if complex.
    ``taus`` gets the factors of the n - 1 reflectors of each matrix. ``work``, LAPACK's
    scratch, has ``lwork`` elements. Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        own = taus + item * (n - 1) * parts
        # 1 and n are LAPACK's ilo and ihi: all rows and columns are reduced.
        fortran(gehrd, n, 1, n, a + item * n * n * parts, n, own, work, lwork)


def schur(
    gees: int,
    parts: Constant,
    a: Array[Real],
    z: Array[Real],
    work: Array[Real],
    values: Array[Real],
    more: Array[Real],
    n: int,
    lwork: int,
    begin: int,
    end: int,
) -> None:
    """Reduce n x n matrices ``a`` to Schur form in place, with the vectors ``z``.

    ``gees`` is LAPACK's function. An element is ``parts`` numbers, 2 if complex.
    ``work``, of ``lwork`` elements, ``values`` and ``more`` are scratch for one item.
    For real matrices, ``values`` and ``more`` get the real and imaginary parts of the
    eigenvalues. For complex ones, ``values`` gets the eigenvalues, and ``more`` is
    LAPACK's real scratch. Matrices that did not converge give NaN. Items ``begin`` to
    ``end`` are computed.
    """
    step = n * n * parts
    selected = stack_integers(1)
    for item in range(begin, end):
        matrix, vectors = a + item * step, z + item * step
        failed = 1
        if all_finite(matrix, step):
            # The letter N: eigenvalues are not ordered. LAPACK then does not use the
            # function that selects eigenvalues (here ``work``) and its flags.
            if parts == 2:
                failed = fortran(
                    gees, VECTORS, NONE, work, n, matrix, n, selected, values, vectors,
                    n, work, lwork, more, selected,
                )  # fmt: skip
            else:
                failed = fortran(
                    gees, VECTORS, NONE, work, n, matrix, n, selected, values, more,
                    vectors, n, work, lwork, selected,
                )  # fmt: skip
        if failed != 0:
            fill(matrix, step, NAN)
            fill(vectors, step, NAN)


unjitted_eig = by_reference(linalg_spectral.eig, "x", ("n", "n"), "v", "w")
unjitted_eigvals = by_reference(linalg_spectral.eigvals, "x", ("n", "n"), "w")
unjitted_svd = by_reference(
    linalg_svd.svd,
    "x",
    ("columns", "rows"),
    "u",
    "s",
    "vh",
    params=lambda arguments: {"full": bool(arguments["full"])},
)
unjitted_svdvals = by_reference(linalg_svd.svdvals, "x", ("columns", "rows"), "s")

PROVIDERS: Final = {
    **with_large("geev", eig, leading("geev"), unjitted_eig),
    **with_large("geev_values", eigvals, leading("geev"), unjitted_eigvals),
    **with_large("gesdd", svd, leading("gesdd"), unjitted_svd),
    **with_large("gesdd_values", svdvals, leading("gesdd"), unjitted_svdvals),
    "gehrd": Provider(
        hessenberg,
        leading("gehrd"),
        by_reference(linalg_schur.hessenberg, "a", ("n", "n"), "a", "taus"),
        uses_blas=True,
    ),
    "gees": Provider(
        schur,
        leading("gees"),
        by_reference(linalg_schur.schur, "a", ("n", "n"), "a", "z"),
        uses_blas=True,
    ),
}
