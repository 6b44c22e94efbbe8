"""Triangular systems: BLAS's trsm over row-major right-hand sides, in place.

By columns ``op(A) X = B`` is ``X^T op(A)^T = B^T``: the other side, and the other
triangle. A work item is a chunk of one matrix's right-hand sides. A single one is
trsv's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, blas
from arrayfn.backends.cpu.libraries.linear_algebra import small_matrices
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    least,
    one_bits,
    small_address,
)
from arrayfn.backends.cpu.libraries.linear_algebra.small_matrices import LIMIT
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    LANES,
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_u8,
)
from arrayfn.dtypes import BY_SHORT_NAME

TRSM: Final = 0
TRSV: Final = 8
ONE: Final = 16
ITEM_BYTES: Final = 24
SMALL: Final = 32
A: Final = 40
B: Final = 48
ROWS: Final = 56
COLUMNS: Final = 64
CHUNK: Final = 72
CHUNKS: Final = 80
LEFT: Final = 88
LOWER: Final = 96
TRANSPOSE: Final = 104
UNIT: Final = 112

LETTER_L: Final = ord("L")
LETTER_U: Final = ord("U")
LETTER_R: Final = ord("R")
LETTER_N: Final = ord("N")
LETTER_T: Final = ord("T")
LETTER_C: Final = ord("C")


@native
def triangular_run(arguments: int, begin: int, end: int) -> int:
    """Solve for chunks ``begin`` to ``end``."""
    n = load(arguments + ROWS)
    few = n <= LIMIT and load(arguments + COLUMNS) <= LIMIT
    if load(arguments + SMALL) and load(arguments + LEFT) and few:
        return triangular_small(arguments, begin, end)
    # TRANSPOSE 2 (conjugate transpose) is, read by columns, a conjugate without a
    # transpose: BLAS has no such solve.
    single = load(arguments + LEFT) and load(arguments + COLUMNS) == 1
    if single and load(arguments + TRANSPOSE) < 2:
        return triangular_vectors(arguments, begin, end)
    return triangular_sides(arguments, begin, end)


@native
def triangular_small(arguments: int, begin: int, end: int) -> int:
    """Solve for a few right-hand sides of small real matrices, several at once."""
    size = load(arguments + ITEM_BYTES)
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    stride_a = rows * rows * size
    stride_b = rows * columns * size
    item = begin
    while item < end:
        call(
            load(arguments + SMALL),
            load(arguments + A) + item * stride_a,
            stride_a,
            rows,
            load(arguments + B) + item * stride_b,
            stride_b,
            columns,
            least(LANES, end - item),
            rows,
            columns,
            load(arguments + LOWER),
            load(arguments + TRANSPOSE),
            load(arguments + UNIT),
            size,
        )
        item += LANES
    return 0


@native
def triangular_vectors(arguments: int, begin: int, end: int) -> int:
    """Solve for one right-hand side of each matrix."""
    rows = load(arguments + ROWS)
    size = load(arguments + ITEM_BYTES)
    letters = stack(1)
    ints = stack(2)
    store_u8(letters, LETTER_L)
    if load(arguments + LOWER):
        store_u8(letters, LETTER_U)
    store_u8(letters + 1, LETTER_T)
    if load(arguments + TRANSPOSE):
        store_u8(letters + 1, LETTER_N)
    store_u8(letters + 2, LETTER_N)
    if load(arguments + UNIT):
        store_u8(letters + 2, LETTER_U)
    store(ints, rows)
    store(ints + 8, 1)
    for item in range(begin, end):
        call(
            load(arguments + TRSV),
            letters,
            letters + 1,
            letters + 2,
            ints,
            load(arguments + A) + item * rows * rows * size,
            ints,
            load(arguments + B) + item * rows * size,
            ints + 8,
        )
    return 0


@native
def triangular_sides(arguments: int, begin: int, end: int) -> int:
    """Solve for chunks of right-hand sides."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    chunk = load(arguments + CHUNK)
    chunks = load(arguments + CHUNKS)
    left = load(arguments + LEFT)
    n = columns
    if left:
        n = rows
    letters = stack(1)
    ints = stack(4)
    one = stack(2)
    store(one, load(arguments + ONE))
    store(one + 8, 0)
    store_u8(letters, LETTER_L)
    if left:
        store_u8(letters, LETTER_R)
    store_u8(letters + 1, LETTER_L)
    if load(arguments + LOWER):
        store_u8(letters + 1, LETTER_U)
    store_u8(letters + 2, LETTER_N)
    if load(arguments + TRANSPOSE) == 1:
        store_u8(letters + 2, LETTER_T)
    if load(arguments + TRANSPOSE) == 2:
        store_u8(letters + 2, LETTER_C)
    store_u8(letters + 3, LETTER_N)
    if load(arguments + UNIT):
        store_u8(letters + 3, LETTER_U)
    # Rows of zeros stay so where substitution begins with them and divides by ones.
    forward = load(arguments + LOWER) == (load(arguments + TRANSPOSE) == 0)
    skips = forward and load(arguments + UNIT)
    store(ints + 16, n)
    store(ints + 24, max(columns, 1))
    for item in range(begin, end):
        problem = item // chunks
        first = item % chunks * chunk
        a = load(arguments + A) + problem * n * n * size
        b = load(arguments + B) + problem * rows * columns * size
        if left:
            width = columns - first
            if width > chunk:
                width = chunk
            b += first * size
            skipped = 0
            if skips:
                skipped = zero_rows(b, rows, columns * size, width * size)
            a += skipped * (n + 1) * size
            b += skipped * columns * size
            store(ints, width)
            store(ints + 8, rows - skipped)
        else:
            width = rows - first
            if width > chunk:
                width = chunk
            b += first * columns * size
            store(ints, columns)
            store(ints + 8, width)
        call(
            load(arguments + TRSM),
            letters,
            letters + 1,
            letters + 2,
            letters + 3,
            ints,
            ints + 8,
            one,
            a,
            ints + 16,
            b,
            ints + 24,
        )
    return 0


@native
def zero_rows(b: int, rows: int, step: int, width: int) -> int:
    """The number of leading rows, of ``width`` bytes, that are zeros."""
    for row in range(rows):
        place = b + row * step
        k = 0
        while k < width:
            if load_i32(place + k) != 0:
                return row
            k += 4
    return rows


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments: TRSM, TRSV, ONE, ITEM_BYTES and SMALL."""
    letter, library = LETTERS[dtype], blas()
    trsm, trsv = library.address(letter + "trsm"), library.address(letter + "trsv")
    small = small_address(small_matrices.small_substitution, dtype)
    return trsm, trsv, one_bits(dtype, 1), BY_SHORT_NAME[dtype].itemsize, small


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """Solve for all right-hand sides, by NumPy."""
    if not items:
        return
    rows, columns = int(given["rows"]), int(given["columns"])
    left = bool(given["left"])
    n = rows if left else columns
    batch = items // int(given["chunks"])
    a = given["a"].array((batch, n, n))
    b = given["b"].array((batch, rows, columns))
    unit = bool(given["unit"])
    for matrix, sides in zip(a, b, strict=True):
        triangle = np.tril(matrix) if given["lower"] else np.triu(matrix)
        if unit:
            np.fill_diagonal(triangle, 1)
        if given["transpose"]:
            triangle = triangle.T
        if given["transpose"] == 2:
            triangle = triangle.conj()
        if left:
            sides[...] = np.linalg.solve(triangle, sides)
        else:
            sides[...] = np.linalg.solve(triangle.T, sides.T).T


PROVIDERS: Final = {"trsm": Provider(triangular_run, words, unjitted, uses_blas=True)}
