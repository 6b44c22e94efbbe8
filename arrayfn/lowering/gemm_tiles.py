"""How a GEMM is cut into tiles: the work items of its library kernel.

Each tile is one single-threaded BLAS call, and a BLAS rounds differently where a tile
ends. So tiles follow from the problem only: results have the same bits for every
number of threads and cores. There are enough of them for machines of many cores, which
share them out while they run, and few enough that BLAS still packs each operand into a
tile at little cost.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from arrayfn.dtypes import DType
from arrayfn.records import frozen

PROVIDERS: Final[dict[DType, str]] = {
    np.dtype(np.float32): "gemm_f32",
    np.dtype(np.float64): "gemm_f64",
    np.dtype(np.complex64): "gemm_c64",
    np.dtype(np.complex128): "gemm_c128",
}

MAX_TILES: Final = 64  # of all products of a batch
TILE_WORK: Final = 1 << 19  # multiply-adds that are worth a tile of their own
TILES: Final = 16  # of a product whose tiles have these numbers of elements
ELEMENTS: Final = 1 << 14, 1 << 18
MORE_PACKING: Final = 1.5  # in tiles with fewer elements, relative to one tile
ROWS_PER_COLUMN: Final = 4  # of tiles that BLAS is fastest on
TILE_MULTIPLE: Final = 16  # rows or columns: whole micro-kernels of BLAS
FEWEST_COLUMNS: Final = 64  # of a tile
VECTOR_COLUMNS: Final = 512  # of a row vector's tile: fewer are read slowly
SKINNY: Final = 8  # rows
SMALL_WORK: Final = 10**6  # multiply-adds that OpenBLAS does without packing
SMALL_COLUMNS: Final = 64  # of a tile without packing, a multiple of this
CALL_NS: Final = 100.0  # of a BLAS call, however small
WORK_NS: Final = 0.02  # of a multiply-add in a small tile
GRAIN_NS: Final = 5000.0  # work worth giving to a thread


@frozen(slots=True)
class GemmTiles:
    """Tiles of ``tile_m`` by ``tile_n``, ``items`` in all, in batch-major order.

    ``grain`` is the smallest number of tiles worth giving to a thread.
    """

    items: int
    tile_m: int
    tile_n: int
    grain: int


def gemm_tiles(m: int, n: int, k: int, batch: int, dtype: DType) -> GemmTiles:
    """Cut ``batch`` products of matrices ``[m, k]`` and ``[k, n]`` into tiles.

    Measured with OpenBLAS 0.3.31, one thread, AVX-512, float32: 231 GFLOP/s for a
    product of 1024 whole, 206 in these tiles, 176 in 64 tiles; for one of 256 whole
    249, in these tiles 220.

    >>> gemm_tiles(1024, 1024, 1024, 1, np.dtype(np.float32))
    GemmTiles(items=16, tile_m=512, tile_n=128, grain=1)
    >>> gemm_tiles(8, 8, 8, 100, np.dtype(np.float32))
    GemmTiles(items=100, tile_m=8, tile_n=8, grain=46)
    """
    weight = 4 if dtype.kind == "c" else 1
    work = max(1, m * n * k * weight)
    max_tiles = max(1, min(-(-MAX_TILES // max(1, batch)), work // TILE_WORK))
    tile_m, tile_n = _split(max(1, m), max(1, n), max_tiles)
    if m == 1:
        tile_n = max(tile_n, min(n, VECTOR_COLUMNS))
    elif m <= SKINNY:
        # Packing would take up to three times as long as multiplying.
        columns = SMALL_WORK // max(1, m * k) // SMALL_COLUMNS * SMALL_COLUMNS
        tile_n = min(tile_n, columns or tile_n)
    items = batch * _tiles(m, tile_m) * _tiles(n, tile_n)
    tile_ns = CALL_NS + WORK_NS * tile_m * tile_n * k * weight
    return GemmTiles(items, tile_m, tile_n, math.ceil(GRAIN_NS / tile_ns))


def _split(m: int, n: int, max_tiles: int) -> tuple[int, int]:
    """Choose the rows and columns of a tile of an ``m`` by ``n`` result.

    There are at most ``max_tiles`` equal tiles. The result is halved along its longer
    side again and again, as long as tiles stay large enough: BLAS packs ``1 / tile_m +
    1 / tile_n`` elements for each multiply-add. These tiles are 4 to 12 % slower on one
    thread than the whole product.
    """
    packing = MORE_PACKING * (1 / m + 1 / n)
    low, high = ELEMENTS
    elements = min(high, max(low, m * n // TILES))
    rows = columns = 1
    tile = m, n
    while 2 * rows * columns <= max_tiles:
        if m // rows >= ROWS_PER_COLUMN * (n // columns):
            rows *= 2
        else:
            columns *= 2
        smaller = _tile(m, rows), _tile(n, columns)
        if smaller[1] < min(n // 2, FEWEST_COLUMNS) or (
            smaller[0] * smaller[1] < elements
            and 1 / smaller[0] + 1 / smaller[1] > packing
        ):
            break
        tile = smaller
    return tile


def _tile(extent: int, parts: int) -> int:
    """Return the extent of a tile where an axis of ``extent`` is cut in ``parts``.

    It is rounded up to a multiple of ``TILE_MULTIPLE``, unless there is one part.
    """
    if parts == 1:
        return max(1, extent)
    size = -(-extent // parts)
    return -(-size // TILE_MULTIPLE) * TILE_MULTIPLE


def _tiles(extent: int, tile: int) -> int:
    """Return the number of tiles along an axis."""
    return -(-extent // tile)
