"""Real symmetric matrices made tridiagonal: LAPACK's sytrd, shared by threads.

Dongarra, Sorensen and Hammarling, Block reduction of matrices to condensed forms for
eigenvalue computations (1989): the columns of a panel are brought up to date one by
one, what is left of the matrix at its end. Only lower triangles are read, of matrices
that lie by columns.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    copy_real,
    least,
    memcpy,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import (
    MINUS_HALF,
    MINUS_ONE,
    ONE,
    PARTS,
    SIZE,
    gemm_transposed,
    gemv,
    make_reflection,
    scale,
    share,
    symmetric_product,
)
from arrayfn.backends.native import address_of, load, native, stack, store

PANEL: Final = 32
CHUNK: Final = 128  # columns that a thread brings up to date at once

# Byte offsets into what the routines are told.
TOOLS: Final = 0
A: Final = 8
EXTENT: Final = 16
PAIRS: Final = 24  # workspace [n, 2 PANEL]: columns v, w, v, w ..., which A is to be
TURNED: Final = 32  # less (v w^T + w v^T) of; and w, v, w, v ...
SUMS: Final = 40  # [n, PARTS]
SMALL: Final = 48  # [2 PANEL]
DIAGONAL: Final = 56
SIDES: Final = 64
TAUS: Final = 72
START: Final = 80
TOLD_WORDS: Final = 11


@native
def tridiagonal_panels(
    tools: int, n: int, a: int, work: int, diagonal: int, sides: int, taus: int
) -> int:
    """Reduce all columns but up to twice ``PANEL``; how many are done.

    Workspace is for (4 ``PANEL`` + ``PARTS``) n + 2 ``PANEL`` numbers.
    """
    told = stack(TOLD_WORDS)
    size = load(tools + SIZE)
    store(told + TOOLS, tools)
    store(told + A, a)
    store(told + EXTENT, n)
    store(told + PAIRS, work)
    store(told + TURNED, work + 2 * PANEL * n * size)
    store(told + SUMS, work + 4 * PANEL * n * size)
    store(told + SMALL, work + (4 * PANEL + PARTS) * n * size)
    store(told + DIAGONAL, diagonal)
    store(told + SIDES, sides)
    store(told + TAUS, taus)
    start = 0
    while n - start > 2 * PANEL:
        store(told + START, start)
        for k in range(PANEL):
            reduce_symmetric(told, start, k)
        chunks = (n - start - PANEL + CHUNK - 1) // CHUNK
        share(tools, address_of(bring_triangle_up_run), told, chunks)
        start += PANEL
    return start


@native
def reduce_symmetric(told: int, start: int, k: int) -> int:
    """Bring column ``start + k`` up to date and reflect it below its diagonal."""
    tools = load(told + TOOLS)
    size = load(tools + SIZE)
    n = load(told + EXTENT)
    i = start + k
    column = load(told + A) + (i * n + i) * size
    pairs = load(told + PAIRS) + i * size
    turned = load(told + TURNED) + i * size
    small = load(told + SMALL)
    less = tools + MINUS_ONE
    gemv(tools, 0, n - i, 2 * k, less, pairs, n, turned, n, column)
    copy_real(load(told + DIAGONAL) + i * size, column, size)
    v = column + size
    tau = load(told + TAUS) + i * size
    rest = n - i - 1
    make_reflection(tools, rest, v, v + size, tau)
    copy_real(load(told + SIDES) + i * size, v, size)
    copy_real(v, tools + ONE, size)
    pairs += size
    turned += size
    own = 2 * k * n * size
    other = own + n * size
    made = pairs + other
    ones = stack(PARTS)
    for part in range(PARTS):
        copy_real(ones + part * size, tools + ONE, size)
    corner = v + n * size
    sums = load(told + SUMS)
    symmetric_product(tools, rest, corner, n, v, made, sums, ones)
    memset(small, 0, 2 * k * size)
    gemv(tools, 1, rest, 2 * k, tools + ONE, pairs, n, v, 1, small)
    gemv(tools, 0, rest, 2 * k, less, turned, n, small, 1, made)
    scale(tools, rest, tau, made)
    # made - tau (made . v) v / 2
    memset(small, 0, size)
    gemv(tools, 1, rest, 1, tools + MINUS_HALF, made, n, v, 1, small)
    scale(tools, 1, tau, small)
    gemv(tools, 0, rest, 1, tools + ONE, v, n, small, 1, made)
    memcpy(pairs + own, v, rest * size)
    memcpy(turned + own, made, rest * size)
    memcpy(turned + other, v, rest * size)
    return 0


@native
def bring_triangle_up_run(told: int, begin: int, end: int) -> int:
    """Chunks of columns after a panel, from their diagonals on."""
    tools = load(told + TOOLS)
    size = load(tools + SIZE)
    n = load(told + EXTENT)
    start = load(told + START)
    for item in range(begin, end):
        first = start + PANEL + item * CHUNK
        count = least(CHUNK, n - first)
        corner = load(told + A) + (first * n + first) * size
        pairs = load(told + PAIRS) + first * size
        turned = load(told + TURNED) + first * size
        gemm_transposed(
            tools, n - first, count, 2 * PANEL, pairs, n, turned, n, corner, n
        )
    return 0
