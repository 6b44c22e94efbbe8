"""LU factors of large matrices that lie by columns: panels, and what follows them.

A panel of columns is factored by LAPACK. Then the others are brought up to it in
chunks, the next panel first: that is factored at once, while others threads have the
chunks. Rows to the left of a panel are swapped at the end. Pivots count from 1 until
then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, blas, products_blas
from arrayfn.backends.cpu.libraries.linear_algebra.lu import (
    eliminate,
    no_words,
    permute,
    swap,
    unjitted_permutation,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_L,
    LETTER_N,
    LETTER_U,
    lapack_words,
    least,
    one_bits,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
    store_u8,
)

Array = np.ndarray[Any, Any]

# The words, and then the arguments that all but the last step have.
GETRF: Final = FUNCTIONS
LASWP: Final = FUNCTIONS + 8
TRSM: Final = FUNCTIONS + 16
GEMM: Final = FUNCTIONS + 24
ONE: Final = FUNCTIONS + 32
MINUS_ONE: Final = FUNCTIONS + 40
MATRIX: Final = FUNCTIONS + 48
PIVOTS: Final = FUNCTIONS + 56
ROWS: Final = FUNCTIONS + 64
COLUMNS: Final = FUNCTIONS + 72
START: Final = FUNCTIONS + 80
WIDTH: Final = FUNCTIONS + 88
NEXT: Final = FUNCTIONS + 96  # columns of the next panel
CHUNK: Final = FUNCTIONS + 104
EACH: Final = FUNCTIONS + 112  # items of a matrix

# getrf_left
BLOCK: Final = FUNCTIONS + 80

# getrf_finish, which calls nothing
FINISHED_PIVOTS: Final = 0
FINISHED_PERMUTATION: Final = 8
FINISHED_ROWS: Final = 16
FINISHED_COLUMNS: Final = 24


@native
def lu_panel_run(arguments: int, begin: int, end: int) -> int:
    """Factor the first panels of matrices ``begin`` to ``end``."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    for item in range(begin, end):
        step = item * rows * columns * load(arguments + ITEM_BYTES)
        pivots = load(arguments + PIVOTS) + 4 * item * least(rows, columns)
        matrix = load(arguments + MATRIX) + step
        factor_panel(arguments, matrix, pivots, 0, load(arguments + WIDTH))
    return 0


@native
def factor_panel(
    arguments: int, matrix: int, pivots: int, start: int, width: int
) -> int:
    """Factor some columns below what is done. Pivots are rows of the matrix."""
    rows = load(arguments + ROWS)
    ints = stack(2)
    store_i32(ints, rows - start)
    store_i32(ints + 4, width)
    store_i32(ints + 8, rows)
    call(
        load(arguments + GETRF),
        ints,
        ints + 4,
        matrix + (start * rows + start) * load(arguments + ITEM_BYTES),
        ints + 8,
        pivots + 4 * start,
        ints + 12,
    )
    for k in range(start, start + least(width, rows - start)):
        store_i32(pivots + 4 * k, load_i32(pivots + 4 * k) + start)
    return 0


@native
def lu_update_run(arguments: int, begin: int, end: int) -> int:
    """Bring columns up to a panel; the first item of a matrix is the next panel."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    stop = load(arguments + START) + load(arguments + WIDTH)
    following = load(arguments + NEXT)
    chunk = load(arguments + CHUNK)
    each = load(arguments + EACH)
    for item in range(begin, end):
        problem = item // each
        place = item % each
        step = problem * rows * columns * load(arguments + ITEM_BYTES)
        matrix = load(arguments + MATRIX) + step
        pivots = load(arguments + PIVOTS) + 4 * problem * least(rows, columns)
        if following and place == 0:
            update_columns(arguments, matrix, pivots, stop, following)
            factor_panel(arguments, matrix, pivots, stop, following)
        else:
            first = stop + place * chunk
            if following:
                first += following - chunk
            count = least(chunk, columns - first)
            update_columns(arguments, matrix, pivots, first, count)
    return 0


@native
def swap_rows(
    arguments: int,
    matrix: int,
    pivots: int,
    first: int,
    count: int,
    start: int,
    stop: int,
) -> int:
    """Swap rows ``start`` to ``stop`` of ``count`` columns with those of the pivots."""
    rows = load(arguments + ROWS)
    ints = stack(3)
    store_i32(ints, count)
    store_i32(ints + 4, rows)
    store_i32(ints + 8, start + 1)
    store_i32(ints + 12, stop)
    store_i32(ints + 16, 1)
    return call(
        load(arguments + LASWP),
        ints,
        matrix + first * rows * load(arguments + ITEM_BYTES),
        ints + 4,
        ints + 8,
        ints + 12,
        pivots,
        ints + 16,
    )


@native
def update_columns(
    arguments: int, matrix: int, pivots: int, first: int, count: int
) -> int:
    """Swap rows of some columns, solve for those of U, take the products below."""
    rows = load(arguments + ROWS)
    start = load(arguments + START)
    width = load(arguments + WIDTH)
    swap_rows(arguments, matrix, pivots, first, count, start, start + width)
    size = load(arguments + ITEM_BYTES)
    # Slots of 64 bits serve a BLAS with integers of 32 bits too.
    ints = stack(4)
    letters = stack(1)
    one = stack(2)
    minus_one = stack(2)
    store(one, load(arguments + ONE))
    store(one + 8, 0)
    store(minus_one, load(arguments + MINUS_ONE))
    store(minus_one + 8, 0)
    store_u8(letters, LETTER_L)
    store_u8(letters + 1, LETTER_N)
    store_u8(letters + 2, LETTER_U)
    store(ints, width)
    store(ints + 8, count)
    store(ints + 16, rows)
    store(ints + 24, rows - start - width)
    corner = matrix + (start * rows + start) * size
    upper = matrix + (first * rows + start) * size
    call(
        load(arguments + TRSM),
        letters,
        letters,
        letters + 1,
        letters + 2,
        ints,
        ints + 8,
        one,
        corner,
        ints + 16,
        upper,
        ints + 16,
    )
    if rows == start + width:
        return 0
    return call(
        load(arguments + GEMM),
        letters + 1,
        letters + 1,
        ints + 24,
        ints + 8,
        ints,
        minus_one,
        corner + width * size,
        ints + 16,
        upper,
        ints + 16,
        one,
        upper + width * size,
        ints + 16,
    )


@native
def lu_left_run(arguments: int, begin: int, end: int) -> int:
    """Swap rows of the panels ``begin`` to ``end`` as those after them were."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    block = load(arguments + BLOCK)
    k = least(rows, columns)
    each = (k - 1) // block
    for item in range(begin, end):
        problem = item // each
        first = item % each * block
        step = problem * rows * columns * load(arguments + ITEM_BYTES)
        matrix = load(arguments + MATRIX) + step
        pivots = load(arguments + PIVOTS) + 4 * problem * k
        swap_rows(arguments, matrix, pivots, first, block, first + block, k)
    return 0


@native
def lu_finish_run(arguments: int, begin: int, end: int) -> int:
    """Pivots counted from 0, and permutations."""
    rows = load(arguments + FINISHED_ROWS)
    k = least(rows, load(arguments + FINISHED_COLUMNS))
    for item in range(begin, end):
        pivots = load(arguments + FINISHED_PIVOTS) + 4 * k * item
        for row in range(k):
            store_i32(pivots + 4 * row, load_i32(pivots + 4 * row) - 1)
        permutation = load(arguments + FINISHED_PERMUTATION) + 4 * rows * item
        permute(permutation, rows, pivots, k)
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The functions, 1 and -1."""
    library, letter = blas(), LETTERS[dtype]
    return (
        *lapack_words(dtype, "?getrf", "?laswp"),
        library.address(letter + "trsm"),
        products_blas().address(letter + "gemm"),
        one_bits(dtype, 1),
        one_bits(dtype, -1),
    )


def _parts(given: Mapping[str, Any], count: int) -> tuple[Array, Array]:
    """Matrices and pivots."""
    rows, columns = int(given["rows"]), int(given["columns"])
    matrices = given["a"].array((count, columns, rows)).swapaxes(-1, -2)
    return matrices, given["pivots"].array((count, min(rows, columns)))


def _factor(matrix: Array, swaps: Array, start: int, stop: int) -> None:
    eliminate(matrix[start:, start:stop], swaps[start:stop])
    swaps[start:stop] += start + 1


def unjitted_panel(given: Mapping[str, Any], items: int) -> None:
    """The first panels of all matrices."""
    for matrix, swaps in zip(*_parts(given, items), strict=True):
        _factor(matrix, swaps, 0, int(given["width"]))


def unjitted_update(given: Mapping[str, Any], items: int) -> None:
    """The other columns of all matrices, and their next panels."""
    start, width = int(given["start"]), int(given["width"])
    stop, following = start + width, int(given["next"])
    matrices, pivots = _parts(given, items // int(given["each"]))
    for matrix, swaps in zip(matrices, pivots, strict=True):
        swap(matrix[start:, stop:], swaps[start:stop] - start - 1)
        lower = np.tril(matrix[start:stop, start:stop], -1) + np.eye(width)
        matrix[start:stop, stop:] = np.linalg.solve(lower, matrix[start:stop, stop:])
        matrix[stop:, stop:] -= matrix[stop:, start:stop] @ matrix[start:stop, stop:]
        _factor(matrix, swaps, stop, stop + following)


def unjitted_left(given: Mapping[str, Any], items: int) -> None:
    """The panels of all matrices but the last ones."""
    k, block = min(int(given["rows"]), int(given["columns"])), int(given["block"])
    each = (k - 1) // block
    for matrix, swaps in zip(*_parts(given, items // each), strict=True):
        for first in range(0, each * block, block):
            stop = first + block
            swap(matrix[stop:, first:stop], swaps[stop:] - stop - 1)


def unjitted_finish(given: Mapping[str, Any], items: int) -> None:
    """Pivots counted from 0, and permutations, of all matrices."""
    k = min(int(given["rows"]), int(given["columns"]))
    pivots = given["pivots"].array((items, k))
    pivots -= 1
    unjitted_permutation({**given, "count": k}, items)


PROVIDERS: Final = {
    "getrf_panel": Provider(lu_panel_run, words, unjitted_panel, uses_blas=True),
    "getrf_update": Provider(lu_update_run, words, unjitted_update, uses_blas=True),
    "getrf_left": Provider(lu_left_run, words, unjitted_left, uses_blas=True),
    "getrf_finish": Provider(lu_finish_run, no_words, unjitted_finish),
}
