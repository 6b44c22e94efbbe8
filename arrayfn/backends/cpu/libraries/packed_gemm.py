"""Matrix products by micro-kernels, on processors with vectors of 512 bits.

A work item is one tile of the output (``lowering.libraries.packed_products``). It is
computed for ``PANEL_TERMS`` terms of its sums at a time. First the columns of ``b`` are
packed into panels, which stay in the level-2 cache. Then a few rows of ``a`` at a time
are packed, stay in the level-1 cache, and are multiplied by all panels of ``b`` (Goto
and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 2008).

An element is the sum of blocks of ``PANEL_TERMS`` terms, each a chain of fused
multiply-adds in order: its bits follow from ``k`` alone, neither from tiles nor from
vectors.
"""

from __future__ import annotations

from typing import Any, Final

from arrayfn.backends.cpu.libraries.foreign import (
    Array,
    Constant,
    Real,
    multiply_panels,
    transpose_block,
)
from arrayfn.backends.cpu.libraries.gemm import unjitted
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import copy
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.libraries.packed_products import (
    ITEM_SIZES,
    PANEL_ROWS,
    PANEL_STRIDE,
    PANEL_TERMS,
    PANEL_VECTORS,
    TILE_LANES,
    VECTOR_BYTES,
)
from arrayfn.lowering.scalars import max_i64, min_i64


def packed_tiles(
    lanes: Constant,
    a: Array[Real],
    b: Array[Real],
    c: Array[Real],
    packed: Array[Real],
    m: int,
    n: int,
    k: int,
    lda: int,
    ldb: int,
    ldc: int,
    transpose_a: int,
    transpose_b: int,
    batch: int,
    batch_stride_a: int,
    batch_stride_b: int,
    batch_stride_c: int,
    tile_m: int,
    tile_n: int,
    begin: int,
    end: int,
) -> None:
    """Compute tiles of ``c = a b``, for each of ``batch`` matrices.

    A vector has ``lanes`` elements. ``packed`` is scratch memory of
    ``packed_elements``. The other parameters are those of ``gemm.gemm_tiles``.
    """
    rows = (m + tile_m - 1) // tile_m
    columns = (n + tile_n - 1) // tile_n
    for item in range(begin, end):
        # Items are numbered by matrix, row of tiles and column of tiles. ``row`` and
        # ``column`` are the tile's first row and column.
        problem = item // (rows * columns)
        row = item // columns % rows * tile_m
        column = item % columns * tile_n
        own_m, own_n = min_i64(m - row, tile_m), min_i64(n - column, tile_n)
        a_offset = row if transpose_a != 0 else row * lda
        b_offset = column * ldb if transpose_b != 0 else column
        own_a = a + (problem * batch_stride_a + a_offset)
        own_b = b + (problem * batch_stride_b + b_offset)
        own_c = c + (problem * batch_stride_c + row * ldc + column)
        # The last argument, 0, means that the product is not added to ``own_c``.
        multiply_packed(
            lanes, own_a, own_b, own_c, packed, own_m, own_n, k, lda, ldb, ldc,
            transpose_a, transpose_b, 0,  # 0: c is overwritten, not added to
        )  # fmt: skip


def multiply_packed(
    lanes: int,
    a: Array[Any],
    b: Array[Any],
    c: Array[Any],
    packed: Array[Any],
    m: int,
    n: int,
    k: int,
    lda: int,
    ldb: int,
    ldc: int,
    transpose_a: int,
    transpose_b: int,
    is_added: int,
) -> None:
    """Compute ``c = a b``, or ``c += a b`` if ``is_added`` is not 0, for one tile.

    Loops, from the outermost in: columns of ``b`` that fit in the level-2 cache, blocks
    of ``PANEL_TERMS`` terms, ``lanes`` rows of ``a``, ``PANEL_ROWS`` of these rows,
    panels of ``b``.

    A vector has ``lanes`` elements. ``packed`` is scratch memory of
    ``packed_elements``: first the packed rows of ``a``, then the panels of ``b``. The
    other parameters are those of ``gemm.multiply``.
    """
    panel_columns = PANEL_VECTORS * lanes
    panel_elements = panel_columns * PANEL_TERMS
    most_columns = TILE_LANES * lanes
    right = packed + lanes * PANEL_STRIDE
    for column in range(0, n, most_columns):
        own_n = min_i64(n - column, most_columns)
        panels = (own_n + panel_columns - 1) // panel_columns
        own_b = b + (column * ldb if transpose_b != 0 else column)
        for first in range(0, k, PANEL_TERMS):
            terms = min_i64(k - first, PANEL_TERMS)
            if transpose_b != 0:
                pack_transposed_columns(lanes, right, own_b + first, terms, own_n, ldb)
            else:
                pack_columns(
                    panel_columns, right, own_b + first * ldb, terms, own_n, ldb
                )
            for start in range(0, m, lanes):
                count = min_i64(m - start, lanes)
                if transpose_a != 0:
                    source = a + (first * lda + start)
                    pack_transposed_rows(lanes, packed, source, terms, count, lda)
                else:
                    source = a + (start * lda + first)
                    for j in range(count):
                        copy(packed + j * PANEL_STRIDE, source + j * lda, terms)
                for j in range(0, count, PANEL_ROWS):
                    target = c + ((start + j) * ldc + column)
                    for panel in range(panels):
                        before = panel * panel_columns
                        # ``first + is_added`` is 0 only for the first terms of a new
                        # result: later blocks of terms are added to it.
                        multiply_panels(
                            packed + j * PANEL_STRIDE, right + panel * panel_elements,
                            target + before, ldc, terms, count - j, own_n - before,
                            first + is_added,
                        )  # fmt: skip


def pack_columns(
    panel_columns: int,
    target: Array[Any],
    b: Array[Any],
    terms: int,
    n: int,
    ldb: int,
) -> None:
    """Pack ``terms`` rows of ``b``, of ``n`` columns, into panels of ``panel_columns``.

    Rows of ``b`` are ``ldb`` elements apart. A panel has room for ``PANEL_TERMS`` rows,
    one after the other. The last panel may have fewer columns than room.
    """
    whole = n // panel_columns
    rest = n - whole * panel_columns
    for term in range(terms):
        for panel in range(whole):
            own = target + (panel * PANEL_TERMS + term) * panel_columns
            copy(own, b + (term * ldb + panel * panel_columns), panel_columns)
        own = target + (whole * PANEL_TERMS + term) * panel_columns
        copy(own, b + (term * ldb + whole * panel_columns), rest)


def pack_transposed_columns(
    lanes: int, target: Array[Any], b: Array[Any], terms: int, n: int, ldb: int
) -> None:
    """Pack a transposed ``b`` into panels, as ``pack_columns`` does.

    Rows of ``b``, of which there are ``n``, are ``ldb`` elements apart. Square blocks
    of ``lanes`` rows and columns are transposed in registers.
    """
    panel_columns = PANEL_VECTORS * lanes
    for column in range(0, n, lanes):
        panel = column // panel_columns
        # Panel p begins at p * PANEL_TERMS * panel_columns, with column
        # p * panel_columns of ``b``: that many elements less lie before ``column``.
        own = target + (panel * (PANEL_TERMS - 1) * panel_columns + column)
        for term in range(0, terms, lanes):
            transpose_block(
                own + term * panel_columns, panel_columns, b + (column * ldb + term),
                ldb, n - column, terms - term,
            )  # fmt: skip


def pack_transposed_rows(
    lanes: int, target: Array[Any], a: Array[Any], terms: int, m: int, lda: int
) -> None:
    """Copy ``m`` columns of ``a``, of ``terms`` elements, to rows of ``target``.

    There are at most ``lanes`` columns. Rows of ``a`` are ``lda`` elements apart, those
    of ``target`` ``PANEL_STRIDE``. Square blocks are transposed in registers.
    """
    for term in range(0, terms, lanes):
        transpose_block(
            target + term, PANEL_STRIDE, a + term * lda, lda, terms - term, m
        )


def packed_elements(lanes: int, columns: int) -> int:
    """Return the elements of scratch memory for a product of ``columns`` columns.

    They hold ``lanes`` rows of ``a`` and the panels of ``b``. Without micro-kernels,
    for which ``lanes`` is 0, the result is 0.
    """
    panel_columns = PANEL_VECTORS * lanes
    # Rounded up to whole panels by the division below.
    own = min_i64(columns + panel_columns - 1, TILE_LANES * lanes)
    return lanes * PANEL_STRIDE + own // max_i64(panel_columns, 1) * (
        panel_columns * PANEL_TERMS
    )


def lanes_of(dtype: str) -> int:
    """Return how many elements of ``dtype``, such as "f32", a vector has.

    Raises KeyError if there are no micro-kernels for the dtype.
    """
    return VECTOR_BYTES // ITEM_SIZES[f"gemm_{dtype}"]


PROVIDERS: Final = {
    "gemm_packed": Provider(packed_tiles, lambda dtype: (lanes_of(dtype),), unjitted)
}
