"""LU factors: LAPACK's getrf over matrices that lie by columns, in place.

Also of a singular matrix there are factors: LAPACK's word for that is not an error. Of
a large one a panel of columns is factored, and then the others are brought up to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, blas
from arrayfn.backends.cpu.libraries.matrices import (
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_L,
    LETTER_N,
    LETTER_U,
    lapack_words,
    least,
    least_one,
    one_bits,
    small_address,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.small_matrices import LIMIT
from arrayfn.backends.cpu.native import (
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

Array = np.ndarray[Any, Any]

GETRF: Final = FUNCTIONS
SMALL: Final = FUNCTIONS + 8
MATRIX: Final = FUNCTIONS + 16
PIVOTS: Final = FUNCTIONS + 24
PERMUTATION: Final = FUNCTIONS + 32
ROWS: Final = FUNCTIONS + 40
COLUMNS: Final = FUNCTIONS + 48

# getrf_panel
PANEL_MATRIX: Final = FUNCTIONS + 8
PANEL_PIVOTS: Final = FUNCTIONS + 16
PANEL_ROWS: Final = FUNCTIONS + 24
PANEL_COLUMNS: Final = FUNCTIONS + 32
PANEL_START: Final = FUNCTIONS + 40
PANEL_WIDTH: Final = FUNCTIONS + 48

# getrf_update
LASWP: Final = FUNCTIONS
TRSM: Final = FUNCTIONS + 8
GEMM: Final = FUNCTIONS + 16
ONE: Final = FUNCTIONS + 24
MINUS_ONE: Final = FUNCTIONS + 32
UPDATE_PIVOTS: Final = FUNCTIONS + 40
UPDATE_MATRIX: Final = FUNCTIONS + 48
UPDATE_ROWS: Final = FUNCTIONS + 56
UPDATE_COLUMNS: Final = FUNCTIONS + 64
UPDATE_START: Final = FUNCTIONS + 72
UPDATE_WIDTH: Final = FUNCTIONS + 80
CHUNK: Final = FUNCTIONS + 88
LEFT: Final = FUNCTIONS + 96
RIGHT: Final = FUNCTIONS + 104

# getrf_finish, which calls nothing
FINISHED_PIVOTS: Final = 0
FINISHED_PERMUTATION: Final = 8
FINISHED_ROWS: Final = 16
FINISHED_COLUMNS: Final = 24
FINISHED_BLOCK: Final = 32


@native
def lu_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    step = rows * columns * load(arguments + ITEM_BYTES)
    k = rows
    if columns < k:
        k = columns
    ints = stack(2)
    store_i32(ints, rows)
    store_i32(ints + 4, columns)
    store_i32(ints + 8, least_one(rows))
    if rows <= LIMIT and columns <= LIMIT and load(arguments + SMALL):
        return small_lus(arguments, begin, end)
    for item in range(begin, end):
        pivots = load(arguments + PIVOTS) + 4 * k * item
        permutation = load(arguments + PERMUTATION) + 4 * rows * item
        if k > 0:
            call(
                load(arguments + GETRF),
                ints,
                ints + 4,
                load(arguments + MATRIX) + item * step,
                ints + 8,
                pivots,
                ints + 12,
            )
        for row in range(k):
            store_i32(pivots + 4 * row, load_i32(pivots + 4 * row) - 1)
        permute(permutation, rows, pivots, k)
    return 0


@native
def small_lus(arguments: int, begin: int, end: int) -> int:
    """Factor small matrices ``begin`` to ``end``, some at once."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    item = begin
    while item < end:
        call(
            load(arguments + SMALL),
            load(arguments + MATRIX) + item * rows * columns * size,
            load(arguments + PIVOTS) + 4 * item * least(rows, columns),
            load(arguments + PERMUTATION) + 4 * item * rows,
            least(LANES, end - item),
            rows,
            columns,
            size,
        )
        item += LANES
    return 0


@native
def lu_panel_run(arguments: int, begin: int, end: int) -> int:
    """Factor the panel of matrices ``begin`` to ``end``, below what is done."""
    rows = load(arguments + PANEL_ROWS)
    columns = load(arguments + PANEL_COLUMNS)
    start = load(arguments + PANEL_START)
    size = load(arguments + ITEM_BYTES)
    ints = stack(2)
    store_i32(ints, rows - start)
    store_i32(ints + 4, load(arguments + PANEL_WIDTH))
    store_i32(ints + 8, rows)
    for item in range(begin, end):
        place = item * rows * columns + start * rows + start
        call(
            load(arguments + GETRF),
            ints,
            ints + 4,
            load(arguments + PANEL_MATRIX) + place * size,
            ints + 8,
            load(arguments + PANEL_PIVOTS) + 4 * (item * least(rows, columns) + start),
            ints + 12,
        )
    return 0


@native
def lu_update_run(arguments: int, begin: int, end: int) -> int:
    """Bring chunks of columns up to a panel: left of it swapped, right of it solved."""
    rows = load(arguments + UPDATE_ROWS)
    columns = load(arguments + UPDATE_COLUMNS)
    start = load(arguments + UPDATE_START)
    width = load(arguments + UPDATE_WIDTH)
    chunk = load(arguments + CHUNK)
    left = load(arguments + LEFT)
    each = left + load(arguments + RIGHT)
    size = load(arguments + ITEM_BYTES)
    for item in range(begin, end):
        problem = item // each
        place = item % each
        matrix = load(arguments + UPDATE_MATRIX) + problem * rows * columns * size
        pivots = load(arguments + UPDATE_PIVOTS)
        pivots += 4 * (problem * least(rows, columns) + start)
        if place < left:
            first = place * chunk
            swap_rows(arguments, matrix, pivots, first, least(chunk, start - first))
        else:
            first = start + width + (place - left) * chunk
            count = least(chunk, columns - first)
            swap_rows(arguments, matrix, pivots, first, count)
            lu_update_columns(arguments, matrix, first, count)
    return 0


@native
def swap_rows(arguments: int, matrix: int, pivots: int, first: int, count: int) -> int:
    """Swap rows of ``count`` columns as those of the panel were."""
    rows = load(arguments + UPDATE_ROWS)
    place = first * rows + load(arguments + UPDATE_START)
    ints = stack(3)
    store_i32(ints, count)
    store_i32(ints + 4, rows)
    store_i32(ints + 8, 1)
    store_i32(ints + 12, load(arguments + UPDATE_WIDTH))
    store_i32(ints + 16, 1)
    return call(
        load(arguments + LASWP),
        ints,
        matrix + place * load(arguments + ITEM_BYTES),
        ints + 4,
        ints + 8,
        ints + 12,
        pivots,
        ints + 16,
    )


@native
def lu_update_columns(arguments: int, matrix: int, first: int, count: int) -> int:
    """Solve for the rows of U in some columns, and take their products from below."""
    rows = load(arguments + UPDATE_ROWS)
    start = load(arguments + UPDATE_START)
    width = load(arguments + UPDATE_WIDTH)
    size = load(arguments + ITEM_BYTES)
    ints = stack(3)
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
    store_i32(ints, width)
    store_i32(ints + 4, count)
    store_i32(ints + 8, rows)
    store_i32(ints + 12, rows - start - width)
    corner = matrix + (start * rows + start) * size
    upper = matrix + (first * rows + start) * size
    call(
        load(arguments + TRSM),
        letters,
        letters,
        letters + 1,
        letters + 2,
        ints,
        ints + 4,
        one,
        corner,
        ints + 8,
        upper,
        ints + 8,
    )
    if rows == start + width:
        return 0
    return call(
        load(arguments + GEMM),
        letters + 1,
        letters + 1,
        ints + 12,
        ints + 4,
        ints,
        minus_one,
        corner + width * size,
        ints + 8,
        upper,
        ints + 8,
        one,
        upper + width * size,
        ints + 8,
    )


@native
def lu_finish_run(arguments: int, begin: int, end: int) -> int:
    """Pivots counted from the first row, and permutations."""
    rows = load(arguments + FINISHED_ROWS)
    k = least(rows, load(arguments + FINISHED_COLUMNS))
    block = load(arguments + FINISHED_BLOCK)
    for item in range(begin, end):
        pivots = load(arguments + FINISHED_PIVOTS) + 4 * k * item
        for row in range(k):
            place = load_i32(pivots + 4 * row) - 1 + row // block * block
            store_i32(pivots + 4 * row, place)
        permutation = load(arguments + FINISHED_PERMUTATION) + 4 * rows * item
        permute(permutation, rows, pivots, k)
    return 0


@native
def pivots_to_permutation_run(arguments: int, begin: int, end: int) -> int:
    """Permutations ``begin`` to ``end``. Arguments: pivots, permutation, extents."""
    rows = load(arguments + 16)
    count = load(arguments + 24)
    for item in range(begin, end):
        permute(
            load(arguments + 8) + 4 * rows * item,
            rows,
            load(arguments) + 4 * count * item,
            count,
        )
    return 0


@native
def permute(permutation: int, rows: int, pivots: int, count: int) -> int:
    """Swap each of the first ``count`` rows with that of its pivot."""
    for row in range(rows):
        store_i32(permutation + 4 * row, row)
    for row in range(count):
        other = load_i32(pivots + 4 * row)
        if other < 0 or other >= rows:
            continue
        moved = load_i32(permutation + 4 * row)
        store_i32(permutation + 4 * row, load_i32(permutation + 4 * other))
        store_i32(permutation + 4 * other, moved)
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    return *lapack_words(dtype, "?getrf"), small_address("small_lu", dtype)


def panel_words(dtype: str) -> tuple[int, ...]:
    """Those of ``lu_panel_run``."""
    return lapack_words(dtype, "?getrf")


def update_words(dtype: str) -> tuple[int, ...]:
    """Those of ``lu_update_run``: its functions, 1 and -1."""
    library, letter = blas(), LETTERS[dtype]
    return (
        *lapack_words(dtype, "?laswp"),
        library.address(letter + "trsm"),
        library.address(letter + "gemm"),
        one_bits(dtype, 1),
        one_bits(dtype, -1),
    )


def eliminate(matrix: Array, pivots: Array) -> None:
    """Factor a matrix in place, column by column; ``pivots`` count from 0."""
    for column in range(len(pivots)):
        below = matrix[column:, column]
        # As LAPACK measures complex numbers.
        sizes = np.abs(below.real) + np.abs(below.imag)
        pivot = column + int(np.argmax(sizes))
        pivots[column] = pivot
        matrix[[column, pivot]] = matrix[[pivot, column]]
        if matrix[column, column] != 0:
            matrix[column + 1 :, column] /= matrix[column, column]
        factor = matrix[column + 1 :, column, None]
        matrix[column + 1 :, column + 1 :] -= factor * matrix[column, column + 1 :]


def swap(order: Array, pivots: Array) -> None:
    """Swap row k with row ``pivots[k]``, for each k in turn."""
    for row, pivot in enumerate(pivots):
        order[[row, pivot]] = order[[pivot, row]]


def _parts(given: Mapping[str, Any], count: int) -> tuple[Array, Array, int, int]:
    """Matrices, pivots, and the block of columns that is factored."""
    rows, columns = int(given["rows"]), int(given["columns"])
    matrices = given["a"].array((count, columns, rows)).swapaxes(-1, -2)
    pivots = given["pivots"].array((count, min(rows, columns)))
    return matrices, pivots, int(given.get("start", 0)), int(given.get("width", 0))


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices, by elimination."""
    matrices, pivots, _, _ = _parts(given, items)
    permutation = given["permutation"].array((items, matrices.shape[1]))
    permutation[...] = np.arange(matrices.shape[1])
    for matrix, swaps, order in zip(matrices, pivots, permutation, strict=True):
        eliminate(matrix, swaps)
        swap(order, swaps)


def unjitted_panel(given: Mapping[str, Any], items: int) -> None:
    """The panels of all matrices; pivots count from 1 and the panel's first row."""
    matrices, pivots, start, width = _parts(given, items)
    stop = start + width
    for matrix, swaps in zip(matrices, pivots, strict=True):
        eliminate(matrix[start:, start:stop], swaps[start:stop])
        swaps[start:stop] += 1


def unjitted_update(given: Mapping[str, Any], items: int) -> None:
    """The other columns of all matrices."""
    each = int(given["left"]) + int(given["right"])
    if not each:
        return
    matrices, pivots, start, width = _parts(given, items // each)
    stop = start + width
    for matrix, swaps in zip(matrices, pivots, strict=True):
        for part in (matrix[start:, :start], matrix[start:, stop:]):
            swap(part, swaps[start:stop] - 1)
        lower = np.tril(matrix[start:stop, start:stop], -1) + np.eye(width)
        matrix[start:stop, stop:] = np.linalg.solve(lower, matrix[start:stop, stop:])
        matrix[stop:, stop:] -= matrix[stop:, start:stop] @ matrix[start:stop, stop:]


def unjitted_finish(given: Mapping[str, Any], items: int) -> None:
    """Pivots counted from the first row, and permutations, of all matrices."""
    rows, block = int(given["rows"]), int(given["block"])
    k = min(rows, int(given["columns"]))
    pivots = given["pivots"].array((items, k))
    pivots += (np.arange(k) // block * block - 1).astype(np.int32)
    unjitted_permutation({**given, "count": k}, items)


def unjitted_permutation(given: Mapping[str, Any], items: int) -> None:
    """All permutations, swap by swap."""
    rows, count = int(given["rows"]), int(given["count"])
    permutation = given["permutation"].array((items, rows))
    permutation[...] = np.arange(rows)
    for order, swaps in zip(
        permutation, given["pivots"].array((items, count)), strict=True
    ):
        swap(order, swaps)


def _nothing(dtype: str) -> tuple[int, ...]:
    return ()


PROVIDERS: Final = {
    "getrf": Provider(lu_run, words, unjitted, uses_blas=True),
    "getrf_panel": Provider(lu_panel_run, panel_words, unjitted_panel, uses_blas=True),
    "getrf_update": Provider(
        lu_update_run, update_words, unjitted_update, uses_blas=True
    ),
    "getrf_finish": Provider(lu_finish_run, _nothing, unjitted_finish),
    "pivots_to_permutation": Provider(
        pivots_to_permutation_run, _nothing, unjitted_permutation
    ),
}
