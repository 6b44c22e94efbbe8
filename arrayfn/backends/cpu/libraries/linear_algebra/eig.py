"""Eigenvalues of any square matrices: LAPACK's geev. Results are complex.

The operand and the eigenvectors lie by columns. LAPACK packs the complex eigenvectors
of a real matrix, which come in conjugate pairs, into two real ones each. A matrix that
is not finite, and one that does not converge, has NaNs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_N,
    LETTER_V,
    NAN,
    copy_negated,
    copy_real,
    fill_words,
    is_zero,
    lapack_words,
    memcpy,
    memset,
    real_bytes,
)
from arrayfn.backends.cpu.libraries.linear_algebra.scaling import (
    is_finite_exponent,
    largest_exponent,
    rescale,
    scale_of,
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

GEEV: Final = FUNCTIONS
LASCL: Final = FUNCTIONS + 8
X: Final = FUNCTIONS + 16
# With vectors: V, W, then the tail. Without: W, then the tail.
V: Final = FUNCTIONS + 24
W: Final = FUNCTIONS + 32
TAIL: Final = FUNCTIONS + 40
ONLY_W: Final = FUNCTIONS + 24
TAIL_OF_VALUES: Final = FUNCTIONS + 32
# Byte offsets into the tail.
COPY: Final = 0
PACKED: Final = 8
PARTS: Final = 16  # the real parts of eigenvalues, then the imaginary ones
WORK: Final = 24
SIZE: Final = 32
WORDS: Final = 40


@native
def eig_run(arguments: int, begin: int, end: int) -> int:
    """Decompose matrices ``begin`` to ``end``."""
    n = load(arguments + TAIL + SIZE)
    item_bytes = 2 * real_bytes(arguments)
    for item in range(begin, end):
        vectors = load(arguments + V) + item * n * n * item_bytes
        values = load(arguments + W) + item * n * item_bytes
        if geev(arguments, arguments + TAIL, item, LETTER_V, values) != 0:
            fill_words(vectors, n * n * item_bytes, load(arguments + NAN))
        else:
            unpack_vectors(arguments, vectors)
    return 0


@native
def eigvals_run(arguments: int, begin: int, end: int) -> int:
    """The eigenvalues of matrices ``begin`` to ``end``."""
    tail = arguments + TAIL_OF_VALUES
    step = 2 * load(tail + SIZE) * real_bytes(arguments)
    for item in range(begin, end):
        geev(arguments, tail, item, LETTER_N, load(arguments + ONLY_W) + item * step)
    return 0


@native
def geev(arguments: int, tail: int, item: int, job: int, values: int) -> int:
    """One decomposition; not 0 if it failed, and then the values are NaN."""
    n = load(tail + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    a = load(tail + COPY)
    parts = load(tail + PARTS)
    letters = stack(1)
    ints = stack(2)
    store_u8(letters, LETTER_N)
    store_u8(letters + 1, job)
    store_i32(ints, n)
    store_i32(ints + 4, load(tail + WORDS))
    store_i32(ints + 8, 1)
    memcpy(a, load(arguments + X) + item * n * n * size, n * n * size)
    # geev's own scaling, which it does not always undo, never starts.
    exponent = largest_exponent(a, n * n * (size // real), real)
    scale = scale_of(exponent, real)
    if is_finite_exponent(exponent, real):
        if scale:
            rescale(load(arguments + LASCL), scale, 0, n * (size // real), n, a, real)
        if load(arguments + COMPLEX):
            call(
                load(arguments + GEEV),
                letters,
                letters + 1,
                ints,
                a,
                ints,
                values,
                0,
                ints,
                load(tail + PACKED),
                ints,
                load(tail + WORK),
                ints + 4,
                parts,
                ints + 8,
            )
        else:
            call(
                load(arguments + GEEV),
                letters,
                letters + 1,
                ints,
                a,
                ints,
                parts,
                parts + n * real,
                0,
                ints,
                load(tail + PACKED),
                ints,
                load(tail + WORK),
                ints + 4,
                ints + 8,
            )
            for k in range(n):
                copy_real(values + 2 * k * real, parts + k * real, real)
                copy_real(values + (2 * k + 1) * real, parts + (n + k) * real, real)
        if scale:
            rescale(load(arguments + LASCL), scale, 1, 2 * n, 1, values, real)
    failed = load_i32(ints + 8)
    if failed != 0:
        fill_words(values, 2 * n * real, load(arguments + NAN))
    return failed


@native
def unpack_vectors(arguments: int, vectors: int) -> int:
    """Complex eigenvectors from what geev left."""
    n = load(arguments + TAIL + SIZE)
    real = real_bytes(arguments)
    packed = load(arguments + TAIL + PACKED)
    if load(arguments + COMPLEX):
        memcpy(vectors, packed, 2 * n * n * real)
        return 0
    memset(vectors, 0, 2 * n * n * real)
    imaginary = load(arguments + TAIL + PARTS) + n * real
    row = 0
    while row < n:
        source = packed + row * n * real
        target = vectors + 2 * row * n * real
        for k in range(n):
            copy_real(target + 2 * k * real, source + k * real, real)
        if is_zero(imaginary + row * real, real):
            row += 1
            continue
        other = source + n * real
        paired = target + 2 * n * real
        for k in range(n):
            copy_real(target + (2 * k + 1) * real, other + k * real, real)
            copy_real(paired + 2 * k * real, source + k * real, real)
            copy_negated(paired + (2 * k + 1) * real, other + k * real, real)
        row += 2
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    return lapack_words(dtype, "?geev", "%lascl")


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices with their vectors, by NumPy."""
    n = int(given["n"])
    x = given["x"].array((items, n, n))
    vectors = given["v"].array((items, n, n))
    values = given["w"].array((items, n))
    for matrix, rows, w in zip(x, vectors, values, strict=True):
        try:
            w[...], made = np.linalg.eig(matrix.T)
            rows[...] = made.T
        except np.linalg.LinAlgError:
            w[...] = rows[...] = np.nan


def unjitted_values(given: Mapping[str, Any], items: int) -> None:
    """The values of all matrices, by NumPy."""
    n = int(given["n"])
    x = given["x"].array((items, n, n))
    for matrix, w in zip(x, given["w"].array((items, n)), strict=True):
        try:
            w[...] = np.linalg.eigvals(matrix.T)
        except np.linalg.LinAlgError:
            w[...] = np.nan


PROVIDERS: Final = {
    "geev": Provider(eig_run, words, unjitted, uses_blas=True),
    "geev_values": Provider(eigvals_run, words, unjitted_values, uses_blas=True),
}
