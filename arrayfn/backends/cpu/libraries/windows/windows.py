"""Products of windows: some are copied to scratch memory, then multiplied by BLAS.

The windows are the rows of the result, its columns, or what is summed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries import gemm
from arrayfn.backends.cpu.libraries.gemm import (
    ITEM_BYTES,
    LDA,
    LDB,
    LDC,
    ONE,
    TRANSPOSE_A,
    TRANSPOSE_B,
    K,
    matrix_matrix,
    matrix_matrix_onto,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.windows import window_loops
from arrayfn.backends.native import call, load, native, stack, store
from arrayfn.backends.native.code import native_address

# Arguments: the words of a GEMM, the address of the copying loop, then those of
# ``lowering.libraries.windows``.
COPY: Final = 32
X: Final = 40
RIGHT: Final = 48
PRODUCT: Final = 56
WINDOWS: Final = 64
ROWS: Final = 72
COLUMNS: Final = 80
INNER: Final = 88
RIGHT_STEP: Final = 96
PRODUCT_STEP: Final = 104
TRANSPOSE: Final = 112
TILE: Final = 120
DIMENSIONS: Final = 144  # after the batch's, which is one element


@native
def windows_run(arguments: int, begin: int, end: int) -> int:
    """Compute the rows of items ``begin`` to ``end``."""
    own = stack(21)
    for word in range(4):
        store(own + 8 * word, load(arguments + 8 * word))
    k = load(arguments + INNER)
    step = load(arguments + PRODUCT_STEP)
    store(own + K, k)
    store(own + LDA, k)
    store(own + LDB, load(arguments + RIGHT_STEP))
    store(own + LDC, step)
    store(own + TRANSPOSE_A, 0)
    store(own + TRANSPOSE_B, load(arguments + TRANSPOSE))
    size = load(arguments + ITEM_BYTES)
    tile = load(arguments + TILE)
    windows = load(arguments + WINDOWS)
    for item in range(begin, end):
        first = item * tile
        last = first + tile
        if last > load(arguments + ROWS):
            last = load(arguments + ROWS)
        call(
            load(arguments + COPY),
            load(arguments + X),
            windows,
            first,
            last,
            arguments + DIMENSIONS,
            size,
        )
        product = load(arguments + PRODUCT) + first * step * size
        columns = load(arguments + COLUMNS)
        right = load(arguments + RIGHT)
        matrix_matrix(own, windows, right, product, last - first, columns)
    return 0


# Arguments of a sum over windows; those before are the same.
SUM_ROWS: Final = 72
SUM_COLUMNS: Final = 80
SUMMED: Final = 88
SUM_RIGHT_STEP: Final = 96
SUM_TRANSPOSE: Final = 104
SUM_TILE: Final = 112
PART: Final = 120
PIECE: Final = 128
PIECES: Final = 136
SUM_CUT: Final = 144
PIECE_COLUMNS: Final = 152
SUM_DIMENSIONS: Final = 176


@native
def window_sums_run(arguments: int, begin: int, end: int) -> int:
    """Sum up the items ``begin`` to ``end``: each tile onto those before."""
    own = stack(21)
    for word in range(4):
        store(own + 8 * word, load(arguments + 8 * word))
    m = load(arguments + SUM_ROWS)
    n = load(arguments + SUM_COLUMNS)
    step = load(arguments + SUM_RIGHT_STEP)
    transpose = load(arguments + SUM_TRANSPOSE)
    store(own + LDB, step)
    store(own + LDC, n)
    store(own + TRANSPOSE_A, 1)
    store(own + TRANSPOSE_B, transpose)
    if transpose != 0:
        step = 1
    size = load(arguments + ITEM_BYTES)
    tile = load(arguments + SUM_TILE)
    windows = load(arguments + WINDOWS)
    pieces = load(arguments + PIECES)
    inner = load(arguments + PIECE_COLUMNS)
    dimensions = stack(16)
    for word in range(16):
        store(dimensions + 8 * word, load(arguments + SUM_DIMENSIONS + 8 * word))
    # Of the columns' dimension that is cut: extent and stride.
    cut = arguments + SUM_DIMENSIONS + 64 + 16 * load(arguments + SUM_CUT)
    for item in range(begin, end):
        part = item // pieces
        start = item % pieces * load(arguments + PIECE)
        count = load(cut) - start
        if count > load(arguments + PIECE):
            count = load(arguments + PIECE)
        store(dimensions + 64 + 16 * load(arguments + SUM_CUT), count)
        height = count * inner
        store(own + LDA, height)
        x = load(arguments + X) + start * load(cut + 8) * size
        first = part * load(arguments + PART)
        stop = first + load(arguments + PART)
        if stop > load(arguments + SUMMED):
            stop = load(arguments + SUMMED)
        product = load(arguments + PRODUCT) + (part * m + start * inner) * n * size
        onto = 0
        while first < stop:
            last = first + tile
            if last > stop:
                last = stop
            call(load(arguments + COPY), x, windows, first, last, dimensions, size)
            store(own + K, last - first)
            right = load(arguments + RIGHT) + first * step * size
            matrix_matrix_onto(own, windows, right, product, height, n, onto)
            onto = load(arguments + ONE)
            first = last
    return 0


# Arguments of a product from the right; those before are the same.
LEFT: Final = 40
RIGHT_X: Final = 48
LEFT_ROWS: Final = 72
RIGHT_COLUMNS: Final = 80
RIGHT_INNER: Final = 88
LEFT_STEP: Final = 96
LEFT_TRANSPOSE: Final = 104
LEFT_BATCH: Final = 112
RIGHT_TILE: Final = 120
RIGHT_TILES: Final = 128
CUT: Final = 136
CUT_COLUMNS: Final = 144
BATCH_STEP: Final = 160
RIGHT_DIMENSIONS: Final = 168


@native
def windows_right_run(arguments: int, begin: int, end: int) -> int:
    """Compute the columns of items ``begin`` to ``end``."""
    own = stack(21)
    for word in range(4):
        store(own + 8 * word, load(arguments + 8 * word))
    m = load(arguments + LEFT_ROWS)
    n = load(arguments + RIGHT_COLUMNS)
    k = load(arguments + RIGHT_INNER)
    store(own + K, k)
    store(own + LDA, load(arguments + LEFT_STEP))
    store(own + LDC, n)
    store(own + TRANSPOSE_A, load(arguments + LEFT_TRANSPOSE))
    store(own + TRANSPOSE_B, 0)
    size = load(arguments + ITEM_BYTES)
    tile = load(arguments + RIGHT_TILE)
    tiles = load(arguments + RIGHT_TILES)
    inner = load(arguments + CUT_COLUMNS)
    windows = load(arguments + WINDOWS)
    dimensions = stack(16)
    for word in range(16):
        store(dimensions + 8 * word, load(arguments + RIGHT_DIMENSIONS + 8 * word))
    # Of the columns' dimension that is cut: extent and stride.
    cut = arguments + RIGHT_DIMENSIONS + 64 + 16 * load(arguments + CUT)
    for item in range(begin, end):
        problem = item // tiles
        first = item % tiles * tile
        count = load(cut) - first
        if count > tile:
            count = tile
        store(dimensions + 64 + 16 * load(arguments + CUT), count)
        place = problem * load(arguments + BATCH_STEP) + first * load(cut + 8)
        x = load(arguments + RIGHT_X) + place * size
        call(load(arguments + COPY), x, windows, 0, k, dimensions, size)
        width = count * inner
        store(own + LDB, width)
        left = load(arguments + LEFT) + problem * load(arguments + LEFT_BATCH) * size
        place = problem * m * n + first * inner
        product = load(arguments + PRODUCT) + place * size
        matrix_matrix(own, left, windows, product, m, width)
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    return *gemm.words(dtype), native_address(window_loops.copy_windows)


def _windows(given: Mapping[str, Any]) -> Any:
    """All windows, by their dimensions: a batch of matrices."""
    names = [("problem", 0), *(("row", d) for d in range(4))]
    names += [("column", d) for d in range(4)]
    extents = [int(given[f"{name}s_{d}"]) for name, d in names]
    strides = [int(given[f"{name}_step_{d}"]) for name, d in names]
    windows = given["x"].array(extents, strides)
    return windows.reshape(extents[0], math.prod(extents[1:5]), math.prod(extents[5:]))


def _right(given: Mapping[str, Any]) -> Any:
    n, k, transposed = (int(given[name]) for name in ("n", "k", "transpose_b"))
    shape = (n, k) if transposed else (k, n)
    right = given["b"].array(shape, (int(given["ldb"]), 1))
    if transposed == 2:
        right = np.conj(right)
    return right.T if transposed else right


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """The whole product, by NumPy."""
    shape = (int(given["m"]), int(given["n"]))
    out = given["c"].array(shape, (int(given["ldc"]), 1))
    out[...] = _windows(given)[0] @ _right(given)


def sums_unjitted(given: Mapping[str, Any], items: int) -> None:
    """All parts, by NumPy."""
    m, n, part = (int(given[name]) for name in ("m", "n", "part"))
    windows, right = _windows(given)[0], _right(given)
    parts = items // int(given["pieces"])
    out = given["c"].array((parts, m, n))
    for item in range(parts):
        rows = slice(item * part, (item + 1) * part)
        out[item] = windows[rows].T @ right[rows]


def right_unjitted(given: Mapping[str, Any], items: int) -> None:
    """The whole product, by NumPy."""
    m, n, k, step = (int(given[name]) for name in ("m", "n", "k", "lda"))
    batch, between = int(given["problems_0"]), int(given["batch_stride_a"])
    transposed = int(given["transpose_a"])
    shape = (batch, k, m) if transposed else (batch, m, k)
    left = given["a"].array(shape, (between, step, 1))
    if transposed == 2:
        left = np.conj(left)
    left = np.swapaxes(left, 1, 2) if transposed else left
    given["c"].array((batch, m, n))[...] = left @ _windows(given)


PROVIDERS: Final = {
    "windows_right": Provider(windows_right_run, words, right_unjitted, uses_blas=True),
    "windows": Provider(windows_run, words, unjitted, uses_blas=True),
    "window_sums": Provider(window_sums_run, words, sums_unjitted, uses_blas=True),
}
