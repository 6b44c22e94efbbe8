"""Matrix products by micro-kernels, on processors with vectors of 512 bits.

A work item is one tile of the output (``lowering.packed_products``). The tile is
computed for ``panel_terms`` terms of its sums at a time: the columns of ``b`` are
packed into panels that stay in the level-2 cache, then the rows of ``a``, one panel
after the other, which stays in the level-1 cache and is multiplied by all panels of
``b`` (Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM
TOMS 2008).

An element is the sum of blocks of ``panel_terms`` terms, each a chain of fused
multiply-adds in order: its bits follow from ``k`` alone, neither from tiles nor from
vectors.
"""

from __future__ import annotations

from typing import Final

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
from arrayfn.lowering.packed_products import (
    ITEM_SIZES,
    PANEL_ROWS,
    PANEL_STRIDE,
    PANEL_TERMS,
    PANEL_VECTORS,
    VECTOR_BYTES,
    left_elements,
)
from arrayfn.lowering.scalars import min_i64


def packed_tiles(
    lanes: Constant,
    panel_rows: Constant,
    panel_columns: Constant,
    panel_terms: Constant,
    panel_stride: Constant,
    left: Constant,
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

    The parameters from ``a`` on are those of ``gemm.gemm_tiles``, and ``packed``, the
    scratch memory: the panel of ``a`` has its first ``left`` elements, those of ``b``
    the rest. A vector has ``lanes``. Panels have ``panel_rows`` rows of ``a``,
    ``panel_stride`` elements apart, or ``panel_columns`` columns of ``b``, and
    ``panel_terms`` terms.
    """
    rows = (m + tile_m - 1) // tile_m
    columns = (n + tile_n - 1) // tile_n
    right = packed + left
    for item in range(begin, end):
        problem = item // (rows * columns)
        row = item // columns % rows * tile_m
        column = item % columns * tile_n
        own_m, own_n = min_i64(m - row, tile_m), min_i64(n - column, tile_n)
        own_a = a + (problem * batch_stride_a + row * (1 if transpose_a != 0 else lda))
        own_b = b + (
            problem * batch_stride_b + column * (ldb if transpose_b != 0 else 1)
        )
        own_c = c + (problem * batch_stride_c + row * ldc + column)
        panels = (own_n + panel_columns - 1) // panel_columns
        panel_elements = panel_columns * panel_terms
        for first in range(0, k, panel_terms):
            terms = min_i64(k - first, panel_terms)
            if transpose_b != 0:
                pack_transposed_columns(
                    lanes, panel_columns, panel_terms, right, own_b + first, terms,
                    own_n, ldb,
                )  # fmt: skip
            else:
                pack_columns(
                    panel_columns, panel_terms, right, own_b + first * ldb, terms,
                    own_n, ldb,
                )  # fmt: skip
            for start in range(0, own_m, lanes):
                count = min_i64(own_m - start, lanes)
                if transpose_a != 0:
                    pack_transposed_rows(
                        lanes, panel_stride, packed, own_a + (first * lda + start),
                        terms, count, lda,
                    )  # fmt: skip
                else:
                    source = own_a + (start * lda + first)
                    for j in range(count):
                        copy(packed + j * panel_stride, source + j * lda, terms)
                for j in range(0, count, panel_rows):
                    target = own_c + (start + j) * ldc
                    for panel in range(panels):
                        before = panel * panel_columns
                        multiply_panels(
                            packed + j * panel_stride,
                            right + panel * panel_elements, target + before, ldc,
                            terms, count - j, own_n - before, first,
                        )  # fmt: skip


def pack_columns(
    panel_columns: int,
    panel_terms: int,
    target: Array[Real],
    b: Array[Real],
    terms: int,
    n: int,
    ldb: int,
) -> None:
    """Copy ``terms`` rows of ``b``, of ``n`` columns, to panels of ``panel_columns``.

    Rows of ``b`` are ``ldb`` elements apart, panels have room for ``panel_terms`` rows.
    """
    whole = n // panel_columns
    rest = n - whole * panel_columns
    for term in range(terms):
        for panel in range(whole):
            own = target + (panel * panel_terms + term) * panel_columns
            copy(own, b + (term * ldb + panel * panel_columns), panel_columns)
        own = target + (whole * panel_terms + term) * panel_columns
        copy(own, b + (term * ldb + whole * panel_columns), rest)


def pack_transposed_columns(
    lanes: int,
    panel_columns: int,
    panel_terms: int,
    target: Array[Real],
    b: Array[Real],
    terms: int,
    n: int,
    ldb: int,
) -> None:
    """Pack a transposed ``b`` as ``pack_columns`` does, by vectors of ``lanes``."""
    for column in range(0, n, lanes):
        panel = column // panel_columns
        own = target + (
            panel * panel_terms * panel_columns + column - panel * panel_columns
        )
        for term in range(0, terms, lanes):
            transpose_block(
                own + term * panel_columns, panel_columns, b + (column * ldb + term),
                ldb, n - column, terms - term,
            )  # fmt: skip


def pack_transposed_rows(
    lanes: int,
    panel_stride: int,
    target: Array[Real],
    a: Array[Real],
    terms: int,
    m: int,
    lda: int,
) -> None:
    """Copy ``m`` columns of ``a``, of ``terms`` elements, to rows of ``target``.

    They are no more than ``lanes``. Rows of ``a`` are ``lda`` elements apart, those of
    the target ``panel_stride``.
    """
    for term in range(0, terms, lanes):
        transpose_block(
            target + term, panel_stride, a + term * lda, lda, terms - term, m
        )


def leading_arguments(dtype: str) -> tuple[int, ...]:
    """The sizes of vectors and panels for a dtype; KeyError if there are none."""
    size = ITEM_SIZES[f"gemm_{dtype}"]
    lanes = VECTOR_BYTES // size
    columns = PANEL_VECTORS * lanes
    left = left_elements(size)
    return lanes, PANEL_ROWS, columns, PANEL_TERMS, PANEL_STRIDE, left


PROVIDERS: Final = {"gemm_packed": Provider(packed_tiles, leading_arguments, unjitted)}
