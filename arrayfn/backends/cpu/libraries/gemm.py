"""Matrix products through BLAS: the native routine behind the ``gemm_*`` providers.

A work item is one tile of the output (``lowering.gemm_tiles``), computed by one
single-threaded call of BLAS: GEMM, or GEMV where the tile is a row or a column.
Row-major ``C = A B`` is column-major ``C^T = B^T A^T``, so the operands are swapped.
BLAS's functions are called by address, with 32-bit integers by reference as in Fortran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, blas
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import one_bits
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.backends.native import (
    CFunction,
    call,
    load,
    native,
    stack,
    store,
    store_u8,
)
from arrayfn.dtypes import BY_SHORT_NAME

Array = np.ndarray[Any, Any]

memset = CFunction("memset", 3)

# Arguments: those of ``words``, then those of ``lowering.libraries.products``.
GEMM: Final = 0
GEMV: Final = 8
ONE: Final = 16  # the bits of 1 in the dtype, in one word
ITEM_BYTES: Final = 24
A: Final = 32
B: Final = 40
C: Final = 48
M: Final = 56
N: Final = 64
K: Final = 72
LDA: Final = 80
LDB: Final = 88
LDC: Final = 96
TRANSPOSE_A: Final = 104
TRANSPOSE_B: Final = 112
BATCH: Final = 120
BATCH_STRIDE_A: Final = 128
BATCH_STRIDE_B: Final = 136
BATCH_STRIDE_C: Final = 144
TILE_M: Final = 152
TILE_N: Final = 160

LETTER_N: Final = ord("N")
LETTER_T: Final = ord("T")
LETTER_C: Final = ord("C")


@native
def at_least(value: int, least: int) -> int:
    """The greater of two integers."""
    if value < least:
        return least
    return value


@native
def letter(transpose: int) -> int:
    """BLAS's name of a transposition."""
    if transpose == 0:
        return LETTER_N
    if transpose == 1:
        return LETTER_T
    return LETTER_C


@native
def gemm_tiles_run(arguments: int, begin: int, end: int) -> int:
    """Compute tiles ``begin`` to ``end``."""
    m = load(arguments + M)
    n = load(arguments + N)
    tile_m = load(arguments + TILE_M)
    tile_n = load(arguments + TILE_N)
    rows = (m + tile_m - 1) // tile_m
    columns = (n + tile_n - 1) // tile_n
    for item in range(begin, end):
        problem = item // (rows * columns)
        row = (item // columns) % rows * tile_m
        column = item % columns * tile_n
        height = m - row
        if height > tile_m:
            height = tile_m
        width = n - column
        if width > tile_n:
            width = tile_n
        gemm_tile(arguments, problem, row, column, height, width)
    return 0


@native
def gemm_tile(
    arguments: int, problem: int, row: int, column: int, height: int, width: int
) -> int:
    """Compute the tile of ``height`` by ``width`` at ``row`` and ``column``."""
    size = load(arguments + ITEM_BYTES)
    transpose_a = load(arguments + TRANSPOSE_A)
    transpose_b = load(arguments + TRANSPOSE_B)
    a = problem * load(arguments + BATCH_STRIDE_A)
    b = problem * load(arguments + BATCH_STRIDE_B)
    c = problem * load(arguments + BATCH_STRIDE_C)
    if transpose_a:
        a += row
    else:
        a += row * load(arguments + LDA)
    if transpose_b:
        b += column * load(arguments + LDB)
    else:
        b += column
    c += row * load(arguments + LDC) + column
    a = load(arguments + A) + a * size
    b = load(arguments + B) + b * size
    c = load(arguments + C) + c * size
    if transpose_a < 2 and transpose_b < 2:
        if width == 1:
            x_step = load(arguments + LDB)
            if transpose_b:
                x_step = 1
            return matrix_vector(
                arguments,
                1 - transpose_a,
                a,
                load(arguments + LDA),
                b,
                x_step,
                c,
                load(arguments + LDC),
                height,
            )
        if height == 1:
            x_step = 1
            if transpose_a:
                x_step = load(arguments + LDA)
            ldb = load(arguments + LDB)
            return matrix_vector(arguments, transpose_b, b, ldb, a, x_step, c, 1, width)
    return matrix_matrix(arguments, a, b, c, height, width)


@native
def matrix_matrix(
    arguments: int, a: int, b: int, c: int, height: int, width: int
) -> int:
    """One GEMM."""
    return matrix_matrix_onto(arguments, a, b, c, height, width, 0)


@native
def matrix_matrix_onto(
    arguments: int, a: int, b: int, c: int, height: int, width: int, beta: int
) -> int:
    """One GEMM, added to what is there times ``beta`` (the bits of a real number)."""
    ints = stack(6)
    letters = stack(1)
    one = stack(2)
    have = stack(2)
    store(ints, width)
    store(ints + 8, height)
    store(ints + 16, load(arguments + K))
    store(ints + 24, at_least(load(arguments + LDB), 1))
    store(ints + 32, at_least(load(arguments + LDA), 1))
    store(ints + 40, at_least(load(arguments + LDC), 1))
    store_u8(letters, letter(load(arguments + TRANSPOSE_B)))
    store_u8(letters + 1, letter(load(arguments + TRANSPOSE_A)))
    store(one, load(arguments + ONE))
    store(one + 8, 0)
    store(have, beta)
    store(have + 8, 0)
    call(
        load(arguments + GEMM),
        letters,
        letters + 1,
        ints,
        ints + 8,
        ints + 16,
        one,
        b,
        ints + 24,
        a,
        ints + 32,
        have,
        c,
        ints + 40,
    )
    return 0


@native
def matrix_vector(
    arguments: int,
    transposed: int,
    matrix: int,
    step: int,
    x: int,
    x_step: int,
    y: int,
    y_step: int,
    length: int,
) -> int:
    """One GEMV: ``y`` of ``length`` from K elements of ``x``.

    The matrix is row-major with rows ``step`` apart: [length, K] if ``transposed`` (as
    BLAS sees it), else [K, length]. ``y`` is zeroed first, for some versions of BLAS
    keep a NaN of the old ``y`` where ``beta`` is zero.
    """
    k = load(arguments + K)
    size = load(arguments + ITEM_BYTES)
    if y_step == 1:
        memset(y, 0, length * size)
    else:
        for i in range(length):
            memset(y + i * y_step * size, 0, size)
    if k == 0:
        return 0
    ints = stack(5)
    letters = stack(1)
    one = stack(2)
    rows = length
    columns = k
    store_u8(letters, LETTER_N)
    if transposed:
        rows = k
        columns = length
        store_u8(letters, LETTER_T)
    store(ints, rows)
    store(ints + 8, columns)
    store(ints + 16, at_least(step, at_least(rows, 1)))
    store(ints + 24, at_least(x_step, 1))
    store(ints + 32, at_least(y_step, 1))
    store(one, load(arguments + ONE))
    store(one + 8, 0)
    call(
        load(arguments + GEMV),
        letters,
        ints,
        ints + 8,
        one,
        matrix,
        ints + 16,
        x,
        ints + 24,
        one,
        y,
        ints + 32,
    )
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """GEMM, GEMV, the bits of 1, the bytes of an element."""
    letter, library = LETTERS[dtype], blas()
    gemm, gemv = library.address(letter + "gemm"), library.address(letter + "gemv")
    return gemm, gemv, one_bits(dtype, 1), BY_SHORT_NAME[dtype].itemsize


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All tiles at once, as NumPy's product."""
    m, n, k = (int(given[name]) for name in "mnk")
    if not items or not m * n:
        return

    def matrix(name: str, batch: int, rows: int, columns: int) -> Array:
        pointer: Pointer = given[name]
        transposed = int(given.get(f"transpose_{name}", 0))
        stored = (columns, rows) if transposed else (rows, columns)
        begin = pointer.begin + batch * int(given[f"batch_stride_{name}"])
        strides = (int(given[f"ld{name}"]), 1)
        view = Pointer(pointer.memory, begin).array(stored, strides)
        if transposed == 2:
            return view.conj().T
        return view.T if transposed else view

    for batch in range(int(given["batch"])):
        product = matrix("a", batch, m, k) @ matrix("b", batch, k, n)
        matrix("c", batch, m, n)[...] = product


PROVIDERS: Final = {"gemm": Provider(gemm_tiles_run, words, unjitted, uses_blas=True)}
