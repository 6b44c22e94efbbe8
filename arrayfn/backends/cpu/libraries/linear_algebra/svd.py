"""Singular values: LAPACK's gesdd over matrices that lie by columns.

So do the singular vectors. What does not converge, and what is not finite, is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_A,
    LETTER_N,
    LETTER_S,
    NAN,
    all_finite,
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

GESDD: Final = FUNCTIONS
X: Final = FUNCTIONS + 8
# With vectors: U, S, V^H, then the tail. Without: S, then the tail.
U: Final = FUNCTIONS + 16
S: Final = FUNCTIONS + 24
VH: Final = FUNCTIONS + 32
TAIL: Final = FUNCTIONS + 40
ONLY_S: Final = FUNCTIONS + 16
TAIL_OF_VALUES: Final = FUNCTIONS + 24
# Byte offsets into the tail.
COPY: Final = 0
WORK: Final = 8
REAL_WORK: Final = 16
INTEGER_WORK: Final = 24
WORDS: Final = 32
ROWS: Final = 40
COLUMNS: Final = 48
FULL: Final = 56


@native
def svd_run(arguments: int, begin: int, end: int) -> int:
    """Decompose matrices ``begin`` to ``end``."""
    tail = arguments + TAIL
    rows = load(tail + ROWS)
    columns = load(tail + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    k = rows
    if columns < k:
        k = columns
    job = LETTER_S
    u_columns = k
    vh_rows = k
    if load(tail + FULL):
        job = LETTER_A
        u_columns = rows
        vh_rows = columns
    for item in range(begin, end):
        u = load(arguments + U) + item * rows * u_columns * size
        s = load(arguments + S) + item * k * real_bytes(arguments)
        vh = load(arguments + VH) + item * vh_rows * columns * size
        if gesdd(arguments, tail, item, job, u, s, vh, vh_rows) != 0:
            fill_words(u, rows * u_columns * size, load(arguments + NAN))
            fill_words(vh, vh_rows * columns * size, load(arguments + NAN))
    return 0


@native
def svdvals_run(arguments: int, begin: int, end: int) -> int:
    """The singular values of matrices ``begin`` to ``end``."""
    tail = arguments + TAIL_OF_VALUES
    k = load(tail + ROWS)
    if load(tail + COLUMNS) < k:
        k = load(tail + COLUMNS)
    for item in range(begin, end):
        s = load(arguments + ONLY_S) + item * k * real_bytes(arguments)
        gesdd(arguments, tail, item, LETTER_N, 0, s, 0, 1)
    return 0


@native
def gesdd(
    arguments: int,
    tail: int,
    item: int,
    job: int,
    u: int,
    s: int,
    vh: int,
    vh_rows: int,
) -> int:
    """One decomposition; not 0 if it failed, and then the values are NaN."""
    rows = load(tail + ROWS)
    columns = load(tail + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    k = rows
    if columns < k:
        k = columns
    copy = load(tail + COPY)
    letters = stack(1)
    ints = stack(3)
    store_u8(letters, job)
    store_i32(ints, rows)
    store_i32(ints + 4, columns)
    store_i32(ints + 8, vh_rows)
    store_i32(ints + 12, load(tail + WORDS))
    store_i32(ints + 16, 1)
    memcpy(
        copy, load(arguments + X) + item * rows * columns * size, rows * columns * size
    )
    if all_finite(copy, rows * columns * (size // real), real):
        if load(arguments + COMPLEX):
            call(
                load(arguments + GESDD),
                letters,
                ints,
                ints + 4,
                copy,
                ints,
                s,
                u,
                ints,
                vh,
                ints + 8,
                load(tail + WORK),
                ints + 12,
                load(tail + REAL_WORK),
                load(tail + INTEGER_WORK),
                ints + 16,
            )
        else:
            call(
                load(arguments + GESDD),
                letters,
                ints,
                ints + 4,
                copy,
                ints,
                s,
                u,
                ints,
                vh,
                ints + 8,
                load(tail + WORK),
                ints + 12,
                load(tail + INTEGER_WORK),
                ints + 16,
            )
    failed = load_i32(ints + 16)
    if failed != 0:
        fill_words(s, k * real, load(arguments + NAN))
    return failed


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    return lapack_words(dtype, "?gesdd")


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices with their vectors, by NumPy."""
    rows, columns = int(given["rows"]), int(given["columns"])
    k, full = min(rows, columns), bool(given["full"])
    x = given["x"].array((items, columns, rows)).swapaxes(-1, -2)
    made = (
        given["u"].array((items, rows if full else k, rows)).swapaxes(-1, -2),
        given["s"].array((items, k)),
        given["vh"].array((items, columns, columns if full else k)).swapaxes(-1, -2),
    )
    for number, matrix in enumerate(x):
        try:
            parts: Any = np.linalg.svd(matrix, full_matrices=full)
        except np.linalg.LinAlgError:
            parts = (np.nan, np.nan, np.nan)
        for array, part in zip(made, parts, strict=True):
            array[number] = part


def unjitted_values(given: Mapping[str, Any], items: int) -> None:
    """The values of all matrices, by NumPy."""
    rows, columns = int(given["rows"]), int(given["columns"])
    values = given["s"].array((items, min(rows, columns)))
    x = given["x"].array((items, columns, rows))
    for s, matrix in zip(values, x, strict=True):
        try:
            s[...] = np.linalg.svd(matrix, compute_uv=False)
        except np.linalg.LinAlgError:
            s[...] = np.nan


PROVIDERS: Final = {
    "gesdd": Provider(svd_run, words, unjitted, uses_blas=True),
    "gesdd_values": Provider(svdvals_run, words, unjitted_values, uses_blas=True),
}
