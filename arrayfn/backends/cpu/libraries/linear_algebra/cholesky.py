"""Cholesky factorizations: LAPACK's potrf over row-major matrices, in place.

The lower triangle of a row-major matrix is, by columns, an upper one of its transpose,
and so is the factor. A matrix that is not positive definite, or not finite, becomes
NaN.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import Blas
from arrayfn.backends.cpu.libraries.linear_algebra import small_matrices
from arrayfn.backends.cpu.libraries.linear_algebra.calls import (
    CALL_BYTES,
    CALLS,
    ITEM_BYTES,
    NAN,
    REAL_BYTES,
    fields,
    lapack,
    lapack_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    all_finite,
    fill_words,
    least,
    memset,
    small_address,
)
from arrayfn.backends.cpu.libraries.linear_algebra.references import by_reference
from arrayfn.backends.cpu.libraries.linear_algebra.small_matrices import LIMIT
from arrayfn.backends.cpu.libraries.linear_algebra.threads import with_large
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import LANES, call, load, native, stack, store
from arrayfn.primitives import linalg_triangular

SMALL: Final = CALLS + CALL_BYTES
PLACES: Final = fields(1, "a", "n", more=1)
MATRIX: Final = PLACES["a"]
SIZE: Final = PLACES["n"]


@native
def cholesky_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    step = n * n * size
    own = stack(1)
    if n <= LIMIT and load(arguments + SMALL):
        return small_choleskys(arguments, begin, end)
    for item in range(begin, end):
        matrix = load(arguments + MATRIX) + item * step
        store(own, matrix)
        failed = lapack(arguments, CALLS, own)
        # Some versions go on from a pivot of NaN, which spreads to the last.
        last = matrix + (n * n - 1) * size
        if failed or not all_finite(last, size, load(arguments + REAL_BYTES)):
            fill_words(matrix, step, load(arguments + NAN))
        else:
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


def words(dtype: str, library: Blas | None = None) -> tuple[int, ...]:
    """The words before the arguments."""
    text = "?potrf U &n $0 &n info"
    small = small_address(small_matrices.small_cholesky, dtype)
    return *lapack_words(dtype, PLACES, text, library=library), small


PROVIDERS: Final = with_large(
    "potrf",
    Provider(
        cholesky_run,
        words,
        by_reference(linalg_triangular.cholesky, "a", ("n", "n"), "a"),
        uses_blas=True,
    ),
    words,
)
