"""Cholesky factorizations: LAPACK's potrf over row-major matrices, in place.

The lower triangle of a row-major matrix is, by columns, an upper one of its transpose,
and so is the factor. A matrix that is not positive definite becomes NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.matrices import (
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_U,
    NAN,
    fill_words,
    lapack_words,
    memset,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store_i32,
    store_u8,
)

POTRF: Final = FUNCTIONS
MATRIX: Final = FUNCTIONS + 8
SIZE: Final = FUNCTIONS + 16


@native
def cholesky_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    n = load(arguments + SIZE)
    step = n * n * load(arguments + ITEM_BYTES)
    for item in range(begin, end):
        cholesky_matrix(arguments, load(arguments + MATRIX) + item * step, n)
    return 0


@native
def cholesky_matrix(arguments: int, matrix: int, n: int) -> int:
    """Factor one matrix in place; zeros above its diagonal."""
    size = load(arguments + ITEM_BYTES)
    ints = stack(1)
    letters = stack(1)
    store_u8(letters, LETTER_U)
    store_i32(ints, n)
    call(load(arguments + POTRF), letters, ints, matrix, ints, ints + 4)
    if load_i32(ints + 4) != 0:
        fill_words(matrix, n * n * size, load(arguments + NAN))
        return 0
    for row in range(n - 1):
        memset(matrix + (row * n + row + 1) * size, 0, (n - row - 1) * size)
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    return lapack_words(dtype, "?potrf")


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices, by NumPy."""
    n = int(given["n"])
    matrices = given["a"].array((items, n, n))
    for matrix in matrices:
        try:
            matrix[...] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            matrix[...] = np.nan


PROVIDERS: Final = {"potrf": Provider(cholesky_run, words, unjitted, uses_blas=True)}
