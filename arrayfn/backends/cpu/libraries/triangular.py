"""Triangular systems: BLAS's trsm over row-major right-hand sides, in place.

By columns ``op(A) X = B`` is ``X^T op(A)^T = B^T``: the other side, and the other
triangle. A work item is a chunk of one matrix's right-hand sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, blas
from arrayfn.backends.cpu.libraries.gemm import at_least
from arrayfn.backends.cpu.libraries.matrices import one_bits
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.native import (
    call,
    load,
    native,
    stack,
    store,
    store_i32,
    store_u8,
)
from arrayfn.dtypes import BY_SHORT_NAME

TRSM: Final = 0
ONE: Final = 8
ITEM_BYTES: Final = 16
A: Final = 24
B: Final = 32
ROWS: Final = 40
COLUMNS: Final = 48
CHUNK: Final = 56
CHUNKS: Final = 64
LEFT: Final = 72
LOWER: Final = 80
TRANSPOSE: Final = 88
UNIT: Final = 96
LEADING_A: Final = 104
LEADING_B: Final = 112
STRIDE_A: Final = 120
STRIDE_B: Final = 128

LETTER_L: Final = ord("L")
LETTER_U: Final = ord("U")
LETTER_R: Final = ord("R")
LETTER_N: Final = ord("N")
LETTER_T: Final = ord("T")
LETTER_C: Final = ord("C")


@native
def triangular_run(arguments: int, begin: int, end: int) -> int:
    """Solve for chunks ``begin`` to ``end``."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    size = load(arguments + ITEM_BYTES)
    chunk = load(arguments + CHUNK)
    chunks = load(arguments + CHUNKS)
    left = load(arguments + LEFT)
    letters = stack(1)
    ints = stack(2)
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
    leading = load(arguments + LEADING_B)
    store_i32(ints + 8, at_least(load(arguments + LEADING_A), 1))
    store_i32(ints + 12, at_least(leading, 1))
    for item in range(begin, end):
        problem = item // chunks
        first = item % chunks * chunk
        b = load(arguments + B) + problem * load(arguments + STRIDE_B) * size
        if left:
            width = columns - first
            if width > chunk:
                width = chunk
            b += first * size
            store_i32(ints, width)
            store_i32(ints + 4, rows)
        else:
            width = rows - first
            if width > chunk:
                width = chunk
            b += first * leading * size
            store_i32(ints, columns)
            store_i32(ints + 4, width)
        call(
            load(arguments + TRSM),
            letters,
            letters + 1,
            letters + 2,
            letters + 3,
            ints,
            ints + 4,
            one,
            load(arguments + A) + problem * load(arguments + STRIDE_A) * size,
            ints + 8,
            b,
            ints + 12,
        )
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """trsm, the bits of 1, the bytes of an element."""
    trsm = blas().address(LETTERS[dtype] + "trsm")
    return trsm, one_bits(dtype, 1), BY_SHORT_NAME[dtype].itemsize


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All right-hand sides, by NumPy's solver."""
    if not items:
        return
    rows, columns = int(given["rows"]), int(given["columns"])
    left = bool(given["left"])
    n = rows if left else columns
    batch = items // int(given["chunks"])
    strides = int(given["stride_a"]), int(given["leading_a"]), 1
    a = given["a"].array((batch, n, n), strides)
    strides = int(given["stride_b"]), int(given["leading_b"]), 1
    b = given["b"].array((batch, rows, columns), strides)
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
