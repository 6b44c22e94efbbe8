"""Cholesky factorizations: LAPACK's potrf over row-major matrices, in place.

The lower triangle of a row-major matrix is, by columns, an upper one of its transpose,
and so is the factor. A matrix that is not positive definite becomes NaN. A large one is
factored in blocks, of which a NaN spreads to all that come later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, products_blas
from arrayfn.backends.cpu.libraries.linear_algebra import small_matrices
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_C,
    LETTER_N,
    LETTER_T,
    LETTER_U,
    NAN,
    all_finite,
    fill_words,
    lapack_words,
    least,
    memset,
    one_bits,
    real_bytes,
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
    store_i32,
    store_u8,
)

# potrf
POTRF: Final = FUNCTIONS
SMALL: Final = FUNCTIONS + 8
MATRIX: Final = FUNCTIONS + 16
SIZE: Final = FUNCTIONS + 24
LEADING: Final = FUNCTIONS + 32
STRIDE: Final = FUNCTIONS + 40
WHOLE: Final = FUNCTIONS + 48

# potrf_update
GEMM: Final = FUNCTIONS
ONE: Final = FUNCTIONS + 8
MINUS_ONE: Final = FUNCTIONS + 16
PANEL: Final = FUNCTIONS + 24
REST: Final = FUNCTIONS + 32
REST_SIZE: Final = FUNCTIONS + 40
WIDTH: Final = FUNCTIONS + 48
REST_LEADING: Final = FUNCTIONS + 56
REST_STRIDE: Final = FUNCTIONS + 64
TILE: Final = FUNCTIONS + 72

# potrf_finish
FINISHED: Final = FUNCTIONS
FINISHED_SIZE: Final = FUNCTIONS + 8
FINISHED_ROWS: Final = FUNCTIONS + 16


@native
def cholesky_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    n = load(arguments + SIZE)
    leading = load(arguments + LEADING)
    whole = load(arguments + WHOLE)
    size = load(arguments + ITEM_BYTES)
    letters = stack(1)
    ints = stack(2)
    store_u8(letters, LETTER_U)
    store_i32(ints, n)
    store_i32(ints + 4, leading)
    if whole and n <= LIMIT and load(arguments + SMALL):
        return small_choleskys(arguments, begin, end)
    for item in range(begin, end):
        matrix = load(arguments + MATRIX) + item * load(arguments + STRIDE) * size
        call(load(arguments + POTRF), letters, ints, matrix, ints + 4, ints + 8)
        if load_i32(ints + 8) != 0:
            for row in range(n):
                fill_words(
                    matrix + row * leading * size, n * size, load(arguments + NAN)
                )
        elif whole:
            for row in range(n - 1):
                memset(matrix + (row * n + row + 1) * size, 0, (n - row - 1) * size)
    return 0


@native
def small_choleskys(arguments: int, begin: int, end: int) -> int:
    """Factor small matrices ``begin`` to ``end``, some at once."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    step = n * n * size
    item = begin
    while item < end:
        many = least(LANES, end - item)
        matrices = load(arguments + MATRIX) + item * step
        failed = call(load(arguments + SMALL), matrices, many, n, size)
        if failed:
            for lane in range(many):
                if (failed >> lane) & 1:
                    fill_words(matrices + lane * step, step, load(arguments + NAN))
        item += LANES
    return 0


@native
def cholesky_update_run(arguments: int, begin: int, end: int) -> int:
    """Take the products of a panel's rows from tiles ``begin`` to ``end``.

    Of each matrix these are the tiles of the lower triangle, row by row.
    """
    n = load(arguments + REST_SIZE)
    leading = load(arguments + REST_LEADING)
    tile = load(arguments + TILE)
    size = load(arguments + ITEM_BYTES)
    tiles = (n + tile - 1) // tile
    each = tiles * (tiles + 1) // 2
    letters = stack(1)
    # Slots of 64 bits serve a BLAS with integers of 32 bits too.
    ints = stack(4)
    one = stack(2)
    minus_one = stack(2)
    store(one, load(arguments + ONE))
    store(one + 8, 0)
    store(minus_one, load(arguments + MINUS_ONE))
    store(minus_one + 8, 0)
    store_u8(letters, LETTER_T)
    if load(arguments + COMPLEX):
        store_u8(letters, LETTER_C)
    store_u8(letters + 1, LETTER_N)
    store(ints + 16, load(arguments + WIDTH))
    store(ints + 24, leading)
    for item in range(begin, end):
        offset = item // each * load(arguments + REST_STRIDE) * size
        panel = load(arguments + PANEL) + offset
        rest = load(arguments + REST) + offset
        place = item % each
        row = 0
        while place > row:
            row += 1
            place -= row
        height = n - row * tile
        if height > tile:
            height = tile
        width = n - place * tile
        if width > tile:
            width = tile
        store(ints, width)
        store(ints + 8, height)
        call(
            load(arguments + GEMM),
            letters,
            letters + 1,
            ints,
            ints + 8,
            ints + 16,
            minus_one,
            panel + place * tile * leading * size,
            ints + 24,
            panel + row * tile * leading * size,
            ints + 24,
            one,
            rest + (row * leading + place) * tile * size,
            ints + 24,
        )
    return 0


@native
def cholesky_finish_run(arguments: int, begin: int, end: int) -> int:
    """Write zeros above the diagonal in some rows; NaN, if the last element is not."""
    n = load(arguments + FINISHED_SIZE)
    rows = load(arguments + FINISHED_ROWS)
    size = load(arguments + ITEM_BYTES)
    chunks = (n + rows - 1) // rows
    parts = size // real_bytes(arguments)
    for item in range(begin, end):
        matrix = load(arguments + FINISHED) + item // chunks * n * n * size
        last = matrix + (n * n - 1) * size
        right = all_finite(last, parts, real_bytes(arguments))
        first = item % chunks * rows
        stop = first + rows
        if stop > n:
            stop = n
        for row in range(first, stop):
            if right:
                memset(matrix + (row * n + row + 1) * size, 0, (n - row - 1) * size)
            else:
                fill_words(matrix + row * n * size, n * size, load(arguments + NAN))
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    small = small_address(small_matrices.small_cholesky, dtype)
    return *lapack_words(dtype, "?potrf"), small


def update_words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``cholesky_update_run``: GEMM, 1 and -1."""
    gemm = products_blas().address(LETTERS[dtype] + "gemm")
    return *lapack_words(dtype), gemm, one_bits(dtype, 1), one_bits(dtype, -1)


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices, by NumPy."""
    n, leading = int(given["n"]), int(given["leading"])
    matrices = given["a"].array((items, n, n), (int(given["stride"]), leading, 1))
    for matrix in matrices:
        try:
            matrix[...] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            matrix[...] = np.nan


def unjitted_update(given: Mapping[str, Any], items: int) -> None:
    """All of the matrices, by NumPy's product."""
    n, width, tile = (int(given[name]) for name in ("n", "width", "tile"))
    tiles = -(-n // tile)
    count = items // (tiles * (tiles + 1) // 2)
    strides = int(given["stride"]), int(given["leading"]), 1
    panel = given["panel"].array((count, n, width), strides)
    rest = given["a"].array((count, n, n), strides)
    rest -= panel @ panel.conj().swapaxes(-1, -2)


def unjitted_finish(given: Mapping[str, Any], items: int) -> None:
    """Zeros above the diagonals of all matrices, or NaN."""
    n = int(given["n"])
    count = items // -(-n // int(given["rows"]))
    for matrix in given["a"].array((count, n, n)):
        matrix[...] = np.tril(matrix) if np.isfinite(matrix[-1, -1]) else np.nan


PROVIDERS: Final = {
    "potrf": Provider(cholesky_run, words, unjitted, uses_blas=True),
    "potrf_update": Provider(
        cholesky_update_run, update_words, unjitted_update, uses_blas=True
    ),
    "potrf_finish": Provider(cholesky_finish_run, lapack_words, unjitted_finish),
}
