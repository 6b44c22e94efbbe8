"""Products of windows: some are copied to scratch memory, then multiplied by BLAS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.code import optimized_addresses
from arrayfn.backends.cpu.libraries import gemm, window_loops
from arrayfn.backends.cpu.libraries.gemm import (
    ITEM_BYTES,
    LDA,
    LDB,
    LDC,
    TRANSPOSE_A,
    TRANSPOSE_B,
    K,
    matrix_matrix,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.native import call, load, native, stack, store

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
DIMENSIONS: Final = 128


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


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    (copy,) = optimized_addresses(window_loops, ("copy_windows",))
    return *gemm.words(dtype), copy


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """The whole product, by NumPy."""
    m, n, k = (int(given[name]) for name in "mnk")
    extents, strides = (
        [
            int(given[pattern.format(name, number)])
            for name in ("row", "column")
            for number in range(4)
        ]
        for pattern in ("{}s_{}", "{}_step_{}")
    )
    windows = given["x"].array(extents, strides).reshape(m, k)
    transposed = bool(int(given["transpose_b"]))
    shape = (n, k) if transposed else (k, n)
    right = given["b"].array(shape, (int(given["ldb"]), 1))
    out = given["c"].array((m, n), (int(given["ldc"]), 1))
    if int(given["transpose_b"]) == 2:
        right = np.conj(right)
    out[...] = windows @ (right.T if transposed else right)


PROVIDERS: Final = {"windows": Provider(windows_run, words, unjitted, uses_blas=True)}
