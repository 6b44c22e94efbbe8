"""Eigenvalues of Hermitian matrices: LAPACK's syevd and heevd, in place.

The lower triangle, mirrored, is that of the same matrix by columns: so signs of
eigenvectors are NumPy's. These, by columns and conjugated, are the rows of V^H. What is
not finite, and what does not converge, is NaN; a single number is its own eigenvalue.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas
from arrayfn.backends.cpu.libraries.linear_algebra.calls import (
    CALL_BYTES,
    CALLS,
    ITEM_BYTES,
    NAN,
    REAL_BYTES,
    fields,
    lapack,
    lapack_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    all_finite,
    copy_negated,
    copy_real,
    fill_words,
    least,
    memcpy,
)
from arrayfn.backends.cpu.libraries.linear_algebra.references import by_reference
from arrayfn.backends.cpu.libraries.linear_algebra.threads import with_large
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import load, native, stack, store
from arrayfn.primitives import linalg_spectral

VECTORS_CALL: Final = CALLS
VALUES_CALL: Final = CALLS + CALL_BYTES
PLACES: Final = fields(
    2, "a", "w", "copy", "work", "real_work", "integer_work",
    "n", "words", "real_words", "integer_words",
)  # fmt: skip
MATRIX: Final = PLACES["a"]
VALUES: Final = PLACES["w"]
COPY: Final = PLACES["copy"]
SIZE: Final = PLACES["n"]
TILE: Final = 16  # rows that are written at once, each a line in the cache


@native
def eigh_run(arguments: int, begin: int, end: int) -> int:
    """Decompose matrices ``begin`` to ``end`` in place."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = load(arguments + REAL_BYTES)
    step = n * n * size
    for item in range(begin, end):
        matrix = load(arguments + MATRIX) + item * step
        if decompose(arguments, VECTORS_CALL, item, matrix) != 0:
            fill_words(matrix, step, load(arguments + NAN))
        elif size != real:
            for k in range(n * n):
                imaginary = matrix + k * size + real
                copy_negated(imaginary, imaginary, real)
    return 0


@native
def eigvalsh_run(arguments: int, begin: int, end: int) -> int:
    """The eigenvalues of matrices ``begin`` to ``end``."""
    n = load(arguments + SIZE)
    step = n * n * load(arguments + ITEM_BYTES)
    for item in range(begin, end):
        matrix = load(arguments + COPY)
        memcpy(matrix, load(arguments + MATRIX) + item * step, step)
        decompose(arguments, VALUES_CALL, item, matrix)
    return 0


@native
def decompose(arguments: int, table: int, item: int, matrix: int) -> int:
    """One decomposition; not 0 if it failed, and then the values are NaN."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = load(arguments + REAL_BYTES)
    own = stack(2)
    values = load(arguments + VALUES) + item * n * real
    store(own, matrix)
    store(own + 8, values)
    mirror_lower(matrix, n, size, real)
    failed = 1
    if n == 1 or all_finite(matrix, n * n * size, real):
        failed = lapack(arguments, table, own)
    if failed != 0:
        fill_words(values, n * real, load(arguments + NAN))
    return failed


@native
def mirror_lower(matrix: int, n: int, size: int, real: int) -> int:
    """Write the lower triangle of a row-major matrix above the diagonal."""
    for first in range((n + TILE - 1) // TILE):
        last = least(first * TILE + TILE, n)
        for row in range(first * TILE + 1, n):
            source = matrix + row * n * size
            target = matrix + row * size
            for column in range(first * TILE, least(last, row)):
                above = target + column * n * size
                copy_real(above, source + column * size, real)
                if size != real:
                    beside = source + column * size + real
                    copy_real(above + real, beside, real)
    return 0


def words(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The words before the arguments."""
    rest = "$1 work &words {}integer_work &integer_words info"
    calls = [
        (
            f"?syevd {job} L &n $0 &n {rest.format('')}",
            f"?heevd {job} L &n $0 &n {rest.format('real_work &real_words ')}",
        )
        for job in "VN"
    ]
    return lapack_words(dtype, PLACES, *calls, library=library)


PROVIDERS: Final = {
    **with_large(
        "syevd",
        Provider(
            eigh_run,
            words,
            by_reference(linalg_spectral.eigh, "a", ("n", "n"), "a", "w"),
            uses_blas=True,
        ),
        words,
    ),
    **with_large(
        "syevd_values",
        Provider(
            eigvalsh_run,
            words,
            by_reference(linalg_spectral.eigvalsh, "a", ("n", "n"), "w"),
            uses_blas=True,
        ),
        words,
    ),
}
