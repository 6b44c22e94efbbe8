"""Eigenvalues of Hermitian matrices: LAPACK's syevd and heevd, in place.

The lower triangle, mirrored, is that of the same matrix by columns. The eigenvectors,
by columns and conjugated, are the rows of V^H. What does not converge is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_L,
    LETTER_N,
    LETTER_V,
    NAN,
    copy_negated,
    copy_real,
    fill_words,
    lapack_words,
    memcpy,
    real_bytes,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store_i32,
    store_u8,
)

SYEVD: Final = FUNCTIONS
# With vectors: the matrix, the values. Without: the operand, the values.
FIRST: Final = FUNCTIONS + 8
VALUES: Final = FUNCTIONS + 16
WORK: Final = FUNCTIONS + 24
REAL_WORK: Final = FUNCTIONS + 32
INTEGER_WORK: Final = FUNCTIONS + 40
# With vectors; without, a copy comes before them.
SIZE: Final = FUNCTIONS + 48
COPY: Final = FUNCTIONS + 48
AFTER_COPY: Final = 8


@native
def eigh_run(arguments: int, begin: int, end: int) -> int:
    """Decompose matrices ``begin`` to ``end`` in place."""
    n = load(arguments + SIZE)
    step = n * n * load(arguments + ITEM_BYTES)
    for item in range(begin, end):
        matrix = load(arguments + FIRST) + item * step
        mirror_lower(arguments, matrix, n)
        values = load(arguments + VALUES) + item * n * real_bytes(arguments)
        if syevd(arguments, arguments + SIZE, LETTER_V, matrix, values) != 0:
            fill_words(matrix, step, load(arguments + NAN))
        elif load(arguments + COMPLEX):
            conjugate(matrix, n * n, real_bytes(arguments))
    return 0


@native
def eigvalsh_run(arguments: int, begin: int, end: int) -> int:
    """The eigenvalues of matrices ``begin`` to ``end``."""
    sizes = arguments + COPY + AFTER_COPY
    n = load(sizes)
    step = n * n * load(arguments + ITEM_BYTES)
    for item in range(begin, end):
        matrix = load(arguments + COPY)
        values = load(arguments + VALUES) + item * n * real_bytes(arguments)
        memcpy(matrix, load(arguments + FIRST) + item * step, step)
        mirror_lower(arguments, matrix, n)
        syevd(arguments, sizes, LETTER_N, matrix, values)
    return 0


@native
def mirror_lower(arguments: int, matrix: int, n: int) -> int:
    """Write the lower triangle of a row-major matrix above the diagonal."""
    real = real_bytes(arguments)
    size = load(arguments + ITEM_BYTES)
    for row in range(1, n):
        source = matrix + row * n * size
        target = matrix + row * size
        for column in range(row):
            copy_real(target + column * n * size, source + column * size, real)
            if size != real:
                copy_real(
                    target + column * n * size + real,
                    source + column * size + real,
                    real,
                )
    return 0


@native
def conjugate(address: int, count: int, real: int) -> int:
    """Conjugate complex numbers."""
    for k in range(count):
        imaginary = address + (2 * k + 1) * real
        copy_negated(imaginary, imaginary, real)
    return 0


@native
def syevd(arguments: int, sizes: int, job: int, matrix: int, values: int) -> int:
    """One decomposition; not 0 if it failed, and then the values are NaN.

    At ``sizes`` are the extent, and those of the workspaces.
    """
    n = load(sizes)
    letters = stack(1)
    ints = stack(3)
    store_u8(letters, job)
    store_u8(letters + 1, LETTER_L)
    store_i32(ints, n)
    store_i32(ints + 4, load(sizes + 8))
    store_i32(ints + 8, load(sizes + 16))
    store_i32(ints + 12, load(sizes + 24))
    if load(arguments + COMPLEX):
        call(
            load(arguments + SYEVD),
            letters,
            letters + 1,
            ints,
            matrix,
            ints,
            values,
            load(arguments + WORK),
            ints + 4,
            load(arguments + REAL_WORK),
            ints + 8,
            load(arguments + INTEGER_WORK),
            ints + 12,
            ints + 16,
        )
    else:
        call(
            load(arguments + SYEVD),
            letters,
            letters + 1,
            ints,
            matrix,
            ints,
            values,
            load(arguments + WORK),
            ints + 4,
            load(arguments + INTEGER_WORK),
            ints + 12,
            ints + 16,
        )
    failed = load_i32(ints + 16)
    if failed != 0:
        fill_words(values, n * real_bytes(arguments), load(arguments + NAN))
    return failed


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    return lapack_words(dtype, "?syevd|?heevd")


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices with their vectors, by NumPy."""
    n = int(given["n"])
    matrices = given["a"].array((items, n, n))
    values = given["w"].array((items, n))
    for matrix, w in zip(matrices, values, strict=True):
        try:
            w[...], vectors = np.linalg.eigh(matrix)
            matrix[...] = vectors.conj().T
        except np.linalg.LinAlgError:
            w[...] = matrix[...] = np.nan


def unjitted_values(given: Mapping[str, Any], items: int) -> None:
    """The values of all matrices, by NumPy."""
    n = int(given["n"])
    matrices = given["x"].array((items, n, n))
    values = given["w"].array((items, n))
    for matrix, w in zip(matrices, values, strict=True):
        try:
            w[...] = np.linalg.eigvalsh(matrix)
        except np.linalg.LinAlgError:
            w[...] = np.nan


PROVIDERS: Final = {
    "syevd": Provider(eigh_run, words, unjitted, uses_blas=True),
    "syevd_values": Provider(eigvalsh_run, words, unjitted_values, uses_blas=True),
}
